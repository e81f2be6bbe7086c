// Building blocks of current models, and attention with any similarity and activation, compared
// with PyTorch in float64 (dev/reference/check_blocks.py). In double, the gradients of every pair
// of similarity and activation are also compared with differences of the forward pass.
#include "activation.h"
#include "arena.h"
#include "error.h"
#include "layernorm.h"
#include "memory.h"
#include "pairwise_attention.h"
#include "query_key.h"
#include "random.h"
#include "safetensors.h"
#include "test.h"
#include "text.h"
#include "token_shift.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#ifdef REAL_IS_DOUBLE
static const double TOLERANCE = 1e-11;
#else
static const double TOLERANCE = 1e-4; // of an angle between nearly equal vectors
#endif

// ---- reference file ---------------------------------------------------------

static const Tensor *find(const Safetensors *file, const char *test, const char *name) {
    char *full = format_string("%s.%s", test, name);
    const Tensor *tensor = safetensors_find(file, full);
    if (!tensor) fail("%s is not in the file", full);
    free(full);
    return tensor;
}

static real *read_numbers(const Safetensors *file, const char *test, const char *name) {
    const Tensor *tensor = find(file, test, name);
    real *x = allocate(tensor->count, sizeof(real), "numbers");
    tensor_read_real(file, tensor, x);
    return x;
}

static void compare(const char *test, const char *name, const real *ours, const double *expected,
                    size_t count, double tolerance) {
    double difference = 0, scale = 1;
    for (size_t i = 0; i < count; i++) {
        const double d = fabs((double)ours[i] - expected[i]);
        difference = d <= difference ? difference : d; // NaN is kept
        scale = fmax(scale, fabs(expected[i]));
    }
    if (!(difference <= tolerance * scale))
        test_fail(__FILE__, __LINE__, "%s.%s: error %.3g, expected at most %.3g", test, name,
                  difference / scale, tolerance);
}

static void compare_file(const Safetensors *file, const char *test, const char *name,
                         const real *ours) {
    const Tensor *tensor = find(file, test, name);
    double *expected = allocate(tensor->count, sizeof(double), "numbers");
    tensor_read_double(file, tensor, expected);
    compare(test, name, ours, expected, tensor->count, TOLERANCE);
    free(expected);
}

static Safetensors *open_reference(void) {
    return safetensors_open("dev/reference/blocks.safetensors");
}

static size_t size_of(const Safetensors *file, const char *key) {
    return (size_t)safetensors_integer(file, key, 1, 1000);
}

static real *zeros(size_t count) {
    return allocate(count, sizeof(real), "numbers");
}

// ---- RMSNorm and SwiGLU -----------------------------------------------------

static void test_rmsnorm(void) {
    Safetensors *file = open_reference();
    const size_t M = (size_t)find(file, "rmsnorm", "x")->shape[0],
                 C = (size_t)find(file, "rmsnorm", "x")->shape[1];
    real *x = read_numbers(file, "rmsnorm", "x"), *gain = read_numbers(file, "rmsnorm", "gain"),
         *dy = read_numbers(file, "rmsnorm", "dy");
    real *y = zeros(M * C), *dx = zeros(M * C), *dgain = zeros(C), *mean = zeros(M),
         *rstd = zeros(M);
    layernorm_forward((Matrix){y, C, false}, mean, rstd, x, gain, NULL, 1e-5, M, C);
    compare_file(file, "rmsnorm", "y", y);
    layernorm_backward(dx, dgain, NULL, dy, x, gain, mean, rstd, M, C);
    compare_file(file, "rmsnorm", "dx", dx);
    compare_file(file, "rmsnorm", "dgain", dgain);
    real *const all[] = {x, gain, dy, y, dx, dgain, mean, rstd};
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) free(all[i]);
    safetensors_close(file);
}

static void test_swiglu(void) {
    Safetensors *file = open_reference();
    const size_t M = (size_t)find(file, "swiglu", "y")->shape[0],
                 N = (size_t)find(file, "swiglu", "y")->shape[1];
    real *x = read_numbers(file, "swiglu", "x"), *dy = read_numbers(file, "swiglu", "dy"),
         *y = zeros(M * N), *dx = zeros(2 * M * N);
    activation_forward((Matrix){y, N, false}, x, NULL, SWIGLU, M, N);
    compare_file(file, "swiglu", "y", y);
    activation_backward((Matrix){dx, 2 * N, false}, NULL, dy, x, NULL, SWIGLU, M, N);
    compare_file(file, "swiglu", "dx", dx);
    free(x), free(dy), free(y), free(dx);
    safetensors_close(file);
}

