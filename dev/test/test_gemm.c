// Products against their definition, for all libraries, precisions, layouts and sizes.
#include "arena.h"
#include "gemm.h"
#include "memory.h"
#include "random.h"
#include "test.h"
#include "threads.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

// Tolerance relative to the definition: a few roundings of the largest partial sum.
#ifdef REAL_IS_DOUBLE
static const double TOLERANCE = 1e-14;
#else
static const double TOLERANCE = 2e-6;
#endif

static real *random_values(size_t count, uint32_t stream) {
    Random random = random_stream(7, RANDOM_TEST, stream, 0);
    real *values = allocate(count, sizeof(*values), "random values");
    for (size_t i = 0; i < count; i++) values[i] = (real)(2 * random_uniform(&random) - 1);
    return values;
}

// A matrix in the form that products read, and its rounded values for the definition.
typedef struct {
    Arena *arena; // holds the input
    Matrix input;
    real *values;
} Operand;

static Matrix input_create(const Gemm *gemm, Arena *arena, size_t rows, size_t columns) {
    Matrix input;
    ARENA_CARVE(arena, input = gemm_input_carve(gemm, arena, rows, columns, "the test's input"));
    return input;
}

// Returns a packed weight in the arena.
static GemmWeight *weight_create(Gemm *gemm, Arena *arena, size_t n, size_t k, WeightLayout layout,
                                 const real *values) {
    GemmWeight *weight = gemm_weight_create(gemm, n, k, layout, "a test");
    ARENA_CARVE(arena, gemm_weight_carve(weight, arena));
    gemm_weight_pack(weight, values);
    return weight;
}

static Operand random_operand(const Gemm *gemm, size_t rows, size_t columns, uint32_t stream) {
    Operand operand = {.arena = arena_create(), .values = random_values(rows * columns, stream)};
    operand.input = input_create(gemm, operand.arena, rows, columns);
    gemm_input_store(operand.input, 0, 0, operand.values, rows * columns);
    gemm_input_load(operand.input, 0, 0, operand.values, rows * columns);
    return operand;
}

static void operand_free(Operand *operand) {
    arena_free(operand->arena);
    free(operand->values);
}

// Counts the elements of c (m, n) that differ from start + a b by more than the tolerance; a (m, k)
// and b (k, n) have strides.
static void check_product(const char *what, const real *c, real start, const real *a, size_t a_row,
                          size_t a_column, const real *b, size_t b_row, size_t b_column, size_t m,
                          size_t n, size_t k) {
    size_t wrong = 0;
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < n; j++) {
            double sum = (double)start, size = fabs((double)start);
            for (size_t l = 0; l < k; l++) {
                const double term =
                    (double)a[i * a_row + l * a_column] * (double)b[l * b_row + j * b_column];
                sum += term;
                size += fabs(term);
            }
            if (!(fabs((double)c[i * n + j] - sum) <= TOLERANCE * size + 1e-300)) wrong++;
        }
    if (wrong > 0)
        test_fail(__FILE__, __LINE__, "%s %zu x %zu x %zu: %zu elements are wrong", what, m, n, k,
                  wrong);
}

static real *filled(size_t count, real value) {
    real *values = allocate(count, sizeof(*values), "a result");
    for (size_t i = 0; i < count; i++) values[i] = value;
    return values;
}

// Checks all products of one linear layer.
static void check_layer(Gemm *gemm, size_t m, size_t n, size_t k, WeightLayout layout) {
    const size_t w_n = layout == WEIGHT_OUT_IN ? k : 1, w_k = layout == WEIGHT_OUT_IN ? 1 : n;
    Operand x = random_operand(gemm, m, k, 1), dy = random_operand(gemm, m, n, 2),
            w = random_operand(gemm, 1, n * k, 3);
    Arena *arena = arena_create();
    GemmWeight *weight = weight_create(gemm, arena, n, k, layout, w.values);

    real *y = filled(m * n, (real)99), *dx = filled(m * k, (real)99),
         *dw = filled(n * k, (real)0.5);
    gemm_forward(gemm, y, x.input, weight, m);
    check_product("forward", y, 0, x.values, k, 1, w.values, w_k, w_n, m, n, k);
    gemm_backward_input(gemm, dx, dy.input, weight, m);
    check_product("backward_input", dx, 0, dy.values, n, 1, w.values, w_n, w_k, m, k, n);
    for (size_t i = 0; i < m * k; i++) dx[i] = (real)0.25;
    gemm_backward_input_add(gemm, dx, dy.input, weight, m);
    check_product("backward_input_add", dx, (real)0.25, dy.values, n, 1, w.values, w_n, w_k, m, k,
                  n);
    gemm_backward_weight(gemm, dw, dy.input, x.input, weight, m);
    if (layout == WEIGHT_OUT_IN)
        check_product("backward_weight", dw, (real)0.5, dy.values, 1, n, x.values, k, 1, n, k, m);
    else
        check_product("backward_weight", dw, (real)0.5, x.values, 1, k, dy.values, n, 1, k, n, m);

    gemm_weight_free(weight);
    arena_free(arena);
    operand_free(&x);
    operand_free(&dy);
    operand_free(&w);
    free(y);
    free(dx);
    free(dw);
}

