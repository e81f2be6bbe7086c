// A child process reads each file, so that an error that ends it becomes a row of the report: a
// wrong checksum, a wrong header, a disk that cannot be read.
#include "verify.h"
#include "checkpoint.h"
#include "dataset.h"
#include "error.h"
#include "file.h"
#include "memory.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef void Check(const char *path);
typedef struct {
    bool good;
    char message[1024]; // an error, or a remark
} Result;

// ---- checks -----------------------------------------------------------------
// Each exits with an error if the file is damaged, and may write a remark to stderr.

static void check_weights(const char *path) {
    Safetensors *file = safetensors_open(path);
    if (!file->has_checksums) fputs("has no checksums", stderr);
    safetensors_close(file);
}

static void check_json(const char *path) {
    json_free(json_read(path));
}

// A line that a crash cut off is the last one; the next run removes it.
static void check_log(const char *path) {
    FileMap file = file_map(path);
    Text log = {(const char *)file.data, file.size}, line;
    for (int number = 1; log.size > 0; number++) {
        Json *event = text_next_line(&log, &line) ? json_try_parse(line.data, line.size) : NULL;
        if (!event && log.size > 0) fail("%s: line %d is damaged", path, number);
        if (!event) fprintf(stderr, "line %d, the last one, was cut off", number);
        json_free(event);
    }
    file_unmap(&file);
}

// Checks meta.json, the headers of shards and the tokenizer.
static void check_dataset(const char *path) {
    char *directory = path_directory(path);
    dataset_close(dataset_open(directory));
    free(directory);
}

static void check_tokenizer(const char *path) {
    char *directory = path_directory(path);
    const TokenizerKind kind = tokenizer_find(directory);
    if (kind != TOKENIZER_NONE) tokenizer_free(tokenizer_open(kind, directory));
    free(directory);
}

// Checks only the header.
static void check_shard(const char *path) {
    Shard shard = shard_open(path);
    shard_close(&shard);
    fputs("tokens were not checked, as the data set cannot be opened", stderr);
}

static void check_tokens(const char *path) {
    char *directory = path_directory(path);
    Dataset *dataset = dataset_open(directory);
    for (int s = 0; s < SPLIT_COUNT; s++)
        for (int i = 0; i < dataset->splits[s].shard_count; i++) {
            Shard *shard = &dataset->splits[s].shards[i];
            if (strcmp(path_name(shard->path), path_name(path)) != 0) continue;
            shard_check(shard);
            if (!shard->expected) fputs("has no checksum", stderr);
        }
    dataset_close(dataset);
    free(directory);
}

// ---- running a check --------------------------------------------------------

// Removes "error: " and the path, which begins the row.
static void shorten(char *message, const char *path) {
    char *begin = message;
    message[strcspn(message, "\n")] = '\0';
    if (strncmp(begin, "error: ", 7) == 0) begin += 7;
    if (strncmp(begin, path, strlen(path)) == 0 && strncmp(begin + strlen(path), ": ", 2) == 0)
        begin += strlen(path) + 2;
    memmove(message, begin, strlen(begin) + 1);
}

static Result run_check(Check *check, const char *path) {
    Result result = {0};
    int ends[2], status;
    fflush(stdout);
    if (pipe2(ends, O_CLOEXEC) != 0) fail("%s: cannot be checked: no pipe", path);
    const pid_t child = fork();
    if (child < 0) fail("%s: cannot be checked: no process", path);
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        error_set_processes(NULL); // an error ends the child alone, not all ranks
        check(path);
        _exit(0);
    }
    close(ends[1]);
    FILE *errors = fdopen(ends[0], "r");
    if (!errors) fail("%s: cannot be checked: no memory", path);
    const size_t size = fread(result.message, 1, sizeof(result.message) - 1, errors);
    result.message[size] = '\0';
    fclose(errors);
    if (waitpid(child, &status, 0) != child) fail("%s: cannot be checked", path);
    result.good = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (WIFSIGNALED(status))
        snprintf(result.message, sizeof(result.message), "cannot be read: signal %d",
                 WTERMSIG(status));
    shorten(result.message, path);
    return result;
}

// ---- the report -------------------------------------------------------------

static void print_row(const char *name, const Result *result) {
    const char *state = result->good ? "good" : "DAMAGED";
    printf("  %-32s %s%s%s\n", name, state, *result->message ? ": " : "", result->message);
}

static bool is_good_pair(const char *weights) {
    return run_check(checkpoint_check_pair, weights).good;
}

// Prints which checkpoint -y would resume from if all files of later ones were removed.
static void print_newest(const char *directory) {
    char *path = checkpoint_path(directory, 0);
    size_t newer = 0;
    while (path && !is_good_pair(path)) {
        free(path);
        path = checkpoint_path(directory, ++newer);
    }
    if (!path && newer == 0)
        printf("no complete checkpoint\n");
    else if (!path)
        printf("no good checkpoint\n");
    else
        printf("newest good checkpoint: %s\n", path);
    if (path && newer > 0)
        printf("to resume from it, remove the files of the %zu newer ones\n", newer);
    free(path);
}

int verify(const char *directory) {
    size_t count;
    int checked = 0, damaged = 0;
    bool run = false;
    char *meta = path_in(directory, "meta.json");
    char **names = directory_list(directory, &count);
    if (!names) fail("%s: is missing, or empty", directory);
    const bool opens = run_check(check_dataset, meta).good;
    for (size_t i = 0; i < count; i++) {
        const char *name = names[i];
        Check *check = path_ends_in(name, ".safetensors")   ? check_weights
                       : strcmp(name, "meta.json") == 0     ? check_dataset
                       : strncmp(name, "log.jsonl", 9) == 0 ? check_log
                       : tokenizer_has_file(name)           ? check_tokenizer
                       : path_ends_in(name, ".json")        ? check_json
                       : !path_ends_in(name, ".bin")        ? NULL
                       : dataset_split_of(name) < 0         ? NULL
                       : opens                              ? check_tokens
                                                            : check_shard;
        if (!check || path_ends_in(name, ".tmp")) continue;
        char *path = path_in(directory, name);
        const Result result = run_check(check, path);
        print_row(name, &result);
        run |= check == check_weights;
        checked++;
        damaged += !result.good;
        free(path);
    }
    if (checked == 0) fail("%s: holds neither a run nor a data set", directory);
    if (run) print_newest(directory);
    printf("%d files, %d damaged\n", checked, damaged);
    directory_list_free(names, count);
    free(meta);
    return damaged > 0;
}
