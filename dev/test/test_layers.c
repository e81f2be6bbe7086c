// Layer norm, activation, embedding and AdamW against plain definitions in double. Gradients are
// checked against central differences of the definition, so that one test covers forward and
// backward, in the float and the double build.
#include "activation.h"
#include "adamw.h"
#include "embedding.h"
#include "layernorm.h"
#include "memory.h"
#include "random.h"
#include "test.h"
#include "vector_math.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#ifdef REAL_IS_DOUBLE
static const double EXACT = 1e-12, DERIVATIVE = 1e-7; // relative to the largest value
#else
static const double EXACT = 5e-6, DERIVATIVE = 1e-4;
#endif

static real *random_reals(Random *random, size_t count, double mean, double deviation) {
    real *x = allocate(count, sizeof(real), "test values");
    for (size_t i = 0; i < count; i++) x[i] = (real)(mean + deviation * random_normal(random));
    return x;
}

static double *doubles(const real *x, size_t count) {
    double *y = allocate(count, sizeof(double), "test values");
    for (size_t i = 0; i < count; i++) y[i] = (double)x[i];
    return y;
}

static bool same_bits(const void *a, const void *b, size_t size) {
    return memcmp(a, b, size) == 0;
}

static Matrix plain_input(size_t rows, size_t columns) {
    return (Matrix){allocate(rows * columns, sizeof(real), "test input"), columns, false};
}

// Fails if the largest difference exceeds `tolerance` times the largest expected value, at least 1.
static void check_values(const char *what, const real *value, const double *expected, size_t count,
                         double tolerance) {
    double difference = 0, scale = 1;
    for (size_t i = 0; i < count; i++) {
        const double d = fabs((double)value[i] - expected[i]);
        difference = d <= difference ? difference : d; // NaN is kept
        scale = fmax(scale, fabs(expected[i]));
    }
    if (!(difference <= tolerance * scale))
        test_fail(__FILE__, __LINE__, "%s (%zu values): error %.3g, expected at most %.3g", what,
                  count, difference / scale, tolerance);
}

// A loss as a function of arrays of doubles; its derivatives are central differences.
typedef double (*Loss)(const void *context);

static void check_gradient(const char *what, Loss loss, const void *context, double *x,
                           const real *gradient, size_t count) {
    double *expected = allocate(count, sizeof(double), "differences");
    for (size_t i = 0; i < count; i++) {
        const double at = x[i], h = 1e-5;
        x[i] = at + h;
        const double above = loss(context);
        x[i] = at - h;
        const double below = loss(context);
        x[i] = at;
        expected[i] = (above - below) / (2 * h);
    }
    check_values(what, gradient, expected, count, DERIVATIVE);
    free(expected);
}

// ---- elementary functions ---------------------------------------------------

static void test_exp(void) {
    for (int i = -8730; i < 8800; i++) {
        const real at = (real)(i * 0.01);
        const double exact = exp((double)at);
        CHECK_CLOSE(vector_exp(at), exact, exact * (sizeof(real) == 4 ? 1.2e-7 : 4e-16));
    }
    CHECK(vector_exp(0) == 1);
    CHECK(vector_exp((real)-INFINITY) == 0 && vector_exp((real)-1e30) == 0);
    CHECK(vector_exp((real)INFINITY) > 1e38 && isnan(vector_exp((real)NAN)));
}

// Computes tile_normal() in the last lane of a vector.
static real normal_of(real x, real *density) {
    TileVector densities;
    const TileVector normal = tile_normal(x - (TileVector){0}, &densities);
    *density = densities[TILE_LANES - 1];
    return normal[TILE_LANES - 1];
}

