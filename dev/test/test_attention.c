// Softmax and cosine attention against their definitions with all Tq x Tk weights, computed in
// double: causal, bidirectional, and from one sequence to another.
#include "arena.h"
#include "bf16.h"
#include "cosine_attention.h"
#include "memory.h"
#include "random.h"
#include "safetensors.h"
#include "softmax_attention.h"
#include "test.h"
#include "threads.h"
#include "tile.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#ifdef REAL_IS_DOUBLE
static const double TOLERANCE = 1e-11;
#else
static const double TOLERANCE = 2e-5;
#endif
static const double BF16_TOLERANCE = 3e-2;

typedef enum { SOFTMAX, COSINE } Kind;
typedef enum { CAUSAL, BOTH_WAYS, CROSS } Shape;

typedef struct {
    Kind kind;
    Shape shape;
    size_t batch, length, heads, size; // B, Tq, H, D
    size_t keys;                       // Tk; 0: as many as queries
    bool fixed;                        // cosine: the power is fixed at `power`
    double power;
    double sink, rate;
    double spread; // standard deviation of queries and keys
    size_t window; // keys that a causal query sees; 0: all
    bool holes;    // some keys are padding, among them the first of sequence 1
    bool bias;
    Precision precision;
} Setting;

// Queries, keys and values are stored as in models: in self-attention side by side in `x`; in
// cross-attention queries in `x`, keys and values side by side in `kv`; so are biases and
// gradients.
typedef struct {
    Setting is;
    size_t channels, keys; // C, Tk
    size_t rows, key_rows; // B Tq, B Tk
    real *x, *kv, *bias, *kv_bias, *dy, *exponent;
    size_t x_count, kv_count, x_columns, kv_columns; // numbers in total and per row
    uint8_t *mask;
    Dropout dropout;
} Problem;

typedef struct {
    real *y, *logsumexp, *dx, *dkv, *dbias, *dkv_bias, *dexponent;
} Result;

// The same by the definition, with separate gradients of queries, keys and values.
typedef struct {
    double *y, *logsumexp, *d[3], *dbias[3], *dexponent;
} Expected;

static real *numbers(Random *random, size_t count, double spread) {
    real *x = allocate(count, sizeof(real), "numbers");
    for (size_t i = 0; i < count; i++) x[i] = (real)(spread * random_normal(random));
    return x;
}

static Problem problem_create(Setting is) {
    Random random = random_stream(1, RANDOM_TEST, (uint32_t)is.length, (uint32_t)is.size);
    const size_t keys = is.keys ? is.keys : is.length, c = is.heads * is.size;
    Problem p = {.is = is,
                 .channels = c,
                 .keys = keys,
                 .rows = is.batch * is.length,
                 .key_rows = is.batch * keys};
    p.x_columns = is.shape == CROSS ? c : 3 * c;
    p.kv_columns = is.shape == CROSS ? 2 * c : 0;
    p.x_count = p.rows * p.x_columns;
    p.kv_count = p.key_rows * p.kv_columns;
    p.x = numbers(&random, p.x_count, is.spread);
    p.bias = is.bias ? numbers(&random, p.x_columns, 0.3) : NULL;
    p.dy = numbers(&random, p.rows * c, 1);
    p.exponent = numbers(&random, is.heads, 1);
    p.kv = numbers(&random, p.kv_count, is.spread);
    p.kv_bias = is.bias ? numbers(&random, p.kv_columns, 0.3) : NULL;
    p.mask = is.holes ? allocate(p.key_rows, 1, "a mask") : NULL;
    for (size_t b = 0; is.holes && b < is.batch; b++) {
        for (size_t t = 0; t < keys; t++)
            p.mask[b * keys + t] = (t * 7 + b * 3) % 5 != 4 && !(b == 1 && t < 3);
    }
    p.dropout = dropout_create(is.rate, 5, 3, 2);
    return p;
}

static void problem_free(Problem *p) {
    free(p->x);
    free(p->kv);
    free(p->bias);
    free(p->kv_bias);
    free(p->dy);
    free(p->exponent);
    free(p->mask);
}

static Result result_create(const Problem *p) {
    return (Result){allocate(p->rows * p->channels, sizeof(real), "y"),
                    allocate(p->rows * p->is.heads, sizeof(real), "logsumexp"),
                    allocate(p->x_count, sizeof(real), "gradients"),
                    allocate(p->kv_count, sizeof(real), "gradients"),
                    allocate(p->x_columns, sizeof(real), "gradients"),
                    allocate(p->kv_columns, sizeof(real), "gradients"),
                    allocate(p->is.heads, sizeof(real), "dexponent")};
}

static void result_free(Result *r) {
    free(r->y);
    free(r->logsumexp);
    free(r->dx);
    free(r->dkv);
    free(r->dbias);
    free(r->dkv_bias);
    free(r->dexponent);
}

// ---- implementation ---------------------------------------------------------

static const uint64_t FIRST_ROW = 3;

static AttentionInput input_of(const Problem *p, uint64_t first_row) {
    const Setting is = p->is;
    AttentionInput in = is.shape == CROSS
                            ? attention_cross(p->x, p->bias, p->kv, p->kv_bias, p->channels,
                                              p->mask, is.batch, is.length, p->keys)
                            : attention_self(p->x, p->bias, p->channels, is.shape == CAUSAL,
                                             p->mask, is.batch, is.length);
    in.window = is.window;
    in.dropout = is.rate > 0 ? &p->dropout : NULL;
    in.first_row = first_row;
    return in;
}

static AttentionGradients gradients_of(const Problem *p, const Result *r) {
    const Matrix dx = {r->dx, p->x_columns, false}, dkv = {r->dkv, p->kv_columns, false};
    return p->is.shape == CROSS
               ? attention_cross_gradients(dx, r->dbias, dkv, r->dkv_bias, p->channels)
               : attention_self_gradients(dx, r->dbias, p->channels);
}

static Arena *arena; // of the attention under test, one at a time

static SoftmaxAttention *softmax_carved(SoftmaxAttention *a, bool training) {
    arena = arena_create();
    ARENA_CARVE(arena, softmax_attention_carve(a, arena, training));
    return a;
}

static SoftmaxAttention *softmax_create(const Problem *p, bool training) {
    const Setting is = p->is;
    const size_t rows = is.batch * (is.length > p->keys ? is.length : p->keys);
    return softmax_carved(softmax_attention_create(is.precision, is.sink, is.batch, is.length,
                                                   p->keys, rows, p->channels, is.heads),
                          training);
}

static void softmax_free(SoftmaxAttention *a) {
    softmax_attention_free(a);
    arena_free(arena);
}

static CosineAttention *cosine_carved(CosineAttention *a, size_t window) {
    if (window > 0) cosine_attention_set_window(a, window);
    arena = arena_create();
    ARENA_CARVE(arena, cosine_attention_carve(a, arena));
    return a;
}

static CosineAttention *cosine_create(const Problem *p) {
    const Setting is = p->is;
    return cosine_carved(cosine_attention_create(is.precision, is.power, is.batch, is.length,
                                                 p->keys, p->channels, is.heads),
                         is.window);
}

