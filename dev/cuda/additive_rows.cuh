// Operations of additive attention along a row. There is one row per head and token, held by a
// group of lanes of a warp, 4 or 8 elements per lane. Loads and stores are 16 bytes per lane; sums
// use shuffles.
#ifndef CUDA_ADDITIVE_ROWS_CUH
#define CUDA_ADDITIVE_ROWS_CUH

#include "device.cuh"

namespace additive {

static constexpr int THREADS =
    384; // two thread blocks fit on a multiprocessor with 80 registers per thread

template <int SIZE> struct Row {
    static constexpr int LANES = SIZE / 4 < WARP ? SIZE / 4 : WARP;
    static constexpr int COUNT = SIZE / LANES;     // elements per lane: 4 or 8
    static constexpr int GROUPS = THREADS / LANES; // concurrent rows
    static constexpr int STRIDE = SIZE + 4; // of rows in shared memory; column SIZE is the weight
    float at[COUNT];
    float weight; // one value per row, in all its lanes
    float top;    // with plain scores: row and weight are to be multiplied by exp(top)
};

// The column of a lane's i-th element, i a multiple of 4. The next 3 elements follow it.
template <int SIZE> static __device__ __forceinline__ int column_of(int i) {
    return i * Row<SIZE>::LANES + threadIdx.x % Row<SIZE>::LANES * 4;
}

template <int SIZE> static __device__ __forceinline__ int group_index() {
    return (int)threadIdx.x / Row<SIZE>::LANES;
}

template <int SIZE> static __device__ __forceinline__ Row<SIZE> row_zero() {
    Row<SIZE> row;
#pragma unroll
    for (int i = 0; i < Row<SIZE>::COUNT; i++) row.at[i] = 0;
    row.weight = row.top = 0;
    return row;
}

// Loads `size` elements from p, then zeros; only zeros if the row is absent.
template <int SIZE, typename T>
static __device__ __forceinline__ Row<SIZE> row_load(const T *p, int size, bool present) {
    Row<SIZE> row = row_zero<SIZE>();
    if (!present) return row;
#pragma unroll
    for (int i = 0; i < Row<SIZE>::COUNT; i += 4) {
        const int d = column_of<SIZE>(i);
        if (size % 4 == 0) {
            if (d < size) load_numbers<4>(row.at + i, p + d);
        } else {
#pragma unroll
            for (int j = 0; j < 4; j++)
                if (d + j < size) row.at[i + j] = (float)p[d + j];
        }
    }
    return row;
}

template <int SIZE, typename T>
static __device__ __forceinline__ void row_store(T *p, const Row<SIZE> &row, int size) {
#pragma unroll
    for (int i = 0; i < Row<SIZE>::COUNT; i += 4) {
        const int d = column_of<SIZE>(i);
        if (size % 4 == 0) {
            if (d < size) store_numbers<4>(p + d, row.at + i);
        } else {
#pragma unroll
            for (int j = 0; j < 4; j++)
                if (d + j < size) p[d + j] = (T)row.at[i + j];
        }
    }
}

// Prefetches a row.
template <int SIZE>
static __device__ __forceinline__ void row_prefetch(const float *p, int size, bool present) {
#ifndef CUDA_ON_CPU
#pragma unroll
    for (int i = 0; i < Row<SIZE>::COUNT; i += 4) {
        const int d = column_of<SIZE>(i);
        if (present && d < size && d % 32 == 0)
            asm volatile("prefetch.global.L2 [%0];" ::"l"(p + d));
    }
#else
    (void)p, (void)size, (void)present;
#endif
}

// Store to and load from shared memory, with the weight.
template <int SIZE>
static __device__ __forceinline__ void row_put(float *rows, int r, const Row<SIZE> &row) {
    row_store<SIZE>(rows + r * Row<SIZE>::STRIDE, row, SIZE);
    if (threadIdx.x % Row<SIZE>::LANES == 0) rows[r * Row<SIZE>::STRIDE + SIZE] = row.weight;
}

template <int SIZE>
static __device__ __forceinline__ Row<SIZE> row_get(const float *rows, int r, bool present) {
    Row<SIZE> row = row_load<SIZE>(rows + r * Row<SIZE>::STRIDE, SIZE, present);
    if (present) row.weight = rows[r * Row<SIZE>::STRIDE + SIZE];
    return row;
}

template <int SIZE> static __device__ __forceinline__ float lanes_sum(float x) {
#pragma unroll
    for (int bits = Row<SIZE>::LANES / 2; bits > 0; bits /= 2)
        x += __shfl_xor_sync(0xffffffff, x, bits);
    return x;
}

template <int SIZE>
static __device__ __forceinline__ float row_dot(const Row<SIZE> &a, const Row<SIZE> &b) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < Row<SIZE>::COUNT; i++) sum += a.at[i] * b.at[i];
    return lanes_sum<SIZE>(sum);
}

