#include "clock.h"
#include "run.h"

#include "stop.h"
#include "terminal.h"

bool evaluate(Run *run, SplitName split, int64_t batches, Evaluation *result) {
    const double start = clock_seconds();
    enum { LOSS, TOKENS, CORRECT, STOPPED, SUMS };
    double sums[SUMS] = {0};
    const int64_t all = run->type->task->evaluation_batches(run->task, split),
                  most = batches > 0 && batches < all ? batches : all;
    const char *const work[] = {
        [SPLIT_TRAIN] = "training loss", [SPLIT_VAL] = "validation", [SPLIT_TEST] = "test"};
    Meter meter = meter_start();
    Batch batch;
    for (int64_t i = ranks_rank(run->ranks); i < most; i += ranks_size(run->ranks)) {
        if (!run->type->task->evaluation_batch(run->task, split, i, &batch)) break;
        sums[LOSS] += run->type->forward(run->model, &batch);
        if (run->positions)
            positions_add(run->positions, &batch, run->type->token_losses(run->model));
        if (batch.counts_correct) sums[CORRECT] += (double)run->type->correct(run->model);
        for (int64_t j = 0; j < batch.batch * batch.length; j++)
            sums[TOKENS] += batch.targets[j] >= 0;
        sums[STOPPED] = stop_requested() != 0;
        if (sums[STOPPED] > 0) break; // asked once: a signal may come now
        meter_show(&meter, work[split], (double)(i + 1) / (double)most);
    }
    meter_end(&meter);
    ranks_sum(run->ranks, sums, SUMS);
    if (sums[STOPPED] > 0) return false;
    *result = (Evaluation){.loss = sums[LOSS] / sums[TOKENS],
                           .tokens = (int64_t)sums[TOKENS],
                           .correct = (int64_t)sums[CORRECT],
                           .parameters = model_checksum(run->type, run->model, MODEL_VALUES),
                           .seconds = clock_seconds() - start};
    run->type->task->report(run->task, split, result);
    return true;
}
