// Dropout with the masks of dev/cpu/dropout.h, element by element, so that CPU and GPU drop the
// same elements. Nothing is stored: the backward pass recomputes the mask.
#ifndef CUDA_DROPOUT_CUH
#define CUDA_DROPOUT_CUH

#include "device.cuh"
extern "C" {
#include "dropout.h"
}

// A site of dropout in the model. The key of the update is read on the device.
struct DropoutSite {
    const StepParameters *step;
    uint32_t site, threshold; // 65536: keep everything
    float scale;
};

static inline DropoutSite dropout_site(const StepParameters *step, double rate, uint32_t site) {
    const Dropout d = dropout_create(rate, 0, 0, site);
    return {step, site, d.threshold, (float)d.scale};
}

static inline DropoutSite dropout_none() {
    return {NULL, 0, 65536, 1};
}

static __host__ __device__ __forceinline__ bool drops_out(const DropoutSite &s) {
    return s.threshold < 65536;
}

// Philox4x32-10 (random.h) at counter {n, site, 0}.
static __device__ __forceinline__ uint4 dropout_words(const DropoutSite &s, uint64_t n) {
    uint32_t c0 = (uint32_t)n, c1 = (uint32_t)(n >> 32), c2 = s.site, c3 = 0;
    uint32_t k0 = s.step->dropout_key[0], k1 = s.step->dropout_key[1];
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const uint32_t high0 = __umulhi(c0, 0xD2511F53u), low0 = c0 * 0xD2511F53u;
        const uint32_t high1 = __umulhi(c2, 0xCD9E8D57u), low1 = c2 * 0xCD9E8D57u;
        c0 = high1 ^ c1 ^ k0;
        c1 = low1;
        c2 = high0 ^ c3 ^ k1;
        c3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return make_uint4(c0, c1, c2, c3);
}

// The bits of one generator call: bit i says whether element n / 16 * 128 + n % 16 + 16 i is kept.
static __device__ __forceinline__ uint8_t dropout_byte(const DropoutSite &s, uint64_t n) {
    const uint4 words = dropout_words(s, n);
    const uint32_t word[4] = {words.x, words.y, words.z, words.w};
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        bits |= (uint32_t)((word[i] & 0xffff) < s.threshold) << i;
        bits |= (uint32_t)((word[i] >> 16) < s.threshold) << (i + 4);
    }
    return (uint8_t)bits;
}

// 0 or the scale, for one element: a whole generator call for 16 bits.
static __device__ __forceinline__ float dropout_factor(const DropoutSite &s, uint64_t element) {
    const unsigned place = (unsigned)(element % DROPOUT_BLOCK);
    const uint4 words = dropout_words(s, element / DROPOUT_BLOCK * 16 + place % 16);
    const unsigned which = place / 16 % 4;
    const uint32_t word = which == 0   ? words.x
                          : which == 1 ? words.y
                          : which == 2 ? words.z
                                       : words.w;
    return (place < 64 ? word & 0xffff : word >> 16) < s.threshold ? s.scale : 0;
}

// For a whole warp: bits 0-3 say whether elements 128 block + 4 lane + 0..3 are kept, bits 4-7 the
// same for block + 1. Each lane makes one generator call for its eight elements: lanes 0-15 compute
// the counters of `block`, lanes 16-31 those of block + 1, and ballots distribute the bits.
static __device__ __forceinline__ uint32_t dropout_warp(const DropoutSite &s, uint64_t block) {
    const unsigned lane = lane_index();
    const uint4 words = dropout_words(s, block * 16 + lane);
    const uint32_t word[4] = {words.x, words.y, words.z, words.w};
    uint32_t mine = 0; // 16 elements of each block, including this lane's
#pragma unroll
    for (unsigned i = 0; i < 8; i++) {
        const uint32_t bits = i < 4 ? word[i] & 0xffff : word[i - 4] >> 16;
        const uint32_t kept = __ballot_sync(0xffffffff, bits < s.threshold);
        if (i == lane / 4) mine = kept;
    }
    mine >>= 4 * (lane % 4);
    return (mine & 15) | (mine >> 16 & 15) << 4;
}

// Multiplies a batch's matrix (M, C) by its dropout factors. `elements`: T C of a row of the batch.
template <typename T>
static __global__ void __launch_bounds__(256)
    dropout_kernel(T *x, DropoutSite site, uint64_t elements, size_t count) {
    begin_kernel();
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        x[i] = (T)((float)x[i] * dropout_factor(site, site.step->first_row * elements + i));
}

// Applies dropout to x (B, T, C) in place, as a separate kernel; elsewhere it is fused.
static inline void dropout_apply(const Device *d, Matrix x, DropoutSite site, size_t batch,
                                 size_t length) {
    const size_t row = length * x.columns, count = batch * row;
    if (!drops_out(site)) return;
    WITH_TYPE(x, T,
              launch_early(d, dropout_kernel<T>, dim3(blocks_of(count, 256)), dim3(256), 0,
                           (T *)x.data, site, (uint64_t)row, count));
}

// Multiplies v (VEC) by the factors of elements first .. first+VEC-1.
template <int VEC>
static __device__ __forceinline__ void drop_out(float v[VEC], const DropoutSite &s,
                                                uint64_t first) {
#pragma unroll
    for (int i = 0; i < VEC; i++) v[i] *= dropout_factor(s, first + i);
}

// The same with four bits of dropout_warp().
static __device__ __forceinline__ void drop_out_by(float v[4], uint32_t kept, float scale) {
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = kept >> i & 1 ? v[i] * scale : 0;
}

#endif
