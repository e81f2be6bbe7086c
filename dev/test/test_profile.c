// Laps and steps of the profile. A lap's duration is unpredictable; its FLOP show which laps count.
#include "file.h"
#include "json.h"
#include "log.h"
#include "memory.h"
#include "profile.h"
#include "streams.h"
#include "test.h"
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    const char *directory;
    int steps;
} Call;

// Runs steps of 1, 2, 3, ... GFLOP forward in two laps, twice that backward; 5 between the steps.
static void steps_body(void *argument) {
    const Call *call = argument;
    streams_silence();
    Log *log = log_open(call->directory, -1, 0);
    Profile *profile = profile_create();
    usleep(1); // more than a tick of any clock
    profile_lap(profile, "start", PROFILE_BETWEEN, 0);
    for (int step = 1; step <= call->steps; step++) {
        char kind[] = "product"; // compared by text, not by address
        profile_step(profile);
        usleep(1);
        profile_lap(profile, "loader", PROFILE_STEP, 0);
        profile_lap(profile, "product", PROFILE_FORWARD, 0.5e9 * step);
        profile_lap(profile, kind, PROFILE_FORWARD, 0.5e9 * step);
        profile_lap(profile, "product", PROFILE_BACKWARD, 2e9 * step);
        profile_lap(profile, "evaluation", PROFILE_BETWEEN, 5e9);
    }
    profile_report(profile, log, 100e9);
    profile_free(profile);
    log_close(log);
}

// Returns the log of steps_body(); "" if nothing was written.
static char *profile_text(int steps) {
    Call call = {test_directory(), steps};
    char errors[1024];
    CHECK(test_child(steps_body, &call, errors, sizeof errors) == 0);
    CHECK_TEXT(errors, "");
    char *path = format_string("%s/log.jsonl", test_directory());
    FileMap file = file_map(path);
    char *text = allocate(file.size + 1, 1, "the log");
    memcpy(text, file.data, file.size);
    file_unmap(&file);
    unlink(path);
    free(path);
    return text;
}

static double number(const Json *object, const char *key) {
    const Json *value = json_find(object, key);
    return value && value->kind == JSON_NUMBER ? value->number : -1;
}

static Json *profile_json(int steps) {
    char *text = profile_text(steps);
    Json *json = json_parse(text, strcspn(text, "\n"), "log.jsonl");
    CHECK_TEXT(json_string(json, "event", "log.jsonl"), "profile");
    free(text);
    return json;
}

// Returns the GFLOP per step of all kinds together, and checks what holds for every report.
static double check_report(const Json *json) {
    const Json *kinds = json_find(json, "kinds");
    double flops = 0, percent = 0, ms = 0;
    CHECK(kinds && kinds->count == 2);
    for (size_t i = 0; kinds && i < kinds->count; i++) {
        const Json *row = &kinds->items[i];
        CHECK_TEXT(json_string(row, "kind", "log.jsonl"), i == 0 ? "loader" : "product");
        percent += number(row, "percent");
        ms += number(row, "ms");
        if (i == 0) continue;
        flops = 1e-3 * number(row, "gflops") * number(row, "ms");
        CHECK_CLOSE(number(row, "forward_ms") + number(row, "backward_ms"), number(row, "ms"),
                    1e-9);
    }
    CHECK_CLOSE(percent, 100, 1e-9);
    CHECK_CLOSE(ms, number(json, "ms"), 1e-9);
    CHECK_CLOSE(number(json, "peak_gflops"), 100, 1e-9);
    const Json *between = json_find(json, "between_ms");
    CHECK(between && between->count == 2 && number(between, "start") > 0 &&
          number(between, "evaluation") > 0);
    return flops;
}

static void test_one_step(void) {
    Json *json = profile_json(1);
    CHECK(number(json, "steps") == 1);
    CHECK_CLOSE(check_report(json), 3, 1e-9);
    json_free(json);
}

static void test_first_step(void) {
    Json *json = profile_json(3);
    CHECK(number(json, "steps") == 2);
    CHECK_CLOSE(check_report(json), 3 * (2 + 3) / 2.0, 1e-9);
    json_free(json);
}

static void test_no_step(void) {
    char *text = profile_text(0);
    CHECK_TEXT(text, "");
    free(text);
}

// The profile is NULL if profiling is disabled.
static void test_null(void) {
    profile_step(NULL);
    profile_lap(NULL, "product", PROFILE_FORWARD, 1);
    profile_report(NULL, NULL, 1e9);
    profile_free(NULL);
}

static void many_body(void *argument) {
    (void)argument;
    static char kinds[PROFILE_KINDS + 1][24];
    Profile *profile = profile_create();
    for (int i = 0; i <= PROFILE_KINDS; i++) {
        snprintf(kinds[i], sizeof kinds[i], "kind %d", i);
        profile_lap(profile, kinds[i], PROFILE_STEP, 0);
        if (i + 1 == PROFILE_KINDS) fprintf(stderr, "so many");
    }
}

static void test_too_many(void) {
    char errors[1024];
    CHECK(test_child(many_body, NULL, errors, sizeof errors) == -SIGABRT);
    CHECK_TEXT(errors, "so many");
}

int main(int argc, char **argv) {
    static const TestCase cases[] = {
        {"one step", test_one_step}, {"first step", test_first_step}, {"no step", test_no_step},
        {"null", test_null},         {"too many", test_too_many},
    };
    return test_main(argc, argv, "profile", cases, sizeof cases / sizeof cases[0]);
}
