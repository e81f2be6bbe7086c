// An arena's arrays are disjoint unless they share memory, aligned and zeroed; sizes that overflow
// end the program. Also tests the modules that plan their memory in an arena.
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

typedef struct {
    Arena *arena;
    real *first, *second;
} Arrays;

static void arrays_carve(Arrays *a) {
    a->first = arena_reals(a->arena, 3, 5, "one");
    a->second = arena_reals(a->arena, 1, 100, "two");
}

static void test_arrays(void) {
    Arrays a = {.arena = arena_create()};
    arrays_carve(&a);
    CHECK(!a.first && !a.second);
    CHECK(arena_bytes(a.arena) >= (15 + 100) * sizeof(real));
    arena_allocate(a.arena);
    arrays_carve(&a);
    CHECK(apart(a.first, 15, a.second, 100));
    CHECK((uintptr_t)a.first % 64 == 0 && (uintptr_t)a.second % 64 == 0);
    for (size_t i = 0; i < 100; i++) CHECK(a.second[i] == 0);
    arena_free(a.arena);
}

typedef struct {
    Arena *arena;
    real *before, *a, *b, *inside, *after;
} Shared;

static void shared_carve(Shared *s) {
    Arena *arena = s->arena;
    s->before = arena_reals(arena, 1, 16, "stays");
    ArenaUnion shared = arena_union(arena);
    s->a = arena_reals(arena, 1, 64, "shared");
    ArenaUnion inner = arena_union(arena);
    s->inside = arena_reals(arena, 1, 32, "shared");
    arena_close(arena, &inner);
    arena_member(arena, &shared);
    s->b = arena_reals(arena, 1, 48, "shared");
    arena_close(arena, &shared);
    s->after = arena_reals(arena, 1, 16, "stays");
}

static void test_union(void) {
    Shared s = {.arena = arena_create()};
    ARENA_CARVE(s.arena, shared_carve(&s));
    CHECK(arena_bytes(s.arena) == (16 + 96 + 16) * sizeof(real));
    size_t count;
    const ArenaItem *items = arena_items(s.arena, &count);
    CHECK(count == 2);
    CHECK(items[0].bytes == 32 * sizeof(real) && items[1].bytes == 96 * sizeof(real));
    CHECK(s.a == s.b && !apart(s.a, 64, s.b, 48));
    CHECK(apart(s.before, 16, s.a, 96) && apart(s.after, 16, s.a, 96) &&
          apart(s.inside, 32, s.a, 64));
    arena_free(s.arena);
}

static void carve_too_much(void *unused) {
    (void)unused;
    Arena *arena = arena_create();
    arena_reals(arena, SIZE_MAX / 32, 1, "the first");
    arena_reals(arena, SIZE_MAX / 16, SIZE_MAX / 16, "the second");
}

static void test_overflow(void) {
    CHECK_FAILS(carve_too_much, NULL, 1, "no memory for the second");
}

// Checks the available memory under decreasing limits on the address space.
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
#ifndef __SANITIZE_ADDRESS__ // needs more address space than any limit
    CHECK_FAILS(limit_memory, NULL, 1, "less and less");
#else
    (void)limit_memory;
#endif
}

// All memory of a packed weight, a classifier and attention is counted before it is allocated.
static void test_working_memory(void) {
    enum { V = 1000, C = 32, ROWS = 64 };
    Gemm *gemm = gemm_create(PRECISION_FLOAT32);
    Arena *arena = arena_create();
    GemmWeight *weight = gemm_weight_create(gemm, 2 * C, C, WEIGHT_OUT_IN, "packed weights");
    gemm_weight_carve(weight, arena);
    const size_t with_weight = arena_bytes(arena);
    CHECK(with_weight >= (size_t)2 * 2 * C * C * sizeof(real)); // forward and backward
    Classifier *classifier = classifier_create(gemm, V, C, ROWS, 1);
    classifier_carve(classifier, arena);
    const size_t packed = (size_t)2 * V * C, exponentials = (size_t)ROWS * V;
    CHECK(arena_bytes(arena) >= with_weight + (packed + exponentials) * sizeof(real));
    const size_t before = arena_bytes(arena);
    SoftmaxAttention *softmax =
        softmax_attention_create(PRECISION_FLOAT32, 0, 2, 96, 96, 192, C, 2);
    softmax_attention_carve(softmax, arena, true);
    CHECK(arena_bytes(arena) >=
          before + (size_t)12 * 2 * 96 * C * sizeof(real)); // 12 arrays (B, T, C)
    const size_t with_softmax = arena_bytes(arena);
    CosineAttention *cosine = cosine_attention_create(PRECISION_FLOAT32, 0, 2, 32, 32, C, 2);
    cosine_attention_carve(cosine, arena);
    CHECK(arena_bytes(arena) > with_softmax);
    cosine_attention_free(cosine);
    softmax_attention_free(softmax);
    classifier_free(classifier);
    gemm_weight_free(weight);
    arena_free(arena);
    gemm_free(gemm);
}

int main(int argc, char **argv) {
    static const TestCase cases[] = {
        {"arrays", test_arrays},
        {"union", test_union},
        {"overflow", test_overflow},
        {"available", test_available},
        {"working memory", test_working_memory},
    };
    return test_main(argc, argv, "arena", cases, sizeof(cases) / sizeof(cases[0]));
}
