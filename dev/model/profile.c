#include "profile.h"
#include "clock.h"
#include "memory.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *kind;
    double seconds[PROFILE_PARTS], flops[PROFILE_PARTS];
} Row;

struct Profile {
    double last; // time of the last lap
    int64_t steps;
    bool first_dropped;
    int count;
    Row rows[PROFILE_KINDS];
};

Profile *profile_create(void) {
    Profile *profile = allocate(1, sizeof *profile, "the profile");
    profile->last = clock_seconds();
    return profile;
}

void profile_free(Profile *profile) {
    free(profile);
}

void profile_step(Profile *profile) {
    if (!profile) return;
    if (profile->steps == 1 && !profile->first_dropped) {
        for (int i = 0; i < profile->count; i++)
            for (int part = 0; part < PROFILE_BETWEEN; part++)
                profile->rows[i].seconds[part] = profile->rows[i].flops[part] = 0;
        profile->first_dropped = true;
        profile->steps = 0;
    }
    profile->steps++;
}

static Row *row_of(Profile *profile, const char *kind) {
    for (int i = 0; i < profile->count; i++)
        if (strcmp(profile->rows[i].kind, kind) == 0) return &profile->rows[i];
    if (profile->count == PROFILE_KINDS) abort();
    Row *row = &profile->rows[profile->count++];
    row->kind = kind;
    return row;
}

void profile_lap(Profile *profile, const char *kind, ProfilePart part, double flops) {
    if (!profile) return;
    const double now = clock_seconds();
    Row *row = row_of(profile, kind);
    row->seconds[part] += now - profile->last;
    row->flops[part] += flops;
    profile->last = now;
}

// ---- the report -------------------------------------------------------------
// Returns the sum of a row's parts inside steps.
static double step_sum(const double parts[PROFILE_PARTS]) {
    return parts[PROFILE_FORWARD] + parts[PROFILE_BACKWARD] + parts[PROFILE_STEP];
}

// Returns the sum of all rows.
static Row sum_of_rows(const Profile *profile) {
    Row sum = {.kind = "a step"};
    for (int i = 0; i < profile->count; i++)
        for (int part = 0; part < PROFILE_PARTS; part++) {
            sum.seconds[part] += profile->rows[i].seconds[part];
            sum.flops[part] += profile->rows[i].flops[part];
        }
    return sum;
}

static const double shown = 0.005; // ms per step, or s in total: less would print as 0.00

// Prints a cell of the table, empty for 0.
static void print_cell(char *text, size_t size, double value, int decimals) {
    if (value > 0)
        snprintf(text, size, "%.*f", decimals, value);
    else
        *text = '\0';
}

static void show_row(Log *log, const Row *row, double steps, double all_seconds,
                     double peak_flops) {
    enum { COLUMNS = 6, SIZE = 32 };
    char cells[COLUMNS][SIZE];
    const double seconds = step_sum(row->seconds), flops = step_sum(row->flops);
    const double speed = seconds > 0 ? flops / seconds : 0;
    print_cell(cells[0], SIZE, 1e3 * row->seconds[PROFILE_FORWARD] / steps, 2);
    print_cell(cells[1], SIZE, 1e3 * row->seconds[PROFILE_BACKWARD] / steps, 2);
    print_cell(cells[2], SIZE, 1e3 * seconds / steps, 2);
    print_cell(cells[3], SIZE, all_seconds > 0 ? 100 * seconds / all_seconds : 0, 1);
    print_cell(cells[4], SIZE, 1e-9 * speed, 0);
    // More than 100% means that other programs slowed down the peak's measurement: omit it.
    print_cell(cells[5], SIZE, speed <= peak_flops ? 100 * speed / peak_flops : 0, 1);
    log_line(log, "  %-16s %9s %9s %9s %6s %9s %9s", row->kind, cells[0], cells[1], cells[2],
             cells[3], cells[4], cells[5]);
}

static void write_value(JsonWriter *w, const char *key, double value) {
    if (!(value > 0)) return;
    json_add_number(w, key, value);
}

static void write_row(JsonWriter *w, const Row *row, double steps, double all_seconds) {
    const double seconds = step_sum(row->seconds);
    json_begin(w, '{');
    json_add_string(w, "kind", row->kind);
    write_value(w, "forward_ms", 1e3 * row->seconds[PROFILE_FORWARD] / steps);
    write_value(w, "backward_ms", 1e3 * row->seconds[PROFILE_BACKWARD] / steps);
    write_value(w, "ms", 1e3 * seconds / steps);
    write_value(w, "percent", all_seconds > 0 ? 100 * seconds / all_seconds : 0);
    write_value(w, "gflops", seconds > 0 ? 1e-9 * step_sum(row->flops) / seconds : 0);
    json_end(w, '}');
}

static void write_report(const Profile *profile, Log *log, double peak_flops) {
    const double steps = (double)profile->steps;
    const Row sum = sum_of_rows(profile);
    const double all_seconds = step_sum(sum.seconds);
    JsonWriter *w = log_begin(log);
    json_add_string(w, "event", "profile");
    json_add_integer(w, "steps", profile->steps);
    write_value(w, "ms", 1e3 * all_seconds / steps);
    write_value(w, "peak_gflops", 1e-9 * peak_flops);
    json_open(w, "kinds", '[');
    for (int i = 0; i < profile->count; i++)
        if (step_sum(profile->rows[i].seconds) > 0)
            write_row(w, &profile->rows[i], steps, all_seconds);
    json_end(w, ']');
    json_open(w, "between_ms", '{');
    for (int i = 0; i < profile->count; i++)
        write_value(w, profile->rows[i].kind, 1e3 * profile->rows[i].seconds[PROFILE_BETWEEN]);
    json_end(w, '}');
    log_end(log);
}

void profile_report(const Profile *profile, Log *log, double peak_flops) {
    if (!profile || profile->steps == 0) return;
    const double steps = (double)profile->steps;
    const Row sum = sum_of_rows(profile);
    const double all_seconds = step_sum(sum.seconds);
    log_line(log, "time of %lld step%s%s, ms per step", (long long)profile->steps,
             profile->steps == 1 ? "" : "s", profile->first_dropped ? " after the first" : "");
    log_line(log, "  %-16s %9s %9s %9s %6s %9s %9s", "", "forward", "backward", "all", "%",
             "GFLOP/s", "% of peak");
    for (int i = 0; i < profile->count; i++)
        if (1e3 * step_sum(profile->rows[i].seconds) >= shown * steps)
            show_row(log, &profile->rows[i], steps, all_seconds, peak_flops);
    show_row(log, &sum, steps, all_seconds, peak_flops);
    for (int i = 0; i < profile->count; i++) {
        const double between = profile->rows[i].seconds[PROFILE_BETWEEN];
        if (between >= shown)
            log_line(log, "  %-16s %9s %9s %9.2f s in all", profile->rows[i].kind, "", "", between);
    }
    write_report(profile, log, peak_flops);
}