static void cosine_free(CosineAttention *a) {
    cosine_attention_free(a);
    arena_free(arena);
}

static void softmax_run(SoftmaxAttention *a, const Problem *p, Result *r, uint64_t first_row,
                        bool backward) {
    const Matrix y = {r->y, p->channels, false};
    const AttentionInput in = input_of(p, first_row);
    const AttentionGradients gradients = gradients_of(p, r);
    softmax_attention_forward(a, y, r->logsumexp, &in);
    if (backward) softmax_attention_backward(a, &gradients, p->dy, y, r->logsumexp, &in);
}

static void cosine_run(CosineAttention *a, const Problem *p, Result *r, bool backward) {
    const Matrix y = {r->y, p->channels, false};
    const AttentionInput in = input_of(p, FIRST_ROW);
    const AttentionGradients gradients = gradients_of(p, r);
    const real *exponent = p->is.fixed ? NULL : p->exponent;
    cosine_attention_forward(a, y, exponent, &in);
    if (backward) cosine_attention_backward(a, &gradients, r->dexponent, p->dy, exponent, &in);
}

static Result run(const Problem *p, bool backward) {
    Result r = result_create(p);
    if (p->is.kind == COSINE) {
        CosineAttention *a = cosine_create(p);
        cosine_run(a, p, &r, backward);
        cosine_free(a);
    } else {
        SoftmaxAttention *a = softmax_create(p, backward);
        softmax_run(a, p, &r, FIRST_ROW, backward);
        softmax_free(a);
    }
    return r;
}

// ---- definition -------------------------------------------------------------

static double *zeros(size_t count) {
    return allocate(count, sizeof(double), "numbers");
}

// Returns element d of a head's query, key or value in a row, with its bias.
static double element(const Problem *p, size_t row, size_t which, size_t h, size_t d) {
    const bool other = p->is.shape == CROSS && which > 0;
    const size_t columns = other ? p->kv_columns : p->x_columns;
    const size_t column = (other ? which - 1 : which) * p->channels + h * p->is.size + d;
    const real *x = other ? p->kv : p->x, *bias = other ? p->kv_bias : p->bias;
    return (double)x[row * columns + column] + (bias ? (double)bias[column] : 0);
}

static double product(const Problem *p, size_t i, size_t which_i, size_t j, size_t which_j,
                      size_t h) {
    double sum = 0;
    for (size_t d = 0; d < p->is.size; d++)
        sum += element(p, i, which_i, h, d) * element(p, j, which_j, h, d);
    return sum;
}

static bool visible(const Problem *p, size_t row) {
    return !p->mask || p->mask[row];
}

// Returns the number of keys up to the last one that query i could see, including padding.
static size_t keys_of(const Problem *p, size_t i) {
    return p->is.shape == CAUSAL ? i + 1 : p->keys;
}

// Returns whether query i of sequence b sees key j.
static bool sees(const Problem *p, size_t b, size_t i, size_t j) {
    return visible(p, b * p->keys + j) && j < keys_of(p, i) &&
           (p->is.window == 0 || i < j + p->is.window);
}

// Returns the dropout factor of weight (b, h, i, j).
static double factor(const Problem *p, size_t b, size_t h, size_t i, size_t j) {
    if (p->is.rate == 0) return 1;
    const uint64_t padded = (p->keys + 127) / 128 * 128;
    const uint64_t row = ((FIRST_ROW + b) * p->is.heads + h) * p->is.length + i;
    real result;
    dropout_factors(&p->dropout, row * padded + j, 1, &result);
    return (double)result;
}

// Adds `gradient` * row `from` to the gradient of row `to`.
static void add_gradient(const Problem *p, Expected *e, size_t to, size_t which_to, double gradient,
                         size_t from, size_t which_from, size_t h) {
    for (size_t d = 0; d < p->is.size; d++) {
        const size_t column = h * p->is.size + d;
        const double x = gradient * element(p, from, which_from, h, d);
        e->d[which_to][to * p->channels + column] += x;
        e->dbias[which_to][column] += x;
    }
}

// Adds y_i = sum_j w_j f_j v_j and the gradients of the values.
static void expect_values(const Problem *p, Expected *e, size_t b, size_t h, size_t i,
                          const double *w) {
    const size_t first = b * p->keys, row = b * p->is.length + i, c = p->channels,
                 size = p->is.size;
    for (size_t j = 0; j < keys_of(p, i); j++) {
        if (w[j] == 0) continue;
        const double weight = w[j] * factor(p, b, h, i, j);
        for (size_t d = 0; d < size; d++) {
            const size_t column = h * size + d;
            const double dy = (double)p->dy[row * c + column];
            e->y[row * c + column] += weight * element(p, first + j, 2, h, d);
            e->d[2][(first + j) * c + column] += weight * dy;
            e->dbias[2][column] += weight * dy;
        }
    }
}

static double dy_times_value(const Problem *p, size_t i, size_t j, size_t h) {
    double sum = 0;
    for (size_t d = 0; d < p->is.size; d++)
        sum += (double)p->dy[i * p->channels + h * p->is.size + d] * element(p, j, 2, h, d);
    return sum;
}

static void expect_softmax_row(const Problem *p, Expected *e, size_t b, size_t h, size_t i,
                               double *w) {
    const size_t first = b * p->keys, row = b * p->is.length + i, count = keys_of(p, i);
    const double scale = 1 / sqrt((double)p->is.size);
    double top = p->is.sink > 0 ? log(p->is.sink) : -INFINITY;
    for (size_t j = 0; j < count; j++) {
        w[j] = sees(p, b, i, j) ? scale * product(p, row, 0, first + j, 1, h) : -INFINITY;
        top = fmax(top, w[j]);
    }
    double sum = p->is.sink > 0 ? p->is.sink * exp(-top) : 0, mean = 0;
    for (size_t j = 0; j < count; j++) sum += w[j] = isfinite(w[j]) ? exp(w[j] - top) : 0;
    e->logsumexp[(b * p->is.heads + h) * p->is.length + i] = sum > 0 ? top + log(sum) : INFINITY;
    for (size_t j = 0; j < count; j++) w[j] = sum > 0 ? w[j] / sum : 0;
    expect_values(p, e, b, h, i, w);
    for (size_t j = 0; j < count; j++)
        if (w[j] > 0) mean += w[j] * factor(p, b, h, i, j) * dy_times_value(p, row, first + j, h);
    for (size_t j = 0; j < count; j++) {
        if (w[j] == 0) continue;
        const double dw = factor(p, b, h, i, j) * dy_times_value(p, row, first + j, h);
        add_gradient(p, e, row, 0, scale * w[j] * (dw - mean), first + j, 1, h);
        add_gradient(p, e, first + j, 1, scale * w[j] * (dw - mean), row, 0, h);
    }
}

