// A model's parameters on the GPU, and AdamW (Loshchilov and Hutter 2019) over all of them.
//
// All arrays are flat, in the layout of the model's ParameterTable. The gaps between parameters
// hold zeros. They are updated like the rest and stay zero. Weight decay is on or off for whole
// ranges of the arrays, which are cut into pieces, one per thread block.
#ifndef CUDA_ADAMW_CUH
#define CUDA_ADAMW_CUH

#include "gemm.cuh"
#include <assert.h>
#include <math.h>
#include <stdlib.h>
extern "C" {
#include "model.h"
#include "parameter.h"
}

// Elements per thread block.
static constexpr size_t UPDATE_PIECE = 4096, NORM_PIECE = 16384;
static constexpr int ADAMW_THREADS = 256, NORM_THREADS = 1024;

struct ParameterPiece {
    uint64_t first;
    uint32_t count; // at most UPDATE_PIECE, a multiple of 4
    uint32_t decay; // 1: weight decay applies
};

struct ParameterState {
    size_t total; // elements
    bool muon;    // Muon updates the hidden matrices (muon.cuh)
    float *values, *gradients, *first_moment,
        *second_moment;     // (total); the last three are NULL without training
    bf16 *rounded;          // (total) bf16 values for products; NULL: products read float32
    ParameterPiece *pieces; // (piece_count), training only
    size_t piece_count;
    double *partial_norms; // (ceil(total / NORM_PIECE)), training only
};

// ---- memory -----------------------------------------------------------------

static inline bool parameters_alike(const Parameter *p, const Parameter *q) {
    return p->decay == q->decay && p->hidden == q->hidden;
}

// Cuts the parameters that AdamW updates into pieces that do not cross ranges. `out` NULL: only
// counts them.
static inline size_t parameter_pieces(const ParameterTable *table, bool muon, ParameterPiece *out) {
    size_t count = 0;
    for (int i = 0; i < table->count;) {
        const Parameter *first = &table->items[i];
        while (i < table->count && parameters_alike(&table->items[i], first)) i++;
        if (muon && first->hidden) continue;
        const size_t end = i < table->count ? table->items[i].offset : table->total;
        for (size_t at = first->offset; at < end; at += UPDATE_PIECE, count++)
            if (out)
                out[count] = {at, (uint32_t)(end - at < UPDATE_PIECE ? end - at : UPDATE_PIECE),
                              first->decay};
    }
    return count;
}

// Carves the arrays of a finished table. muon: Muon updates the hidden matrices. rounded: products
// read a bf16 copy of the values.
static inline void parameter_state_carve(ParameterState *s, DeviceArena *arena,
                                         const ParameterTable *table, bool training, bool muon,
                                         bool rounded) {
    *s = ParameterState();
    s->total = table->total;
    s->muon = muon;
    s->values = arena_array<float>(arena, s->total, "parameters");
    if (rounded) s->rounded = arena_array<bf16>(arena, s->total, "parameters in bf16");
    if (!training) return;
    s->gradients = arena_array<float>(arena, s->total, "gradients of parameters");
    s->first_moment = arena_array<float>(arena, s->total, "AdamW's moments");
    s->second_moment = arena_array<float>(arena, s->total, "AdamW's moments");
    s->piece_count = parameter_pieces(table, muon, NULL);
    s->pieces = arena_array<ParameterPiece>(arena, s->piece_count, "AdamW's moments");
    s->partial_norms =
        arena_array<double>(arena, (s->total + NORM_PIECE - 1) / NORM_PIECE, "AdamW's moments");
}

// Zeroes everything, after carving.
static inline void parameter_state_start(const Device *d, const ParameterState *s,
                                         const ParameterTable *table) {
    const size_t bytes = s->total * sizeof(float);
    CUDA_CHECK(cudaMemsetAsync(s->values, 0, bytes, d->stream));
    if (s->rounded) CUDA_CHECK(cudaMemsetAsync(s->rounded, 0, s->total * sizeof(bf16), d->stream));
    if (!s->gradients) return;
    CUDA_CHECK(cudaMemsetAsync(s->gradients, 0, bytes, d->stream));
    CUDA_CHECK(cudaMemsetAsync(s->first_moment, 0, bytes, d->stream));
    CUDA_CHECK(cudaMemsetAsync(s->second_moment, 0, bytes, d->stream));
    ParameterPiece *pieces =
        (ParameterPiece *)allocate(s->piece_count, sizeof(ParameterPiece), "AdamW's pieces");
    parameter_pieces(table, s->muon, pieces);
    CUDA_CHECK(cudaMemcpyAsync(s->pieces, pieces, s->piece_count * sizeof(ParameterPiece),
                               cudaMemcpyHostToDevice, d->stream));
    device_synchronize(d);
    free(pieces);
}

static inline float *parameter_array(const ParameterState *s, ModelArray which) {
    float *const array = which == MODEL_VALUES         ? s->values
                         : which == MODEL_GRADIENTS    ? s->gradients
                         : which == MODEL_FIRST_MOMENT ? s->first_moment
                                                       : s->second_moment;
    assert(array); // for block_row_sum()
    return array;
}

// Copies an array to the host.
static inline void parameter_state_read(const Device *d, const ParameterState *s, ModelArray which,
                                        float *out) {
    CUDA_CHECK(cudaMemcpyAsync(out, parameter_array(s, which), s->total * sizeof(float),
                               cudaMemcpyDeviceToHost, d->stream));
    device_synchronize(d);
}

