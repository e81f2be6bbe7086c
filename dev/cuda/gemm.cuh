// Matrix products of linear layers with cuBLASLt: bf16 with float32 sums, TF32, or float32; with
// fused bias and GELU if the library has them. Shapes are as described in dev/cpu/gemm.h.
//
// cuBLASLt is column-major: our row-major (M, N) is its (N, M). A matrix's `columns` is its row
// stride; a product may use fewer columns.
#ifndef CUDA_GEMM_CUH
#define CUDA_GEMM_CUH

#include "activation.cuh"
#include "clock.h"
#include <math.h>

// A weight (N, K), or (K, N) with WEIGHT_IN_OUT, and its bias. The update refreshes the copies in
// bf16.
struct DeviceWeight {
    const float *values;
    const bf16 *rounded; // NULL: no product reads bf16
    const float *bias;   // (N), NULL: none
    const bf16 *bias_rounded;
    size_t n, k;
    WeightLayout layout;
};

// Rows first .. first+count-1 of a weight (N, K).
static inline DeviceWeight weight_rows(DeviceWeight w, size_t first, size_t count) {
    if (w.layout != WEIGHT_OUT_IN) fail("rows of a weight that has none");
    w.values += first * w.k;
    if (w.rounded) w.rounded += first * w.k;
    if (w.bias) w.bias += first;
    if (w.bias_rounded) w.bias_rounded += first;
    w.n = count;
    return w;
}

enum BlasEpilogue { BLAS_PLAIN, BLAS_BIAS, BLAS_GELU, BLAS_GELU_BACKWARD };

// d (m, n) = a' (m, k) b' (k, n), or += it; column-major as in BLAS, ' as the flags say.
struct BlasProduct {
    bool transpose_a, transpose_b, a_bf16, d_bf16; // a and b have the same type
    bool add;                                      // d +=
    BlasEpilogue epilogue;
    size_t m, n, k;
    size_t lda, ldb, ldd;
    size_t count = 1; // number of such products
    size_t step_a, step_b,
        step_d; // distance of their operands in elements; 0: shared
};

// The operands. aux (m, n): the input of the GELU, of d's type.
struct BlasOperands {
    const void *a, *b;
    void *d;
    const void *bias; // (m), of d's type
    void *aux;
};

#ifdef CUDA_ON_CPU
#include "cublas_on_cpu.h"
#else
#include "cublaslt.cuh"
#endif

// ---- linear layers ----------------------------------------------------------

static inline const void *weight_data(DeviceWeight w, bool in_bf16) {
    if (in_bf16 && !w.rounded) fail("product: a bf16 input, but the weight has no bf16 copy");
    return in_bf16 ? (const void *)w.rounded : w.values;
}

// to (M, N) = from (M, K) w^T, or with `back` to (M, K) = from (M, N) w.
static inline BlasProduct linear_product(Matrix to, Matrix from, DeviceWeight w, size_t m,
                                         bool back, BlasEpilogue epilogue) {
    BlasProduct p = {};
    p.transpose_a = (w.layout == WEIGHT_OUT_IN) != back;
    p.a_bf16 = from.bf16;
    p.d_bf16 = to.bf16;
    p.epilogue = epilogue;
    p.m = back ? w.k : w.n;
    p.n = m;
    p.k = back ? w.n : w.k;
    p.lda = w.layout == WEIGHT_OUT_IN ? w.k : w.n;
    p.ldb = from.columns;
    p.ldd = to.columns;
    return p;
}

template <typename T>
static __global__ void __launch_bounds__(256)
    add_bias_kernel(T *y, const float *bias, size_t n, size_t stride, size_t count) {
    begin_kernel();
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) y[i / n * stride + i % n] = (T)((float)y[i / n * stride + i % n] + bias[i % n]);
}

