// What must hold of an arena: arrays lie apart but for those that share, all aligned and zero;
// sizes that overflow end the program. And of what plans its memory there.
#include "arena.h"
#include "classifier.h"
#include "cosine_attention.h"
#include "error.h"
#include "gemm.h"
#include "memory.h"
#include "softmax_attention.h"
#include "test.h"
#include <stdint.h>
#include <string.h>
#include <sys/resource.h>

static bool apart(const real *a, size_t a_count, const real *b, size_t b_count) {
    return a + a_count <= b || b + b_count <= a;
}

static void test_arrays(void) {
    Arena *arena = arena_create();
    real *first, *second, *same;
    arena_reals(arena, &first, 3, 5, "one");
    arena_reals(arena, &second, 1, 100, "two");
    arena_alias(arena, &same);
    const size_t rows[] = {15, 100};
    CHECK(arena_bytes(arena) >= (rows[0] + rows[1]) * sizeof(real));
    arena_allocate(arena);
    CHECK(apart(first, 15, second, 100) && same == second);
    CHECK((uintptr_t)first % 64 == 0 && (uintptr_t)second % 64 == 0);
    for (size_t i = 0; i < 100; i++) CHECK(second[i] == 0);
    arena_free(arena);
}

static void test_union(void) {
    Arena *arena = arena_create();
    real *before, *a, *b, *inside, *behind;
    arena_reals(arena, &before, 1, 16, "stays");
    ArenaUnion shared = arena_union(arena);
    arena_reals(arena, &a, 1, 64, "shared");
    ArenaUnion inner = arena_union(arena);
    arena_reals(arena, &inside, 1, 32, "shared");
    arena_close(arena, &inner);
    arena_member(arena, &shared);
    arena_reals(arena, &b, 1, 48, "shared");
    arena_close(arena, &shared);
    arena_reals(arena, &behind, 1, 16, "stays");
    CHECK(arena_bytes(arena) == (16 + 96 + 16) * sizeof(real));
    size_t count;
    const ArenaItem *items = arena_items(arena, &count);
    CHECK(count == 2);
    CHECK(items[0].bytes == 32 * sizeof(real) && items[1].bytes == 96 * sizeof(real));
    arena_allocate(arena);
    CHECK(a == b && !apart(a, 64, b, 48));
    CHECK(apart(before, 16, a, 96) && apart(behind, 16, a, 96) && apart(inside, 32, a, 64));
    arena_free(arena);
}

static void plan_too_much(void *unused) {
    (void)unused;
    Arena *arena = arena_create();
    real *a, *b;
    arena_reals(arena, &a, SIZE_MAX / 32, 1, "the first");
    arena_reals(arena, &b, SIZE_MAX / 16, SIZE_MAX / 16, "the second");
}

static void test_overflow(void) {
    CHECK_FAILS(plan_too_much, NULL, 1, "no memory for the second");
}

// With less and less address space.
static void limit_memory(void *unused) {
    (void)unused;
    struct rlimit limit;
    getrlimit(RLIMIT_AS, &limit);
    const size_t before = memory_available();
    limit.rlim_cur = 1ull << 36;
    setrlimit(RLIMIT_AS, &limit);
    const size_t wide = memory_available();
    limit.rlim_cur = 1ull << 26;
    setrlimit(RLIMIT_AS, &limit);
    const size_t narrow = memory_available();
    fail("%s", wide <= before && narrow <= 1 << 26 ? "less and less" : "not less");
}

static void test_available(void) {
    CHECK(memory_available() > 1 << 20);
#ifndef __SANITIZE_ADDRESS__ // which takes more address space than any limit
    CHECK_FAILS(limit_memory, NULL, 1, "less and less");
#else
    (void)limit_memory;
#endif
}

// What a library packs is known before it is taken, and multiplies as one that has its own memory.
static void test_packed_weight(void) {
    enum { M = 3, N = 40, K = 24 };
    Gemm *gemm = gemm_create(PRECISION_FLOAT32);
    Arena *arena = arena_create();
    GemmWeight *planned = gemm_weight_plan(gemm, arena, N, K, WEIGHT_OUT_IN, "packed weights");
    GemmWeight *own = gemm_weight_create(gemm, N, K, WEIGHT_OUT_IN, "a test");
    CHECK(arena_bytes(arena) >= 2 * N * K * sizeof(real)); // for both directions
    arena_allocate(arena);
    real values[N * K], x[M * K], y[2][M * N];
    for (int i = 0; i < N * K; i++) values[i] = (real)(i % 7 - 3);
    for (int i = 0; i < M * K; i++) x[i] = (real)(i % 5 - 2);
    gemm_weight_pack(planned, values);
    gemm_weight_pack(own, values);
    gemm_forward(gemm, y[0], (Matrix){x, K, false}, planned, M);
    gemm_forward(gemm, y[1], (Matrix){x, K, false}, own, M);
    for (int i = 0; i < M * N; i++) CHECK(y[0][i] == y[1][i]);
    gemm_weight_free(own);
    gemm_weight_free(planned);
    arena_free(arena);
    gemm_free(gemm);
}

// All that a classifier and attention need stands in the plan.
static void test_working_memory(void) {
    enum { V = 1000, C = 32, ROWS = 64 };
    Gemm *gemm = gemm_create(PRECISION_FLOAT32);
    Arena *arena = arena_create();
    Classifier *classifier = classifier_plan(gemm, arena, V, C, ROWS, 1);
    const size_t packed = (size_t)2 * V * C, exponentials = (size_t)ROWS * V;
    CHECK(arena_bytes(arena) >= (packed + exponentials) * sizeof(real));
    const size_t before = arena_bytes(arena);
    SoftmaxAttention *softmax =
        softmax_attention_plan(arena, PRECISION_FLOAT32, 0, 2, 96, 96, 192, C, 2, true);
    CHECK(arena_bytes(arena) >=
          before + (size_t)12 * 2 * 96 * C * sizeof(real)); // 12 arrays (B, T, C)
    const size_t with_softmax = arena_bytes(arena);
    CosineAttention *cosine = cosine_attention_plan(arena, PRECISION_FLOAT32, 0, 2, 32, 32, C, 2);
    CHECK(arena_bytes(arena) > with_softmax);
    arena_allocate(arena);
    cosine_attention_free(cosine);
    softmax_attention_free(softmax);
    classifier_free(classifier);
    arena_free(arena);
    gemm_free(gemm);
}

int main(int argc, char **argv) {
    static const TestCase cases[] = {
        {"arrays", test_arrays},
        {"union", test_union},
        {"overflow", test_overflow},
        {"available", test_available},
        {"packed weight", test_packed_weight},
        {"working memory", test_working_memory},
    };
    return test_main(argc, argv, "arena", cases, sizeof(cases) / sizeof(cases[0]));
}