static void expect_cosine_row(const Problem *p, Expected *e, size_t b, size_t h, size_t i,
                              double *w) {
    const size_t first = b * p->keys, row = b * p->is.length + i, count = keys_of(p, i);
    const double power = p->is.fixed ? p->is.power : 1 / (1 + exp(-(double)p->exponent[h]));
    const double q = sqrt(product(p, row, 0, row, 0, h));
    size_t n = 0;
    for (size_t j = 0; j < count; j++) n += sees(p, b, i, j);
    const double divisor = pow((double)(n > 0 ? n : 1), power);
    for (size_t j = 0; j < count; j++) {
        w[j] = 0;
        if (!sees(p, b, i, j)) continue;
        const double k = sqrt(product(p, first + j, 1, first + j, 1, h));
        const double cosine = product(p, row, 0, first + j, 1, h) / (q * k);
        const double dw = dy_times_value(p, row, first + j, h);
        w[j] = cosine / divisor;
        add_gradient(p, e, row, 0, dw / divisor / (q * k), first + j, 1, h);
        add_gradient(p, e, row, 0, -dw * w[j] / (q * q), row, 0, h);
        add_gradient(p, e, first + j, 1, dw / divisor / (q * k), row, 0, h);
        add_gradient(p, e, first + j, 1, -dw * w[j] / (k * k), first + j, 1, h);
        if (!p->is.fixed) e->dexponent[h] -= dw * w[j] * log((double)n) * power * (1 - power);
    }
    expect_values(p, e, b, h, i, w);
}

static Expected expect(const Problem *p) {
    Expected e = {.y = zeros(p->rows * p->channels),
                  .logsumexp = zeros(p->rows * p->is.heads),
                  .dexponent = zeros(p->is.heads)};
    for (size_t which = 0; which < 3; which++) {
        e.d[which] = zeros((which ? p->key_rows : p->rows) * p->channels);
        e.dbias[which] = zeros(p->channels);
    }
    double *w = zeros(p->keys);
    for (size_t b = 0; b < p->is.batch; b++) {
        for (size_t h = 0; h < p->is.heads; h++) {
            for (size_t i = 0; i < p->is.length; i++) {
                if (p->is.kind == COSINE)
                    expect_cosine_row(p, &e, b, h, i, w);
                else
                    expect_softmax_row(p, &e, b, h, i, w);
            }
        }
    }
    free(w);
    return e;
}

static void expected_free(Expected *e) {
    free(e->y);
    free(e->logsumexp);
    free(e->dexponent);
    for (size_t which = 0; which < 3; which++) {
        free(e->d[which]);
        free(e->dbias[which]);
    }
}

// ---- comparison -------------------------------------------------------------
// Fails if the largest difference exceeds `tolerance` times the largest expected magnitude (or
// `least`); infinite numbers must be equal.
static void compare(const char *what, const Setting *is, const real *x, const double *expected,
                    size_t count, double least, double tolerance) {
    double error = 0, greatest = least;
    for (size_t i = 0; i < count; i++) {
        if (isinf(expected[i]) && (double)x[i] == expected[i]) continue;
        const double difference = fabs((double)x[i] - expected[i]);
        if (!(difference <= error) && !isnan(error)) error = difference; // also NaN
        greatest = fmax(greatest, fabs(expected[i]));
    }
    if (error <= tolerance * greatest) return;
    static const char *const shapes[] = {"causal", "both ways", "cross"};
    test_fail(
        __FILE__, __LINE__,
        "%s: %s %s B %zu T %zu keys %zu window %zu H %zu D %zu sink %g rate %g power %s%g %s%s: "
        "error %.3g",
        what, is->kind == COSINE ? "cosine" : "softmax", shapes[is->shape], is->batch, is->length,
        is->keys, is->window, is->heads, is->size, is->sink, is->rate, is->fixed ? "" : "learned ",
        is->power, is->holes ? "holes " : "", is->precision == PRECISION_BFLOAT16 ? "bf16" : "",
        error / greatest);
}

// Returns the largest gradient of a query, key or value, at least 1e-3.
static double largest_gradient(const Problem *p, const Expected *e) {
    double largest = 1e-3;
    for (size_t which = 0; which < 3; which++) {
        for (size_t i = 0; i < (which ? p->key_rows : p->rows) * p->channels; i++)
            largest = fmax(largest, fabs(e->d[which][i]));
    }
    return largest;
}

// Compares the gradients of queries, keys or values and of their bias; all are at most `largest`.
static void compare_gradients(const Problem *p, const Result *r, const Expected *e, size_t which,
                              double largest, double tolerance) {
    const bool other = p->is.shape == CROSS && which > 0;
    const size_t c = p->channels, rows = which ? p->key_rows : p->rows;
    const size_t columns = other ? p->kv_columns : p->x_columns,
                 column = (other ? which - 1 : which) * c;
    real *part = allocate(rows * c, sizeof(real), "gradients");
    for (size_t i = 0; i < rows; i++)
        memcpy(part + i * c, (other ? r->dkv : r->dx) + i * columns + column, c * sizeof(real));
    static const char *const names[] = {"dq", "dk", "dv"}, *const biases[] = {"dq bias", "dk bias",
                                                                              "dv bias"};
    compare(names[which], &p->is, part, e->d[which], rows * c, largest, tolerance);
    if (p->is.bias)
        compare(biases[which], &p->is, (other ? r->dkv_bias : r->dbias) + column, e->dbias[which],
                c, 1, 2 * tolerance);
    free(part);
}

static void check_equal(const Problem *p, const Result *a, const Result *b) {
    CHECK(memcmp(a->y, b->y, p->rows * p->channels * sizeof(real)) == 0);
    CHECK(memcmp(a->logsumexp, b->logsumexp, p->rows * p->is.heads * sizeof(real)) == 0);
    CHECK(memcmp(a->dx, b->dx, p->x_count * sizeof(real)) == 0);
    CHECK(memcmp(a->dkv, b->dkv, p->kv_count * sizeof(real)) == 0);
    CHECK(memcmp(a->dbias, b->dbias, p->x_columns * sizeof(real)) == 0);
    CHECK(memcmp(a->dkv_bias, b->dkv_bias, p->kv_columns * sizeof(real)) == 0);
    CHECK(memcmp(a->dexponent, b->dexponent, p->is.heads * sizeof(real)) == 0);
}

static void check(Setting is) {
    Problem p = problem_create(is);
    Result r = run(&p, true);
    Expected e = expect(&p);
    const double tolerance = is.precision == PRECISION_BFLOAT16 ? BF16_TOLERANCE : TOLERANCE;
    compare("y", &is, r.y, e.y, p.rows * p.channels, 1e-6, tolerance);
    for (size_t which = 0; which < 3; which++)
        compare_gradients(&p, &r, &e, which, largest_gradient(&p, &e), tolerance);
    if (is.kind == SOFTMAX)
        compare("logsumexp", &is, r.logsumexp, e.logsumexp, p.rows * is.heads, 1, tolerance);
    else
        // A sum over all rows, whose terms cancel while bf16's errors do not.
        compare("dexponent", &is, r.dexponent, e.dexponent, is.heads, 1,
                is.precision == PRECISION_BFLOAT16 ? 2 * tolerance : tolerance);
    expected_free(&e);
    result_free(&r);
    problem_free(&p);
}

