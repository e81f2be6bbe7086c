#include "train.h"

#include "memory.h"
#include "stop.h"
#include <math.h>
#include <stdlib.h>
#include <time.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// Runs the model on `rows` blocks of `length` tokens; adds loss and counted tokens.
static void evaluate_rows(Run *run, int64_t rows, int64_t length, const int32_t *inputs,
                          const int32_t *targets, double *loss, int64_t *tokens) {
    const Batch batch = {.batch = rows, .length = length, .inputs = inputs, .targets = targets};
    *loss += run->type->forward(run->model, &batch);
    for (int64_t i = 0; i < rows * length; i++) *tokens += targets[i] >= 0;
}

bool evaluate(Run *run, SplitName name, int64_t batches, Evaluation *result) {
    const Split *split = &run->dataset->splits[name];
    const int64_t B = run->setup.batch, T = run->setup.length;
    int32_t *inputs = allocate((size_t)(B * T), sizeof(int32_t), "evaluation batch");
    int32_t *targets = allocate((size_t)(B * T), sizeof(int32_t), "evaluation batch");
    const double start = now();
    double loss = 0;
    int64_t tokens = 0, rows = 0, block = 0, done = 0;
    bool stopped = false;
    for (;;) {
        const int64_t length =
            split_block(split, T, block++, run->dataset->end, inputs + rows * T, targets + rows * T);
        // A short block, or none, ends the split: what is collected goes first, then the short block alone.
        rows += length == T;
        if (rows == B || (length < T && rows > 0)) {
            evaluate_rows(run, rows, T, inputs, targets, &loss, &tokens);
            done++;
        }
        if (length < T && length > 0)
            evaluate_rows(run, 1, length, inputs + rows * T, targets + rows * T, &loss, &tokens);
        if (rows == B) rows = 0;
        stopped = stop_requested() != 0;
        if (length < T || stopped || (batches > 0 && done == batches)) break;
    }
    free(inputs);
    free(targets);
    if (stopped) return false;

    *result = (Evaluation){.loss = loss / (double)tokens, .tokens = tokens, .seconds = now() - start};
    result->perplexity = exp(result->loss);
    // Bytes and words are counted in the whole split; of a part, a proportional share is taken.
    const double share = (double)tokens / (double)split->tokens;
    if (split->bytes > 0) result->bits_per_byte = loss / (share * (double)split->bytes * log(2));
    if (split->words > 0) result->word_perplexity = exp(loss / (share * (double)split->words));
    return true;
}
