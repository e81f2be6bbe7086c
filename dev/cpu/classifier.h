// The output layer and its loss: logits = h E^T + bias, cross entropy, and all gradients. It works
// on a chunk of rows at a time, so that B*T*V numbers are never stored: about 64 MB for any M and
// V.
#ifndef CPU_CLASSIFIER_H
#define CPU_CLASSIFIER_H

#include "arena.h"
#include "gemm.h"
#include "real.h"
#include <stddef.h>
#include <stdint.h>

typedef struct Classifier Classifier;

// For weights (V, C). rows: the largest M; training: with memory for gradients.
Classifier *classifier_create(Gemm *gemm, size_t vocabulary, size_t channels, size_t rows,
                              int training);
void classifier_carve(Classifier *classifier, Arena *arena); // packed weights and buffers
void classifier_free(Classifier *classifier);

// Packs weight (V, C); called after every update. It must not move or change until the next call.
void classifier_pack(Classifier *classifier, const real *weight);

// Returns the sum over rows with target >= 0 of -log softmax(h E^T + bias)[target]. h (M, C), bias
// (V) or NULL, targets (M), -1 = ignored. losses (M): the loss of each row, 0 if it is ignored; or
// NULL.
double classifier_forward(Classifier *classifier, Matrix h, const real *bias,
                          const int32_t *targets, size_t m, real *losses);

// Returns the same sum and computes its gradients times `scale`: sets dh (M, C), adds to dweight
// (V, C) and dbias (V, or NULL).
double classifier_train(Classifier *classifier, Matrix h, const real *bias, const int32_t *targets,
                        size_t m, double scale, real *dh, real *dweight, real *dbias);

// Enables label smoothing (Szegedy et al., "Rethinking the Inception Architecture", 2016) in later
// calls of classifier_train(): the target has the share 1 - smoothing, and each of the V tokens
// smoothing / V in addition. The loss becomes (1 - smoothing) (-log p of the target) + smoothing
// (mean of -log p over V). classifier_unsmoothed() returns the last loss without smoothing.
void classifier_smooth(Classifier *classifier, double smoothing);
double classifier_unsmoothed(const Classifier *classifier);

// Computes all logits (M, V), for tests and small models.
void classifier_logits(Classifier *classifier, Matrix h, const real *bias, size_t m, real *logits);

#endif