static const size_t LENGTHS[] = {1, 2, 63, 64, 65, 130}, SIZES[] = {8, 20, 32, 64};
enum {
    LENGTH_COUNT = sizeof(LENGTHS) / sizeof(*LENGTHS),
    SIZE_COUNT = sizeof(SIZES) / sizeof(*SIZES)
};

static void check_shapes(Setting is) {
    for (size_t l = 0; l < LENGTH_COUNT; l++) {
        for (size_t s = 0; s < SIZE_COUNT; s++) {
            is.length = LENGTHS[l];
            is.size = SIZES[s];
            check(is);
        }
    }
}

// Checks the other shapes with these lengths, in cross-attention also as numbers of keys.
static void check_other_shapes(Setting is) {
    is.shape = BOTH_WAYS;
    check_shapes(is);
    is.shape = CROSS;
    is.size = 20;
    for (size_t l = 0; l < LENGTH_COUNT; l++) {
        for (size_t k = 0; k < LENGTH_COUNT; k++) {
            is.length = LENGTHS[l];
            is.keys = LENGTHS[k];
            check(is);
        }
    }
    is.length = 300;
    is.keys = 140;
    check(is);
    is.length = 40;
    is.keys = 600; // several tiles of keys and units of work
    check(is);
}

static const Setting PLAIN = {
    .kind = SOFTMAX, .batch = 2, .length = 65, .heads = 2, .size = 20, .spread = 1};

static Setting cosine_setting(void) {
    Setting is = PLAIN;
    is.kind = COSINE;
    is.bias = is.holes = true;
    return is;
}

static void test_softmax(void) {
    check_shapes(PLAIN);
    Setting is = PLAIN;
    is.holes = is.bias = true;
    check_shapes(is);
    is.length = 300;
    is.batch = 1;
    check(is);
    is.size = 136;
    check(is);
    is.size = 8;
    is.length = 130;
    is.heads = 33; // more heads than units of work in the backward pass
    check(is);
}

static void test_sink(void) {
    Setting is = PLAIN;
    is.sink = 1;
    check_shapes(is);
    is.holes = true;
    is.sink = 1e-5;
    check(is);
    is.sink = 30;
    check(is);
}

static void test_softmax_dropout(void) {
    Setting is = PLAIN;
    is.rate = 0.3;
    is.sink = 1;
    is.holes = is.bias = true;
    check_shapes(is);
}

static void test_softmax_bf16(void) {
    Setting is = PLAIN;
    is.precision = PRECISION_BFLOAT16;
    is.rate = 0.1;
    is.sink = 1;
    is.holes = is.bias = true;
    check_shapes(is);
}

static void test_softmax_shapes(void) {
    Setting is = PLAIN;
    check_other_shapes(is);
    is.sink = 1;
    is.holes = is.bias = true;
    check_other_shapes(is);
    is.rate = 0.3;
    check_other_shapes(is);
    is.precision = PRECISION_BFLOAT16;
    check_other_shapes(is);
}

// Many short sequences, like sentences.
static void test_softmax_sentences(void) {
    Setting is = PLAIN;
    is.batch = 70; // more than the blocks of sums
    is.rate = 0.3;
    is.holes = is.bias = true;
    for (is.length = 3; is.length < 40; is.length += 14) {
        is.shape = BOTH_WAYS;
        is.keys = 0;
        check(is);
        is.shape = CAUSAL;
        check(is);
        is.shape = CROSS;
        is.keys = 35 - is.length;
        check(is);
    }
}

static void test_cosine_shapes(void) {
    Setting is = cosine_setting();
    check_other_shapes(is);
    is.bias = is.holes = false;
    check_other_shapes(is);
}

static void test_cosine_powers(void) {
    static const double powers[] = {0, 0.5, 1};
    for (size_t i = 0; i < sizeof(powers) / sizeof(*powers); i++) {
        for (Shape shape = CAUSAL; shape <= CROSS; shape++) {
            Setting is = cosine_setting();
            is.fixed = true;
            is.power = powers[i];
            is.shape = shape;
            if (shape == CROSS) is.keys = 130;
            check(is);
        }
    }
}

static void test_cosine(void) {
    Setting is = cosine_setting();
    check_shapes(is);
    is.length = 300;
    is.holes = false;
    check(is);
    is.size = 136;
    check(is);
}

static void test_cosine_bf16(void) {
    Setting is = cosine_setting();
    is.precision = PRECISION_BFLOAT16;
    check_shapes(is);
    check_other_shapes(is);
    is.shape = CAUSAL;
    is.keys = 0;
    is.length = 300;
    is.size = 136;
    check(is);
}

// Windows of one key, at the tile edges of all engines, and larger than the sequence.
static const size_t WINDOWS[] = {1, 2, 31, 32, 33, 64, 100, 128, 129, 256, 400, 5000};

// Sequences of one, two and more tiles of keys, and short ones.
static void check_windows(Setting is) {
    static const size_t lengths[] = {1, 40, 65, 300};
    for (size_t l = 0; l < sizeof(lengths) / sizeof(*lengths); l++) {
        for (size_t w = 0; w < sizeof(WINDOWS) / sizeof(*WINDOWS); w++) {
            is.length = lengths[l];
            is.window = WINDOWS[w];
            check(is);
        }
    }
    is.batch = 1;
    is.heads = 1; // the most parts in the backward pass
    is.length = 1100;
    is.window = 200;
    check(is);
}

static void test_windows(void) {
    Setting is = PLAIN;
    check_windows(is);
    check_windows(cosine_setting());
    is.holes = is.bias = true;
    is.sink = 1;
    is.rate = 0.3;
    check_windows(is);
    is.precision = PRECISION_BFLOAT16;
    is.bias = false; // its gradient, a sum over rows, has the errors of all
    is.sink = 0;
    is.size = 64;
    check_windows(is);
}

// More queries and keys than dropout is drawn for at once.
static void test_windows_long(void) {
    Setting is = PLAIN;
    is.batch = is.heads = 1;
    is.size = 8;
    is.rate = 0.2;
    is.length = 2200;
    is.precision = PRECISION_BFLOAT16;
    is.window = 600;
    check(is);
    is.window = 2100;
    check(is);
}

// A window at least as long as the sequence changes no bit.
static void test_windows_that_hide_nothing(void) {
    for (int kind = 0; kind < 4; kind++) {
        Setting is = PLAIN;
        is.length = kind < 2 ? 300 : 50;
        is.rate = 0.3;
        is.precision = kind % 2 ? PRECISION_BFLOAT16 : PRECISION_FLOAT32;
        Problem p = problem_create(is);
        Result all = run(&p, true);
        for (p.is.window = is.length; p.is.window < 3 * is.length; p.is.window += is.length + 7) {
            Result windowed = run(&p, true);
            check_equal(&p, &all, &windowed);
            result_free(&windowed);
        }
        result_free(&all);
        problem_free(&p);
    }
}

// ---- Hugging Face's Mistral (dev/reference/check_mistral.py) ----------------

