// --stats: moments of a model's activations, layer by layer, and the share of the attention weights
// that goes to the sink.
//
// ModelType.statistics is a forward pass without dropout that adds to these places, over all
// batches:
//
//   residual           (B, T, C) the input of layer l from the residual stream; layer L: the output
//                      of the last layer
//   attention          (B, T, C) the output of attention in layer l, with projection and bias
//   residual_middle    (B, T, C) the sum of both, which is the input of the feed-forward network
//   ffn                (B, T, C) the output of the feed-forward network
//   attention_weights  the weights (b, h, i, j) over all j that i sees; attention made of several
//                      poolings has one place for each, NAME_weights
//   NAME_scores        the scores that weights are computed from, divided by their bound, if any
//                      (additive and rescaled scores: s; cosines: 1)
//
// The first four use statistics_add(). Weights that are exponentials divided by their sum use
// measurement_add_weights(), row by row; other weights (cosine) use measurement_add_quotients();
// scores use measurement_add_scores(). Padding is excluded everywhere. Threads measure fixed parts,
// which are merged in order, so that the results do not depend on the number of threads.
#ifndef MODEL_STATISTICS_H
#define MODEL_STATISTICS_H

#include "json.h"
#include "moments.h"
#include "real.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    size_t layer;
    const char *place;
    Moments values;
    int64_t queries;   // rows of attention weights; 0: not weights, or weights without a sink
    double sink_share; // sum over these rows of the sink's share of the denominator
    int64_t rows;      // of weights of any kind
    double entropy;    // sum over these rows of the entropy of |w| / sum |w|, in nats
    int64_t scores;    // number of scores with a bound
    int64_t saturated; // number of these beyond 0.9 of their bound
    double *weights;   // (heads, keys) of the query that Statistics keeps, 0 for invisible keys;
                       // NULL: none
    size_t heads, keys;
    double *row; // destination of the next weights to keep; NULL: not kept
} Measurement;

typedef struct {
    Measurement **items; // (count) in the order of first use
    size_t count;
    bool keeps;   // keep and measure only the weights of one query:
    size_t query; // its position in the first sequence
    size_t first; // the first layer whose weights are kept
} Statistics;

// Places of a layer, for all devices: feed-forward network and residual stream; for self- and
// cross-attention (4): output, residual stream after it, weights, scores; for additive attention in
// windows: in the order of the enum.
#define FFN_PLACE "ffn"
#define RESIDUAL_PLACE "residual"
extern const char *const self_attention_places[4], *const cross_attention_places[4];
enum {
    QUERY_SCORES,
    KEY_SCORES,
    QUERY_WEIGHTS,
    KEY_WEIGHTS,
    ADDITIVE_OUTPUT, // if it is added to the residual stream without a projection
    ADDITIVE_PLACES
};
extern const char *const additive_places[ADDITIVE_PLACES];

// Returns the measurement of a place, which is created at its first use. `place` must outlive the
// statistics.
Measurement *statistics_find(Statistics *s, size_t layer, const char *place);
void statistics_free(Statistics *s);

// Adds values (tokens, columns), except rows where mask (tokens) is 0; mask NULL: all rows. Does
// nothing if s is NULL, so that a forward pass can call it unconditionally.
void statistics_add(Statistics *s, size_t layer, const char *place, const real *values,
                    const uint8_t *mask, size_t tokens, size_t columns);
void measurement_add(Measurement *m, const real *values, const uint8_t *mask, size_t tokens,
                     size_t columns);

// Allocates and returns m->weights (heads, keys) if the statistics keep them, else returns NULL.
double *statistics_keep(const Statistics *s, Measurement *m, size_t heads, size_t keys);

// Writes kept weights: [{"layer": 0, "place": "query_weights", "heads": [[0.5, ...], ...]}, ...].
void statistics_weights_to_json(const Statistics *s, JsonWriter *w);

// Merges `other` into m.
void measurement_merge(Measurement *m, const Measurement *other);

// Adds the weights x_j / divisor (count), except where mask (count, or NULL: all) is 0.
void measurement_add_quotients(Measurement *m, const real *x, const uint8_t *mask, size_t count,
                               double divisor);

// Adds the weights e_j / (sum of e + sink) of one row of attention, from e (count), over the j
// where mask (count, or NULL: all) is not 0. e and sink may have a common factor, such as
// exp(-maximum). A row without such j is ignored.
void measurement_add_weights(Measurement *m, const real *e, const uint8_t *mask, size_t count,
                             double sink);

// Adds scores (count), divided by their bound (0: no bound), except where mask (count, or NULL:
// all) is 0.
void measurement_add_scores(Measurement *m, const real *scores, double bound, const uint8_t *mask,
                            size_t count);

// Returns the share of scores beyond 0.9 of their bound; NaN: no scores.
double measurement_saturated_share(const Measurement *m);

// Returns the mean entropy of the rows of weights; NaN: no weights.
double measurement_entropy(const Measurement *m);

// Returns the sink's share of the denominator, averaged over rows; NaN: no sink.
double measurement_sink_share(const Measurement *m);

// Writes members "layer", "place", those of moments_to_json(), and "entropy" (weights),
// "sink_share" (weights with a sink), "saturated_share" (scores with a bound).
void measurement_to_json(const Measurement *m, JsonWriter *w);

// Return the table's heading and the line of a measurement (allocated).
const char *statistics_heading(void);
char *measurement_line(const Measurement *m);

#endif
