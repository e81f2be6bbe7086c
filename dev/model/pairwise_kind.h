// `--attention pairwise`: the score of a query and a key is a similarity, and an activation
// converts a query's scores to weights. Every combination works on every device.
#ifndef MODEL_PAIRWISE_KIND_H
#define MODEL_PAIRWISE_KIND_H

// Similarity of q and k (D):
typedef enum {
    SIMILARITY_DOT,       // q . k / sqrt(D)
    SIMILARITY_COSINE,    // q/|q| . k/|k|
    SIMILARITY_ANGLE,     // 1 - arccos(cosine) / pi
    SIMILARITY_EUCLIDEAN, // -|q - k|_2 / sqrt(D)
    SIMILARITY_MANHATTAN, // -|q - k|_1 / D
    SIMILARITY_CHEBYSHEV, // -max |q - k|
    SIMILARITY_MINKOWSKI, // -(mean |q - k|^P)^(1/P), P = 1 + exp(r) learned per head
    SIMILARITIES
} PairwiseSimilarity;
#define PAIRWISE_SIMILARITIES "dot|cosine|angle|euclidean|manhattan|chebyshev|minkowski"

// Weights from the scores a_j of the n keys that a query sees, with a fixed or learned power p:
typedef enum {
    ACTIVATE_SOFTMAX,      // exp(a) / sum exp(a)
    ACTIVATE_SOFTMAX1,     // exp(a) / (1 + sum exp(a))
    ACTIVATE_RELU,         // max(a, 0) / n^p
    ACTIVATE_SOFT_RELU,    // the same, with a tenth of the gradient below 0
    ACTIVATE_LEARNED_RELU, // c max(a - b, 0) / n^p, b and c learned per head
    ACTIVATE_SIGMOID,      // 1 / (1 + exp(-a)) / n^p
    ACTIVATE_NONE,         // a / n^p
    ACTIVATIONS
} PairwiseActivation;
#define PAIRWISE_ACTIVATIONS "softmax|softmax1|relu|soft-relu|learned-relu|sigmoid|none"

// Learned parameters, (H) each: m with p = 1 / (1 + exp(-m)); r; c; b.
typedef enum {
    PAIRWISE_POWER,
    PAIRWISE_MINKOWSKI,
    PAIRWISE_FACTOR,
    PAIRWISE_THRESHOLD,
    PAIRWISE_LEARNED
} PairwiseLearned;

typedef struct {
    PairwiseSimilarity similarity;
    PairwiseActivation activation;
    double power; // p, if not learned
} PairwiseKind;

#endif