// y (M, N) = x (M, K) w^T + bias. If the library has no product with a bias, a kernel adds it
// afterwards.
static inline void gemm_forward(Blas *blas, Matrix y, Matrix x, DeviceWeight w, size_t m) {
    const BlasOperands o = {weight_data(w, x.bf16), x.data, y.data,
                            y.bf16 ? (const void *)w.bias_rounded : w.bias, NULL};
    if (w.bias && blas_run(blas, linear_product(y, x, w, m, false, BLAS_BIAS), o)) return;
    if (!blas_run(blas, linear_product(y, x, w, m, false, BLAS_PLAIN), o))
        fail("cuBLASLt cannot multiply (%zu, %zu) by (%zu, %zu)", m, w.k, w.k, w.n);
    if (w.bias)
        WITH_TYPE(y, T,
                  launch_early(blas->device, add_bias_kernel<T>, dim3(blocks_of(m * w.n, 256)),
                               dim3(256), 0, (T *)y.data, w.bias, w.n, y.columns, m * w.n));
}

// before (M, N) = x w^T + bias, y (M, N) = gelu_tanh(before), fused if the library can: it supports
// GELU only in bf16. The weight has a bias.
static inline void gemm_forward_gelu(Blas *blas, Matrix y, Matrix before, Matrix x, DeviceWeight w,
                                     size_t m) {
    const BlasOperands o = {weight_data(w, x.bf16), x.data, y.data,
                            y.bf16 ? (const void *)w.bias_rounded : w.bias, before.data};
    if (y.bf16 && before.bf16 && blas_run(blas, linear_product(y, x, w, m, false, BLAS_GELU), o))
        return;
    gemm_forward(blas, before, x, w, m);
    activation_forward(blas->device, y, before, before, GELU_TANH, m, w.n);
}

// dx (M, K) = dy (M, N) w, or += it.
static inline void gemm_backward_input_of(Blas *blas, Matrix dx, Matrix dy, DeviceWeight w,
                                          size_t m, bool add) {
    const BlasOperands o = {weight_data(w, dy.bf16), dy.data, dx.data, NULL, NULL};
    BlasProduct p = linear_product(dx, dy, w, m, true, BLAS_PLAIN);
    p.add = add;
    if (!blas_run(blas, p, o))
        fail("cuBLASLt cannot multiply (%zu, %zu) by (%zu, %zu)", m, w.n, w.n, w.k);
}

static inline void gemm_backward_input(Blas *blas, Matrix dx, Matrix dy, DeviceWeight w, size_t m) {
    gemm_backward_input_of(blas, dx, dy, w, m, false);
}

static inline void gemm_backward_input_add(Blas *blas, Matrix dx, Matrix dy, DeviceWeight w,
                                           size_t m) {
    gemm_backward_input_of(blas, dx, dy, w, m, true);
}

// dx (M, K) = (dy (M, N) w) * gelu_tanh'(before), with before (M, K) from gemm_forward_gelu(), of
// dx's type.
static inline void gemm_backward_input_gelu(Blas *blas, Matrix dx, Matrix dy, DeviceWeight w,
                                            Matrix before, size_t m) {
    const BlasOperands o = {weight_data(w, dy.bf16), dy.data, dx.data, NULL, before.data};
    if (dx.bf16 && before.bf16 &&
        blas_run(blas, linear_product(dx, dy, w, m, true, BLAS_GELU_BACKWARD), o))
        return;
    gemm_backward_input(blas, dx, dy, w, m);
    activation_backward(blas->device, dx, dx, before, GELU_TANH, m, w.k);
}

// Several weights of one shape: their number, and distances in elements of them and the operands.
struct WeightBatch {
    size_t count;
    size_t dw, dy, x;
};

// dw += dy^T x in the weight's layout; dy (M, N), x (M, K). A batch is one call of the library.
static inline void gemm_backward_weights(Blas *blas, float *dw, Matrix dy, Matrix x, DeviceWeight w,
                                         size_t m, const WeightBatch &batch) {
    if (dy.bf16 != x.bf16) fail("product: dy and x differ in type");
    const bool out_in = w.layout == WEIGHT_OUT_IN;
    const Matrix left = out_in ? x : dy, right = out_in ? dy : x;
    BlasProduct p = {};
    p.transpose_b = true;
    p.a_bf16 = x.bf16;
    p.add = true;
    p.m = out_in ? w.k : w.n;
    p.n = out_in ? w.n : w.k;
    p.k = m;
    p.lda = left.columns;
    p.ldb = right.columns;
    p.ldd = p.m;
    p.count = batch.count;
    p.step_a = out_in ? batch.x : batch.dy;
    p.step_b = out_in ? batch.dy : batch.x;
    p.step_d = batch.dw;
    const BlasOperands o = {left.data, right.data, dw, NULL, NULL};
    if (!blas_run(blas, p, o))
        fail("cuBLASLt cannot multiply (%zu, %zu)^T by (%zu, %zu), %zu times", m, w.n, m, w.k,
             batch.count);
}