static void for_each_precision(void (*check)(Gemm *gemm)) {
    for (int p = PRECISION_FLOAT32; p <= PRECISION_BFLOAT16; p++) {
        if (!gemm_supports((Precision)p)) continue;
        Gemm *gemm = gemm_create((Precision)p);
        CHECK(gemm_precision(gemm) == (Precision)p);
        check(gemm);
        gemm_free(gemm);
    }
}

static void check_sizes(Gemm *gemm) {
    static const size_t sizes[][3] = {
        {1, 1, 1},      {0, 5, 3},     {1, 512, 128}, {5, 3, 2},
        {13, 33, 31},   {17, 1, 9},    {64, 64, 64},  {65, 127, 129},
        {100, 257, 63}, {7, 384, 260}, {301, 12, 14}, {31, 640, 256},
        {530, 96, 48},  {2, 1, 700},   {301, 96, 64}, {530, 544, 160}};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        check_layer(gemm, sizes[i][0], sizes[i][1], sizes[i][2], WEIGHT_OUT_IN);
        check_layer(gemm, sizes[i][0], sizes[i][1], sizes[i][2], WEIGHT_IN_OUT);
    }
}

static void test_sizes(void) {
    for_each_precision(check_sizes);
}

// More shapes than cached plans: old plans are replaced and created again.
static void check_many_rows(Gemm *gemm) {
    enum { N = 24, K = 40, ROWS = 90 };
    Operand x = random_operand(gemm, ROWS, K, 1), w = random_operand(gemm, N, K, 2);
    Arena *arena = arena_create();
    GemmWeight *weight = weight_create(gemm, arena, N, K, WEIGHT_OUT_IN, w.values);
    real *y = filled((size_t)ROWS * N, 0);
    for (int pass = 0; pass < 2; pass++)
        for (size_t m = 1; m <= ROWS; m++) {
            gemm_forward(gemm, y, x.input, weight, m);
            check_product("forward", y, 0, x.values, K, 1, w.values, 1, K, m, N, K);
        }
    gemm_weight_free(weight);
    arena_free(arena);
    operand_free(&x);
    operand_free(&w);
    free(y);
}

static void test_many_rows(void) {
    for_each_precision(check_many_rows);
}

// A weight holds what was packed last, and does not refer to the source array.
static void check_packing(Gemm *gemm) {
    enum { M = 9, N = 70, K = 50 };
    Operand x = random_operand(gemm, M, K, 1), first = random_operand(gemm, N, K, 2),
            w = random_operand(gemm, N, K, 3);
    Arena *arena = arena_create();
    real y[M * N], *values = filled((size_t)N * K, 0);
    memcpy(values, first.values, sizeof(real) * N * K);
    GemmWeight *weight = weight_create(gemm, arena, N, K, WEIGHT_OUT_IN, values);
    memset(values, 0, sizeof(real) * N * K);
    gemm_forward(gemm, y, x.input, weight, M);
    check_product("first packing", y, 0, x.values, K, 1, first.values, 1, K, M, N, K);
    memcpy(values, w.values, sizeof(real) * N * K);
    gemm_weight_pack(weight, values);
    free(values);
    gemm_forward(gemm, y, x.input, weight, M);
    check_product("second packing", y, 0, x.values, K, 1, w.values, 1, K, M, N, K);
    gemm_weight_free(weight);
    arena_free(arena);
    operand_free(&x);
    operand_free(&first);
    operand_free(&w);
}

static void test_packing(void) {
    for_each_precision(check_packing);
}

static bool same_values(const real *a, const real *b, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (a[i] != b[i]) return false;
    return true;
}

static void check_repetition(Gemm *gemm) {
    enum { M = 515, N = 130, K = 300 };
    Operand x = random_operand(gemm, M, K, 1), dy = random_operand(gemm, M, N, 2),
            w = random_operand(gemm, N, K, 3);
    Arena *arena = arena_create();
    GemmWeight *weight = weight_create(gemm, arena, N, K, WEIGHT_OUT_IN, w.values);
    real *first = filled((size_t)N * K, 0), *again = filled((size_t)N * K, 0);
    gemm_backward_weight(gemm, first, dy.input, x.input, weight, M);
    for (int i = 0; i < 10; i++) {
        memset(again, 0, sizeof(real) * N * K);
        gemm_backward_weight(gemm, again, dy.input, x.input, weight, M);
        CHECK(same_values(first, again, (size_t)N * K));
    }
    gemm_weight_free(weight);
    arena_free(arena);
    operand_free(&x);
    operand_free(&dy);
    operand_free(&w);
    free(first);
    free(again);
}

static void test_same_bits(void) {
    for_each_precision(check_repetition);
}