static void test_normal(void) {
    for (int i = -3000; i < 3000; i++) {
        const real at = (real)(i * 0.01);
        real density;
        const double normal = (double)normal_of(at, &density),
                     exact = 0.5 * erfc(-(double)at * sqrt(0.5));
        CHECK_CLOSE(normal, exact, sizeof(real) == 4 ? 1.7e-7 : 1e-15);
        if (at > -8) CHECK_CLOSE(normal, exact, exact * (sizeof(real) == 4 ? 4e-6 : 1e-13));
        CHECK_CLOSE(density, exp(-0.5 * (double)at * (double)at) / sqrt(2 * 3.14159265358979324),
                    sizeof(real) == 4 ? 1e-7 : 1e-15);
        CHECK(normal >= 0 && normal <= 1);
    }
    real density;
    CHECK(normal_of((real)1e30, &density) == 1 && density == 0);
    CHECK(normal_of((real)-1e30, &density) == 0 && density == 0);
    CHECK(isnan(normal_of((real)NAN, &density)));
}

// ---- layer norm -------------------------------------------------------------

typedef struct {
    size_t m, channels;
    double *x, *gain, *bias, *y, *weights; // the loss is the sum of weights * y; bias NULL: RMSNorm
} Norm;

static double norm_loss(const void *context) {
    const Norm *n = context;
    double loss = 0;
    for (size_t row = 0; row < n->m; row++) {
        const double *x = n->x + row * n->channels;
        double mean = 0, variance = 0;
        for (size_t c = 0; n->bias && c < n->channels; c++) mean += x[c] / (double)n->channels;
        for (size_t c = 0; c < n->channels; c++)
            variance += pow(x[c] - mean, 2) / (double)n->channels;
        for (size_t c = 0; c < n->channels; c++) {
            const size_t at = row * n->channels + c;
            n->y[at] =
                n->gain[c] * (x[c] - mean) / sqrt(variance + 1e-5) + (n->bias ? n->bias[c] : 0);
            loss += n->weights[at] * n->y[at];
        }
    }
    return loss;
}

static void check_layernorm(size_t m, size_t channels, double mean_x, bool gradients, bool rms) {
    Random random = random_stream(1, RANDOM_TEST, (uint32_t)m, (uint32_t)channels);
    const size_t n = m * channels;
    real *x = random_reals(&random, n, mean_x, 1.5), *dy = random_reals(&random, n, 0, 1);
    real *gain = random_reals(&random, channels, 1, 0.3),
         *bias = rms ? NULL : random_reals(&random, channels, 0, 0.3);
    real *mean = allocate(m, sizeof(real), "mean"), *rstd = allocate(m, sizeof(real), "rstd");
    Norm plain = {m,
                  channels,
                  doubles(x, n),
                  doubles(gain, channels),
                  rms ? NULL : doubles(bias, channels),
                  allocate(n, sizeof(double), "y"),
                  doubles(dy, n)};
    Matrix y = plain_input(m, channels);
    layernorm_forward(y, mean, rstd, x, gain, bias, 1e-5, m, channels);
    norm_loss(&plain);
    check_values("y", y.data, plain.y, n, EXACT * (1 + fabs(mean_x)));

    real *row = allocate(channels, sizeof(real), "row");
    if (m > 0) {
        layernorm_row(row, x, gain, bias, 1e-5, channels);
        check_values("row", row, plain.y, channels, EXACT * (1 + fabs(mean_x)));
    }

    if (gradients) {
        real *dx = allocate(n, sizeof(real), "dx"),
             *dgain = allocate(channels, sizeof(real), "dgain");
        real *dbias = rms ? NULL : allocate(channels, sizeof(real), "dbias");
        layernorm_backward(dx, dgain, dbias, dy, x, gain, mean, rstd, m, channels);
        check_gradient("dx", norm_loss, &plain, plain.x, dx, n);
        check_gradient("dgain", norm_loss, &plain, plain.gain, dgain, channels);
        if (!rms) check_gradient("dbias", norm_loss, &plain, plain.bias, dbias, channels);
        // In place, dx is the same and replaces the previous contents.
        real *in_place = allocate(n, sizeof(real), "dx"),
             *sums = allocate(2 * channels, sizeof(real), "sums");
        double *once = doubles(dx, n);
        memcpy(in_place, dy, n * sizeof(real));
        layernorm_backward(in_place, sums, rms ? NULL : sums + channels, in_place, x, gain, mean,
                           rstd, m, channels);
        check_values("dx in place", in_place, once, n, EXACT);
        free(in_place), free(sums), free(once);
        // A second call adds the same again.
        double *twice[] = {doubles(dx, n), doubles(dgain, channels),
                           rms ? NULL : doubles(dbias, channels)};
        for (size_t i = 0; i < n; i++) twice[0][i] *= 2;
        for (size_t c = 0; c < channels; c++) twice[1][c] *= 2;
        for (size_t c = 0; !rms && c < channels; c++) twice[2][c] *= 2;
        layernorm_backward(dx, dgain, dbias, dy, x, gain, mean, rstd, m, channels);
        check_values("2 dx", dx, twice[0], n, EXACT);
        check_values("2 dgain", dgain, twice[1], channels, EXACT);
        if (!rms) check_values("2 dbias", dbias, twice[2], channels, EXACT);
        for (int i = 0; i < 3; i++) free(twice[i]);
        free(dx), free(dgain), free(dbias);
    }
    free(x), free(dy), free(gain), free(bias), free(mean), free(rstd), free(row), free(y.data);
    free(plain.x), free(plain.gain), free(plain.bias), free(plain.y), free(plain.weights);
}

