// The parameters of the layers that models consist of: their offsets in the flat arrays, and their
// rows in the parameter table under PyTorch's names (NAME.weight, NAME.bias). Shared by all
// devices.
#ifndef MODEL_LAYER_PARAMETERS_H
#define MODEL_LAYER_PARAMETERS_H

#include "parameter.h"

#define NORM_EPSILON 1e-5
#define NO_PARAMETER SIZE_MAX // offset of a parameter that a layer does not have

// How the weight of a linear layer from K inputs to N outputs is stored: (N, K) as in PyTorch's
// nn.Linear, or (K, N) as in Hugging Face's Conv1D.
typedef enum { WEIGHT_OUT_IN, WEIGHT_IN_OUT } WeightLayout;

typedef struct {
    size_t outputs, inputs; // N, K
    WeightLayout layout;
    bool bias;
    double deviation; // the weight is initialised to N(0, deviation)
} LinearShape;

typedef struct {
    LinearShape shape;
    size_t weight, bias; // (N, K) or (K, N); (N) or NO_PARAMETER
} LinearParameters;

typedef struct {
    size_t channels;   // C
    size_t gain, bias; // (C); RMSNorm has no bias
    double epsilon;    // added to the variance; default NORM_EPSILON
} NormParameters;

// Whether a sublayer's input is normalised, or the sum of its output and the residual connection.
typedef enum { PRE_NORM, POST_NORM } NormOrder;

// How queries and keys are scored (query_key.h), and how positions are encoded.
typedef enum { SCORES_PLAIN, SCORES_RESCALED, SCORES_QKNORM } ScoresKind;
typedef enum {
    POSITIONS_LEARNED,
    POSITIONS_SINUSOIDAL,
    POSITIONS_ROTARY,
    POSITIONS_NONE
} PositionKind;

// How the D/2 pairs of channels of a head are rotated by their position: pair d by
// position * base^(-2d/D). Only the first `part` of the pairs, which have the highest frequencies,
// are rotated (p-RoPE, Barbero et al., arXiv 2410.06205; rope_type "proportional" of Hugging Face).
typedef struct {
    double base; // 0: no rotation
    double part; // 0 to 1
} Rotary;

// The activation of a feed-forward network (activation.h).
typedef enum { GELU_ERF, GELU_TANH, RELU, SILU, RELU2, SWIGLU } ActivationKind;

// Returns the number of inputs per output.
static inline size_t activation_inputs(ActivationKind kind) {
    return kind == SWIGLU ? 2 : 1;
}

// The norm and the two linear layers of a feed-forward network.
typedef struct {
    NormParameters norm;
    LinearParameters up, down; // C -> F (SwiGLU: 2F), F -> C
} FfnParameters;

// Adds a matrix (rows, columns) with weight decay, initialised to N(0, deviation). Returns its
// offset.
size_t add_matrix(ParameterTable *table, const char *name, size_t rows, size_t columns,
                  double deviation);

// Adds a vector (size) without weight decay, initialised to `value`. Returns its offset.
size_t add_vector(ParameterTable *table, const char *name, size_t size, double value);

// Add a linear layer (its weight is marked hidden), a LayerNorm and an RMSNorm. The name is a
// printf format.
LinearParameters add_linear(ParameterTable *table, LinearShape shape, const char *name, ...)
    __attribute__((format(printf, 3, 4)));
NormParameters add_norm(ParameterTable *table, size_t channels, const char *name, ...)
    __attribute__((format(printf, 3, 4)));
NormParameters add_rms_norm(ParameterTable *table, size_t channels, const char *name, ...)
    __attribute__((format(printf, 3, 4)));

// Adds linear layers with the same input as one product (WEIGHT_OUT_IN): `count` parts with weights
// NAME.PART.weight and biases NAME.PART.bias. Their outputs are concatenated: sizes (count), or
// NULL for equal sizes.
LinearParameters add_joined_linear(ParameterTable *table, LinearShape shape, const char *name,
                                   const char *const *parts, const size_t *sizes, size_t count);

// Returns a norm that does nothing.
NormParameters no_norm(size_t channels);

// Returns the mark of a missing linear layer.
LinearParameters no_linear(void);

#endif