static const Tensor *tensor_of(const Safetensors *file, const char *name) {
    const Tensor *tensor = safetensors_find(file, name);
    if (!tensor) test_fail(__FILE__, __LINE__, "%s is not in the file", name);
    return tensor;
}

// Compares columns (M, C) from `column` of x, with rows of `stride`, by the norm of the difference.
static void compare_tensor(const Safetensors *file, const char *name, const real *x, size_t stride,
                           size_t column) {
    const Tensor *tensor = tensor_of(file, name);
    const size_t c = (size_t)tensor->shape[2], rows = (size_t)(tensor->shape[0] * tensor->shape[1]);
    double *expected = zeros(rows * c), error = 0, norm = 0;
    tensor_read_double(file, tensor, expected);
    for (size_t i = 0; i < rows * c; i++) {
        error += pow((double)x[i / c * stride + column + i % c] - expected[i], 2);
        norm += expected[i] * expected[i];
    }
    const double allowed = sizeof(real) == sizeof(double) ? 1e-12 : 1e-5;
    if (!(sqrt(error / norm) <= allowed))
        test_fail(__FILE__, __LINE__, "%s is off by %.1e", name, sqrt(error / norm));
    free(expected);
}

static void test_mistral(void) {
    static const char *const parts[] = {"query", "key", "value"}, *const gradients[] = {
                                                                      "grad.query", "grad.key",
                                                                      "grad.value"};
    Safetensors *file = safetensors_open("dev/reference/mistral_window.safetensors");
    const int64_t *shape = tensor_of(file, "query")->shape;
    if (!shape) abort();
    const size_t heads = (size_t)safetensors_integer(file, "heads", 1, 100), c = (size_t)shape[2];
    Setting is = PLAIN;
    is.batch = (size_t)shape[0];
    is.length = (size_t)shape[1];
    is.heads = heads;
    is.size = c / heads;
    is.window = (size_t)safetensors_integer(file, "window", 1, 100);
    is.holes = true;
    Problem p = problem_create(is);
    real *part = allocate(p.rows * c, sizeof(real), "numbers");
    for (size_t n = 0; n < 3; n++) {
        tensor_read_real(file, tensor_of(file, parts[n]), part);
        for (size_t i = 0; i < p.rows; i++)
            memcpy(p.x + (3 * i + n) * c, part + i * c, c * sizeof(real));
    }
    tensor_read_real(file, tensor_of(file, "doutput"), p.dy);
    int32_t *mask = allocate(p.rows, sizeof(int32_t), "a mask");
    tensor_read_int32(file, tensor_of(file, "attention_mask"), mask);
    for (size_t i = 0; i < p.rows; i++) p.mask[i] = mask[i] == 1;
    Result r = run(&p, true);
    compare_tensor(file, "output", r.y, c, 0);
    for (size_t n = 0; n < 3; n++) compare_tensor(file, gradients[n], r.dx, 3 * c, n * c);
    free(part);
    free(mask);
    result_free(&r);
    problem_free(&p);
    safetensors_close(file);
}

// ---- gradients --------------------------------------------------------------

static double loss(const Problem *p) {
    Result r = run(p, false);
    double sum = 0;
    for (size_t i = 0; i < p->rows * p->channels; i++) sum += (double)r.y[i] * (double)p->dy[i];
    result_free(&r);
    return sum;
}

// Checks every step-th number against central differences.
static void check_gradient(const char *what, const Problem *p, real *x, const real *gradient,
                           size_t count, size_t step) {
    const double h = 1e-5;
    for (size_t i = 0; i < count; i += step) {
        const real kept = x[i];
        x[i] = (real)((double)kept + h);
        const double above = loss(p);
        x[i] = (real)((double)kept - h);
        const double below = loss(p);
        x[i] = kept;
        const double expected = (above - below) / (2 * h);
        if (!(fabs((double)gradient[i] - expected) <= 2e-8 * fmax(1, fabs(expected))))
            test_fail(__FILE__, __LINE__, "%s[%zu]: %.12g, by differences %.12g", what, i,
                      (double)gradient[i], expected);
    }
}

static void check_gradients(Setting is) {
    Problem p = problem_create(is);
    Result r = run(&p, true);
    check_gradient("x", &p, p.x, r.dx, p.x_count, 37);
    check_gradient("kv", &p, p.kv, r.dkv, p.kv_count, 37);
    check_gradient("bias", &p, p.bias, r.dbias, p.x_columns, 1);
    check_gradient("bias of keys", &p, p.kv_bias, r.dkv_bias, p.kv_columns, 1);
    if (is.kind == COSINE) check_gradient("exponent", &p, p.exponent, r.dexponent, is.heads, 1);
    result_free(&r);
    problem_free(&p);
}

// Only in double: in float, differences are too coarse.
static void test_gradients(void) {
    if (sizeof(real) < sizeof(double)) return;
    for (Shape shape = CAUSAL; shape <= CROSS; shape++) {
        for (int kind = 0; kind < 6; kind++) {
            Setting is = kind > 2 ? cosine_setting() : PLAIN;
            is.shape = shape;
            is.keys = shape == CROSS ? 40 : 0;
            is.holes = is.bias = true;
            is.batch = 1;
            is.size = 8;
            is.sink = kind == 1;
            is.rate = kind == 2 ? 0.2 : 0;
            is.fixed = kind > 3;
            is.power = kind == 5;
            check_gradients(is);
        }
    }
}

// ---- scores -----------------------------------------------------------------

enum { EXAMPLE = 5, EXAMPLE_SIZE = 8 };

// Computes the weights that one query gives to keys with these scores; the values are unit vectors.
static void weights_of(const double *scores, double sink, real *weights) {
    real qkv[EXAMPLE][3][EXAMPLE_SIZE] = {0}, y[EXAMPLE][EXAMPLE_SIZE];
    for (size_t j = 0; j < EXAMPLE; j++) {
        qkv[j][0][0] = (real)sqrt(EXAMPLE_SIZE);
        qkv[j][1][0] = (real)scores[j];
        qkv[j][2][j] = 1;
    }
    SoftmaxAttention *a =
        softmax_carved(softmax_attention_create(PRECISION_FLOAT32, sink, 1, EXAMPLE, EXAMPLE,
                                                EXAMPLE, EXAMPLE_SIZE, 1),
                       false);
    const AttentionInput in =
        attention_self(&qkv[0][0][0], NULL, EXAMPLE_SIZE, true, NULL, 1, EXAMPLE);
    softmax_attention_forward(a, (Matrix){y, EXAMPLE_SIZE, false}, NULL, &in);
    softmax_free(a);
    for (size_t j = 0; j < EXAMPLE; j++) weights[j] = y[EXAMPLE - 1][j];
}