static void test_layernorm_values(void) {
    const size_t sizes[][2] = {{1, 1},    {3, 2},    {17, 128},  {130, 33},
                               {2, 1023}, {2, 1025}, {1, 65536}, {0, 8}};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
        for (int rms = 0; rms < 2; rms++) check_layernorm(sizes[i][0], sizes[i][1], 0, false, rms);
    check_layernorm(5, 128, 1000, false,
                    false); // E[x^2] - mean^2 would leave no digit of the variance in float
}

static void test_layernorm_gradients(void) {
    const size_t sizes[][2] = {{1, 1},  {1, 2},  {3, 7},  {5, 33},
                               {2, 65}, {64, 3}, {65, 5}, {130, 3}};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
        for (int rms = 0; rms < 2; rms++) check_layernorm(sizes[i][0], sizes[i][1], 0.5, true, rms);
}

// ---- activation -------------------------------------------------------------

typedef struct {
    size_t m, n;
    ActivationKind kind;
    double *x, *bias, *y, *weights;
} Activation;

static double activation_loss(const void *context) {
    const Activation *g = context;
    double loss = 0;
    const size_t columns = activation_inputs(g->kind) * g->n;
    for (size_t i = 0; i < g->m * g->n; i++) {
        const size_t column = i % g->n, at = i / g->n * columns + column;
        const double x = g->x[at] + (g->bias ? g->bias[column] : 0);
        const double up =
            columns > g->n ? g->x[at + g->n] + (g->bias ? g->bias[g->n + column] : 0) : 1;
        const double inner = sqrt(2 / 3.14159265358979324) * (x + 0.044715 * pow(x, 3));
        g->y[i] = g->kind == RELU       ? fmax(x, 0)
                  : g->kind == RELU2    ? pow(fmax(x, 0), 2)
                  : g->kind == SILU     ? x / (1 + exp(-x))
                  : g->kind == SWIGLU   ? x / (1 + exp(-x)) * up
                  : g->kind == GELU_ERF ? 0.5 * x * (1 + erf(x / sqrt(2)))
                                        : 0.5 * x * (1 + tanh(inner));
        loss += g->weights[i] * g->y[i];
    }
    return loss;
}

