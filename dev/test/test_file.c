#include "file.h"
#include "memory.h"
#include "test.h"
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static char *in_directory(const char *name) {
    return format_string("%s/%s", test_directory(), name);
}

static void check_content(const char *path, const void *data, size_t size) {
    FileMap file = file_map(path);
    CHECK(file.size == size && memcmp(file.data, data, size) == 0);
    CHECK_TEXT(file.path, path);
    file_unmap(&file);
}

static void maps(void *path) {
    FileMap file = file_map(path);
    file_unmap(&file);
}

static void test_map(void) {
    check_content(test_file("a", "abc\0def", 7), "abc\0def", 7);
    check_content(test_file("empty", "", 0), "", 0);
}

static void test_map_refuses(void) {
    char *pipe = in_directory("pipe"), *missing = in_directory("missing");
    CHECK(mkfifo(pipe, 0600) == 0);
    CHECK_FAILS(maps, missing, 1, "missing: cannot open: No such file");
    CHECK_FAILS(maps, (void *)test_directory(), 1, "is a directory, expected a file");
    CHECK_FAILS(maps, pipe, 1, "is not a regular file");
    CHECK_FAILS(maps, "/dev/null", 1, "is not a regular file");
    CHECK_FAILS(maps, "", 1, "cannot open");
    free(pipe);
    free(missing);
}

static bool is_directory(const char *path) {
    struct stat status;
    return stat(path, &status) == 0 && S_ISDIR(status.st_mode);
}

static void creates(void *path) {
    directory_create(path);
}

static void test_directory_create(void) {
    char *deep = in_directory("a/b//c/"), *under_file = in_directory("file/d");
    directory_create(deep);
    CHECK(is_directory(deep));
    directory_create(deep);
    directory_create("/");
    const char *file = test_file("file", "x", 1);
    CHECK(file_exists(file) && file_exists(deep) && !file_exists(under_file));
    CHECK_FAILS(creates, (void *)file, 1, "exists and is not a directory");
    CHECK_FAILS(creates, under_file, 1, "exists and is not a directory");
    CHECK_FAILS(creates, "/proc/none", 1, "cannot make the directory");
    CHECK_FAILS(creates, "", 1, "empty");
    free(deep);
    free(under_file);
}

// Returns bytes that vary with their position.
static char *pattern(size_t size) {
    char *data = allocate(size, 1, "a test");
    for (size_t i = 0; i < size; i++) data[i] = (char)(i * 2654435761u >> 13);
    return data;
}

static void test_atomic_write(void) {
    const char *path = test_file("out", "old", 3);
    char *temporary = in_directory("out.tmp");
    const size_t size = 1000000;
    char *data = pattern(size);
    AtomicFile *out = atomic_open(path);
    atomic_write(out, "", 0);
    for (size_t at = 0, piece = 1; at < size;
         piece = piece * 3 % 200003) { // below and above the buffer's size
        const size_t n = piece < size - at ? piece : size - at;
        atomic_write(out, data + at, n);
        at += n;
    }
    check_content(path, "old", 3); // until the commit
    atomic_commit(out);
    check_content(path, data, size);
    CHECK(!file_exists(temporary));
    free(data);
    free(temporary);
}

static void write_new(void *path) {
    AtomicFile *out = atomic_open(path);
    atomic_write(out, "new", 3);
    atomic_commit(out);
}

static void dies_while_writing(void *path) {
    AtomicFile *out = atomic_open(path);
    char *data = pattern(300000);
    atomic_write(out, data, 300000);
    raise(SIGKILL);
}

static void test_killed_while_writing(void) {
    const char *path = test_file("out", "old", 3);
    char *temporary = in_directory("out.tmp"), text[256];
    CHECK(test_child(dies_while_writing, (void *)path, text, sizeof(text)) == -SIGKILL);
    check_content(path, "old", 3);
    CHECK(file_exists(temporary));
    write_new((void *)path);
    check_content(path, "new", 3);
    CHECK(!file_exists(temporary));
    free(temporary);
}

