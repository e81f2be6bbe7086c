// What `--attention pairwise` computes: the score of each query and key is a similarity of the two,
// and an activation makes weights of a query's scores. Any pair of the two, on any device.
#ifndef MODEL_PAIRWISE_KIND_H
#define MODEL_PAIRWISE_KIND_H

// Of q and k (D):
typedef enum {
    SIMILARITY_DOT,       // q . k / sqrt(D)
    SIMILARITY_COSINE,    // q/|q| . k/|k|
    SIMILARITY_ANGLE,     // 1 - arccos(cosine) / pi
    SIMILARITY_EUCLIDEAN, // -|q - k|_2 / sqrt(D)
    SIMILARITY_MANHATTAN, // -|q - k|_1 / D
    SIMILARITY_CHEBYSHEV, // -max |q - k|
    SIMILARITY_MINKOWSKI, // -(mean |q - k|^P)^(1/P), P = 1 + exp(r) learned for each head
    SIMILARITIES
} PairwiseSimilarity;
#define PAIRWISE_SIMILARITIES "dot|cosine|angle|euclidean|manhattan|chebyshev|minkowski"

// Of the scores a_j of the n keys that a query sees, p a power that is fixed or learned:
typedef enum {
    ACTIVATE_SOFTMAX,      // exp(a) / sum exp(a)
    ACTIVATE_SOFTMAX1,     // exp(a) / (1 + sum exp(a))
    ACTIVATE_RELU,         // max(a, 0) / n^p
    ACTIVATE_SOFT_RELU,    // the same, whose gradient below 0 is a tenth of that above
    ACTIVATE_LEARNED_RELU, // c max(a - b, 0) / n^p, b and c learned for each head
    ACTIVATE_SIGMOID,      // 1 / (1 + exp(-a)) / n^p
    ACTIVATE_NONE,         // a / n^p
    ACTIVATIONS
} PairwiseActivation;
#define PAIRWISE_ACTIVATIONS "softmax|softmax1|relu|soft-relu|learned-relu|sigmoid|none"

// What is learned, (H) each: p = 1 / (1 + exp(-m)); r; c; b.
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
    double power; // p, where none is learned
} PairwiseKind;

#endif
