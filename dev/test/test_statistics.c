// Measurements of activations, for any model.
#include "memory.h"
#include "random.h"
#include "statistics.h"
#include "test.h"
#include <math.h>
#include <stdlib.h>

static void test_places(void) {
    Statistics s = {0};
    char place[] = "ffn"; // compared by text, not by address
    Measurement *first = statistics_find(&s, 1, "ffn");
    Measurement *other = statistics_find(&s, 0, "ffn");
    CHECK(first != other && statistics_find(&s, 1, "attention") != first);
    for (size_t l = 0; l < 300; l++) statistics_find(&s, l, "residual");
    CHECK(statistics_find(&s, 1, place) == first && s.count == 303);
    CHECK(s.items[0] == first && s.items[1] == other); // in order of first use
    statistics_free(&s);
    CHECK(s.count == 0);
}

static void test_values(void) {
    enum { TOKENS = 100, COLUMNS = 7 };
    real x[TOKENS * COLUMNS];
    uint8_t mask[TOKENS];
    Statistics s = {0};
    Moments expected = {0};
    Random r = random_stream(1, RANDOM_TEST, 0, 0);
    for (int i = 0; i < TOKENS * COLUMNS; i++) x[i] = (real)random_normal(&r);
    for (int i = 0; i < TOKENS; i++) {
        mask[i] = random_uniform(&r) < 0.7;
        if (mask[i]) moments_add_real(&expected, x + i * COLUMNS, COLUMNS);
        if (!mask[i]) x[i * COLUMNS + 3] = (real)NAN;
    }
    statistics_add(NULL, 0, "ffn", x, mask, TOKENS, COLUMNS);
    statistics_add(&s, 2, "ffn", x, mask, TOKENS, COLUMNS);
    const Moments *m = &s.items[0]->values;
    CHECK(s.count == 1 && m->count == expected.count && m->mean == expected.mean &&
          m->m4 == expected.m4);

    for (int i = 0; i < TOKENS * COLUMNS; i++) x[i] = (real)i;
    statistics_add(&s, 3, "ffn", x, NULL, TOKENS, COLUMNS);
    statistics_add(&s, 3, "ffn", x, NULL, TOKENS, COLUMNS);
    CHECK(s.items[1]->values.count == 2 * TOKENS * COLUMNS && s.items[1]->queries == 0);
    CHECK_CLOSE(s.items[1]->values.mean, (TOKENS * COLUMNS - 1) / 2.0, 1e-9);
    statistics_free(&s);
}

// e = 1, 3, (padding), 4 with a sink of 2: weights 0.1, 0.3, 0.4, and 0.2 for the sink.
static void test_weights(void) {
    const real e[] = {1, 3, 1000, 4};
    const uint8_t mask[] = {1, 1, 0, 1}, none[] = {0, 0, 0, 0};
    Statistics s = {0};
    Measurement *m = statistics_find(&s, 0, "attention_weights");
    measurement_add_weights(m, e, mask, 4, 2);
    CHECK(m->values.count == 3 && m->queries == 1);
    CHECK_CLOSE(m->values.mean * 3, 0.8, 1e-15);
    CHECK_CLOSE(m->values.largest, 0.4, 1e-15);
    CHECK_CLOSE(measurement_sink_share(m), 0.2, 1e-15);
    // Entropy of 1/8, 3/8, 4/8.
    CHECK_CLOSE(measurement_entropy(m), log(8) - (3 * log(3) + 4 * log(4)) / 8, 1e-15);
    measurement_add_weights(m, e, none, 4, 2); // sees nothing
    measurement_add_weights(m, e, NULL, 0, 2);
    CHECK(m->values.count == 3 && m->queries == 1);
    measurement_add_weights(m, e, mask, 2, 0); // weights 0.25, 0.75
    CHECK(m->values.count == 5 && m->queries == 2);
    CHECK_CLOSE(m->values.mean * 5, 1.8, 1e-14);
    CHECK_CLOSE(measurement_sink_share(m), 0.1, 1e-15);
    statistics_free(&s);
}

// The weights of a row and the sink's share sum to 1; a common factor changes nothing.
static void test_long_rows(void) {
    enum { SIZE = 1000 };
    real e[SIZE], scaled[SIZE];
    uint8_t mask[SIZE];
    Statistics s = {0};
    Random r = random_stream(2, RANDOM_TEST, 0, 0);
    for (int i = 0; i < SIZE; i++) {
        e[i] = (real)exp(20 * random_uniform(&r) - 10);
        scaled[i] = e[i] / 1024;
        mask[i] = random_uniform(&r) < 0.5;
    }
    for (size_t count = 1; count <= SIZE; count += 37) {
        Measurement *m = statistics_find(&s, count, "attention_weights"),
                    *shifted = statistics_find(&s, count, "shifted");
        measurement_add_weights(m, e, mask, count, 3);
        measurement_add_weights(shifted, scaled, mask, count, 3.0 / 1024);
        int64_t visible = 0;
        for (size_t i = 0; i < count; i++) visible += mask[i];
        CHECK(m->values.count == visible);
        if (visible == 0) continue;
        CHECK_CLOSE((double)visible * m->values.mean + m->sink_share, 1, 1e-12);
        CHECK_CLOSE(shifted->values.m4, m->values.m4, 1e-12 * m->values.m4);
        CHECK_CLOSE(shifted->sink_share, m->sink_share, 1e-12 * m->sink_share);
    }
    statistics_free(&s);
}

