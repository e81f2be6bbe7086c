#include "sampler.h"
#include "memory.h"
#include "vector_math.h"
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

typedef struct {
    double weight; // probability, not normalised
    int32_t token;
} Candidate;

// Returns the token with the largest logit; NaN counts as -Inf.
static int32_t most_probable(const real *logits, int64_t vocabulary) {
    int32_t best = 0;
    double greatest = -INFINITY;
    for (int64_t i = 0; i < vocabulary; i++) {
        if ((double)logits[i] > greatest) {
            greatest = (double)logits[i];
            best = (int32_t)i;
        }
    }
    return best;
}

static bool comes_before(const Candidate *a, const Candidate *b) {
    return a->weight > b->weight || (a->weight == b->weight && a->token < b->token);
}

// Restores the heap of n candidates, the best at the root, below `parent`.
static void sift_down(Candidate *heap, int64_t n, int64_t parent) {
    const Candidate moving = heap[parent];
    for (int64_t child; (child = 2 * parent + 1) < n; parent = child) {
        if (child + 1 < n && comes_before(&heap[child + 1], &heap[child])) child++;
        if (!comes_before(&heap[child], &moving)) break;
        heap[parent] = heap[child];
    }
    heap[parent] = moving;
}

// Moves the root to the end of the heap, which then has n - 1 candidates.
static void pop(Candidate *heap, int64_t n) {
    const Candidate root = heap[0];
    heap[0] = heap[n - 1];
    heap[n - 1] = root;
    sift_down(heap, n - 1, 0);
}

static double sum_of_weights(const Candidate *candidates, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += candidates[i].weight;
    return sum;
}

// Cuts the n candidates to top_k, then top_p, at least one. Returns how many are left; they are at
// the end of the array. They are popped from a heap one by one, so that the many improbable tokens
// are never sorted.
static int64_t cut(const SamplerSettings *settings, Candidate *candidates, int64_t n) {
    const bool by_count = settings->top_k > 0 && settings->top_k < n;
    if (!by_count && settings->top_p >= 1) return n;

    for (int64_t parent = n / 2 - 1; parent >= 0; parent--) sift_down(candidates, n, parent);
    const int64_t limit = by_count ? settings->top_k : n;
    int64_t popped = 0;
    if (by_count) {
        while (popped < limit) pop(candidates, n - popped++);
    }
    if (settings->top_p >= 1) return limit;
    const double enough = settings->top_p * sum_of_weights(candidates + n - limit, limit);
    int64_t kept = 0;
    for (double weight = 0; kept < limit && (kept == 0 || weight < enough); kept++) {
        if (kept == popped) pop(candidates, n - popped++);
        weight += candidates[n - 1 - kept].weight;
    }
    return kept;
}

void sampler_penalise(real *logits, const bool *seen, int64_t vocabulary, double penalty) {
    if (penalty == 1) return;
    for (int64_t i = 0; i < vocabulary; i++)
        if (seen[i])
            logits[i] =
                (real)(logits[i] > 0 ? (double)logits[i] / penalty : (double)logits[i] * penalty);
}

int32_t sampler_draw(const SamplerSettings *settings, const real *logits, int64_t vocabulary,
                     Random *random) {
    const int32_t best = most_probable(logits, vocabulary);
    const double greatest = (double)logits[best];
    if (settings->temperature <= 0 || !isfinite(greatest)) return best;

    Candidate *candidates = allocate((size_t)vocabulary, sizeof *candidates, "the sampler");
    int64_t n = 0;
    for (int64_t i = 0; i < vocabulary; i++) {
        const double weight = exp(((double)logits[i] - greatest) / settings->temperature);
        if (weight > 0) candidates[n++] = (Candidate){weight, (int32_t)i}; // false for NaN
    }
    const int64_t kept = cut(settings, candidates, n);
    const Candidate *last = candidates + n - 1, *candidate = candidates + n - kept;
    double left = random_uniform(random) * sum_of_weights(candidate, kept);
    while (candidate < last && left >= candidate->weight) left -= (candidate++)->weight;
    const int32_t token = candidate->token;
    free(candidates);
    return token;
}

double sampler_log_sum(const real *logits, size_t count, real largest) {
    real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (size_t v = 0; v < count; v++) sum += vector_exp(logits[v] - largest);
    return (double)largest + log(fmax((double)sum, 1)); // the largest term alone is 1
}
