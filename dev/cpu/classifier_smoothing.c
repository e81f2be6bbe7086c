// Label smoothing, which needs no products, only sums over the vocabulary and over rows.
#include "classifier_parts.h"

// Computes weight_sum and bias_sum. Threads divide the channels, so that the order of sums is
// fixed.
void classifier_sum_weights(Classifier *c, const real *bias) {
    const size_t channels = c->channels;
#pragma omp parallel for schedule(static)
    for (size_t k = 0; k < channels; k += CLASSIFIER_COLUMNS) {
        real sums[CLASSIFIER_COLUMNS] = {0};
        const size_t count = smaller(channels - k, CLASSIFIER_COLUMNS);
        for (size_t j = 0; j < c->vocabulary; j++)
            for (size_t i = 0; i < count; i++) sums[i] += c->weight[j * channels + k + i];
        memcpy(c->weight_sum + k, sums, count * sizeof(real));
    }
    c->bias_sum = 0;
    for (size_t j = 0; bias && j < c->vocabulary; j++) c->bias_sum += (double)bias[j];
}

// Computes h_sum and rows_share, over the rows that have a target.
void classifier_sum_rows(Classifier *c, const ClassifierChunk *chunk) {
    const size_t channels = c->channels;
    const double share = chunk->scale * c->smoothing / (double)c->vocabulary;
#pragma omp parallel for schedule(static)
    for (size_t k = 0; k < channels; k += CLASSIFIER_COLUMNS) {
        real sums[CLASSIFIER_COLUMNS] = {0}, h[CLASSIFIER_COLUMNS];
        const size_t count = smaller(channels - k, CLASSIFIER_COLUMNS);
        for (size_t i = 0; i < chunk->rows; i++) {
            if (chunk->targets[i] < 0) continue;
            gemm_input_load(chunk->h, i, k, h, count);
            for (size_t j = 0; j < count; j++) sums[j] += h[j];
        }
        for (size_t j = 0; j < count; j++) c->h_sum[k + j] = (real)share * sums[j];
    }
    c->rows_share = 0;
    for (size_t i = 0; i < chunk->rows; i++) c->rows_share += chunk->targets[i] < 0 ? 0 : share;
}

// Returns what smoothing adds to the loss of a chunk.
double classifier_smoothing_loss(const Classifier *c, const ClassifierChunk *chunk) {
    double loss = 0;
    for (size_t i = 0; i < chunk->rows; i++) {
        if (chunk->targets[i] < 0) continue;
        double sum = c->bias_sum;
        for (size_t k = 0; k < c->channels; k += CLASSIFIER_COLUMNS) {
            real h[CLASSIFIER_COLUMNS];
            const size_t count = smaller(c->channels - k, CLASSIFIER_COLUMNS);
            gemm_input_load(chunk->h, i, k, h, count);
            for (size_t j = 0; j < count; j++) sum += (double)h[j] * (double)c->weight_sum[k + j];
        }
        loss += (double)c->target_logit[i] - sum / (double)c->vocabulary;
    }
    return c->smoothing * loss;
}

// Adds the part of smoothing to dweight and dbias of one slice.
void classifier_smooth_slice(const Classifier *c, size_t slice, real *restrict dweight,
                             real *restrict dbias) {
    const size_t first = slice * CLASSIFIER_SLICE, width = classifier_slice_width(c, slice),
                 channels = c->channels;
    for (size_t j = first; j < first + width; j++) {
        for (size_t k = 0; k < channels; k++) dweight[j * channels + k] -= c->h_sum[k];
        if (dbias) dbias[j] -= (real)c->rows_share;
    }
}