static void test_published_examples(void) {
    static const struct {
        double scores[EXAMPLE], sink, weights[EXAMPLE], sum;
    } examples[] = {
        {{1, 2, 3, 4, 5}, 0, {.0116562, .0316849, .0861285, .2341217, .6364086}, 1},
        {{1, 2, 3, 4, 5}, 1, {.0116, .0315, .0858, .2331, .6337}, .9957},
        {{1, 2, -3, -4, -10000}, 1, {.2432, .6612, .0045, .0016, 0}, .9105},
        {{-1, -2, -3e13, -2e11, -1e4}, 1, {.2447, .0900, 0, 0, 0}, .3348},
        {{1e4, -1e4, 1e4, 0, 9999}, 1, {.4223188, 0, .4223188, 0, .1553624}, 1},
        {{-1e4, -1e4, -1e4, -1e4, -1e4}, 1, {0}, 0},
        {{-1e4, -1e4, -1e4, -1e4, -1e4}, 0, {.2, .2, .2, .2, .2}, 1},
    };
    for (size_t i = 0; i < sizeof(examples) / sizeof(*examples); i++) {
        real weights[EXAMPLE];
        double sum = 0;
        weights_of(examples[i].scores, examples[i].sink, weights);
        for (size_t j = 0; j < EXAMPLE; j++) {
            CHECK_CLOSE(weights[j], examples[i].weights[j], 6e-5);
            sum += (double)weights[j];
        }
        CHECK_CLOSE(sum, examples[i].sum, 6e-5);
    }
}

// With scores up to 1e4, most weights are 0 or 1, and score differences carry the rounding of 1e4.
static void test_large_scores(void) {
    Setting is = PLAIN;
    is.spread = 50;
    for (int kind = 0; kind < 4; kind++) {
        is.sink = kind % 2;
        is.length = kind < 2 ? 65 : 300; // also with the largest score in a later tile
        Problem p = problem_create(is);
        Result r = run(&p, true);
        Expected e = expect(&p);
        compare("y", &is, r.y, e.y, p.rows * p.channels, 1,
                sizeof(real) < sizeof(double) ? 5e-3 : 1e-9);
        compare("logsumexp", &is, r.logsumexp, e.logsumexp, p.rows * is.heads, 1, TOLERANCE);
        for (size_t i = 0; i < p.x_count; i++) CHECK(isfinite(r.dx[i]));
        expected_free(&e);
        result_free(&r);
        problem_free(&p);
    }
}

// Rows that each see one score, `above` (in powers of 2) larger than all others: the sums of a tile
// by AMX come within rounding of their limit, 2^32, and exceed it in a later block without such a
// score. From 2^28 on, scores have steps of 32, so that MARGIN / 2 more is the same number.
static void test_sums_at_their_limit(void) {
    static const struct {
        double score, above;
        size_t rows;
    } cases[] = {{0, 31, 2}, {0x1p28, 32, 1}};
    Setting is = PLAIN;
    is.shape = CROSS;
    is.batch = is.heads = 1;
    is.length = 600;
    is.size = 32;
    is.precision = PRECISION_BFLOAT16;
    enum { LARGEST = 40, FIRST = 30 };
    const double unit = sqrt(32) * log(2); // of queries, which are multiplied by its inverse
    for (size_t n = 0; n < sizeof(cases) / sizeof(cases[0]); n++) {
        Problem p = problem_create(is);
        const size_t c = p.channels, end = FIRST + cases[n].rows;
        memset(p.x, 0, p.x_count * sizeof(real));
        for (size_t t = 0; t < p.rows; t++) p.x[t * c + 1] = (real)(unit * sqrt(cases[n].score));
        for (size_t t = 0; t < p.keys; t++) {
            memset(p.kv + t * 2 * c, 0, c * sizeof(real));
            p.kv[t * 2 * c + 1] = (real)sqrt(cases[n].score);
        }
        for (size_t t = FIRST; t < end; t++) p.x[t * c] = (real)unit;
        p.kv[LARGEST * 2 * c] = (real)cases[n].above;
        Result r = run(&p, false);
        for (size_t t = FIRST; t < end; t++)
            for (size_t d = 0; d < c; d++)
                CHECK_CLOSE(r.y[t * c + d], p.kv[(LARGEST * 2 + 1) * c + d], 2e-2);
        result_free(&r);
        problem_free(&p);
    }
}

static void test_only_padding(void) {
    for (int kind = 0; kind < 3; kind++) {
        Setting is = kind == 2 ? cosine_setting() : PLAIN;
        is.holes = true;
        is.sink = kind == 1;
        Problem p = problem_create(is);
        memset(p.mask, 0, p.rows);
        p.mask[is.length - 1] = 1; // the last row of sequence 0 sees itself
        Result r = run(&p, true);
        for (size_t i = 0; i < p.rows * p.channels; i++)
            CHECK(isfinite(r.y[i]) && (r.y[i] == 0) == (i / p.channels != is.length - 1));
        for (size_t i = 0; i < p.x_count; i++) {
            CHECK(isfinite(r.dx[i]));
            if (i / (3 * p.channels) != is.length - 1) CHECK(r.dx[i] == 0);
        }
        result_free(&r);
        problem_free(&p);
    }
}

// A sequence of only padding next to one with tokens: its queries get 0 and propagate no gradient.
static void test_only_padding_both_ways(void) {
    for (int kind = 0; kind < 6; kind++) {
        Setting is = kind % 3 == 2 ? cosine_setting() : PLAIN;
        is.shape = kind < 3 ? BOTH_WAYS : CROSS;
        is.keys = kind < 3 ? 0 : 130;
        is.holes = true;
        is.sink = kind % 3 == 1;
        Problem p = problem_create(is);
        memset(p.mask, 0, p.keys); // sequence 0
        Result r = run(&p, true);
        for (size_t i = 0; i < p.rows * p.channels; i++)
            CHECK(isfinite(r.y[i]) && (r.y[i] == 0) == (i / p.channels < is.length));
        for (size_t i = 0; i < p.x_count; i++)
            CHECK(isfinite(r.dx[i]) && (r.dx[i] == 0 || i / p.x_columns >= is.length));
        for (size_t i = 0; i < p.kv_count; i++)
            CHECK(isfinite(r.dkv[i]) && (r.dkv[i] == 0 || i / p.kv_columns >= p.keys));
        result_free(&r);
        problem_free(&p);
    }
}

// NaN must propagate to the output: the training loop detects divergence by the loss.
static void test_nan(void) {
    for (int kind = 0; kind < 2; kind++) {
        const Setting is = kind == 1 ? cosine_setting() : PLAIN;
        Problem p = problem_create(is);
        p.x[(40 * 3 + 1) * p.channels] = NAN; // key 40 of sequence 0, head 0
        Result r = run(&p, false);
        CHECK(isfinite(r.y[39 * p.channels]));
        CHECK(isnan(r.y[41 * p.channels]) && isnan(r.y[64 * p.channels + 1]));
        CHECK(isfinite(r.y[41 * p.channels + is.size]) && isfinite(r.y[(65 + 41) * p.channels]));
        result_free(&r);
        problem_free(&p);
    }
}

static void test_cosine_zero_vector(void) {
    Setting is = cosine_setting();
    is.bias = is.holes = false;
    Problem p = problem_create(is);
    memset(p.x + 12 * p.channels * 3, 0, 2 * p.channels * sizeof(real)); // query and key 12
    Result r = run(&p, true);
    for (size_t c = 0; c < p.channels; c++) {
        CHECK(r.y[12 * p.channels + c] == 0);
        CHECK(r.dx[12 * 3 * p.channels + c] == 0 && r.dx[(12 * 3 + 1) * p.channels + c] == 0);
        CHECK(isfinite(r.y[13 * p.channels + c]) && r.y[13 * p.channels + c] != 0);
    }
    result_free(&r);
    problem_free(&p);
}

