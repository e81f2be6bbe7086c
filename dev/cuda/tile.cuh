// Products of small matrices on tensor cores, for attention: bf16 tiles in shared memory, one warp
// at a time.
//
// Each float32 number is split into three bf16 numbers, x = high + middle + low, each the rounded
// remainder after the previous ones; together they hold all 24 bits. A product of two such numbers
// is the sum of the six products of parts that can reach 2^-24 of it. So the same kernels work for
// both types, and float32 also runs on tensor cores.
#ifndef CUDA_TILE_CUH
#define CUDA_TILE_CUH

#include "device.cuh"

// Number of bf16 parts per number of type T.
template <typename T> struct PartsOf;
template <> struct PartsOf<bf16> { static constexpr int PARTS = 1; };
template <> struct PartsOf<float> { static constexpr int PARTS = 3; };

// A matrix of ROWS rows and SIZE columns, one part after the other. 16 bytes of padding after each
// row let ldmatrix read 8 rows without bank conflicts.
template <int ROWS_, int SIZE_, int PARTS_> struct TileShape {
    static constexpr int ROWS = ROWS_, SIZE = SIZE_, PARTS = PARTS_;
    static constexpr int STRIDE = SIZE + 8, PLANE = ROWS * STRIDE; // in elements
    static constexpr size_t BYTES = (size_t)PARTS * PLANE * sizeof(bf16);
};

// Operands of mma_m16n8k16, in parts.
template <int PARTS> struct Left { uint32_t part[PARTS][4]; };
template <int PARTS> struct Right {
    uint32_t part[PARTS][4]; // of two adjacent products
};

// ---- to shared memory -------------------------------------------------------
// Stores two adjacent numbers.
template <typename Shape>
static __device__ __forceinline__ void tile_put(bf16 *tile, int row, int column, float x, float y) {
    bf16 *at = tile + row * Shape::STRIDE + column;
#pragma unroll
    for (int p = 0; p < Shape::PARTS; p++) {
        const uint32_t pair = pack_bf16(x, y);
        const float2 rounded = unpack_bf16(pair);
        *(uint32_t *)(at + p * Shape::PLANE) = pair;
        x -= rounded.x;
        y -= rounded.y;
    }
}

static __device__ __forceinline__ float2 load_two(const float *p) {
    return *(const float2 *)p;
}
static __device__ __forceinline__ float2 load_two(const bf16 *p) {
    return unpack_bf16(*(const uint32_t *)p);
}
static __device__ __forceinline__ void store_two(float *p, float x, float y) {
    *(float2 *)p = make_float2(x, y);
}
static __device__ __forceinline__ void store_two(bf16 *p, float x, float y) {
    *(uint32_t *)p = pack_bf16(x, y);
}

// Loads elements d and d+1 (d even) of a row of `size`; 0 beyond its end. Rows of even size are
// aligned.
template <typename T>
static __device__ __forceinline__ float2 load_pair(const T *row, int d, int size) {
    if (size % 2 == 0) return d < size ? load_two(row + d) : make_float2(0, 0);
    return make_float2(d < size ? (float)row[d] : 0, d + 1 < size ? (float)row[d + 1] : 0);
}

template <typename T>
static __device__ __forceinline__ void store_pair(T *row, int d, int size, float x, float y) {
    if (size % 2 == 0) {
        if (d < size) store_two(row + d, x, y);
        return;
    }
    if (d < size) row[d] = (T)x;
    if (d + 1 < size) row[d + 1] = (T)y;
}

// Fills a tile with rows of `size` elements, `stride` apart, of which `present` exist; zeros
// elsewhere. Called by the whole block; complete after cp_async_wait<0>() and a barrier.
template <typename Shape, typename T>
static __device__ __forceinline__ void tile_load(bf16 *tile, const T *from, size_t stride,
                                                 int present, int size) {
    const int threads = (int)blockDim.x;
    if (sizeof(T) == sizeof(bf16) && size % 8 == 0) {
        for (int i = (int)threadIdx.x; i < Shape::ROWS * Shape::SIZE / 8; i += threads) {
            const int r = i / (Shape::SIZE / 8), d = i % (Shape::SIZE / 8) * 8;
            const bool valid = r < present && d < size;
            cp_async16(tile + r * Shape::STRIDE + d, valid ? from + (size_t)r * stride + d : from,
                       valid);
        }
        return;
    }
    for (int i = (int)threadIdx.x; i < Shape::ROWS * Shape::SIZE / 2; i += threads) {
        const int r = i / (Shape::SIZE / 2), d = i % (Shape::SIZE / 2) * 2;
        const float2 x =
            r < present ? load_pair(from + (size_t)r * stride, d, size) : make_float2(0, 0);
        tile_put<Shape>(tile, r, d, x.x, x.y);
    }
}

// ---- operands ---------------------------------------------------------------
// Rows row .. row+15, columns k .. k+15 of a tile as the left operand.
template <typename Shape>
static __device__ __forceinline__ Left<Shape::PARTS> left_rows(const bf16 *tile, int row, int k) {
    Left<Shape::PARTS> left;
    const int lane = (int)lane_index();
    const bf16 *at = tile + (row + lane % 16) * Shape::STRIDE + k + lane / 16 * 8;
#pragma unroll
    for (int p = 0; p < Shape::PARTS; p++) ldmatrix_x4(left.part[p], at + p * Shape::PLANE);
    return left;
}

