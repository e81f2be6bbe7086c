// Sums over rows, such as gradients of gains and biases. A kernel splits the rows into parts and
// writes one row of sums per part. The number of parts does not depend on the GPU.
// partial_sums_finish() adds these rows to the gradients, in order, at the end of the backward
// pass. There are no atomics, so results are bit-identical from run to run.
#ifndef CUDA_PARTIAL_SUMS_CUH
#define CUDA_PARTIAL_SUMS_CUH

#include "device.cuh"
#include <stdlib.h>

static constexpr size_t SUM_PARTS = 512; // maximum; enough blocks for every GPU
static constexpr size_t SUM_ALIGNMENT = 64;

struct PartialSum {
    const float *partial; // (parts, width)
    float *target;        // (width)
    unsigned parts, width;
};

// All sums of a backward pass.
struct PartialSums {
    float *partials;   // stored consecutively
    PartialSum *sums;  // (capacity) on the host
    size_t used, size; // elements of `partials`
    unsigned count, capacity;
};

// Number of parts for m rows: one per `rows` rows, rounded up, at most SUM_PARTS.
static inline unsigned sum_parts(size_t m, size_t rows) {
    const size_t parts = (m + rows - 1) / rows;
    return (unsigned)(parts < SUM_PARTS ? parts : SUM_PARTS);
}

// Carves memory for `sums` sums, which have `width` elements per part in total.
static inline void partial_sums_carve(PartialSums *s, DeviceArena *a, unsigned sums, size_t width) {
    s->capacity = sums;
    s->size = SUM_PARTS * width + sums * SUM_ALIGNMENT;
    s->partials = arena_array<float>(a, s->size, "partial sums");
    if (a->memory) s->sums = (PartialSum *)allocate(sums, sizeof(PartialSum), "partial sums");
}

static inline void partial_sums_free(PartialSums *s) {
    free(s->sums);
}

static inline void partial_sums_start(PartialSums *s) {
    s->used = s->count = 0;
}

// Registers a sum: target (width) += the sum over the parts of `partial` (parts, width).
static inline void partial_sums_join(PartialSums *s, float *target, const float *partial,
                                     unsigned parts, size_t width) {
    if (s->count == s->capacity) fail("more partial sums than planned");
    s->sums[s->count++] = {partial, target, parts, (unsigned)width};
}

// Like partial_sums_join(), but reserves and returns `partial` (parts, width).
static inline float *partial_sums_add(PartialSums *s, float *target, unsigned parts, size_t width) {
    float *partial = s->partials + s->used;
    s->used += (parts * width + SUM_ALIGNMENT - 1) / SUM_ALIGNMENT * SUM_ALIGNMENT;
    if (s->used > s->size) fail("more partial sums than planned");
    partial_sums_join(s, target, partial, parts, width);
    return partial;
}

static constexpr unsigned SUMS_TOGETHER = 64;

// Sums added by one launch. Passed by value, so that a captured graph keeps it.
struct PartialSumBatch {
    PartialSum sums[SUMS_TOGETHER];
    unsigned first[SUMS_TOGETHER]; // first block of each sum
    unsigned count;
};

// Each block adds 32 columns of a sum; warp w adds parts w, w + 8, ...
static __global__ void partial_sums_kernel(const PartialSumBatch batch) {
    begin_kernel();
    __shared__ float rows[8][WARP + 1];
    unsigned i = 0;
    while (i + 1 < batch.count && batch.first[i + 1] <= blockIdx.x) i++;
    const PartialSum s = batch.sums[i];
    const unsigned lane = lane_index(), warp = threadIdx.x / WARP,
                   column = (blockIdx.x - batch.first[i]) * WARP + lane;
    float sum = 0;
    if (column < s.width)
        for (unsigned part = warp; part < s.parts; part += 8)
            sum += s.partial[(size_t)part * s.width + column];
    rows[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || column >= s.width) return;
    float total = 0;
    for (int w = 0; w < 8; w++) total += rows[w][lane];
    s.target[column] += total;
}

