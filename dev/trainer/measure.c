#include "train.h"

#include "error.h"
#include "memory.h"
#include "statistics.h"
#include "stop.h"
#include <stdlib.h>

void measure_check(const Run *run) {
    if (options_integer(run->options, "stats") == 0) return;
    if (!run->type->statistics) fail_usage("--stats: %s does not measure activations", run->type->program);
    if (run->dataset->splits[SPLIT_VAL].tokens == 0)
        fail("--stats: %s has no val split to measure on", run->dataset->name);
}

// Runs the model on up to `batches` batches of the split, its first sequences. What does not fill a sequence
// is left out, unless it is all there is. Returns their number.
static int64_t run_batches(Run *run, const Split *split, int64_t batches, Statistics *statistics) {
    const int64_t B = run->setup.batch,
                  T = split->tokens < run->setup.length ? split->tokens : run->setup.length;
    int32_t *inputs = allocate((size_t)(B * T), sizeof(int32_t), "batch");
    int32_t *targets = allocate((size_t)(B * T), sizeof(int32_t), "batch");
    int64_t block = 0, done = 0, rows = B;
    while (done < batches && rows == B && !stop_requested()) {
        rows = 0;
        while (rows < B &&
               split_block(split, T, block, run->dataset->end, inputs + rows * T, targets + rows * T) == T) {
            rows++;
            block++;
        }
        if (rows == 0) break;
        const Batch batch = {.batch = rows, .length = T, .inputs = inputs, .targets = targets};
        run->type->statistics(run->model, &batch, statistics);
        done++;
    }
    free(inputs);
    free(targets);
    return done;
}

static void log_measurement(Log *log, int64_t step, const Measurement *m) {
    JsonWriter *w = log_begin(log);
    json_key(w, "event");
    json_write_string(w, "statistics");
    if (step >= 0) {
        json_key(w, "step");
        json_write_integer(w, step);
    }
    measurement_to_json(m, w);
    log_end(log);
}

bool measure(Run *run, Log *log, int64_t step) {
    const int64_t batches = options_integer(run->options, "stats");
    if (batches == 0) return true;
    Statistics statistics = {0};
    const int64_t done = run_batches(run, &run->dataset->splits[SPLIT_VAL], batches, &statistics);
    const bool stopped = stop_requested() != 0;
    if (!stopped) {
        log_line(log, "activations in %lld validation batch%s", (long long)done, done > 1 ? "es" : "");
        log_line(log, "%s", statistics_heading());
    }
    for (size_t i = 0; !stopped && i < statistics.count; i++) {
        char *line = measurement_line(statistics.items[i]);
        log_line(log, "%s", line);
        free(line);
        log_measurement(log, step, statistics.items[i]);
    }
    statistics_free(&statistics);
    return !stopped;
}