// The merged parts of a place equal the whole place.
static void test_parts(void) {
    enum { SIZE = 600 };
    real x[SIZE];
    uint8_t mask[SIZE];
    Random r = random_stream(3, RANDOM_TEST, 0, 0);
    for (int i = 0; i < SIZE; i++) {
        x[i] = (real)(2 * random_uniform(&r) - 1);
        mask[i] = random_uniform(&r) < 0.8;
    }
    Statistics s = {0};
    Measurement *whole = statistics_find(&s, 0, "whole"),
                *together = statistics_find(&s, 0, "together");
    for (size_t start = 0; start < SIZE; start += 200) {
        Measurement part = {0};
        for (size_t i = 0; i < 2; i++) {
            Measurement *m = i ? whole : &part;
            measurement_add_scores(m, x + start, 1, mask + start, 200);
            measurement_add_weights(m, x + start, NULL, 200, 2);
            measurement_add_quotients(m, x + start, mask + start, 200, 4);
            measurement_add(m, x + start, mask + start / 4, 50, 4);
        }
        measurement_merge(together, &part);
    }
    CHECK(together->values.count == whole->values.count && together->queries == 3 &&
          together->sink_share == whole->sink_share && together->rows == 6 &&
          together->scores == whole->scores && together->saturated == whole->saturated &&
          together->values.largest == whole->values.largest);
    CHECK(whole->saturated > 20 && whole->scores < SIZE);
    CHECK_CLOSE(together->entropy, whole->entropy, 1e-12 * whole->entropy);
    CHECK_CLOSE(together->values.mean, whole->values.mean, 1e-12);
    CHECK_CLOSE(together->values.m4, whole->values.m4, 1e-9);
    statistics_free(&s);
}

static void test_output(void) {
    Statistics s = {0};
    const real x[] = {-1, 3}, e[] = {1, 1}, constant[] = {2};
    statistics_add(&s, 0, "residual", x, NULL, 1, 2);
    measurement_add_weights(statistics_find(&s, 12, "attention_weights"), e, NULL, 2, 2);
    statistics_add(&s, 5, "ffn", constant, NULL, 1, 1);
    statistics_add(&s, 5, "attention", (const real[]){(real)NAN}, NULL, 1, 1);
    const real parts[] = {5, (real)-9.5, 10, 8}; // of 10
    measurement_add_scores(statistics_find(&s, 1, "query_scores"), parts, 10,
                           (const uint8_t[]){1, 1, 0, 1}, 4);
    const char *const weights =
        "   12  attention_weights         0      0.25           -          -"
        "         0.5                0.6931";
    const char *const scores = "    1  query_scores         0.7641      0.95       1.243       -1.5"
                               "                 0.3333";
    const char *const lines[] = {
        "    0  residual                  2         3         1.5         -2",
        weights,
        "    5  ffn                       0         2           -          -",
        "    5  attention               nan       nan           -          -",
        scores,
    };
    CHECK_TEXT(statistics_heading(), "layer  place                   std   max |x|  max|x|/std   "
                                     "kurtosis  sink share  saturated    entropy");
    for (size_t i = 0; i < 5; i++) {
        char *line = measurement_line(s.items[i]);
        CHECK_TEXT(line, lines[i]);
        free(line);
    }
    CHECK(measurement_saturated_share(s.items[4]) == 1.0 / 3 &&
          isnan(measurement_saturated_share(s.items[0])));
    JsonWriter w = {0};
    for (size_t i = 0; i < 2; i++) {
        json_begin(&w, '{');
        measurement_to_json(s.items[i], &w);
        json_end(&w, '}');
    }
    CHECK_TEXT(w.text,
               "{\"layer\":0,\"place\":\"residual\",\"n\":2,\"mean\":1,\"std\":2,\"max_abs\":3,"
               "\"max_abs_over_std\":1.5,\"kurtosis\":-2},"
               "{\"layer\":12,\"place\":\"attention_weights\",\"n\":2,\"mean\":0.25,\"std\":0,"
               "\"max_abs\":0.25,\"max_abs_over_std\":null,\"kurtosis\":null,\"entropy\":0."
               "6931471805599453,"
               "\"sink_share\":0.5}");
    json_writer_free(&w);
    statistics_free(&s);
}

// Keeps the weights of the selected query only, 0 where the mask is.
static void test_kept_weights(void) {
    const real e[] = {1, 2, 5, 1};
    const uint8_t mask[] = {1, 1, 0, 1};
    Statistics s = {.keeps = true}, none = {0};
    Measurement *m = statistics_find(&s, 3, "attention_weights");
    CHECK(!statistics_keep(&none, m, 2, 4));
    double *kept = statistics_keep(&s, m, 2, 4);
    m->row = kept + 4;
    measurement_add_weights(m, e, mask, 4, 1);
    m->row = NULL;
    measurement_add_weights(m, e, NULL, 4, 0);
    JsonWriter w = {0};
    statistics_weights_to_json(&s, &w);
    CHECK_TEXT(w.text, "[{\"layer\":3,\"place\":\"attention_weights\",\"heads\":[[0,0,0,0],"
                       "[0.20000000298023224,0.4000000059604645,0,0.20000000298023224]]}]");
    json_writer_free(&w);
    statistics_free(&s);
}

int main(int argc, char **argv) {
    const TestCase cases[] = {
        {"kept weights", test_kept_weights},
        {"places", test_places},
        {"values", test_values},
        {"weights", test_weights},
        {"long rows", test_long_rows},
        {"parts", test_parts},
        {"output", test_output},
    };
    return test_main(argc, argv, "statistics", cases, sizeof(cases) / sizeof(*cases));
}
