// What --stats measures inside a model: moments of its activations, layer by layer, and how much of
// the attention's mass its sink takes.
//
// A model offers this as ModelType.statistics: a forward pass without dropout that adds to these
// places, over all batches that it is given.
//
//   residual          (B, T, C) the residual stream that enters layer l; of layer L: what leaves
//   the last one attention         (B, T, C) what attention adds to it in layer l, projection and
//   bias included residual_middle   (B, T, C) their sum, which enters the feed-forward network ffn
//   (B, T, C) what that adds attention_weights the weights (b, h, i, j) over all j that i sees; a
//   model whose attention is
//                     several poolings has one place for each, NAME_weights
//   NAME_scores       what weights are made of; with a bound (additive and rescaled scores: s;
//   cosines: 1) as a part of it
//
// The first four go through statistics_add, weights that are exponentials over their sum through
// measurement_add_weights, row by row, scores through measurement_add_scores; others (cosine)
// through measurement_add_quotients. Padding is left out everywhere. Threads have measurements of
// parts that are known beforehand, which are put together in order: so the numbers do not depend on
// the threads.
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
    double sink_share; // sum over these rows of the sink's part in the denominator
    int64_t rows;      // of weights of any kind
    double entropy;    // sum over these rows of the entropy of |w| / sum |w|, in nats
    int64_t scores;    // parts of their bound, of which
    int64_t saturated; // are beyond nine tenths of it
    double *weights;   // (heads, keys) what the query of Statistics.keeps drew on, 0 where it could
                       // not; NULL: none are kept
    size_t heads, keys;
    double *row; // where the weights that come next are kept; NULL: they are not
} Measurement;

typedef struct {
    Measurement **items; // (count) in the order in which they first came
    size_t count;
    bool keeps;   // the weights of one query, and measures those alone:
    size_t query; // its position in the first sequence,
    size_t first; // of the layers from this one on
} Statistics;

// Places of a layer, for the models of all devices: FFN and residual stream; of self- and
// cross-attention (4) what it adds, the stream after that, its weights and their scores; of
// additive attention in windows, in this order.
#define FFN_PLACE "ffn"
#define RESIDUAL_PLACE "residual"
extern const char *const self_attention_places[4], *const cross_attention_places[4];
enum {
    QUERY_SCORES,
    KEY_SCORES,
    QUERY_WEIGHTS,
    KEY_WEIGHTS,
    ADDITIVE_OUTPUT, // where it joins the residual stream as it is
    ADDITIVE_PLACES
};
extern const char *const additive_places[ADDITIVE_PLACES];

// The measurement of a place, a new one if it has not come before. `place` must outlive the
// statistics.
Measurement *statistics_find(Statistics *s, size_t layer, const char *place);
void statistics_free(Statistics *s);

// Adds values (tokens, columns), but for those where the mask (tokens) is 0; mask NULL: all. Does
// nothing where s is NULL, so that a forward pass can be the same with and without.
void statistics_add(Statistics *s, size_t layer, const char *place, const real *values,
                    const uint8_t *mask, size_t tokens, size_t columns);
void measurement_add(Measurement *m, const real *values, const uint8_t *mask, size_t tokens,
                     size_t columns);

// Makes room for the weights of so many heads, if the statistics keep them: (heads, keys), else
// NULL.
double *statistics_keep(const Statistics *s, Measurement *m, size_t heads, size_t keys);

// All that are kept: [{"layer": 0, "place": "query_weights", "heads": [[0.5, ...], ...]}, ...].
void statistics_weights_to_json(const Statistics *s, JsonWriter *w);

// As if m had been given what `other` was given as well.
void measurement_merge(Measurement *m, const Measurement *other);

// Adds x_j / divisor (count), but for those where the mask (count, or NULL: all) is 0.
void measurement_add_quotients(Measurement *m, const real *x, const uint8_t *mask, size_t count,
                               double divisor);

// Adds the weights e_j / (sum of e + sink) of one row of attention, from e (count), over the j
// where the mask (count, or NULL: all) is not 0. e and sink may be scaled by a common factor, such
// as exp(-maximum). A row without such j is left out.
void measurement_add_weights(Measurement *m, const real *e, const uint8_t *mask, size_t count,
                             double sink);

// Adds scores (count) as parts of their bound, or as they are where that is 0, as they have none;
// but for those where the mask (count, or NULL: all) is 0.
void measurement_add_scores(Measurement *m, const real *scores, double bound, const uint8_t *mask,
                            size_t count);

// The share of scores beyond nine tenths of their bound; NaN: these are no scores.
double measurement_saturated_share(const Measurement *m);

// The entropy of a row of weights, averaged over rows; NaN: these are no weights.
double measurement_entropy(const Measurement *m);

// The sink's share of the mass, averaged over rows; NaN: there is none.
double measurement_sink_share(const Measurement *m);

// Members "layer", "place", those of moments_to_json and, for weights "entropy", for those with a
// sink in the denominator "sink_share", for scores that have a bound "saturated_share".
void measurement_to_json(const Measurement *m, JsonWriter *w);

// The table: its first line, and a line for each measurement (fresh memory).
const char *statistics_heading(void);
char *measurement_line(const Measurement *m);

#endif