// ---- other tests ------------------------------------------------------------

static void test_decode(void) {
    static const size_t windows[] = {0, 0, 0, 0, 1, 50, 128, 1, 100};
    for (int kind = 0; kind < 9; kind++) {
        Setting is = kind == 2 || kind == 3 || kind > 6 ? cosine_setting() : PLAIN;
        is.fixed = kind == 3;
        is.power = 0.5;
        is.length = kind < 4 ? 140 : 300;
        is.window = windows[kind];
        is.holes = false;
        is.bias = kind > 0;
        is.sink = kind % 2 == 1;
        Problem p = problem_create(is);
        Result r = run(&p, false);
        const size_t c = p.channels, s = is.batch,
                     positions = is.window ? is.window : is.length + 3;
        real *keys = allocate(s * positions * c, sizeof(real), "keys");
        real *values = allocate(s * positions * c, sizeof(real), "values");
        real *state = allocate(s * c * is.size, sizeof(real), "state");
        real *y = allocate(s * c, sizeof(real), "y"),
             *qkv = allocate(s * 3 * c, sizeof(real), "qkv");
        const CosineMemory memory = {is.window, state, keys, values, positions};
        const AttentionCache cache = {keys, values, positions, NULL, is.window};
        for (size_t t = 0; t < is.length; t++) {
            for (size_t b = 0; b < s; b++)
                memcpy(qkv + b * 3 * c, p.x + (b * is.length + t) * 3 * c, 3 * c * sizeof(real));
            if (is.kind == COSINE)
                cosine_attention_decode(y, &memory, qkv, p.bias, is.fixed ? NULL : p.exponent,
                                        is.power, t, s, c, is.heads);
            else
                softmax_attention_decode(y, &cache, qkv, p.bias, is.sink, t, s, c, is.heads);
            for (size_t i = 0; i < s * c; i++)
                CHECK_CLOSE(y[i], r.y[(i / c * is.length + t) * c + i % c], 0.2 * TOLERANCE);
        }
        free(keys);
        free(values);
        free(state);
        free(y);
        free(qkv);
        result_free(&r);
        problem_free(&p);
    }
}

static void test_threads(void) {
    for (int kind = 0; kind < 9; kind++) {
        Setting is = kind % 3 == 2 ? cosine_setting() : PLAIN;
        is.shape = (Shape)(kind / 3);
        is.keys = is.shape == CROSS ? 200 : 0;
        is.length = 300;
        is.rate = kind % 3 == 2 ? 0 : 0.1;
        is.bias = true;
        is.precision = kind % 3 == 1 ? PRECISION_BFLOAT16 : PRECISION_FLOAT32;
        Problem p = problem_create(is);
        test_set_threads(1);
        Result one = run(&p, true);
        for (int threads = 2; threads < 4; threads++) {
            test_set_threads(threads);
            Result more = run(&p, true);
            check_equal(&p, &one, &more);
            result_free(&more);
        }
        result_free(&one);
        problem_free(&p);
    }
}

// Memory that held a larger batch, even of NaN, gives the same results as fresh memory.
static void check_smaller_batch(Setting is, size_t length) {
    Problem large = problem_create(is);
    for (size_t i = 0; i < large.x_count; i++) large.x[i] = NAN;
    for (size_t i = 0; i < large.kv_count; i++) large.kv[i] = NAN;
    for (size_t i = 0; i < large.rows * large.channels; i++) large.dy[i] = NAN;
    is.length = length;
    if (is.keys) is.keys = 130;
    is.batch = 1;
    Problem small = problem_create(is);
    Result fresh = run(&small, true), first = result_create(&large), second = result_create(&small);
    if (is.kind == SOFTMAX) {
        SoftmaxAttention *a = softmax_create(&large, true);
        softmax_run(a, &large, &first, FIRST_ROW, true);
        softmax_run(a, &small, &second, FIRST_ROW, true);
        softmax_free(a);
    } else {
        CosineAttention *a = cosine_create(&large);
        cosine_run(a, &large, &first, true);
        cosine_run(a, &small, &second, true);
        cosine_free(a);
    }
    check_equal(&small, &fresh, &second);
    result_free(&fresh);
    result_free(&first);
    result_free(&second);
    problem_free(&large);
    problem_free(&small);
}

static void test_smaller_batch(void) {
    for (int kind = 0; kind < 6; kind++) {
        Setting is = kind % 2 == 1 ? cosine_setting() : PLAIN;
        is.shape = (Shape)(kind / 2);
        is.keys = is.shape == CROSS ? 200 : 0;
        is.length = 300;
        check_smaller_batch(is, 65);
        check_smaller_batch(is, 40);
    }
}

// Two halves of a batch, as in gradient accumulation, drop the same weights.
static void test_first_row(void) {
    Setting is = PLAIN;
    is.rate = 0.5;
    Problem whole = problem_create(is);
    Result expected = run(&whole, false);
    Problem half = whole;
    half.is.batch = 1;
    half.rows = is.length;
    half.x = whole.x + is.length * 3 * whole.channels;
    Result second = result_create(&half);
    SoftmaxAttention *a = softmax_create(&half, false);
    softmax_run(a, &half, &second, FIRST_ROW + 1, false);
    softmax_free(a);
    CHECK(memcmp(second.y, expected.y + is.length * half.channels,
                 half.rows * half.channels * sizeof(real)) == 0);
    result_free(&expected);
    result_free(&second);
    problem_free(&whole);
}

// Output in bf16, for the next product, is the rounded output.
static void test_bf16_output(void) {
    for (int kind = 0; kind < 2; kind++) {
        const Setting is = kind == 1 ? cosine_setting() : PLAIN;
        Problem p = problem_create(is);
        Result r = run(&p, false);
        uint16_t *rounded = allocate(p.rows * p.channels, sizeof(uint16_t), "y");
        const Matrix y = {rounded, p.channels, true};
        const AttentionInput in = input_of(&p, 0);
        if (kind == 0) {
            SoftmaxAttention *a = softmax_create(&p, false);
            softmax_attention_forward(a, y, NULL, &in);
            softmax_free(a);
        } else {
            CosineAttention *a = cosine_create(&p);
            cosine_attention_forward(a, y, p.exponent, &in);
            cosine_free(a);
        }
        for (size_t i = 0; i < p.rows * p.channels; i++)
            CHECK(rounded[i] == bf16_from_float((float)r.y[i]));
        free(rounded);
        result_free(&r);
        problem_free(&p);
    }
}