static void check_activation(size_t m, size_t n, ActivationKind kind, bool biased) {
    Random random = random_stream(2, RANDOM_TEST, (uint32_t)m, (uint32_t)n);
    const size_t count = m * n, columns = activation_inputs(kind) * n, inputs = m * columns;
    real *x = random_reals(&random, inputs, 0, 2), *dy = random_reals(&random, count, 0, 1);
    real *bias = biased ? random_reals(&random, columns, 0, 1) : NULL;
    Activation plain = {m,
                        n,
                        kind,
                        doubles(x, inputs),
                        biased ? doubles(bias, columns) : NULL,
                        allocate(count, sizeof(double), "y"),
                        doubles(dy, count)};
    activation_loss(&plain);
    Matrix y = plain_input(m, n), dx = plain_input(m, columns);
    activation_forward(y, x, bias, kind, m, n);
    check_values("y", y.data, plain.y, count, EXACT);
    real *dbias = biased ? allocate(columns, sizeof(real), "dbias") : NULL,
         *row = allocate(count, sizeof(real), "row");
    if (!biased && kind == SWIGLU) {
        swiglu_row(row, x, x + n, n);
        check_values("row", row, plain.y, n, EXACT);
    } else if (!biased) {
        memcpy(row, x, count * sizeof(real));
        activation_row(row, kind, count);
        check_values("row", row, plain.y, count, EXACT);
    }
    activation_backward(dx, dbias, dy, x, bias, kind, m, n);
    check_gradient("dx", activation_loss, &plain, plain.x, dx.data, inputs);
    if (biased) check_gradient("dbias", activation_loss, &plain, plain.bias, dbias, columns);
    Matrix again = plain_input(m, n), same = plain_input(m, columns);
    activation_rows_backward(same, again, dbias, dy, x, bias, kind, m, n);
    double *first_y = doubles(y.data, count), *first_dx = doubles(dx.data, inputs);
    check_values("y again", again.data, first_y, count, EXACT);
    check_values("dx with it", same.data, first_dx, inputs, EXACT);
    free(again.data), free(same.data), free(first_y), free(first_dx);
    free(x), free(dy), free(bias), free(dbias), free(row), free(y.data), free(dx.data);
    free(plain.x), free(plain.bias), free(plain.y), free(plain.weights);
}

static void test_activation(void) {
    const size_t sizes[][2] = {{1, 1}, {3, 17}, {65, 2}, {1, 512}, {1, 513}};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
        for (int kind = GELU_ERF; kind <= SWIGLU; kind++)
            for (int biased = 0; biased < 2; biased++)
                check_activation(sizes[i][0], sizes[i][1], (ActivationKind)kind, biased);
}

static void test_relu_at_zero(void) {
    real x[] = {0, -0.0f, -1, 1}, dy[] = {2, 2, 2, 2};
    Matrix dx = plain_input(1, 4);
    activation_backward(dx, NULL, dy, x, NULL, RELU, 1, 4);
    activation_row(x, RELU, 4);
    for (int i = 0; i < 4; i++) CHECK(x[i] == (i == 3) && ((real *)dx.data)[i] == (i == 3 ? 2 : 0));
    free(dx.data);
}

static void test_activation_extremes(void) {
    static const double inputs[] = {0, 1e30, -1e30, 1e15, -1e15, 33, -33, 1e-30, 12, -12};
    enum { ALL = sizeof(inputs) / sizeof(*inputs) };
    static const ActivationKind kinds[] = {GELU_ERF, GELU_TANH, SILU};
    for (int k = 0; k < 3; k++) {
        const ActivationKind kind = kinds[k];
        const int count = kind == SILU ? ALL - 2 : ALL; // exp(-12) is not negligible
        real x[ALL], ones[ALL], y[ALL];
        for (int i = 0; i < count; i++) x[i] = y[i] = (real)inputs[i], ones[i] = 1;
        Matrix dx = plain_input(1, ALL);
        activation_row(y, kind, (size_t)count);
        activation_backward(dx, NULL, ones, x, NULL, kind, 1, (size_t)count);
        for (int i = 0; i < count; i++) {
            const double far = fabs(inputs[i]) > 10, limit = inputs[i] > 0 ? 1 : 0;
            CHECK_CLOSE(y[i], far > 0 ? limit * (double)x[i] : 0.5 * (double)x[i], 1e-8);
            CHECK_CLOSE(((real *)dx.data)[i], far > 0 ? limit : 0.5, 1e-8);
        }
        free(dx.data);
    }
}