// ---- queries and keys -------------------------------------------------------

static void check_query_key(const Safetensors *file, const char *test, ScoresKind scores,
                            bool rotated, size_t groups) {
    const size_t T = size_of(file, "length"), M = size_of(file, "batch") * T,
                 H = size_of(file, "heads"), D = size_of(file, "size"),
                 columns = (H + 2 * groups) * D;
    real *angles = zeros(T * D);
    rotary_angles(angles, (Rotary){safetensors_number(file, "base"), 1}, T, D);
    const QueryKeyShape shape = {.heads = H,
                                 .groups = groups,
                                 .size = D,
                                 .scores = scores,
                                 .rescale = safetensors_number(file, "rescale"),
                                 .epsilon = safetensors_number(file, "epsilon"),
                                 .angles = rotated ? angles : NULL};
    real *x = read_numbers(file, test, "x"), *bias = read_numbers(file, test, "bias"),
         *gains = read_numbers(file, test, "gains"), *dy = read_numbers(file, test, "dy");
    real *y = zeros(M * 3 * H * D), *row = zeros(3 * H * D), *dx = zeros(M * columns),
         *dbias = zeros(columns), *dgains = zeros(2 * D);
    query_key_forward(y, x, bias, gains, &shape, T, M);
    compare_file(file, test, "y", y);
    for (size_t i = 0; i < M; i++) {
        query_key_row(row, x + i * columns, bias, gains, &shape, i % T);
        CHECK(memcmp(row, y + i * 3 * H * D, 3 * H * D * sizeof(real)) == 0);
    }
    query_key_backward((Matrix){dx, columns, false}, dbias, dgains, dy, x, bias, gains, &shape, T,
                       M);
    compare_file(file, test, "dx", dx);
    compare_file(file, test, "dbias", dbias);
    if (scores == SCORES_QKNORM) compare_file(file, test, "dgains", dgains);
    real *const all[] = {angles, x, bias, gains, dy, y, row, dx, dbias, dgains};
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) free(all[i]);
}

static void test_query_key(void) {
    Safetensors *file = open_reference();
    const size_t H = size_of(file, "heads"), groups = size_of(file, "groups");
    check_query_key(file, "plain", SCORES_PLAIN, true, groups);
    check_query_key(file, "rescaled", SCORES_RESCALED, false, groups);
    check_query_key(file, "qknorm", SCORES_QKNORM, true, H);
    safetensors_close(file);
}

// ---- token shift ------------------------------------------------------------

// Blocks of rows are cut within and between sequences: fewer rows than blocks, and more.
static void check_token_shift(size_t batch, size_t length, bool masked) {
    enum { C = 5, SHIFTED = 2, HOLES = 3 };
    const size_t M = batch * length;
    real *x = zeros(M * C), *dx = zeros(M * C);
    uint8_t *mask = allocate(M, 1, "mask");
    for (size_t i = 0; i < M; i++) mask[i] = i % HOLES != 0;
    for (size_t i = 0; i < M * C; i++) x[i] = dx[i] = (real)(i + 1);
    token_shift_forward((Matrix){x, C, false}, SHIFTED, masked ? mask : NULL, M, length);
    token_shift_backward(dx, C, SHIFTED, masked ? mask : NULL, M, length);
    for (size_t i = 0; i < M * C; i++) {
        const size_t row = i / C, t = row % length;
        const bool moves = i % C<SHIFTED, from = t> 0 && (!masked || mask[row - 1]),
                   to = t + 1 < length && (!masked || mask[row]);
        CHECK(x[i] == (real)(!moves ? i + 1 : from ? i + 1 - C : 0));
        CHECK(dx[i] == (real)(!moves ? i + 1 : to ? i + 1 + C : 0));
    }
    free(x);
    free(dx);
    free(mask);
}

