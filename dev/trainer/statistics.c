#include "statistics.h"
#include "memory.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

Measurement *statistics_find(Statistics *s, size_t layer, const char *place) {
    for (size_t i = 0; i < s->count; i++)
        if (s->items[i]->layer == layer && strcmp(s->items[i]->place, place) == 0) return s->items[i];
    Measurement **items = allocate(s->count + 1, sizeof(Measurement *), "statistics");
    if (s->count > 0) memcpy(items, s->items, s->count * sizeof(Measurement *));
    free(s->items);
    s->items = items;
    Measurement *m = allocate(1, sizeof(Measurement), "statistics");
    *m = (Measurement){.layer = layer, .place = place};
    s->items[s->count++] = m;
    return m;
}

void statistics_free(Statistics *s) {
    for (size_t i = 0; i < s->count; i++) free(s->items[i]);
    free(s->items);
    *s = (Statistics){0};
}

void statistics_add(Statistics *s, size_t layer, const char *place, const real *values, const uint8_t *mask,
                    size_t tokens, size_t columns) {
    if (!s) return;
    Moments *m = &statistics_find(s, layer, place)->values;
    if (!mask) moments_add_real(m, values, tokens * columns);
    for (size_t i = 0; mask && i < tokens; i++)
        if (mask[i]) moments_add_real(m, values + i * columns, columns);
}

void measurement_add_weights(Measurement *m, const real *e, const uint8_t *mask, size_t count, double sink) {
    enum { BLOCK = 256 };
    double block[BLOCK], sum = 0;
    size_t used = 0;
    for (size_t j = 0; j < count; j++) sum += mask && !mask[j] ? 0 : (double)e[j];
    if (sum == 0) return;
    for (size_t j = 0; j < count; j++) {
        if (mask && !mask[j]) continue;
        block[used++] = (double)e[j] / (sum + sink);
        if (used < BLOCK) continue;
        moments_add(&m->values, block, used);
        used = 0;
    }
    moments_add(&m->values, block, used);
    m->sink_share += sink / (sum + sink);
    m->queries++;
}

void measurement_add_scores(Measurement *m, const real *parts, const uint8_t *mask, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (mask && !mask[i]) continue;
        moments_add_real(&m->values, parts + i, 1);
        m->saturated += fabs((double)parts[i]) > 0.9;
        m->scores++;
    }
}

double measurement_saturated_share(const Measurement *m) {
    return m->scores > 0 ? (double)m->saturated / (double)m->scores : (double)NAN;
}

double measurement_sink_share(const Measurement *m) {
    return m->queries > 0 ? m->sink_share / (double)m->queries : (double)NAN;
}

void measurement_to_json(const Measurement *m, JsonWriter *w) {
    json_key(w, "layer");
    json_write_integer(w, (int64_t)m->layer);
    json_key(w, "place");
    json_write_string(w, m->place);
    moments_to_json(&m->values, w);
    if (m->queries > 0) {
        json_key(w, "sink_share");
        json_write_number(w, measurement_sink_share(m));
    }
    if (m->scores > 0) {
        json_key(w, "saturated_share");
        json_write_number(w, measurement_saturated_share(m));
    }
}

const char *statistics_heading(void) {
    return "layer  place                   std   max |x|  max|x|/std   kurtosis  sink share  saturated";
}

char *measurement_line(const Measurement *m) {
    char deviation[32], largest[32], ratio[32], kurtosis[32], share[32], saturated[32];
    moments_format(moments_deviation(&m->values), "nan", deviation);
    moments_format(m->values.largest, "nan", largest);
    moments_format(moments_largest_deviation(&m->values), "-", ratio);
    moments_format(moments_kurtosis(&m->values), "-", kurtosis);
    moments_format(measurement_sink_share(m), m->queries > 0 ? "nan" : "", share);
    moments_format(measurement_saturated_share(m), "", saturated);
    char *line = format_string("%5zu  %-17s %9s %9s %11s %10s  %10s  %9s", m->layer, m->place, deviation,
                               largest, ratio, kurtosis, share, saturated);
    // No blanks behind the last one.
    for (size_t end = strlen(line); end > 0 && line[end - 1] == ' '; end--) line[end - 1] = '\0';
    return line;
}