// The transpose of rows k .. k+15, columns m .. m+15 as the left operand.
template <typename Shape>
static __device__ __forceinline__ Left<Shape::PARTS> left_columns(const bf16 *tile, int m, int k) {
    Left<Shape::PARTS> left;
    const int lane = (int)lane_index();
    const bf16 *at = tile + (k + lane / 16 * 8 + lane % 8) * Shape::STRIDE + m + lane / 8 % 2 * 8;
#pragma unroll
    for (int p = 0; p < Shape::PARTS; p++) ldmatrix_x4_trans(left.part[p], at + p * Shape::PLANE);
    return left;
}

// The transpose of rows n .. n+15, columns k .. k+15 as two right operands.
template <typename Shape>
static __device__ __forceinline__ Right<Shape::PARTS> right_rows(const bf16 *tile, int n, int k) {
    Right<Shape::PARTS> right;
    const int lane = (int)lane_index();
    const bf16 *at = tile + (n + lane / 16 * 8 + lane % 8) * Shape::STRIDE + k + lane / 8 % 2 * 8;
#pragma unroll
    for (int p = 0; p < Shape::PARTS; p++) ldmatrix_x4(right.part[p], at + p * Shape::PLANE);
    return right;
}

// Rows k .. k+15, columns n .. n+15 as two right operands.
template <typename Shape>
static __device__ __forceinline__ Right<Shape::PARTS> right_columns(const bf16 *tile, int n,
                                                                    int k) {
    Right<Shape::PARTS> right;
    const int lane = (int)lane_index();
    const bf16 *at = tile + (k + lane % 16) * Shape::STRIDE + n + lane / 16 * 8;
#pragma unroll
    for (int p = 0; p < Shape::PARTS; p++) ldmatrix_x4_trans(right.part[p], at + p * Shape::PLANE);
    return right;
}

// Converts the sums of two adjacent products to the left operand of the next product, which has the
// same layout in registers.
template <int PARTS>
static __device__ __forceinline__ Left<PARTS> left_sums(const float a[4], const float b[4]) {
    Left<PARTS> left;
    float rest[8] = {a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]};
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            left.part[p][i] = pack_bf16(rest[2 * i], rest[2 * i + 1]);
            const float2 rounded = unpack_bf16(left.part[p][i]);
            rest[2 * i] -= rounded.x;
            rest[2 * i + 1] -= rounded.y;
        }
    }
    return left;
}

// ---- products ---------------------------------------------------------------
// d (2 of 16 x 8) += left right, the smallest products first.
template <int PARTS>
static __device__ __forceinline__ void multiply(float (*d)[4], const Left<PARTS> &left,
                                                const Right<PARTS> &right) {
#pragma unroll
    for (int n = 0; n < 2; n++) {
#pragma unroll
        for (int sum = PARTS - 1; sum >= 0; sum--) {
#pragma unroll
            for (int i = 0; i <= sum; i++)
                mma_m16n8k16(d[n], left.part[i], right.part[sum - i] + 2 * n);
        }
    }
}

// A warp's sums: M blocks of 16 rows by N columns. Element [m][n][e] of a lane is in row 16 m +
// lane / 4 + e / 2 * 8, column 8 n + lane % 4 * 2 + e % 2.
template <int M, int N> struct Sums { float at[M][N / 8][4]; };

template <int M, int N> static __device__ __forceinline__ void sums_clear(Sums<M, N> &s) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) s.at[m][n][e] = 0;
}

// Maximum and sum over the four lanes that share a row.
static __device__ __forceinline__ float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}

static __device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(0xffffffff, x, 1);
    return x + __shfl_xor_sync(0xffffffff, x, 2);
}

// sums (16 M, rows of b) += a b^T, for rows row .. row+16M-1 of a and all rows of b.
template <typename A, typename B, int M, int N>
static __device__ __forceinline__ void product_rows(Sums<M, N> &sums, const bf16 *a, int row,
                                                    const bf16 *b) {
#pragma unroll
    for (int k = 0; k < A::SIZE; k += 16) {
        Left<A::PARTS> left[M];
#pragma unroll
        for (int m = 0; m < M; m++) left[m] = left_rows<A>(a, row + 16 * m, k);
#pragma unroll
        for (int n = 0; n < N; n += 16) {
            const Right<B::PARTS> right = right_rows<B>(b, n, k);
#pragma unroll
            for (int m = 0; m < M; m++) multiply<A::PARTS>(sums.at[m] + n / 8, left[m], right);
        }
    }
}

// sums (16 M, N) += w b, for columns of b from `column` on. w (16 M, rows of b) holds sums of
// another product.
template <typename B, int M, int N, int K>
static __device__ __forceinline__ void product_sums(Sums<M, N> &sums, const Sums<M, K> &w,
                                                    const bf16 *b, int column) {
#pragma unroll
    for (int k = 0; k < K; k += 16) {
        Left<B::PARTS> left[M];
#pragma unroll
        for (int m = 0; m < M; m++)
            left[m] = left_sums<B::PARTS>(w.at[m][k / 8], w.at[m][k / 8 + 1]);
#pragma unroll
        for (int n = 0; n < N; n += 16) {
            const Right<B::PARTS> right = right_columns<B>(b, column + n, k);
#pragma unroll
            for (int m = 0; m < M; m++) multiply<B::PARTS>(sums.at[m] + n / 8, left[m], right);
        }
    }
}

#endif