static void test_token_shift(void) {
    check_token_shift(1, 1, false);
    check_token_shift(7, 1, false);
    check_token_shift(3, 50, true);
    check_token_shift(2, 400, false);
    check_token_shift(5, 77, true);
}

// ---- pairwise attention -----------------------------------------------------

static const char *const similarities[SIMILARITIES] = {
    "dot", "cosine", "angle", "euclidean", "manhattan", "chebyshev", "minkowski"};
static const char *const activations[ACTIVATIONS] = {
    "softmax", "softmax1", "relu", "soft-relu", "learned-relu", "sigmoid", "none"};
static const char *const learned_names[PAIRWISE_LEARNED] = {"m", "r", "factor", "threshold"};

typedef struct {
    PairwiseKind kind;
    size_t batch, length, heads, size, window; // B, T, H, D
    bool causal;
    real *qkv, *bias, *dy, *learned[PAIRWISE_LEARNED];
    uint8_t *mask;
    Dropout dropout;
    bool drops;
    Arena *arena;
    PairwiseAttention *attention;
    real *y, *dqkv, *dbias, *dlearned[PAIRWISE_LEARNED];
} Pairs;

static void pairs_begin(Pairs *p) {
    const size_t M = p->batch * p->length, C = p->heads * p->size;
    p->arena = arena_create();
    p->attention = pairwise_attention_create(p->kind, p->batch, p->length, p->length, C, p->heads);
    ARENA_CARVE(p->arena, pairwise_attention_carve(p->attention, p->arena, true));
    p->y = zeros(M * C);
    p->dqkv = zeros(M * 3 * C);
    p->dbias = zeros(3 * C);
    for (int i = 0; i < PAIRWISE_LEARNED; i++) p->dlearned[i] = zeros(p->heads);
}

static void pairs_free(Pairs *p) {
    real *const all[] = {p->qkv, p->bias, p->dy, p->y, p->dqkv, p->dbias};
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) free(all[i]);
    for (int i = 0; i < PAIRWISE_LEARNED; i++) free(p->learned[i]), free(p->dlearned[i]);
    free(p->mask);
    pairwise_attention_free(p->attention);
    arena_free(p->arena);
}

static AttentionInput pairs_input(const Pairs *p) {
    AttentionInput in = attention_self(p->qkv, p->bias, p->heads * p->size, p->causal, p->mask,
                                       p->batch, p->length);
    in.window = p->causal && p->window < p->length ? p->window : 0;
    in.dropout = p->drops ? &p->dropout : NULL;
    in.first_row = 5;
    return in;
}

static void pairs_forward(const Pairs *p) {
    const AttentionInput in = pairs_input(p);
    pairwise_attention_forward(p->attention, (Matrix){p->y, p->heads * p->size, false},
                               (const real *const *)p->learned, &in);
}

static void pairs_backward(const Pairs *p) {
    const size_t C = p->heads * p->size;
    const AttentionInput in = pairs_input(p);
    const AttentionGradients gradients =
        attention_self_gradients((Matrix){p->dqkv, 3 * C, false}, p->dbias, C);
    pairwise_attention_backward(p->attention, &gradients, p->dlearned, p->dy,
                                (const real *const *)p->learned, &in);
}

static void check_pairs(const Safetensors *file, PairwiseSimilarity similarity,
                        PairwiseActivation activation) {
    char *test = format_string("%s.%s", similarities[similarity], activations[activation]);
    char *causal = format_string("%s.causal", test);
    if (!safetensors_find(file, causal)) {
        free(test), free(causal);
        return;
    }
    int32_t shape[2];
    tensor_read_int32(file, safetensors_find(file, causal), shape);
    Pairs p = {.kind = {similarity, activation, 0},
               .batch = size_of(file, "batch"),
               .length = size_of(file, "length"),
               .heads = size_of(file, "heads"),
               .size = size_of(file, "size"),
               .causal = shape[0],
               .window = (size_t)shape[1],
               .qkv = read_numbers(file, test, "qkv"),
               .bias = read_numbers(file, test, "bias"),
               .dy = read_numbers(file, test, "dy")};
    const size_t M = p.batch * p.length;
    int32_t *tokens = allocate(M, sizeof(int32_t), "a mask");
    p.mask = allocate(M, 1, "a mask");
    tensor_read_int32(file, find(file, test, "mask"), tokens);
    for (size_t i = 0; i < M; i++) p.mask[i] = (uint8_t)tokens[i];
    for (int i = 0; i < PAIRWISE_LEARNED; i++)
        p.learned[i] = read_numbers(file, test, learned_names[i]);
    pairs_begin(&p);
    pairs_forward(&p);
    compare_file(file, test, "y", p.y);
    pairs_backward(&p);
    compare_file(file, test, "dqkv", p.dqkv);
    compare_file(file, test, "dbias", p.dbias);
    for (int i = 0; i < PAIRWISE_LEARNED; i++) {
        char *name = format_string("d%s", learned_names[i]);
        compare_file(file, test, name, p.dlearned[i]);
        free(name);
    }
    pairs_free(&p);
    free(tokens), free(test), free(causal);
}