// ---- embedding --------------------------------------------------------------

static const real SCALE = (real)2.5; // scale of the token embedding

// Computes x by the definition, in double.
static void plain_embedding(double *x, const real *token, const real *position, const Batch *batch,
                            const Dropout *dropout, size_t channels) {
    const size_t T = (size_t)batch->length, rows = (size_t)batch->batch * T;
    for (size_t i = 0; i < rows * channels; i++) {
        const size_t row = i / channels, c = i % channels;
        real factor = 1;
        if (dropout)
            dropout_factors(dropout, (uint64_t)batch->first_row * T * channels + i, 1, &factor);
        x[i] = ((double)SCALE * (double)token[(size_t)batch->inputs[row] * channels + c] +
                (double)position[row % T * channels + c]) *
               (double)factor;
    }
}

// The loss sum(dx * x) is linear in the tables, so its derivative is dx at each use of an element.
static void plain_embedding_backward(double *dtoken, double *dposition, const real *dx,
                                     const Batch *batch, const Dropout *dropout, int32_t padding,
                                     size_t channels) {
    const size_t T = (size_t)batch->length, rows = (size_t)batch->batch * T;
    for (size_t i = 0; i < rows * channels; i++) {
        const size_t row = i / channels, c = i % channels;
        real factor = 1;
        if (dropout)
            dropout_factors(dropout, (uint64_t)batch->first_row * T * channels + i, 1, &factor);
        const double d = (double)dx[i] * (double)factor;
        if (batch->inputs[row] != padding)
            dtoken[(size_t)batch->inputs[row] * channels + c] += (double)SCALE * d;
        dposition[row % T * channels + c] += d;
    }
}

static void check_embedding(int64_t B, int64_t T, size_t channels, const Dropout *dropout,
                            int32_t padding) {
    enum { V = 11 };
    Random random = random_stream(3, RANDOM_TEST, (uint32_t)T, (uint32_t)channels);
    const size_t rows = (size_t)(B * T), n = rows * channels, positions = (size_t)T * channels;
    int32_t *inputs = allocate(rows, sizeof(int32_t), "inputs");
    uint8_t *mask = allocate(rows, 1, "mask"); // all padding: the gradient ignores it
    for (size_t i = 0; i < rows; i++) inputs[i] = (int32_t)random_below(&random, V);
    const Batch batch = {.batch = B, .length = T, .inputs = inputs, .mask = mask, .first_row = 3};
    real *token = random_reals(&random, V * channels, 0, 1),
         *position = random_reals(&random, positions, 0, 1);
    real *x = allocate(n, sizeof(real), "x");
    double *plain = allocate(n, sizeof(double), "x");
    embedding_forward(x, token, SCALE, position, &batch, dropout, channels);
    plain_embedding(plain, token, position, &batch, dropout, channels);
    check_values("x", x, plain, n, EXACT);

    real *dx = random_reals(&random, n, 0, 1);
    real *dtoken = random_reals(&random, V * channels, 0, 1),
         *dposition = random_reals(&random, positions, 0, 1);
    double *plain_token = doubles(dtoken, V * channels),
           *plain_position = doubles(dposition, positions);
    plain_embedding_backward(plain_token, plain_position, dx, &batch, dropout, padding, channels);
    embedding_backward(dtoken, SCALE, dposition, dx, &batch, dropout, padding, channels);
    check_values("dtoken", dtoken, plain_token, V * channels, EXACT);
    check_values("dposition", dposition, plain_position, positions, EXACT);
    free(inputs), free(mask), free(token), free(position), free(x), free(plain);
    free(dx), free(dtoken), free(dposition), free(plain_token), free(plain_position);
}

