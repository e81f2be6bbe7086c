#include "run.h"

#include "error.h"
#include "statistics.h"
#include "stop.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

void measure_check(const Run *run) {
    if (options_integer(run->options, OPT_STATS) == 0) return;
    if (!run->type->statistics)
        fail_usage("--stats: %s does not measure activations", run->type->program);
    if (run->dataset->splits[SPLIT_VAL].tokens == 0)
        fail("--stats: %s has no val split to measure on", run->dataset->name);
}

// Runs the model on up to `batches` batches of the split, and returns their number. For running
// text, which no mask cuts into sentences, a shorter last batch is left out unless it is the only
// one.
static int64_t run_batches(Run *run, SplitName split, int64_t batches, Statistics *statistics) {
    int64_t done = 0, length = 0;
    Batch batch;
    while (done < batches && !stop_requested() &&
           run->type->task->evaluation_batch(run->task, split, done, &batch) &&
           (batch.mask || batch.length >= length)) {
        run->type->statistics(run->model, &batch, statistics);
        length = batch.length;
        done++;
    }
    return done;
}

// Begins a log line.
static JsonWriter *begin_statistics(Log *log, int64_t step) {
    JsonWriter *w = log_begin(log);
    json_add_string(w, "event", "statistics");
    if (step >= 0) json_add_integer(w, "step", step);
    return w;
}

static void log_measurement(Log *log, int64_t step, const Measurement *m) {
    measurement_to_json(m, begin_statistics(log, step));
    log_end(log);
}

static void log_weight(Log *log, int64_t step, const char *name, const Moments *moments) {
    JsonWriter *w = begin_statistics(log, step);
    json_add_string(w, "tensor", name);
    moments_to_json(moments, w);
    log_end(log);
}

// ---- weights ----------------------------------------------------------------
// Returns the mean excess kurtosis of the matrices between hidden layers; NaN if there are none.
// Logs a line for each matrix if there is a log.
static double measure_weights(const Run *run, Log *log, int64_t step) {
    const ParameterTable *table = run->type->parameters(run->model);
    real *copy;
    const real *values = model_view(run->type, run->model, MODEL_VALUES, &copy);
    double sum = 0;
    int count = 0;
    for (int i = 0; i < table->count; i++) {
        const Parameter *p = &table->items[i];
        if (!p->hidden) continue;
        Moments moments = {0};
        moments_add_real(&moments, values + p->offset, p->size);
        if (log) log_weight(log, step, p->name, &moments);
        sum += moments_kurtosis(&moments);
        count++;
    }
    free(copy);
    return count > 0 ? sum / count : (double)NAN;
}

// ---- activations ------------------------------------------------------------
// Statistics over all layers.
typedef struct {
    double attention_largest; // largest |x| that attention adds to the residual stream
    double residual_kurtosis; // of the residual stream after a layer, summed over layers
    int residuals;            // number of these layers
    double residual_largest;  // largest |x| of the residual stream
    Measurement scores;       // scores that have a bound
    double sink_share;        // summed over places that have a sink
    int sinks;                // number of these places
} Summary;

static Summary summarise(const Statistics *statistics) {
    Summary all = {0};
    for (size_t i = 0; i < statistics->count; i++) {
        const Measurement *m = statistics->items[i];
        if (strcmp(m->place, self_attention_places[0]) == 0)
            all.attention_largest = larger_or_nan(all.attention_largest, m->values.largest);
        if (strcmp(m->place, RESIDUAL_PLACE) == 0 && m->layer > 0) {
            all.residual_kurtosis += moments_kurtosis(&m->values);
            all.residual_largest = larger_or_nan(all.residual_largest, m->values.largest);
            all.residuals++;
        }
        all.scores.scores += m->scores;
        all.scores.saturated += m->saturated;
        if (m->queries > 0) {
            all.sink_share += measurement_sink_share(m);
            all.sinks++;
        }
    }
    return all;
}

bool measure_validation(Run *run, Evaluation *result) {
    const int64_t batches = options_integer(run->options, OPT_STATS);
    if (batches == 0) return true;
    Statistics statistics = {0};
    run_batches(run, SPLIT_VAL, batches, &statistics);
    const Summary all = summarise(&statistics);
    statistics_free(&statistics);
    if (stop_requested()) return false;
    const double weights = measure_weights(run, NULL, -1);
    evaluation_add(result,
                   (Metric){"attention_max_abs", "max |attention| ", "", 3, all.attention_largest});
    if (all.scores.scores > 0)
        evaluation_add(result, (Metric){"saturated_share", "saturated ", "", 3,
                                        measurement_saturated_share(&all.scores)});
    if (all.sinks > 0)
        evaluation_add(result, (Metric){"sink_share", "sink ", "", 3, all.sink_share / all.sinks});
    evaluation_add(result, (Metric){"activation_max_abs", "max |x| ", "", 1, all.residual_largest});
    evaluation_add(result, (Metric){"activation_kurtosis", "kurtosis of x ", "", 2,
                                    all.residual_kurtosis / all.residuals});
    evaluation_add(result, (Metric){"weight_kurtosis", "of weights ", "", 2, weights});
    return true;
}

bool measure(Run *run, Log *log, int64_t step) {
    const int64_t batches = options_integer(run->options, OPT_STATS);
    if (batches == 0) return true;
    Statistics statistics = {0};
    const int64_t done = run_batches(run, SPLIT_VAL, batches, &statistics);
    const bool stopped = stop_requested() != 0;
    if (!stopped) {
        log_line(log, "activations in %lld validation batch%s", (long long)done,
                 done > 1 ? "es" : "");
        log_line(log, "%s", statistics_heading());
    }
    for (size_t i = 0; !stopped && i < statistics.count; i++) {
        char *line = measurement_line(statistics.items[i]);
        log_line(log, "%s", line);
        free(line);
        log_measurement(log, step, statistics.items[i]);
    }
    if (!stopped) measure_weights(run, log, step);
    statistics_free(&statistics);
    return !stopped;
}