// Each thread of a parallel region multiplies by itself with a shared weight.
static void check_serial(Gemm *gemm) {
    enum { M = 50, N = 96, K = 64, TASKS = 16 };
    Operand x = random_operand(gemm, M, K, 1), w = random_operand(gemm, N, K, 2);
    Arena *arena = arena_create();
    GemmWeight *weight = weight_create(gemm, arena, N, K, WEIGHT_OUT_IN, w.values);
    real *y = filled((size_t)TASKS * M * N, 0);
    const int threads = thread_limit();
    Gemm **workers = allocate((size_t)threads, sizeof(Gemm *), "a test");
    for (int i = 0; i < threads; i++) workers[i] = gemm_create_serial(gemm);
#pragma omp parallel for num_threads(threads)
    for (int task = 0; task < TASKS; task++)
        gemm_forward(workers[thread_index()], y + (size_t)task * M * N, x.input, weight, M);
    for (size_t task = 0; task < TASKS; task++)
        check_product("serial forward", y + task * M * N, 0, x.values, K, 1, w.values, 1, K, M, N,
                      K);
    for (int i = 0; i < threads; i++) gemm_free(workers[i]);
    free(workers);
    gemm_weight_free(weight);
    arena_free(arena);
    operand_free(&x);
    operand_free(&w);
    free(y);
}

static void test_serial(void) {
    for_each_precision(check_serial);
}

// A matrix from a row on; rounding to bf16.
static void check_inputs(Gemm *gemm) {
    const real values[] = {1,   (real)1.00390625, (real)1.01171875, (real)-3.5, 0, INFINITY,
                           NAN, (real)1e-3};
    enum { COUNT = sizeof(values) / sizeof(*values) };
    Arena *arena = arena_create(), *row_arena = arena_create();
    Matrix input = input_create(gemm, arena, 3, COUNT + 20);
    real read[COUNT];
    gemm_input_store(input, 2, 20, values, COUNT);
    gemm_input_load(gemm_input_rows(input, 2), 0, 20, read, COUNT);
    if (gemm_precision(gemm) == PRECISION_BFLOAT16) {
        CHECK_CLOSE(read[0], 1, 0);
        CHECK_CLOSE(read[1], 1, 0);        // 1 + 2^-8 is halfway: rounds to even
        CHECK_CLOSE(read[2], 1.015625, 0); // 1 + 3 * 2^-8 too
        CHECK_CLOSE(read[3], -3.5, 0);
        CHECK_CLOSE(read[7], 1e-3, 1e-3 / 256);
    } else
        CHECK(same_values(read, values, 6));
    CHECK(isinf(read[5]) && isnan(read[6]));

    // Enough for whole vectors and a remainder.
    real many[53], back[53];
    for (int i = 0; i < 53; i++) many[i] = (real)(i % 2 ? i : -i);
    Matrix row = input_create(gemm, row_arena, 1, 53);
    gemm_input_store(row, 0, 0, many, 53);
    gemm_input_load(row, 0, 0, back, 53);
    for (int i = 0; i < 53; i++) CHECK_CLOSE(back[i], many[i], 0);
    arena_free(row_arena);
    arena_free(arena);
}

static void test_inputs(void) {
    for_each_precision(check_inputs);
}

static void create_empty_weight(void *argument) {
    gemm_weight_create(argument, 0, 4, WEIGHT_OUT_IN, "the test's weight");
}

static void create_huge_input(void *argument) {
    input_create(argument, arena_create(), SIZE_MAX / 2, 4);
}

static void multiply_other_columns(void *argument) {
    GemmWeight *weight = gemm_weight_create(argument, 8, 4, WEIGHT_OUT_IN, "a test");
    real y[8];
    gemm_forward(argument, y, input_create(argument, arena_create(), 1, 5), weight, 1);
}

static void create_bf16(void *argument) {
    (void)argument;
    gemm_create(PRECISION_BFLOAT16);
}

static void test_errors(void) {
    Gemm *gemm = gemm_create(PRECISION_FLOAT32);
    CHECK_FAILS(create_empty_weight, gemm, 1,
                "the test's weight: a weight of 0 outputs and 4 inputs");
    CHECK_FAILS(create_huge_input, gemm, 1, "no memory for the test's input");
    CHECK_FAILS(multiply_other_columns, gemm, 1,
                "product: x is real (1, 5), expected real (at most");
    if (!gemm_supports(PRECISION_BFLOAT16))
        CHECK_FAILS(create_bf16, NULL, 1, "bf16 products: this ");
    gemm_free(gemm);
}

static void check_peak(Gemm *gemm) {
    const double peak = gemm_measure_peak(gemm);
    CHECK(peak > 1e6 && peak < 1e18);
    CHECK(strlen(gemm_library(gemm)) > 0);
}

static void test_peak(void) {
    for_each_precision(check_peak);
    if (!gemm_supports(PRECISION_BFLOAT16)) CHECK(!gemm_bf16_is_fast());
    gemm_bf16_is_fast(); // leaks nothing, as AddressSanitizer checks
}

int main(int argc, char **argv) {
    static const TestCase cases[] = {
        {"sizes and layouts", test_sizes}, {"more shapes than plans", test_many_rows},
        {"packing", test_packing},         {"same bits", test_same_bits},
        {"serial handles", test_serial},   {"inputs", test_inputs},
        {"errors", test_errors},           {"peak", test_peak},
    };
    return test_main(argc, argv, "gemm", cases, sizeof(cases) / sizeof(*cases));
}
