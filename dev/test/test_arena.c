// What must hold of an arena: arrays lie apart but for those that share, all aligned and zero; sizes that
// overflow end the program.
#include "arena.h"
#include "error.h"
#include "memory.h"
#include "test.h"
#include <stdint.h>
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

// With so much address space left.
static void limit_memory(void *left) {
    struct rlimit limit;
    getrlimit(RLIMIT_AS, &limit);
    const size_t before = memory_available();
    limit.rlim_cur = 1ull << 36;
    setrlimit(RLIMIT_AS, &limit);
    const size_t wide = memory_available();
    limit.rlim_cur = (1ull << 26) + memory_held();
    setrlimit(RLIMIT_AS, &limit);
    const size_t narrow = memory_available();
    fail("%s", wide <= before && narrow <= *(size_t *)left ? "less and less" : "not less");
}

static void test_available(void) {
    size_t left = 1 << 26;
    CHECK(memory_available() > 1 << 20);
    CHECK_FAILS(limit_memory, &left, 1, "less and less");
}

int main(int argc, char **argv) {
    static const TestCase cases[] = {
        {"arrays", test_arrays},
        {"union", test_union},
        {"overflow", test_overflow},
        {"available", test_available},
    };
    return test_main(argc, argv, "arena", cases, sizeof(cases) / sizeof(cases[0]));
}
