// The parameters of the layers that models are made of: where they are in the flat arrays, and rows
// of the parameter table for them, under PyTorch's names (NAME.weight, NAME.bias). All of it holds
// on every device.
#ifndef MODEL_LAYER_PARAMETERS_H
#define MODEL_LAYER_PARAMETERS_H

#include "parameter.h"

#define NORM_EPSILON 1e-5
#define NO_PARAMETER SIZE_MAX // the offset of what a layer has not

// How a weight of a linear layer from K inputs to N outputs is stored: (N, K) as PyTorch's
// nn.Linear, or (K, N) as Hugging Face's Conv1D.
typedef enum { WEIGHT_OUT_IN, WEIGHT_IN_OUT } WeightLayout;

typedef struct {
    size_t outputs, inputs; // N, K
    WeightLayout layout;
    bool bias;
    double deviation; // of the weight's initialisation, N(0, deviation)
} LinearShape;

typedef struct {
    LinearShape shape;
    size_t weight, bias; // (N, K) or (K, N); (N) or NO_PARAMETER
} LinearParameters;

typedef struct {
    size_t channels;   // C
    size_t gain, bias; // (C); RMSNorm has no bias
    double epsilon;    // added to the variance; NORM_EPSILON where a model does not say otherwise
} NormParameters;

// Whether a sublayer's input is normalised, or its output plus the residual connection.
typedef enum { PRE_NORM, POST_NORM } NormOrder;

// How queries and keys are scored (query_key.h), and what says where a token is.
typedef enum { SCORES_PLAIN, SCORES_RESCALED, SCORES_QKNORM } ScoresKind;
typedef enum {
    POSITIONS_LEARNED,
    POSITIONS_SINUSOIDAL,
    POSITIONS_ROTARY,
    POSITIONS_NONE
} PositionKind;

// How the D/2 pairs of channels of a head are rotated by their position: pair d by
// position * base^(-2d/D); only the first `part` of the pairs, which turn fastest, the others not
// at all (p-RoPE, Barbero et al., arXiv 2410.06205; rope_type "proportional" of Hugging Face).
typedef struct {
    double base; // 0: nothing is rotated
    double part; // 0 to 1
} Rotary;

// Between the products of a feed-forward network (activation.h).
typedef enum { GELU_ERF, GELU_TANH, RELU, SILU, RELU2, SWIGLU } ActivationKind;

// Inputs for each output.
static inline size_t activation_inputs(ActivationKind kind) {
    return kind == SWIGLU ? 2 : 1;
}

// Normalisation and the two products of the feed-forward network.
typedef struct {
    NormParameters norm;
    LinearParameters up, down; // C -> F (SwiGLU: 2F), F -> C
} FfnParameters;

// A matrix (rows, columns) that decays, N(0, deviation); returns its offset.
size_t add_matrix(ParameterTable *table, const char *name, size_t rows, size_t columns,
                  double deviation);

// A vector (size), each element `value` at first, that does not decay; returns its offset.
size_t add_vector(ParameterTable *table, const char *name, size_t size, double value);

// A linear layer, whose weight is a hidden matrix, and a layer normalisation; the name is made as
// by printf.
LinearParameters add_linear(ParameterTable *table, LinearShape shape, const char *name, ...)
    __attribute__((format(printf, 3, 4)));
NormParameters add_norm(ParameterTable *table, size_t channels, const char *name, ...)
    __attribute__((format(printf, 3, 4)));
NormParameters add_rms_norm(ParameterTable *table, size_t channels, const char *name, ...)
    __attribute__((format(printf, 3, 4)));

// Linear layers of the same input as one product (WEIGHT_OUT_IN): `count` parts whose weights and
// biases have names of their own, NAME.PART.weight and NAME.PART.bias. Their outputs are side by
// side: sizes (count), or equally many.
LinearParameters add_joined_linear(ParameterTable *table, LinearShape shape, const char *name,
                                   const char *const *parts, const size_t *sizes, size_t count);

// No normalisation: what normalises so hands on what it is given.
NormParameters no_norm(size_t channels);

// No linear layer, which no product computes.
LinearParameters no_linear(void);

#endif
