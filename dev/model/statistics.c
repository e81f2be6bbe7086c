#include "statistics.h"
#include "memory.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const self_attention_places[4] = {"attention", "residual_middle", "attention_weights",
                                              "attention_scores"};
const char *const cross_attention_places[4] = {"cross_attention", "residual_cross",
                                               "cross_attention_weights", "cross_attention_scores"};
const char *const additive_places[ADDITIVE_PLACES] = {
    [QUERY_SCORES] = "query_scores",   [KEY_SCORES] = "key_scores",
    [QUERY_WEIGHTS] = "query_weights", [KEY_WEIGHTS] = "key_weights",
    [ADDITIVE_OUTPUT] = "attention",
};

Measurement *statistics_find(Statistics *s, size_t layer, const char *place) {
    for (size_t i = 0; i < s->count; i++)
        if (s->items[i]->layer == layer && strcmp(s->items[i]->place, place) == 0)
            return s->items[i];
    s->items = grow_list(s->items, s->count, sizeof(Measurement *), "statistics");
    Measurement *m = allocate(1, sizeof(Measurement), "statistics");
    *m = (Measurement){.layer = layer, .place = place};
    s->items[s->count++] = m;
    return m;
}

void statistics_free(Statistics *s) {
    for (size_t i = 0; i < s->count; i++) {
        free(s->items[i]->weights);
        free(s->items[i]);
    }
    free(s->items);
    *s = (Statistics){0};
}

void measurement_add(Measurement *m, const real *values, const uint8_t *mask, size_t tokens,
                     size_t columns) {
    if (!mask) moments_add_real(&m->values, values, tokens * columns);
    for (size_t i = 0; mask && i < tokens; i++)
        if (mask[i]) moments_add_real(&m->values, values + i * columns, columns);
}

void statistics_add(Statistics *s, size_t layer, const char *place, const real *values,
                    const uint8_t *mask, size_t tokens, size_t columns) {
    if (s) measurement_add(statistics_find(s, layer, place), values, mask, tokens, columns);
}

double *statistics_keep(const Statistics *s, Measurement *m, size_t heads, size_t keys) {
    if (!s->keeps || m->layer < s->first) return NULL;
    free(m->weights);
    m->weights = allocate(heads * keys, sizeof(double), "statistics");
    m->heads = heads;
    m->keys = keys;
    return m->weights;
}

void statistics_weights_to_json(const Statistics *s, JsonWriter *w) {
    json_begin(w, '[');
    for (size_t i = 0; i < s->count; i++) {
        const Measurement *m = s->items[i];
        if (!m->weights) continue;
        json_begin(w, '{');
        json_add_integer(w, "layer", (int64_t)m->layer);
        json_add_string(w, "place", m->place);
        json_open(w, "heads", '[');
        for (size_t h = 0; h < m->heads; h++) {
            json_begin(w, '[');
            for (size_t j = 0; j < m->keys; j++)
                json_write_number(w, (double)(float)m->weights[h * m->keys + j]);
            json_end(w, ']');
        }
        json_end(w, ']');
        json_end(w, '}');
    }
    json_end(w, ']');
}

void measurement_merge(Measurement *m, const Measurement *other) {
    moments_merge(&m->values, &other->values);
    m->queries += other->queries;
    m->rows += other->rows;
    m->entropy += other->entropy;
    m->sink_share += other->sink_share;
    m->scores += other->scores;
    m->saturated += other->saturated;
}

enum { BLOCK = 256 };

// Copies to `block` those of the numbers start .. start+BLOCK-1 (at most `count`) whose mask is not
// 0. Returns their number.
static size_t gather(double block[BLOCK], const real *x, const uint8_t *mask, size_t start,
                     size_t count) {
    const size_t n = count - start < BLOCK ? count - start : BLOCK;
    if (!mask) {
        for (size_t i = 0; i < n; i++) block[i] = (double)x[start + i];
        return n;
    }
    size_t used = 0;
    for (size_t i = start; i < start + n; i++)
        if (mask[i]) block[used++] = (double)x[i];
    return used;
}