// Copies an array from the host.
static inline void parameter_state_write(const Device *d, const ParameterState *s, ModelArray which,
                                         const float *in) {
    CUDA_CHECK(cudaMemcpyAsync(parameter_array(s, which), in, s->total * sizeof(float),
                               cudaMemcpyHostToDevice, d->stream));
    if (which == MODEL_VALUES && s->rounded) round_to_bf16(d, s->rounded, s->values, s->total);
    device_synchronize(d);
}

// ---- the norm of the gradients ----------------------------------------------
// partial (blocks) = sums of squares of NORM_PIECE elements each.
static __global__ void __launch_bounds__(ADAMW_THREADS)
    partial_norm_kernel(double *__restrict__ partial, const float *__restrict__ gradients,
                        size_t total) {
    __shared__ double shared[WARP];
    const size_t first = (size_t)blockIdx.x * NORM_PIECE;
    const size_t end = total - first < NORM_PIECE ? total : first + NORM_PIECE;
    double sum = 0;
    for (size_t at = first + 4 * threadIdx.x; at < end; at += 4 * ADAMW_THREADS) {
        float g[4];
        load_numbers<4>(g, gradients + at);
#pragma unroll
        for (int k = 0; k < 4; k++) sum += (double)g[k] * (double)g[k];
    }
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

static __global__ void __launch_bounds__(NORM_THREADS)
    norm_kernel(double *__restrict__ norm, const double *__restrict__ partial, size_t count) {
    __shared__ double shared[WARP];
    double sum = 0;
    for (size_t i = threadIdx.x; i < count; i += NORM_THREADS) sum += partial[i];
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) *norm = sqrt(sum);
}

// *norm (on the device) = Euclidean norm of all gradients, accumulated in double, in a fixed order.
static inline void gradient_norm(const Device *d, const ParameterState *s, double *norm) {
    const unsigned blocks = blocks_of(s->total, NORM_PIECE);
    launch(d, partial_norm_kernel, blocks, ADAMW_THREADS, 0, s->partial_norms, s->gradients,
           s->total);
    launch(d, norm_kernel, 1, NORM_THREADS, 0, norm, s->partial_norms, (size_t)blocks);
}

// ---- the update -------------------------------------------------------------
// Coefficients that are the same for all elements, including the bias corrections:
// m^ / (sqrt(v^) + eps) = rate m / (sqrt(v) root + eps), root = 1 / sqrt(1 - b2^t),
// rate = lr / (1 - b1^t).
struct AdamwCoefficients {
    float gradient_scale, beta1, rest1, beta2, rest2; // rest = 1 - beta
    float rate, root, epsilon, decay;                 // decay includes the learning rate
    float l2;                                         // times x, added to the gradient
};

static __global__ void __launch_bounds__(ADAMW_THREADS)
    adamw_kernel(ParameterState s, const AdamwCoefficients c) {
    begin_kernel();
    const ParameterPiece piece = s.pieces[blockIdx.x];
    const float decay = piece.decay ? c.decay : 0, l2 = piece.decay ? c.l2 : 0;
    const float zeros[4] = {0, 0, 0, 0};
    for (uint32_t i = 4 * threadIdx.x; i < piece.count; i += 4 * ADAMW_THREADS) {
        const size_t at = piece.first + i;
        float x[4], g[4], m[4], v[4];
        load_numbers<4>(x, s.values + at);
        load_numbers<4>(g, s.gradients + at);
        load_numbers<4>(m, s.first_moment + at);
        load_numbers<4>(v, s.second_moment + at);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const float gradient = g[k] * c.gradient_scale + l2 * x[k];
            m[k] = c.beta1 * m[k] + c.rest1 * gradient;
            v[k] = c.beta2 * v[k] + c.rest2 * gradient * gradient;
            x[k] -= c.rate * m[k] / (sqrtf(v[k]) * c.root + c.epsilon) + decay * x[k];
        }
        store_numbers<4>(s.values + at, x);
        store_numbers<4>(s.first_moment + at, m);
        store_numbers<4>(s.second_moment + at, v);
        store_numbers<4>(s.gradients + at, zeros);
        if (s.rounded) store_numbers<4>(s.rounded + at, x);
    }
}

// Updates every parameter that Muon does not, in one pass over memory, and clears the gradients.
// Same formulas as dev/cpu/adamw.h.
static inline void adamw_update(const Device *d, const ParameterState *s, const UpdateSettings *u) {
    const double correction1 = 1 - pow(u->beta1, (double)u->step),
                 correction2 = 1 - pow(u->beta2, (double)u->step);
    AdamwCoefficients c = {};
    c.gradient_scale = (float)u->gradient_scale;
    c.beta1 = (float)u->beta1;
    c.rest1 = (float)(1 - u->beta1);
    c.beta2 = (float)u->beta2;
    c.rest2 = (float)(1 - u->beta2);
    c.rate = (float)(u->learning_rate / correction1);
    c.root = (float)(1 / sqrt(correction2));
    c.epsilon = (float)u->epsilon;
    if (u->adam)
        c.l2 = (float)u->weight_decay;
    else
        c.decay = (float)(u->learning_rate * u->weight_decay);
    launch_early(d, adamw_kernel, blocks_of(s->piece_count, 1), ADAMW_THREADS, 0, *s, c);
}

static inline void gradients_clear(const Device *d, const ParameterState *s) {
    CUDA_CHECK(cudaMemsetAsync(s->gradients, 0, s->total * sizeof(float), d->stream));
}

#endif
