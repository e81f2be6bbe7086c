#include "train.h"

#include "stop.h"
#include <time.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

bool evaluate(Run *run, SplitName split, int64_t batches, Evaluation *result) {
    const double start = now();
    double loss = 0;
    int64_t tokens = 0, correct = 0;
    Batch batch;
    for (int64_t i = 0; batches == 0 || i < batches; i++) {
        if (!run->type->task->evaluation_batch(run->task, split, i, &batch)) break;
        loss += run->type->forward(run->model, &batch);
        if (run->type->correct) correct += run->type->correct(run->model);
        for (int64_t j = 0; j < batch.batch * batch.length; j++) tokens += batch.targets[j] >= 0;
        if (stop_requested()) return false;
    }
    *result = (Evaluation){
        .loss = loss / (double)tokens, .tokens = tokens, .correct = correct, .seconds = now() - start};
    run->type->task->report(run->task, split, result);
    return true;
}
