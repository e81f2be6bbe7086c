// The matrix products of gemm.cuh without cuBLASLt: a plain kernel with the same semantics and the
// same rounding of the factors. Part of gemm.cuh.
#ifndef EMULATOR_CUBLAS_ON_CPU_H
#define EMULATOR_CUBLAS_ON_CPU_H

struct Blas {
    const Device *device;
    bool tf32;       // float32 products use TF32
    bool plain_only; // set by tests: act as if the library had no product with an epilogue
};

static inline void blas_create(Blas *blas, const Device *device, bool tf32) {
    *blas = {device, tf32, false};
}

static inline void blas_destroy(Blas *) {}

static inline void blas_workspace(Blas *, DeviceArena *) {}

static inline const char *blas_library(const Blas *) {
    return "CUDA on the CPU";
}

// The 10 mantissa bits that tensor cores use. Some libraries round first, others truncate.
static inline float tf32_from_float(float x) {
    return cuda_bits<float>(cuda_bits<unsigned>(x) & ~0x1fffu);
}

template <bool TF32> static inline float blas_element(float x) {
    return TF32 ? tf32_from_float(x) : x;
}

static inline float blas_epilogue(const BlasProduct &p, const BlasOperands &o, float sum, size_t i,
                                  size_t j) {
    const size_t at = j * p.ldd + i;
    if (p.epilogue == BLAS_BIAS || p.epilogue == BLAS_GELU)
        sum += p.d_bf16 ? (float)((const bf16 *)o.bias)[i] : ((const float *)o.bias)[i];
    if (p.epilogue == BLAS_PLAIN || p.epilogue == BLAS_BIAS) return sum;
    float before = sum;
    if (p.epilogue == BLAS_GELU && p.d_bf16) ((bf16 *)o.aux)[at] = (bf16)sum;
    if (p.epilogue == BLAS_GELU && !p.d_bf16) ((float *)o.aux)[at] = sum;
    if (p.epilogue == BLAS_GELU) return activation_value<GELU_TANH>(before);
    before = p.d_bf16 ? (float)((const bf16 *)o.aux)[at] : ((const float *)o.aux)[at];
    return sum * activation_slope<GELU_TANH>(before);
}

// The operands of product number `index` of a batch.
template <typename T>
static inline BlasOperands blas_operands_of(const BlasProduct &p, BlasOperands o, size_t index) {
    o.a = (const T *)o.a + index * p.step_a;
    o.b = (const T *)o.b + index * p.step_b;
    o.d = (char *)o.d + index * p.step_d * (p.d_bf16 ? sizeof(bf16) : sizeof(float));
    return o;
}

// A block computes a column of d of one product. Its threads take the column's elements in turn.
template <typename T, bool TF32> static void blas_kernel(BlasProduct p, BlasOperands all) {
    const size_t j = blockIdx.x, stride_a = p.transpose_a ? 1 : p.lda,
                 stride_b = p.transpose_b ? p.ldb : 1;
    const BlasOperands o = blas_operands_of<T>(p, all, blockIdx.y);
    const T *b = (const T *)o.b + (p.transpose_b ? j : j * p.ldb);
    for (size_t i = threadIdx.x; i < p.m; i += blockDim.x) {
        const T *a = (const T *)o.a + (p.transpose_a ? i * p.lda : i);
        float sum = 0;
        for (size_t k = 0; k < p.k; k++)
            sum += blas_element<TF32>((float)a[k * stride_a]) *
                   blas_element<TF32>((float)b[k * stride_b]);
        const float result = blas_epilogue(p, o, sum, i, j);
        const size_t at = j * p.ldd + i;
        if (p.d_bf16)
            ((bf16 *)o.d)[at] = (bf16)(p.add ? (float)((bf16 *)o.d)[at] + result : result);
        else
            ((float *)o.d)[at] = p.add ? ((float *)o.d)[at] + result : result;
    }
}

// Checks the strides between the matrices of a batch: the library requires aligned matrices and
// results that do not overlap.
static inline void blas_check_steps(const BlasProduct &p) {
    const size_t a = p.a_bf16 ? sizeof(bf16) : sizeof(float),
                 d = p.d_bf16 ? sizeof(bf16) : sizeof(float);
    if (p.step_a * a % 16 || p.step_b * a % 16 || p.step_d * d % 16)
        fail("product: matrices of a batch are not aligned to 16 bytes");
    if (p.step_d < (p.n - 1) * p.ldd + p.m) fail("product: results of a batch overlap");
    if (p.epilogue != BLAS_PLAIN) fail("product: a batch with an epilogue");
}

// Returns whether the product is supported. If not, does nothing.
static inline bool blas_run(Blas *blas, const BlasProduct &p, const BlasOperands &o) {
    if (p.epilogue >= BLAS_GELU && !p.d_bf16) fail("product: the library has no GELU of float32");
    if (p.epilogue != BLAS_PLAIN && blas->plain_only) return false;
    if (p.count != 1) blas_check_steps(p);
    const dim3 grid((unsigned)p.n, (unsigned)p.count), block(4);
    if (p.a_bf16)
        launch(blas->device, blas_kernel<bf16, false>, grid, block, 0, p, o);
    else if (blas->tf32)
        launch(blas->device, blas_kernel<float, true>, grid, block, 0, p, o);
    else
        launch(blas->device, blas_kernel<float, false>, grid, block, 0, p, o);
    return true;
}

#endif