void measurement_add_quotients(Measurement *m, const real *x, const uint8_t *mask, size_t count,
                               double divisor) {
    double block[BLOCK], sum = 0, logarithms = 0; // of |w|, of |w| log |w|
    for (size_t j = 0; m->row && j < count; j++)
        m->row[j] = !mask || mask[j] ? (double)x[j] / divisor : 0;
    for (size_t start = 0; start < count; start += BLOCK) {
        const size_t n = gather(block, x, mask, start, count);
        for (size_t i = 0; i < n; i++) {
            block[i] /= divisor;
            sum += fabs(block[i]);
            if (block[i] != 0) logarithms += fabs(block[i]) * log(fabs(block[i]));
        }
        moments_add(&m->values, block, n);
    }
    if (sum == 0) return;
    m->entropy += log(sum) - logarithms / sum;
    m->rows++;
}

void measurement_add_weights(Measurement *m, const real *e, const uint8_t *mask, size_t count,
                             double sink) {
    double block[BLOCK], sum = 0;
    for (size_t start = 0; start < count; start += BLOCK) {
        const size_t n = gather(block, e, mask, start, count);
#pragma omp simd reduction(+ : sum)
        for (size_t i = 0; i < n; i++) sum += block[i];
    }
    if (sum == 0) return;
    measurement_add_quotients(m, e, mask, count, sum + sink);
    m->sink_share += sink / (sum + sink);
    m->queries++;
}

void measurement_add_scores(Measurement *m, const real *scores, double bound, const uint8_t *mask,
                            size_t count) {
    double block[BLOCK];
    for (size_t start = 0; start < count; start += BLOCK) {
        const size_t n = gather(block, scores, mask, start, count);
        for (size_t i = 0; bound > 0 && i < n; i++) {
            block[i] /= bound;
            m->saturated += fabs(block[i]) > 0.9;
        }
        moments_add(&m->values, block, n);
        if (bound > 0) m->scores += (int64_t)n;
    }
}

double measurement_entropy(const Measurement *m) {
    return m->rows > 0 ? m->entropy / (double)m->rows : (double)NAN;
}

double measurement_saturated_share(const Measurement *m) {
    return m->scores > 0 ? (double)m->saturated / (double)m->scores : (double)NAN;
}

double measurement_sink_share(const Measurement *m) {
    return m->queries > 0 ? m->sink_share / (double)m->queries : (double)NAN;
}

void measurement_to_json(const Measurement *m, JsonWriter *w) {
    json_add_integer(w, "layer", (int64_t)m->layer);
    json_add_string(w, "place", m->place);
    moments_to_json(&m->values, w);
    if (m->rows > 0) json_add_number(w, "entropy", measurement_entropy(m));
    if (m->queries > 0) json_add_number(w, "sink_share", measurement_sink_share(m));
    if (m->scores > 0) json_add_number(w, "saturated_share", measurement_saturated_share(m));
}

const char *statistics_heading(void) {
    return "layer  place                   std   max |x|  max|x|/std   kurtosis  sink share  "
           "saturated    entropy";
}

char *measurement_line(const Measurement *m) {
    char deviation[32], largest[32], ratio[32], kurtosis[32], share[32], saturated[32], entropy[32];
    moments_format(moments_deviation(&m->values), "nan", deviation);
    moments_format(m->values.largest, "nan", largest);
    moments_format(moments_largest_deviation(&m->values), "-", ratio);
    moments_format(moments_kurtosis(&m->values), "-", kurtosis);
    moments_format(measurement_sink_share(m), m->queries > 0 ? "nan" : "", share);
    moments_format(measurement_saturated_share(m), "", saturated);
    moments_format(measurement_entropy(m), "", entropy);
    char *line = format_string("%5zu  %-17s %9s %9s %11s %10s  %10s  %9s %10s", m->layer, m->place,
                               deviation, largest, ratio, kurtosis, share, saturated, entropy);
    // Remove trailing spaces.
    for (size_t end = strlen(line); end > 0 && line[end - 1] == ' '; end--) line[end - 1] = '\0';
    return line;
}