// With y in bf16, the backward pass differs only by the rounding of y.
static void test_bf16_y_backward(void) {
    const Setting is = PLAIN;
    Problem p = problem_create(is);
    Result r = run(&p, true), other = result_create(&p);
    uint16_t *rounded = allocate(p.rows * p.channels, sizeof(uint16_t), "y");
    for (size_t i = 0; i < p.rows * p.channels; i++) rounded[i] = bf16_from_float((float)r.y[i]);
    SoftmaxAttention *a = softmax_create(&p, true);
    const AttentionInput in = input_of(&p, 0);
    const AttentionGradients gradients = gradients_of(&p, &other);
    softmax_attention_backward(a, &gradients, p.dy, (Matrix){rounded, p.channels, true},
                               r.logsumexp, &in);
    softmax_free(a);
    double error = 0;
    for (size_t i = 0; i < p.x_count; i++) {
        const double difference = fabs((double)other.dx[i] - (double)r.dx[i]);
        if (difference > error) error = difference;
    }
    CHECK(error > 0 && error < 2e-2);
    free(rounded);
    result_free(&r);
    result_free(&other);
    problem_free(&p);
}

// More sequences or keys than the memory was planned for.
static void too_large(void *argument) {
    const Setting *is = argument;
    Problem p = problem_create(*is), smaller = p;
    Result r = result_create(&p);
    if (is->keys)
        smaller.keys = is->keys - 1;
    else
        smaller.is.batch = 1;
    if (is->kind == COSINE)
        cosine_run(cosine_create(&smaller), &p, &r, false);
    else
        softmax_run(softmax_create(&smaller, false), &p, &r, 0, false);
}

static void with_a_window(void *argument) {
    const Setting *is = argument;
    Problem p = problem_create(*is);
    p.is.window = 4;
    run(&p, false);
}

static void causal_cross(void *argument) {
    Problem p = problem_create(*(const Setting *)argument);
    AttentionInput in = input_of(&p, 0);
    in.causal = true;
    softmax_attention_forward(softmax_create(&p, false), (Matrix){p.dy, p.channels, false}, NULL,
                              &in);
}

static void too_much_memory(void *argument) {
    const Setting *is = argument;
    if (is->kind == COSINE)
        cosine_carved(cosine_attention_create(PRECISION_FLOAT32, 0, SIZE_MAX / 4, is->length,
                                              is->length, 64, 8),
                      0);
    else
        softmax_carved(softmax_attention_create(PRECISION_FLOAT32, 0, SIZE_MAX / 4, is->length,
                                                is->length, SIZE_MAX / 4, 64, 8),
                       true);
}

static void test_memory(void) {
    for (int kind = 0; kind < 2; kind++) {
        Setting is = kind == 1 ? cosine_setting() : PLAIN;
        CHECK_FAILS(
            too_large, &is, 1,
            "attention: batch 2 x 65 queries x 65 keys is larger than its memory, 1 x 65 x 65");
        CHECK_FAILS(too_much_memory, &is, 1, "no memory for");
        is.shape = CROSS;
        is.keys = 40;
        CHECK_FAILS(
            too_large, &is, 1,
            "attention: batch 2 x 65 queries x 40 keys is larger than its memory, 2 x 65 x 39");
        CHECK_FAILS(causal_cross, &is, 1, "attention: 65 causal queries of 40 keys");
        CHECK_FAILS(with_a_window, &is, 1, "attention: a window of 4 keys, not causal");
    }
}

static double worst_exp2(bool rough) {
    double worst = 0;
    for (int i = -1259; i <= 1279; i++) {
        const double at = 0.1 * i;
        const TileVector e = tile_exp2((TileVector){0} + (real)at, rough);
        worst = fmax(worst, fabs((double)e[TILE_LANES - 1] / exp2((double)(real)at) - 1));
    }
    return worst;
}

static void test_exp2(void) {
    const bool is_float = sizeof(real) < sizeof(double);
    CHECK_CLOSE(worst_exp2(false), 0, is_float ? 1.5e-7 : 1e-15);
    CHECK_CLOSE(worst_exp2(true), 0, is_float ? 1e-4 : 1e-15);
    const real special[] = {-2000, -1e30f, -INFINITY};
    for (int rough = 0; rough < 2; rough++) {
        for (size_t i = 0; i < sizeof(special) / sizeof(*special); i++)
            CHECK(tile_exp2((TileVector){0} + special[i], rough)[0] == 0);
        CHECK(isnan(tile_exp2((TileVector){0} + (real)NAN, rough)[0]));
        for (int n = -126; n < 128; n++) // exact
            CHECK(tile_exp2((TileVector){0} + (real)n, rough)[0] == (real)ldexp(1, n));
    }
}

static void test_lanes(void) {
    TileVector v = {0};
    for (size_t l = 0; l < TILE_LANES; l++) v[l] = (real)(l + 1);
    for (int n = -1; n <= (int)TILE_LANES + 1; n++) {
        const TileVector first = tile_first(v, n), kept = tile_keep(v, 0xfffffff5u);
        for (int l = 0; l < (int)TILE_LANES; l++) {
            CHECK(first[l] == (l < n ? v[l] : (real)-INFINITY));
            CHECK(kept[l] == (l == 1 || l == 3 ? 0 : v[l]));
        }
    }
    TileVector square[TILE_LANES];
    for (size_t i = 0; i < TILE_LANES; i++)
        for (size_t l = 0; l < TILE_LANES; l++) square[i][l] = (real)(100 * i + l);
    tile_transpose(square);
    for (size_t i = 0; i < TILE_LANES; i++)
        for (size_t l = 0; l < TILE_LANES; l++) CHECK(square[i][l] == (real)(100 * l + i));
}

int main(int argc, char **argv) {
    static const TestCase cases[] = {
        {"softmax", test_softmax},
        {"sink", test_sink},
        {"softmax with dropout", test_softmax_dropout},
        {"softmax in bf16", test_softmax_bf16},
        {"softmax of other shapes", test_softmax_shapes},
        {"softmax of sentences", test_softmax_sentences},
        {"windows", test_windows},
        {"windows of long sequences", test_windows_long},
        {"windows of Mistral", test_mistral},
        {"windows that hide nothing", test_windows_that_hide_nothing},
        {"cosine", test_cosine},
        {"cosine of other shapes", test_cosine_shapes},
        {"powers of cosine", test_cosine_powers},
        {"cosine in bf16", test_cosine_bf16},
        {"gradients by differences", test_gradients},
        {"published examples of softmax1", test_published_examples},
        {"scores of 1e4", test_large_scores},
        {"sums at their limit", test_sums_at_their_limit},
        {"rows that see only padding", test_only_padding},
        {"sequences of only padding", test_only_padding_both_ways},
        {"NaN stays NaN", test_nan},
        {"cosine of a zero vector", test_cosine_zero_vector},
        {"decoding equals the parallel form", test_decode},
        {"the same bits for any number of threads", test_threads},
        {"a smaller batch", test_smaller_batch},
        {"dropout by row of the update", test_first_row},
        {"y in bf16", test_bf16_output},
        {"y in bf16 backwards", test_bf16_y_backward},
        {"memory", test_memory},
        {"powers of 2", test_exp2},
        {"lanes", test_lanes},
    };
    return test_main(argc, argv, "attention", cases, sizeof(cases) / sizeof(*cases));
}
