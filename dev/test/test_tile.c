// Products of small matrices with every engine of this processor against sums in double, and with
// AMX in plain C if dev/emulator/amx_in_c.h replaces it.
#include "bf16.h"
#include "memory.h"
#include "random.h"
#include "test.h"
#include "tile.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

// c (M, N) = start + a (M, K) b (K, N); bf16 represents a, b and start exactly.
typedef struct {
    size_t m, n, k;
    real *a, *b, *start;
    double *c;
} Problem;

static real *numbers(size_t count, uint32_t stream) {
    Random random = random_stream(3, RANDOM_TEST, stream, 0);
    real *x = allocate(count, sizeof(real), "numbers");
    for (size_t i = 0; i < count; i++)
        x[i] = (real)float_from_bf16(bf16_from_float((float)random_normal(&random)));
    return x;
}

static Problem problem_create(size_t m, size_t n, size_t k, bool one_start) {
    Problem p = {m,
                 n,
                 k,
                 numbers(m * k, 1),
                 numbers(k * n, 2),
                 numbers(m * n, 3),
                 allocate(m * n, sizeof(double), "sums")};
    for (size_t i = 0; i < m; i++) {
        for (size_t j = 0; j < n; j++) {
            double sum = (double)p.start[one_start ? j : i * n + j];
            for (size_t s = 0; s < k; s++) sum += (double)p.a[i * k + s] * (double)p.b[s * n + j];
            p.c[i * n + j] = sum;
        }
    }
    return p;
}

static void problem_free(Problem *p) {
    free(p->a);
    free(p->b);
    free(p->start);
    free(p->c);
}

// Returns the word of x[at], with x[at + next] in its upper half if words hold pairs.
static real word(const real *x, size_t at, size_t next, bool pairs) {
    if (!pairs) return x[at];
    const uint32_t two =
        bf16_from_float((float)x[at]) | (uint32_t)bf16_from_float((float)x[at + next]) << 16;
    float value;
    memcpy(&value, &two, sizeof(value));
    return (real)value;
}

// Reads a along rows or along columns; all arrays have more columns than are used.
static void check_product(const Problem *p, Multiplier engine, bool along_columns, bool one_start) {
    enum { MORE = 32 };
    const bool pairs = engine != MULTIPLY_REALS;
    const size_t step = pairs ? 2 : 1, words = p->k / step, m = p->m, n = p->n;
    const size_t a_row = along_columns ? 1 : words + MORE, a_column = along_columns ? m + MORE : 1;
    real *a = allocate((m + MORE) * (words + MORE), sizeof(real), "a");
    real *b = allocate(words * (n + MORE), sizeof(real), "b"),
         *c = allocate(m * (n + MORE), sizeof(real), "c");
    for (size_t i = 0; i < m; i++)
        for (size_t s = 0; s < words; s++)
            a[i * a_row + s * a_column] = word(p->a, i * p->k + s * step, 1, pairs);
    for (size_t s = 0; s < words; s++)
        for (size_t j = 0; j < n; j++)
            b[s * (n + MORE) + j] = word(p->b, s * step * n + j, n, pairs);
    if (engine == MULTIPLY_AMX && along_columns) tile_transpose_squares(a, a_column, words, m);
    tile_engines[engine].begin();
    tile_engines[engine].product(c, n + MORE, p->start, one_start ? 0 : n,
                                 (TileView){a, a_row, a_column}, b, n + MORE, m, n, words);
    tile_engines[engine].end();
    double error = 0;
    for (size_t i = 0; i < m; i++) {
        const real *row = c + i * (n + MORE);
        for (size_t j = 0; j < n; j++) error += fabs((double)row[j] - p->c[i * n + j]);
        for (size_t j = n; j < n + MORE; j++) CHECK(row[j] == 0);
    }
    CHECK_CLOSE(error / (double)(m * n), 0, sizeof(real) == sizeof(double) ? 1e-13 : 3e-6);
    free(a);
    free(b);
    free(c);
}

static void test_products(void) {
    static const size_t sizes[][3] = {{32, 32, 32}, {64, 32, 96}, {32, 96, 64}, {96, 128, 160}};
    for (size_t i = 0; i < 2 * sizeof(sizes) / sizeof(*sizes); i++) {
        const bool one_start = i % 2 == 1;
        Problem p = problem_create(sizes[i / 2][0], sizes[i / 2][1], sizes[i / 2][2], one_start);
        for (Multiplier engine = MULTIPLY_REALS; engine <= tile_multiplier(true); engine++) {
            check_product(&p, engine, false, one_start);
            check_product(&p, engine, true, one_start);
        }
        problem_free(&p);
    }
}

static void test_transpose(void) {
    enum { ROWS = 2 * TILE_LANES, COLUMNS = 3 * TILE_LANES, STRIDE = COLUMNS + TILE_LANES };
    _Alignas(64) real x[ROWS * STRIDE];
    for (size_t i = 0; i < ROWS * STRIDE; i++) x[i] = (real)i;
    tile_transpose_squares(x, STRIDE, ROWS, COLUMNS);
    for (size_t i = 0; i < ROWS; i++) {
        for (size_t j = 0; j < STRIDE; j++) {
            const size_t row = i % TILE_LANES, column = j % TILE_LANES;
            const size_t from =
                j < COLUMNS ? (i - row + column) * STRIDE + j - column + row : i * STRIDE + j;
            CHECK(x[i * STRIDE + j] == (real)from);
        }
    }
}

int main(int argc, char **argv) {
    static const TestCase cases[] = {{"products", test_products},
                                     {"squares turned", test_transpose}};
    printf("multiplies: %s\n", tile_engines[tile_multiplier(true)].name);
    return test_main(argc, argv, "tile", cases, sizeof(cases) / sizeof(*cases));
}
