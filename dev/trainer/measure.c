#include "train.h"

#include "error.h"
#include "statistics.h"
#include "stop.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

void measure_check(const Run *run) {
    if (options_integer(run->options, "stats") == 0) return;
    if (!run->type->statistics) fail_usage("--stats: %s does not measure activations", run->type->program);
    if (run->dataset->splits[SPLIT_VAL].tokens == 0)
        fail("--stats: %s has no val split to measure on", run->dataset->name);
}

// Runs the model on up to `batches` batches of the split. A last, shorter one is left out, unless it is all
// there is. Returns their number.
static int64_t run_batches(Run *run, SplitName split, int64_t batches, Statistics *statistics) {
    int64_t done = 0, length = 0;
    Batch batch;
    while (done < batches && !stop_requested() &&
           run->type->task->evaluation_batch(run->task, split, done, &batch) && batch.length >= length) {
        run->type->statistics(run->model, &batch, statistics);
        length = batch.length;
        done++;
    }
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

bool measure_attention(Run *run, Evaluation *result) {
    const int64_t batches = options_integer(run->options, "stats");
    if (batches == 0) return true;
    Statistics statistics = {0};
    run_batches(run, SPLIT_VAL, batches, &statistics);
    double largest = 0;
    Measurement scores = {0};
    for (size_t i = 0; i < statistics.count; i++) {
        const Measurement *m = statistics.items[i];
        if (strcmp(m->place, "attention") == 0) largest = fmax(largest, m->values.largest);
        scores.scores += m->scores;
        scores.saturated += m->saturated;
    }
    statistics_free(&statistics);
    if (stop_requested()) return false;
    evaluation_add(result, (Metric){"attention_max_abs", "max |attention| ", "", 3, largest});
    if (scores.scores > 0)
        evaluation_add(
            result, (Metric){"saturated_share", "saturated ", "", 3, measurement_saturated_share(&scores)});
    return true;
}

bool measure(Run *run, Log *log, int64_t step) {
    const int64_t batches = options_integer(run->options, "stats");
    if (batches == 0) return true;
    Statistics statistics = {0};
    const int64_t done = run_batches(run, SPLIT_VAL, batches, &statistics);
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