static void test_temporary_link_is_not_followed(void) {
    const char *path = test_file("out", "old", 3), *other = test_file("other", "precious", 8);
    char *temporary = in_directory("out.tmp");
    CHECK(symlink(other, temporary) == 0);
    write_new((void *)path);
    check_content(path, "new", 3);
    check_content(other, "precious", 8);
    free(temporary);
}

static void test_plain_name(void) {
    CHECK(chdir(test_directory()) == 0);
    write_new("plain");
    check_content("plain", "new", 3);
}

static void test_atomic_open_refuses(void) {
    char *nowhere = in_directory("nowhere/out"), *blocked = in_directory("blocked"),
         *blocker = in_directory("blocked.tmp");
    directory_create(blocker);
    CHECK_FAILS(write_new, (void *)test_directory(), 1, "is not a regular file");
    CHECK_FAILS(write_new, "/dev/full", 1, "is not a regular file");
    CHECK_FAILS(write_new, nowhere, 1, "nowhere/out.tmp: cannot write: No such file");
    CHECK_FAILS(write_new, blocked, 1, "blocked.tmp: cannot write: Is a directory");
    free(nowhere);
    free(blocked);
    free(blocker);
}

// Makes the disk look full to this process.
static void limit_file_size(size_t bytes) {
    const struct rlimit limit = {bytes, bytes};
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &limit);
}

static void fills_in_one_piece(void *path) {
    limit_file_size(100000);
    AtomicFile *out = atomic_open(path);
    char *data = pattern(300000);
    atomic_write(out, data, 300000);
}

static void fills_in_small_pieces(void *path) {
    limit_file_size(100000);
    AtomicFile *out = atomic_open(path);
    for (int i = 0; i < 100000; i++) atomic_write(out, "abc", 3);
}

static void fills_at_the_end(void *path) {
    limit_file_size(2);
    write_new(path);
}

static void test_full_disk(void) {
    const char *path = test_file("out", "old", 3);
    char *temporary = in_directory("out.tmp");
    CHECK_FAILS(fills_in_one_piece, (void *)path, 1, "out: cannot write: File too large");
    CHECK_FAILS(fills_in_small_pieces, (void *)path, 1, "out: cannot write: File too large");
    CHECK_FAILS(fills_at_the_end, (void *)path, 1, "out: cannot write: File too large");
    check_content(path, "old", 3);
    CHECK(!file_exists(temporary));
    free(temporary);
}

static void writes_beside_another(void *path) {
    AtomicFile *first = atomic_open(path);
    atomic_write(first, "first", 5);
    AtomicFile *second = atomic_open(path);
    atomic_write(second, "second", 6);
    atomic_commit(first);
}

static void test_two_writers(void) {
    const char *path = test_file("out", "old", 3);
    CHECK_FAILS(writes_beside_another, (void *)path, 1,
                "out: another process writes the same file");
    check_content(path, "old", 3);
}

static void test_paths(void) {
    static const struct {
        const char *path, *directory, *name;
    } paths[] = {{"a/b/c", "a/b", "c"}, {"c", ".", "c"}, {"/c", "/", "c"}, {"a/", "a", ""}};
    for (size_t i = 0; i < sizeof(paths) / sizeof(*paths); i++) {
        char *directory = path_directory(paths[i].path);
        CHECK_TEXT(directory, paths[i].directory);
        CHECK_TEXT(path_name(paths[i].path), paths[i].name);
        free(directory);
    }
}

int main(int argc, char **argv) {
    static const TestCase cases[] = {
        {"paths", test_paths},
        {"map", test_map},
        {"map refuses", test_map_refuses},
        {"directory_create", test_directory_create},
        {"atomic write", test_atomic_write},
        {"killed while writing", test_killed_while_writing},
        {"temporary link is not followed", test_temporary_link_is_not_followed},
        {"plain name", test_plain_name},
        {"atomic_open refuses", test_atomic_open_refuses},
        {"full disk", test_full_disk},
        {"two writers", test_two_writers},
    };
    return test_main(argc, argv, "file", cases, sizeof(cases) / sizeof(*cases));
}
