// Choosing the next token.
#ifndef TRAINER_SAMPLER_H
#define TRAINER_SAMPLER_H

#include "random.h"
#include "real.h"
#include <stdbool.h>
#include <stdint.h>

typedef struct {
    double temperature; // 0: the most probable token
    int64_t top_k;      // keep the k most probable; 0: all
    double top_p;       // keep the smallest set of that probability; 1: all
} SamplerSettings;

// Makes tokens that were seen less probable (Keskar et al. 2019, CTRL): divides their positive
// logits by `penalty` and multiplies the negative ones by it. 1: no change. logits, seen (V).
void sampler_penalise(real *logits, const bool *seen, int64_t vocabulary, double penalty);

// Draws from softmax(logits / temperature) cut to top_k, then top_p. logits (V). Ties go to the
// lower token.
int32_t sampler_draw(const SamplerSettings *settings, const real *logits, int64_t vocabulary,
                     Random *random);

// Returns log sum exp(logits) over logits (count), of which the largest is given.
double sampler_log_sum(const real *logits, size_t count, real largest);

#endif