static void test_embedding(void) {
    const Dropout dropout = dropout_create(0.4, 5, 6, 7);
    const size_t channels[] = {1, 8, 33, 128, 513, 1100};
    for (size_t i = 0; i < sizeof(channels) / sizeof(*channels); i++)
        for (int k = 0; k < 2; k++) {
            check_embedding(1, 1, channels[i], k ? &dropout : NULL, -1);
            check_embedding(3, 7, channels[i], k ? &dropout : NULL, 0);
        }
}

// Sinusoidal positions by the definition; they have no gradient.
static void test_positions(void) {
    enum { POSITIONS = 40, EVEN = 6, ODD = 5 };
    real even[POSITIONS * EVEN], odd[POSITIONS * ODD];
    sinusoidal_positions(even, POSITIONS, EVEN);
    sinusoidal_positions(odd, POSITIONS, ODD);
    for (size_t p = 0; p < POSITIONS; p++) {
        for (size_t i = 0; i < 3; i++) {
            CHECK_CLOSE(even[p * EVEN + i], sin((double)p / pow(10000, (double)i / 3)), EXACT);
            CHECK_CLOSE(even[p * EVEN + 3 + i], cos((double)p / pow(10000, (double)i / 3)), EXACT);
            CHECK_CLOSE(odd[p * ODD + i], sin((double)p / pow(10000, (double)i / 2.5)), EXACT);
            if (i < 2)
                CHECK_CLOSE(odd[p * ODD + 3 + i], cos((double)p / pow(10000, (double)i / 2.5)),
                            EXACT);
        }
    }
    const int32_t inputs[] = {1, 0};
    const Batch batch = {.batch = 1, .length = 2, .inputs = inputs};
    real dtoken[2 * ODD] = {0}, dx[2 * ODD];
    for (size_t i = 0; i < 2 * ODD; i++) dx[i] = (real)i;
    embedding_backward(dtoken, SCALE, NULL, dx, &batch, NULL, -1, ODD);
    for (size_t i = 0; i < ODD; i++) {
        CHECK(dtoken[ODD + i] == SCALE * (real)i);
        CHECK(dtoken[i] == SCALE * (real)(ODD + i));
    }
}

// The rows of an update get the same masks for any split into batches.
static void test_embedding_batches(void) {
    enum { B = 4, T = 5, C = 24, V = 3 };
    Random random = random_stream(4, RANDOM_TEST, 0, 0);
    const Dropout dropout = dropout_create(0.5, 5, 6, 7);
    real *token = random_reals(&random, V * C, 0, 1),
         *position = random_reals(&random, T * C, 0, 1);
    int32_t inputs[B * T];
    for (int i = 0; i < B * T; i++) inputs[i] = (int32_t)random_below(&random, V);
    real whole[B * T * C], parts[B * T * C];
    embedding_forward(whole, token, 1, position,
                      &(Batch){.batch = B, .length = T, .inputs = inputs}, &dropout, C);
    for (int b = 0; b < B; b++) {
        const Batch one = {.batch = 1, .length = T, .inputs = inputs + b * T, .first_row = b};
        embedding_forward(parts + b * T * C, token, 1, position, &one, &dropout, C);
    }
    CHECK(same_bits(whole, parts, sizeof(whole)));
    free(token), free(position);
}

// ---- AdamW ------------------------------------------------------------------

static ParameterState small_state(bool training, Arena **arena) {
    ParameterTable table = {0};
    parameter_add(&table, "matrix", 2, (int64_t[]){211, 97}, true, 0, 1); // more than one piece
    parameter_add(&table, "gain", 1, (int64_t[]){7}, false, 1, 0.5);
    parameter_add(&table, "last", 1, (int64_t[]){1}, true, 0, 1);
    ParameterState state = {.table = table};
    *arena = arena_create();
    ARENA_CARVE(*arena, parameter_state_carve(&state, *arena, training));
    parameter_initialise(&state.table, 11, state.values);
    return state;
}

// Draws the gradients of a step for every parameter; the padding stays 0.
static void draw_gradients(ParameterState *state, int64_t step) {
    parameter_initialise(&state->table, (uint64_t)step, state->gradients);
}