static void test_pairwise(void) {
    Safetensors *file = open_reference();
    for (int s = 0; s < SIMILARITIES; s++)
        for (int a = 0; a < ACTIVATIONS; a++)
            check_pairs(file, (PairwiseSimilarity)s, (PairwiseActivation)a);
    safetensors_close(file);
}

static real *draw(Random *random, size_t count, double deviation) {
    real *x = zeros(count);
    for (size_t i = 0; i < count; i++) x[i] = (real)(deviation * random_normal(random));
    return x;
}

static Pairs pairs_drawn(PairwiseSimilarity similarity, PairwiseActivation activation,
                         size_t batch) {
    Random random = random_stream(7, RANDOM_TEST, similarity, activation);
    Pairs p = {.kind = {similarity, activation, 0.5},
               .batch = batch,
               .length = 5,
               .heads = 2,
               .size = 3,
               .window = 3,
               .causal = (similarity + activation) % 2,
               .dropout = dropout_create(0.3, 5, 3, 2)};
    const size_t M = p.batch * p.length, C = p.heads * p.size;
    p.qkv = draw(&random, M * 3 * C, 1);
    p.bias = draw(&random, 3 * C, 0.3);
    p.dy = draw(&random, M * C, 1);
    for (int i = 0; i < PAIRWISE_LEARNED; i++) p.learned[i] = draw(&random, p.heads, 0.5);
    pairs_begin(&p);
    return p;
}

#ifdef REAL_IS_DOUBLE
// Checks gradients of the sum of dy * y against central differences of the forward pass.
static void check_differences(const Pairs *p, const char *name, real *x, const real *gradient,
                              size_t count) {
    const size_t numbers = p->batch * p->length * p->heads * p->size;
    double *expected = allocate(count, sizeof(double), "differences");
    for (size_t i = 0; i < count; i++) {
        const double at = x[i], h = 1e-6;
        for (int side = -1; side <= 1; side += 2) {
            x[i] = at + side * h;
            pairs_forward(p);
            for (size_t j = 0; j < numbers; j++) expected[i] += side * p->y[j] * p->dy[j] / (2 * h);
        }
        x[i] = at;
    }
    char *test =
        format_string("%s.%s", similarities[p->kind.similarity], activations[p->kind.activation]);
    compare(test, name, gradient, expected, count, 2e-8);
    free(test);
    free(expected);
}

static void test_pairwise_differences(void) {
    for (int s = 0; s < SIMILARITIES; s++) {
        for (int a = 0; a < ACTIVATIONS; a++) {
            if (a == ACTIVATE_SOFT_RELU) continue; // its gradient is not the forward pass's
            Pairs p = pairs_drawn((PairwiseSimilarity)s, (PairwiseActivation)a, 2);
            const size_t C = p.heads * p.size;
            p.mask = allocate(p.batch * p.length, 1, "a mask");
            for (size_t i = 0; i < p.batch * p.length; i++) p.mask[i] = i != 0 && i != 7;
            p.drops = a % 2 == 0;
            pairs_backward(&p);
            check_differences(&p, "dqkv", p.qkv, p.dqkv, p.batch * p.length * 3 * C);
            check_differences(&p, "dbias", p.bias, p.dbias, 3 * C);
            for (int i = 0; i < PAIRWISE_LEARNED; i++)
                check_differences(&p, learned_names[i], p.learned[i], p.dlearned[i], p.heads);
            pairs_free(&p);
        }
    }
}
#endif

