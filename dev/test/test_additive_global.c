// Additive attention over a whole sequence against its definition; gradients against differences.
#include "additive_global.h"
#include "memory.h"
#include "random.h"
#include "test.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { B = 2, T = 37, H = 3, D = 5, C = H * D, ROWS = B * T };
enum { IS_DOUBLE = sizeof(real) == sizeof(double) };

typedef struct {
    real qkv[ROWS * 3 * C], bias[3 * C], weights[2 * C], dy[ROWS * C];
    uint8_t mask[ROWS];
    bool masked;
    Arena *arena;
    AdditiveGlobal *attention;
} Problem;

static void fill(Random *random, real *x, size_t count) {
    for (size_t i = 0; i < count; i++) x[i] = (real)random_normal(random);
}

// `hidden`: every hidden-th token is padding; 1: all, 0: none.
static Problem *problem_create(size_t hidden) {
    Problem *p = allocate(1, sizeof(*p), "test");
    Random random = random_stream(1, RANDOM_TEST, 0, (uint32_t)hidden);
    fill(&random, p->qkv, ROWS * 3 * C);
    fill(&random, p->bias, 3 * C);
    fill(&random, p->weights, 2 * C);
    fill(&random, p->dy, ROWS * C);
    for (size_t i = 0; i < ROWS; i++) p->mask[i] = hidden == 0 || i % hidden != 0;
    p->masked = hidden > 0;
    p->arena = arena_create();
    p->attention = additive_global_create(B, T, C, H);
    ARENA_CARVE(p->arena, additive_global_carve(p->attention, p->arena));
    return p;
}

static void problem_free(Problem *p) {
    free(p->attention);
    arena_free(p->arena);
    free(p);
}

static AttentionInput input_of(const Problem *p) {
    return attention_self(p->qkv, p->bias, C, false, p->masked ? p->mask : NULL, B, T);
}

static void forward(const Problem *p, real *y) {
    const AttentionInput in = input_of(p);
    additive_global_forward(p->attention, (Matrix){y, C, false}, p->weights, &in);
}

// Returns element d of head h in row `row` of queries (0), keys (1) or values (2), with its bias.
static double element(const Problem *p, size_t row, size_t part, size_t h, size_t d) {
    const size_t column = part * C + h * D + d;
    return (double)p->qkv[row * 3 * C + column] + (double)p->bias[column];
}

// Computes pooled (D) = pool(x, w) of x (T, D) of sequence b.
static void expect_pool(const Problem *p, size_t b, double x[T][D], const real *w, double *pooled) {
    double total = 0;
    for (size_t d = 0; d < D; d++) pooled[d] = 0;
    for (size_t j = 0; j < T; j++) {
        double score = 0;
        for (size_t d = 0; d < D; d++) score += (double)w[d] * x[j][d];
        const double e = p->masked && !p->mask[b * T + j] ? 0 : exp(score / sqrt(D));
        total += e;
        for (size_t d = 0; d < D; d++) pooled[d] += e * x[j][d];
    }
    for (size_t d = 0; d < D && total > 0; d++) pooled[d] /= total;
}

static void expect_head(const Problem *p, size_t b, size_t h, double *y) {
    double x[T][D], query[D], pooled[D];
    for (size_t j = 0; j < T; j++)
        for (size_t d = 0; d < D; d++) x[j][d] = element(p, b * T + j, 0, h, d);
    expect_pool(p, b, x, p->weights + h * D, query);
    for (size_t j = 0; j < T; j++)
        for (size_t d = 0; d < D; d++) x[j][d] = query[d] * element(p, b * T + j, 1, h, d);
    expect_pool(p, b, x, p->weights + C + h * D, pooled);
    for (size_t i = 0; i < T; i++)
        for (size_t d = 0; d < D; d++)
            y[(b * T + i) * C + h * D + d] = pooled[d] * element(p, b * T + i, 2, h, d);
}

static void test_definition(void) {
    for (size_t hidden = 0; hidden < 4; hidden++) {
        Problem *p = problem_create(hidden);
        real y[ROWS * C];
        double expected[ROWS * C];
        forward(p, y);
        for (size_t unit = 0; unit < B * H; unit++) expect_head(p, unit / H, unit % H, expected);
        for (size_t i = 0; i < ROWS * C; i++)
            CHECK_CLOSE((double)y[i], expected[i], IS_DOUBLE ? 1e-13 : 1e-5);
        problem_free(p);
    }
}

static double loss(const Problem *p) {
    real y[ROWS * C];
    double sum = 0;
    forward(p, y);
    for (size_t i = 0; i < ROWS * C; i++) sum += (double)y[i] * (double)p->dy[i];
    return sum;
}

static void check_gradient(const Problem *p, real *x, const real *gradient, size_t count) {
    const double step = 1e-5;
    for (size_t i = 0; i < count; i++) {
        const real was = x[i];
        x[i] = was + (real)step;
        const double above = loss(p);
        x[i] = was - (real)step;
        const double below = loss(p);
        x[i] = was;
        CHECK_CLOSE((double)gradient[i], (above - below) / (2 * step), 1e-7);
    }
}

static void test_gradients(void) {
    for (size_t hidden = 0; hidden < 3 && IS_DOUBLE; hidden++) {
        Problem *p = problem_create(hidden);
        real dqkv[ROWS * 3 * C], dbias[3 * C] = {0}, dweights[2 * C] = {0};
        const AttentionInput in = input_of(p);
        const AttentionGradients to =
            attention_self_gradients((Matrix){dqkv, 3 * C, false}, dbias, C);
        additive_global_backward(p->attention, &to, dweights, p->dy, p->weights, &in);
        check_gradient(p, p->qkv, dqkv, ROWS * 3 * C);
        check_gradient(p, p->bias, dbias, 3 * C);
        check_gradient(p, p->weights, dweights, 2 * C);
        problem_free(p);
    }
}

// The weights of each of a head's two poolings sum to 1.
static void test_measure(void) {
    Problem *p = problem_create(3);
    const AttentionInput in = input_of(p);
    Measurement m = {0}, scores = {0};
    size_t tokens = 0;
    for (size_t i = 0; i < ROWS; i++) tokens += p->mask[i];
    additive_global_measure(p->attention, p->weights, &in, NULL, &m, &scores);
    CHECK(scores.values.count == m.values.count && scores.rows == 0 && m.rows == 2 * H * B);
    CHECK(m.values.count == (int64_t)(2 * H * tokens));
    CHECK_CLOSE(m.values.mean * (double)m.values.count, 2 * H * B, 1e-5);
    problem_free(p);
}

int main(int argc, char **argv) {
    static const TestCase cases[] = {
        {"definition", test_definition},
        {"gradients by differences", test_gradients},
        {"weights", test_measure},
    };
    return test_main(argc, argv, "additive_global", cases, sizeof(cases) / sizeof(*cases));
}