// Adds every sum to its target.
static inline void partial_sums_finish(const Device *d, PartialSums *s) {
    for (unsigned i = 0; i < s->count;) {
        PartialSumBatch batch = {};
        unsigned blocks = 0;
        for (; i < s->count && batch.count < SUMS_TOGETHER; i++) {
            batch.sums[batch.count] = s->sums[i];
            batch.first[batch.count++] = blocks;
            blocks += blocks_of(s->sums[i].width, WARP);
        }
        launch_early(d, partial_sums_kernel, dim3(blocks), dim3(8 * WARP), 0, batch);
    }
}

// How column_sums_kernel() reads rows. WIDE: 128 bytes of a row at a time, 16 per lane, if
// alignment allows.
static constexpr int SUM_LANES = 8, SUM_ROWS = 32; // lanes per row; rows at a time

template <typename T, bool WIDE> struct SumShape {
    static constexpr int EACH = WIDE ? 16 / (int)sizeof(T) : 1, COLUMNS = SUM_LANES * EACH;
};

// Block (x, part) sums COLUMNS columns over its part of the rows.
template <typename T, bool WIDE>
static __global__ void __launch_bounds__(SUM_LANES *SUM_ROWS)
    column_sums_kernel(float *partial, const T *x, size_t m, unsigned n, size_t stride, bool add) {
    begin_kernel();
    using Shape = SumShape<T, WIDE>;
    __shared__ float rows[SUM_ROWS][Shape::COLUMNS + 1];
    const unsigned lane = threadIdx.x % SUM_LANES * Shape::EACH, first = threadIdx.x / SUM_LANES;
    const unsigned begin_column = blockIdx.x * Shape::COLUMNS, column = begin_column + lane;
    const size_t begin = m * blockIdx.y / gridDim.y, end = m * (blockIdx.y + 1) / gridDim.y;
    float sum[Shape::EACH] = {};
    for (size_t row = begin + first; column < n && row < end; row += SUM_ROWS) {
        float v[Shape::EACH];
        if constexpr (WIDE)
            load_numbers<Shape::EACH>(v, x + row * stride + column);
        else
            v[0] = (float)x[row * stride + column];
#pragma unroll
        for (int i = 0; i < Shape::EACH; i++) sum[i] += v[i];
    }
#pragma unroll
    for (int i = 0; i < Shape::EACH; i++) rows[first][lane + i] = sum[i];
    __syncthreads();
    if (threadIdx.x >= Shape::COLUMNS || begin_column + threadIdx.x >= n) return;
    float *const to = partial + (size_t)blockIdx.y * n + begin_column + threadIdx.x;
    float total = add ? *to : 0;
    for (int r = 0; r < SUM_ROWS; r++) total += rows[r][threadIdx.x];
    *to = total;
}

template <typename T, bool WIDE>
static inline void column_sums_launch(const Device *d, float *partial, Matrix x, size_t m, size_t n,
                                      unsigned parts, bool add) {
    launch_early(d, column_sums_kernel<T, WIDE>,
                 dim3(blocks_of(n, SumShape<T, WIDE>::COLUMNS), parts), dim3(SUM_LANES * SUM_ROWS),
                 0, partial, (const T *)x.data, m, (unsigned)n, x.columns, add);
}

// partial (parts, n) = sums of x's first n columns over each part of the m rows, or += them.
static inline void column_sums_of(const Device *d, float *partial, Matrix x, size_t m, size_t n,
                                  unsigned parts, bool add) {
    WITH_TYPE(x, T, {
        constexpr size_t EACH = SumShape<T, true>::EACH;
        if (n % EACH == 0 && x.columns % EACH == 0 && (uintptr_t)x.data % 16 == 0)
            column_sums_launch<T, true>(d, partial, x, m, n, parts, add);
        else
            column_sums_launch<T, false>(d, partial, x, m, n, parts, add);
    });
}

// target (n) += the sum of x's first n columns over the m rows, when partial_sums_finish() runs.
static inline void column_sums(const Device *d, PartialSums *s, float *target, Matrix x, size_t m,
                               size_t n) {
    const unsigned parts = sum_parts(m, 64);
    column_sums_of(d, partial_sums_add(s, target, parts, n), x, m, n, parts, false);
}

#endif
