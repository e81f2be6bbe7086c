// Tests of error.h and memory.h.
#include "error.h"
#include "memory.h"
#include "test.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static void ends_with_code_1(void *argument) {
    fail("%s: found %d", (const char *)argument, 7);
}
static void ends_with_code_2(void *argument) {
    fail_usage("option %s", (const char *)argument);
}
static void warns(void *argument) {
    warn("%s", (const char *)argument);
}

static void test_errors(void) {
    CHECK_FAILS(ends_with_code_1, "some file", 1, "error: some file: found 7\n");
    CHECK_FAILS(ends_with_code_2, "--x", 2, "error: option --x\n");
    CHECK_FAILS(warns, "careful", 0, "warning: careful\n");
}

static void test_control_characters(void) {
    CHECK_FAILS(warns, "a\nb\x1b[2J\x7f", 0, "warning: a?b?[2J?\n");
    CHECK_FAILS(warns, "\xc2\x9b[2J \xc2\x80\xc2\x9f\u00a0", 0, "warning: ??[2J ????\u00a0\n");
    CHECK_FAILS(warns, "h\xc3\xa9", 0, "warning: h\xc3\xa9\n");
}

static void test_long_message(void) {
    char *text = allocate(100001, 1, "a test");
    memset(text, 'x', 100000);
    CHECK_FAILS(warns, text, 0, "xxx\n");
    free(text);
}

// Output printed before fail() appears, although fail() ends the process without exit().
static void prints_and_fails(void *argument) {
    if (!freopen(argument, "w", stdout)) return;
    printf("printed before");
    fail("done");
}

static void test_stdout_is_flushed(void) {
    const char *path = test_file("out", "", 0);
    char text[32] = "";
    CHECK_FAILS(prints_and_fails, (void *)path, 1, "error: done\n");
    FILE *file = fopen(path, "r");
    CHECK(file && fgets(text, sizeof(text), file));
    CHECK_TEXT(text, "printed before");
    if (file) fclose(file);
}

static void test_allocate(void) {
    const size_t counts[] = {0, 1, 63, 64, 65, 1000003};
    for (size_t i = 0; i < sizeof(counts) / sizeof(*counts); i++) {
        unsigned char *memory = allocate(counts[i], 3, "a test");
        bool zero = true;
        for (size_t j = 0; j < 3 * counts[i]; j++) zero &= memory[j] == 0;
        CHECK(zero);
        CHECK((uintptr_t)memory % 64 == 0);
        memset(memory, 0xff, 3 * counts[i]);
        free(memory);
    }
}

static void allocates(void *argument) {
    const size_t *product = argument;
    free(allocate(product[0], product[1], "the logits"));
}

static void test_allocate_too_much(void) {
    CHECK_FAILS(allocates, ((size_t[]){SIZE_MAX / 4, 8}), 1, "no memory for the logits");
    CHECK_FAILS(allocates, ((size_t[]){SIZE_MAX, 1}), 1, "no memory for the logits");
    CHECK_FAILS(allocates, ((size_t[]){PTRDIFF_MAX, 1}), 1, "no memory for the logits");
}

static void takes_room(void *argument) {
    Room room = {0};
    memset(room_for(&room, 3, 1, "the cache"), 1, 3);
    room_for(&room, *(const size_t *)argument, 8, "the cache");
}

static void test_room(void) {
    Room room = {0};
    unsigned char *memory = room_for(&room, 0, 8, "a test");
    CHECK(memory != NULL);
    memory = room_for(&room, 100, 8, "a test");
    memset(memory, 7, 800);
    CHECK(room_for(&room, 799, 1, "a test") == memory && memory[798] == 7);
    CHECK(room_for(&room, 800, 1, "a test") == memory && room.bytes == 800);
    memory = room_for(&room, 801, 1, "a test");
    CHECK(memory[0] == 0 && memory[800] == 0 && room.bytes == 801);
    free(memory);
    CHECK_FAILS(takes_room, &(size_t){SIZE_MAX / 4}, 1, "no memory for the cache");
}

static void test_strings(void) {
    char *copy = copy_string("text"), *empty = copy_string(""),
         *formatted = format_string("%s-%d", "a", 5);
    CHECK_TEXT(copy, "text");
    CHECK_TEXT(empty, "");
    CHECK_TEXT(formatted, "a-5");
    free(copy);
    free(empty);
    free(formatted);
}

static void check_bytes(size_t bytes, const char *expected) {
    char *text = format_bytes(bytes);
    CHECK_TEXT(text, expected);
    free(text);
}

static void test_bytes(void) {
    check_bytes(0, "0.00 KiB");
    check_bytes(100, "0.10 KiB");
    check_bytes(1 << 14, "16.0 KiB");
    check_bytes(1023 << 10, "1.00 MiB");
    check_bytes((size_t)1300 << 10, "1.27 MiB");
    check_bytes((size_t)512 << 20, "512 MiB");
    check_bytes((size_t)1 << 40, "1024 GiB");
}

int main(int argc, char **argv) {
    static const TestCase cases[] = {
        {"errors", test_errors},
        {"control characters", test_control_characters},
        {"long message", test_long_message},
        {"stdout is flushed", test_stdout_is_flushed},
        {"allocate", test_allocate},
        {"allocate too much", test_allocate_too_much},
        {"room", test_room},
        {"strings", test_strings},
        {"bytes", test_bytes},
    };
    return test_main(argc, argv, "memory", cases, sizeof(cases) / sizeof(*cases));
}
