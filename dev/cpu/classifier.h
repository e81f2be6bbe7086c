// The output layer and its loss: logits = h E^T + bias, cross entropy, and all gradients, a chunk
// of rows at a time, so that B*T*V numbers are never held: about 64 MB, whatever M and V.
#ifndef CPU_CLASSIFIER_H
#define CPU_CLASSIFIER_H

#include "arena.h"
#include "gemm.h"
#include "real.h"
#include <stddef.h>
#include <stdint.h>

typedef struct Classifier Classifier;

// For weights (V, C); rows: the largest M to come; `training` adds what the gradients need.
Classifier *classifier_create(Gemm *gemm, size_t vocabulary, size_t channels, size_t rows,
                              int training);
void classifier_carve(Classifier *classifier, Arena *arena); // packed weights and buffers
void classifier_free(Classifier *classifier);

// weight (V, C), after every update. It must stay where it is, unchanged, until the next call.
void classifier_pack(Classifier *classifier, const real *weight);

// Sum over rows with target >= 0 of -log softmax(h E^T + bias)[target].
// h (M, C), bias (V) or NULL, targets (M), -1 = not counted. losses (M): each row's, 0 where it is
// not counted; or NULL.
double classifier_forward(Classifier *classifier, Matrix h, const real *bias,
                          const int32_t *targets, size_t m, real *losses);

// The same and, times `scale`: dh (M, C) set, dweight (V, C) and dbias (V, or NULL) added to.
double classifier_train(Classifier *classifier, Matrix h, const real *bias, const int32_t *targets,
                        size_t m, double scale, real *dh, real *dweight, real *dbias);

// Label smoothing (Szegedy et al., "Rethinking the Inception Architecture", 2016) in
// classifier_train() from here on: the target's share is 1 - smoothing, and all V tokens have
// smoothing / V more. Its loss becomes (1 - smoothing) (-log p of the target) + smoothing (mean of
// -log p over V); classifier_unsmoothed() says what the last one would have been without.
void classifier_smooth(Classifier *classifier, double smoothing);
double classifier_unsmoothed(const Classifier *classifier);

// logits (M, V), all of them: tests and small models.
void classifier_logits(Classifier *classifier, Matrix h, const real *bias, size_t m, real *logits);

#endif