static void check_adamw(bool adam) {
    Arena *arena;
    ParameterState state = small_state(true, &arena);
    const size_t total = state.table.total;
    double *x = doubles(state.values, total), *m = doubles(state.first_moment, total);
    double *v = doubles(state.second_moment, total);
    for (int64_t step = 1; step <= 6; step++) {
        const UpdateSettings s = {0.01 / (double)step,   0.9,  0.98, 1e-6, 0.1,
                                  step == 3 ? 0.125 : 1, step, adam};
        draw_gradients(&state, step);
        for (int i = 0; i < state.table.count; i++) {
            const Parameter *p = &state.table.items[i];
            for (size_t j = p->offset; j < p->offset + p->size; j++) {
                const double decay = p->decay ? s.weight_decay : 0;
                const double g =
                    (double)state.gradients[j] * s.gradient_scale + (adam ? decay * x[j] : 0);
                m[j] = s.beta1 * m[j] + (1 - s.beta1) * g;
                v[j] = s.beta2 * v[j] + (1 - s.beta2) * g * g;
                const double m_hat = m[j] / (1 - pow(s.beta1, (double)step));
                const double v_hat = v[j] / (1 - pow(s.beta2, (double)step));
                x[j] -= s.learning_rate *
                        (m_hat / (sqrt(v_hat) + s.epsilon) + (adam ? 0 : decay * x[j]));
            }
        }
        adamw_update(&state, &s);
        check_values("values", state.values, x, total, EXACT);
        check_values("first moment", state.first_moment, m, total, EXACT);
        check_values("second moment", state.second_moment, v, total, EXACT);
        for (size_t i = 0; i < total; i++) CHECK(state.gradients[i] == 0);
    }
    const real *arrays[] = {state.values, state.first_moment, state.second_moment};
    for (int k = 0; k < 3; k++) // padding stays 0
        for (size_t i = state.table.items[1].offset + 7; i < state.table.items[2].offset; i++)
            CHECK(arrays[k][i] == 0);
    free(x), free(m), free(v);
    parameter_state_free(&state);
    arena_free(arena);
}

static void test_adamw(void) {
    check_adamw(false);
    check_adamw(true);
}

static void test_gradient_norm(void) {
    Arena *arena;
    ParameterState state = small_state(true, &arena);
    CHECK(gradient_norm(&state) == 0);
    draw_gradients(&state, 1);
    double sum = 0;
    for (size_t i = 0; i < state.table.total; i++) sum += pow((double)state.gradients[i], 2);
    CHECK_CLOSE(gradient_norm(&state), sqrt(sum), 1e-12 * sqrt(sum));
    state.gradients[40] = (real)1e30; // its square overflows float
    CHECK_CLOSE(gradient_norm(&state), 1e30, 1e24);
    state.gradients[40] = (real)NAN;
    CHECK(isnan(gradient_norm(&state)));
    gradients_clear(&state);
    CHECK(gradient_norm(&state) == 0);
    parameter_state_free(&state);
    arena_free(arena);
    CHECK(state.values == NULL && state.table.items == NULL);
}

static void test_state_arrays(void) {
    Arena *arena, *frozen_arena;
    ParameterState state = small_state(true, &arena);
    const real *const arrays[] = {[MODEL_VALUES] = state.values,
                                  [MODEL_GRADIENTS] = state.gradients,
                                  [MODEL_FIRST_MOMENT] = state.first_moment,
                                  [MODEL_SECOND_MOMENT] = state.second_moment};
    for (ModelArray which = MODEL_VALUES; which <= MODEL_SECOND_MOMENT; which++)
        CHECK(arrays[which] && parameter_state_array(&state, which) == arrays[which]);
    parameter_state_free(&state);
    arena_free(arena);
    ParameterState frozen = small_state(false, &frozen_arena);
    CHECK(frozen.values && !frozen.gradients && !frozen.first_moment && !frozen.second_moment);
    parameter_state_free(&frozen);
    arena_free(frozen_arena);
}