template <int SIZE>
static __device__ __forceinline__ Row<SIZE> row_times(const Row<SIZE> &a, const Row<SIZE> &b) {
    Row<SIZE> row = row_zero<SIZE>();
#pragma unroll
    for (int i = 0; i < Row<SIZE>::COUNT; i++) row.at[i] = a.at[i] * b.at[i];
    return row;
}

template <int SIZE>
static __device__ __forceinline__ Row<SIZE> row_scaled(const Row<SIZE> &a, float scale) {
    Row<SIZE> row = row_zero<SIZE>();
#pragma unroll
    for (int i = 0; i < Row<SIZE>::COUNT; i++) row.at[i] = a.at[i] * scale;
    return row;
}

// a or b, element by element: selecting an address would keep both out of registers.
template <int SIZE>
static __device__ __forceinline__ Row<SIZE> row_choose(bool first, const Row<SIZE> &a,
                                                       const Row<SIZE> &b) {
    Row<SIZE> row = row_zero<SIZE>();
#pragma unroll
    for (int i = 0; i < Row<SIZE>::COUNT; i++) row.at[i] = first ? a.at[i] : b.at[i];
    return row;
}

// sum += scale * a; weights are added as well.
template <int SIZE>
static __device__ __forceinline__ void row_add(Row<SIZE> &sum, const Row<SIZE> &a, float scale) {
#pragma unroll
    for (int i = 0; i < Row<SIZE>::COUNT; i++) sum.at[i] += scale * a.at[i];
    sum.weight += a.weight;
}

// The same for rows with a top. The row with the smaller top is scaled down, so that no exponential
// overflows. -Inf: an empty row.
template <int SIZE>
static __device__ __forceinline__ void row_add_exp(Row<SIZE> &sum, const Row<SIZE> &a) {
    if (a.top == -INFINITY) return;
    const float top = fmaxf(sum.top, a.top), shrink = expf(sum.top - top), e = expf(a.top - top);
#pragma unroll
    for (int i = 0; i < Row<SIZE>::COUNT; i++) sum.at[i] = shrink * sum.at[i] + e * a.at[i];
    sum.weight = shrink * sum.weight + e * a.weight;
    sum.top = top;
}

// ---- normalisation ----------------------------------------------------------

static constexpr float NORMAL_EPSILON = 1e-5f;

template <int SIZE> struct Scored {
    Row<SIZE> normal; // x'; weight: e
    float deviation;
};

// x' and the deviation, with D-1 in the denominator.
template <int SIZE>
static __device__ __forceinline__ Scored<SIZE> normalise(const Row<SIZE> &x, int size) {
    Scored<SIZE> s;
    float sum = 0, square = 0;
#pragma unroll
    for (int i = 0; i < Row<SIZE>::COUNT; i++) sum += x.at[i];
    const float mean = __fdividef(lanes_sum<SIZE>(sum), (float)size);
#pragma unroll
    for (int i = 0; i < Row<SIZE>::COUNT; i++) {
        s.normal.at[i] = column_of<SIZE>(i / 4 * 4) + i % 4 < size ? x.at[i] - mean : 0;
        square += s.normal.at[i] * s.normal.at[i];
    }
    const float variance = __fdividef(lanes_sum<SIZE>(square), (float)(size - 1));
    s.deviation =
        variance > 0 ? variance * rsqrtf(variance) : 0; // within 2 units in the last place
    const float inverse = __fdividef(1, s.deviation + NORMAL_EPSILON);
#pragma unroll
    for (int i = 0; i < Row<SIZE>::COUNT; i++) s.normal.at[i] *= inverse;
    s.normal.weight = 0;
    return s;
}

// dx from the gradient to x'. If the deviation is 0, only the gradient through the mean remains.
template <int SIZE>
static __device__ __forceinline__ Row<SIZE> normalise_backward(const Row<SIZE> &dnormal,
                                                               const Scored<SIZE> &s, int size) {
    const float along = row_dot<SIZE>(dnormal, s.normal);
    const float inverse = __fdividef(1, s.deviation + NORMAL_EPSILON);
    const float slope = s.deviation > 0 ? __fdividef(along, (float)(size - 1) * s.deviation) : 0;
    Row<SIZE> dx = row_zero<SIZE>();
    float sum = 0;
#pragma unroll
    for (int i = 0; i < Row<SIZE>::COUNT; i++) {
        dx.at[i] = inverse * dnormal.at[i] - slope * s.normal.at[i];
        sum += dx.at[i];
    }
    const float mean = __fdividef(lanes_sum<SIZE>(sum), (float)size);
#pragma unroll
    for (int i = 0; i < Row<SIZE>::COUNT; i++) dx.at[i] -= mean;
    return dx;
}

} // namespace additive

#endif