// The same for one weight.
static inline void gemm_backward_weight(Blas *blas, float *dw, Matrix dy, Matrix x, DeviceWeight w,
                                        size_t m) {
    gemm_backward_weights(blas, dw, dy, x, w, m, {1, 0, 0, 0});
}

// ---- rounding ---------------------------------------------------------------

static __global__ void round_kernel(bf16 *to, const float *from, size_t count) {
    const size_t first = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * 8;
    if (first + 8 <= count) {
        float v[8];
        load_numbers<8>(v, from + first);
        store_numbers<8>(to + first, v);
    } else {
        for (size_t i = first; i < count; i++) to[i] = (bf16)from[i];
    }
}

// to (count) = from, rounded to nearest
static inline void round_to_bf16(const Device *d, bf16 *to, const float *from, size_t count) {
    launch(d, round_kernel, dim3(blocks_of(count, 256 * 8)), dim3(256), 0, to, from, count);
}

// ---- the peak ---------------------------------------------------------------
// Pseudorandom numbers in [-1, 1]: products of zeros run faster than products of random numbers.
template <typename T>
static __global__ void __launch_bounds__(256) noise_kernel(T *x, size_t count) {
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    uint32_t bits = (uint32_t)i * 0x9E3779B9u; // the finaliser of MurmurHash3
    bits = (bits ^ bits >> 16) * 0x85EBCA6Bu;
    bits = (bits ^ bits >> 13) * 0xC2B2AE35u;
    bits ^= bits >> 16;
    if (i < count) x[i] = (T)((float)(bits >> 8) * (2.0f / (1 << 24)) - 1);
}

static inline void fill_with_noise(const Device *d, Matrix x, size_t rows) {
    const size_t count = rows * x.columns;
    WITH_TYPE(
        x, T,
        launch(d, noise_kernel<T>, dim3(blocks_of(count, 256)), dim3(256), 0, (T *)x.data, count));
}

// Returns the FLOP/s of a large product, best of a few, in bf16 or in float32 as `blas` multiplies
// it. Temporarily allocates 96 MiB.
static inline double blas_measure_peak(Blas *blas, bool in_bf16) {
#ifdef CUDA_ON_CPU
    constexpr size_t SIZE = 16;
#else
    constexpr size_t SIZE = 4096;
#endif
    const Device *d = blas->device;
    const char *purpose = "the measurement of the peak";
    DeviceArena arena = {};
    Matrix x = {}, y = {}, weight = {};
    for (int pass = 0; pass < 2; pass++) {
        blas_workspace(blas, &arena);
        x = arena_matrix(&arena, SIZE, SIZE, in_bf16, purpose);
        y = arena_matrix(&arena, SIZE, SIZE, in_bf16, purpose);
        weight = arena_matrix(&arena, SIZE, SIZE, in_bf16, purpose);
        if (pass == 0) arena_allocate(&arena, "another program may be using the GPU");
    }
    const DeviceWeight w = {(const float *)weight.data,
                            (const bf16 *)weight.data,
                            NULL,
                            NULL,
                            SIZE,
                            SIZE,
                            WEIGHT_OUT_IN};
    fill_with_noise(d, x, SIZE);
    fill_with_noise(d, weight, SIZE);
    double best = INFINITY;
    constexpr int ROUNDS = 4, PRODUCTS = 8; // the first round chooses the plan and wakes the GPU
    for (int i = 0; i < ROUNDS; i++) {
        device_synchronize(d);
        const double start = clock_seconds();
        for (int j = 0; j < PRODUCTS; j++) gemm_forward(blas, y, x, w, SIZE);
        device_synchronize(d);
        best = fmin(best, clock_seconds() - start);
    }
    arena_free(&arena);
    return 2.0 * SIZE * SIZE * SIZE * PRODUCTS / best;
}

#endif