// Decoding token by token gives the same numbers as all tokens at once.
static void check_decoding(const Pairs *p) {
    const size_t C = p->heads * p->size, D = p->size, T = p->length;
    real *rows[3], *y = zeros(D), *weights = zeros(T);
    for (int part = 0; part < 3; part++) rows[part] = zeros(T * D);
    pairs_forward(p);
    for (size_t h = 0; h < p->heads; h++) {
        for (size_t t = 0; t < T; t++) {
            for (size_t part = 0; part < 3; part++) {
                const size_t column = part * C + h * D;
                for (size_t d = 0; d < D; d++)
                    rows[part][t * D + d] = p->qkv[t * 3 * C + column + d] + p->bias[column + d];
                if (part < VALUE) pairwise_attention_direct(p->kind, rows[part] + t * D, D);
            }
            const size_t count = t + 1 < p->window ? t + 1 : p->window, first = t + 1 - count;
            pairwise_attention_decode(y, weights, p->kind, (const real *const *)p->learned, h,
                                      rows[QUERY] + t * D, rows[KEY] + first * D,
                                      rows[VALUE] + first * D, count, D);
            for (size_t d = 0; d < D; d++) CHECK_CLOSE(y[d], p->y[t * C + h * D + d], 1e-6);
        }
    }
    for (int part = 0; part < 3; part++) free(rows[part]);
    free(y), free(weights);
}

static void test_pairwise_decoding(void) {
    for (int s = 0; s < SIMILARITIES; s++) {
        for (int a = 0; a < ACTIVATIONS; a++) {
            Pairs p = pairs_drawn((PairwiseSimilarity)s, (PairwiseActivation)a, 1);
            p.causal = true;
            check_decoding(&p);
            pairs_free(&p);
        }
    }
}

// ---- measurements -----------------------------------------------------------

typedef struct {
    double sum;
    size_t rows, dead;
} Rows;

static void add_row(void *context, const real *weights, const real *scores, const uint8_t *mask,
                    size_t count) {
    (void)scores;
    Rows *rows = context;
    bool dead = true;
    for (size_t j = 0; j < count; j++) {
        CHECK(!mask || mask[j] || weights[j] == 0);
        rows->sum += (double)weights[j];
        dead &= weights[j] == 0;
    }
    rows->rows++;
    rows->dead += dead;
}

// Two heads of one channel. The second head's queries are 0, so that ReLU makes its weights 0.
static void test_pairwise_measure(void) {
    Pairs p = {.kind = {SIMILARITY_DOT, ACTIVATE_RELU, 0},
               .batch = 1,
               .length = 2,
               .heads = 2,
               .size = 1,
               .causal = true,
               .window = 2};
    static const real qkv[] = {1, 0, 2, 5, 3, 7, 1, 0, -4, 5, 2, 9};
    p.qkv = zeros(12);
    memcpy(p.qkv, qkv, sizeof(qkv));
    pairs_begin(&p);
    const AttentionInput in = pairs_input(&p);
    const real *const *learned = (const real *const *)p.learned;
    Rows rows = {0}, first = {0};
    pairwise_attention_measure(p.attention, learned, &in, NULL, add_row, &rows);
    CHECK(rows.rows == 4 && rows.dead == 2);
    CHECK(rows.sum == 4); // each row of the first head has weight 2 for key 0
    static const uint8_t tokens[] = {1, 0};
    pairwise_attention_measure(p.attention, learned, &in, tokens, add_row, &first);
    CHECK(first.rows == 2 && first.dead == 1);
    pairs_free(&p);
}

int main(int argc, char **argv) {
    static const TestCase cases[] = {
        {"rmsnorm", test_rmsnorm},
        {"swiglu", test_swiglu},
        {"query_key", test_query_key},
        {"token_shift", test_token_shift},
        {"pairwise", test_pairwise},
#ifdef REAL_IS_DOUBLE
        {"pairwise differences", test_pairwise_differences},
#endif
        {"pairwise decoding", test_pairwise_decoding},
        {"pairwise measure", test_pairwise_measure},
    };
    return test_main(argc, argv, "parts", cases, sizeof(cases) / sizeof(*cases));
}