// ---- threads ----------------------------------------------------------------

enum { ROWS = 130, WIDTH = 33, TABLE = 7 };

// The results of all layers in one run.
typedef struct {
    real norm[ROWS * WIDTH], mean[ROWS], rstd[ROWS], norm_dx[ROWS * WIDTH], dgain[WIDTH],
        dbias[WIDTH];
    real activation[ROWS * WIDTH], activation_dx[ROWS * WIDTH], activation_dbias[WIDTH];
    real x[ROWS * WIDTH], dx[ROWS * WIDTH], dtoken[TABLE * WIDTH], dposition[ROWS / 2 * WIDTH];
    real parameters[211 * 97];
    double gradient_norm;
} Results;

static void run_layers(Results *r) {
    memset(r, 0, sizeof(*r));
    Random random = random_stream(5, RANDOM_TEST, 0, 0);
    real *x = random_reals(&random, ROWS * WIDTH, 0, 1),
         *dy = random_reals(&random, ROWS * WIDTH, 0, 1);
    real *gain = random_reals(&random, WIDTH, 1, 1), *bias = random_reals(&random, WIDTH, 0, 1);
    layernorm_forward((Matrix){r->norm, WIDTH, false}, r->mean, r->rstd, x, gain, bias, 1e-5, ROWS,
                      WIDTH);
    layernorm_backward(r->norm_dx, r->dgain, r->dbias, dy, x, gain, r->mean, r->rstd, ROWS, WIDTH);
    activation_forward((Matrix){r->activation, WIDTH, false}, x, bias, GELU_ERF, ROWS, WIDTH);
    activation_backward((Matrix){r->activation_dx, WIDTH, false}, r->activation_dbias, dy, x, bias,
                        GELU_TANH, ROWS, WIDTH);

    int32_t inputs[ROWS];
    for (int i = 0; i < ROWS; i++) inputs[i] = (int32_t)random_below(&random, TABLE);
    const Batch batch = {.batch = 2, .length = ROWS / 2, .inputs = inputs};
    const Dropout dropout = dropout_create(0.1, 1, 2, 3);
    embedding_forward(r->x, dy, 1, x, &batch, &dropout, WIDTH);
    memcpy(r->dx, dy, sizeof(r->dx));
    embedding_backward(r->dtoken, 1, r->dposition, r->dx, &batch, &dropout, 0, WIDTH);

    Arena *arena;
    ParameterState state = small_state(true, &arena);
    draw_gradients(&state, 1);
    r->gradient_norm = gradient_norm(&state);
    adamw_update(&state, &(UpdateSettings){0.1, 0.9, 0.9, 1e-8, 0.1, 0.5, 1, false});
    memcpy(r->parameters, state.values, sizeof(r->parameters));
    parameter_state_free(&state);
    arena_free(arena);
    free(x), free(dy), free(gain), free(bias);
}

static void test_threads(void) {
    static Results most, fewer;
    test_set_threads(5);
    run_layers(&most);
    for (int threads = 4; threads >= 1; threads--) {
        test_set_threads(threads);
        run_layers(&fewer);
        CHECK(same_bits(&most, &fewer, sizeof(most)));
    }
}

int main(int argc, char **argv) {
    static const TestCase cases[] = {
        {"exp", test_exp},
        {"normal distribution", test_normal},
        {"layer norm values", test_layernorm_values},
        {"layer norm gradients", test_layernorm_gradients},
        {"activation", test_activation},
        {"activation extremes", test_activation_extremes},
        {"relu at zero", test_relu_at_zero},
        {"embedding", test_embedding},
        {"sinusoidal positions", test_positions},
        {"embedding batches", test_embedding_batches},
        {"adamw", test_adamw},
        {"gradient norm", test_gradient_norm},
        {"state arrays", test_state_arrays},
        {"threads", test_threads},
    };
    return test_main(argc, argv, "layers", cases, sizeof(cases) / sizeof(*cases));
}
