// Multi-head cosine attention ("Cottention", Mongaras et al. 2024) in its linear form, as defined
// in dev/cpu/cosine_attention.h. With q' = q/|q|, k' = k/|k| (0 where hidden) and g = dy /
// n^sigmoid(m):
//
//   y_i   = n_i^-sigmoid(m) sum_{j<=i} (q'_i . k'_j) v_j
//   dq'_i = sum_{j<=i} (g_i . v_j) k'_j,  dk'_j = sum_{i>=j} (v_j . g_i) q'_i
//   dv_j  = sum_{i>=j} (k'_j . q'_i) g_i
//
// Each is out = masked(A B^T) C within a chunk of rows, plus A times a state (D, D), the sum over
// all chunks on one side: of k' v^T before, of q' g^T after. There are three kernels: the chunks'
// own states, their prefix or suffix sums, and out. The second loops over the chunks for each
// element of the states; the others are parallel over chunks. If attention is not causal, there is
// one state, of all chunks, and out = A times it. With a window there is no state: out is the sum
// of masked products with all chunks that contain a row of the window.
#ifndef CUDA_COSINE_ATTENTION_CUH
#define CUDA_COSINE_ATTENTION_CUH

#include "attention_input.cuh"
#include "tile.cuh"

namespace cosine {

// Tiles of a head of up to SIZE channels: 16 rows of a chunk per warp. Two tiles fit in the 163 KB
// of sm_80.
template <typename T, int SIZE> struct Shapes {
    static constexpr int PARTS = PartsOf<T>::PARTS;
    static constexpr int CHUNK = PARTS == 3 && SIZE == 256 ? 32 : 64;
    static constexpr int WARPS = CHUNK / 16;
    static constexpr int BLOCK = CHUNK < SIZE ? CHUNK : SIZE; // rows of a state per step
    static constexpr int COLUMNS = SIZE < 128 ? SIZE : 128;   // columns of a state per step
    using Tile = TileShape<CHUNK, SIZE, PARTS>;
    using State = TileShape<BLOCK, SIZE, PARTS>;
};

typedef enum { QUERY, KEY, VALUE, GRADIENT } Operand; // q', k', v, g

// The outputs, in the order of blockIdx.y of the backward pass; the forward pass has only one.
typedef enum { OUT_Y, OUT_DQUERY, OUT_DKEY, OUT_DVALUE } Output;

// Common to all thread blocks of a pass. Arrays that only one pass uses are NULL in the other.
template <typename T> struct CosinePass {
    int64_t length, window;  // T; maximum number of keys per query, T: no window
    int heads, size, chunks; // H, D
    size_t channels;         // C
    bool causal, backward;
    const T *rows[3],
        *dy;             // queries, keys, values (B, T): first of a token's C elements; (B, T, C)
    T *y, *gradients[3]; // (B, T, C); like `rows`
    size_t strides[3], gradient_strides[3]; // from one token to the next
    const float *exponent;                  // (H) m; NULL: the power is fixed
    float power;                            // the fixed power
    const uint8_t *mask;                    // (B, T) or NULL
    float *logarithms;                      // (B, T) log n, if there is a mask
    float *states; // (1 or 2, B, H, chunks, D, D) of k' v^T, and of q' g^T; sum of all in chunk 0
    float *dpower; // (H, B * chunks) gradients to sigmoid(m)
};

// The head and chunk of a thread block.
struct CosinePlace {
    size_t b, h, unit; // unit = b H + h
    int chunk;
    int64_t row; // first of the chunk
};

template <typename T>
static __device__ __forceinline__ CosinePlace place_of_block(const CosinePass<T> &p, int rows) {
    const size_t unit = blockIdx.x / (unsigned)p.chunks, chunk = blockIdx.x % (unsigned)p.chunks;
    return {unit / (size_t)p.heads, unit % (size_t)p.heads, unit, (int)chunk,
            (int64_t)chunk * rows};
}

// Selects one of three at run time, without an array in local memory.
template <typename X> static __device__ __forceinline__ X part_of(const X parts[3], int which) {
    return which == QUERY ? parts[QUERY] : which == KEY ? parts[KEY] : parts[VALUE];
}

template <typename T>
static __device__ __forceinline__ size_t row_place(const CosinePass<T> &p, const CosinePlace &at,
                                                   int64_t row, size_t stride) {
    return (at.b * (size_t)p.length + (size_t)row) * stride + at.h * (size_t)p.size;
}

// Address of a row of queries, keys or values.
template <typename T>
static __device__ __forceinline__ const T *part_row(const CosinePass<T> &p, const CosinePlace &at,
                                                    int64_t row, int which) {
    return part_of(p.rows, which) + row_place(p, at, row, part_of(p.strides, which));
}

// Address of the state of a chunk, or of all chunks.
template <typename T>
static __device__ __forceinline__ float *state_of(const CosinePass<T> &p, const CosinePlace &at,
                                                  int chunk, size_t which) {
    const size_t units = gridDim.x / (unsigned)p.chunks;
    return p.states + ((which * units + at.unit) * (size_t)p.chunks + (size_t)chunk) *
                          (size_t)p.size * (size_t)p.size;
}

static __device__ __forceinline__ float sigmoid(float x) {
    return 1 / (1 + expf(-x));
}

// log n of a row, where n is the number of keys it sees.
template <typename T>
static __device__ __forceinline__ float log_seen(const CosinePass<T> &p, const CosinePlace &at,
                                                 int64_t row) {
    if (p.mask) return p.logarithms[at.b * (size_t)p.length + (size_t)row];
    return logf((float)(p.causal ? min(row + 1, p.window) : p.length));
}

template <typename T>
static __device__ __forceinline__ bool hidden(const CosinePass<T> &p, const CosinePlace &at,
                                              int64_t row) {
    return p.mask && !p.mask[at.b * (size_t)p.length + (size_t)row];
}

// The exponent of n.
template <typename T>
static __device__ __forceinline__ float power_of(const CosinePass<T> &p, const CosinePlace &at) {
    return p.exponent ? sigmoid(p.exponent[at.h]) : p.power;
}

// 1 / |x| from |x|^2, or 0 for a vector shorter than 1e-12.
static __device__ __forceinline__ float inverse_length(float square) {
    return square < 1e-24f ? 0 : 1 / sqrtf(square);
}

// ---- operands ---------------------------------------------------------------
// Loads a chunk's rows of an operand, one row per warp at a time; zeros beyond the sequence.
template <typename Shape, typename T>
static __device__ __forceinline__ void load_operand(bf16 *tile, const CosinePass<T> &p,
                                                    const CosinePlace &at, Operand operand) {
    constexpr int PAIRS = Shape::SIZE / 2 < WARP ? 1 : Shape::SIZE / 2 / WARP; // per lane
    const int lane = (int)lane_index(), warps = (int)blockDim.x / WARP;
    for (int r = (int)threadIdx.x / WARP; r < Shape::ROWS; r += warps) {
        const int64_t row = at.row + r;
        const bool present = row < p.length;
        const int64_t safe = present ? row : 0;
        const T *from = operand == GRADIENT ? p.dy + row_place(p, at, safe, p.channels)
                                            : part_row(p, at, safe, operand);
        float2 x[PAIRS];
        float square = 0, scale = 1;
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            const int d = 2 * (lane + i * WARP);
            x[i] = present ? load_pair(from, d, p.size) : make_float2(0, 0);
            square += x[i].x * x[i].x + x[i].y * x[i].y;
        }
        square = warp_sum(square);
        if (operand == QUERY || operand == KEY) scale = inverse_length(square);
        if (operand == KEY && present && hidden(p, at, row)) scale = 0;
        if (operand == GRADIENT && present) scale = expf(-power_of(p, at) * log_seen(p, at, row));
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            const int d = 2 * (lane + i * WARP);
            if (d < Shape::SIZE) tile_put<Shape>(tile, r, d, x[i].x * scale, x[i].y * scale);
        }
    }
}

// ---- how many keys each row sees --------------------------------------------
// logarithms (B, T) from the mask; one thread block per sequence. n is at least 1, for rows that
// see no key.
static __global__ void __launch_bounds__(1024)
    count_kernel(float *logarithms, const uint8_t *mask, int64_t length, int64_t window,
                 bool causal) {
    begin_kernel();
    int *sums = shared_memory<int>(); // (threads)
    const int threads = (int)blockDim.x, thread = (int)threadIdx.x;
    const int64_t each = (length + threads - 1) / threads, first = min(length, thread * each),
                  last = min(length, first + each),
                  start = max(first - window, (int64_t)0); // first row that row first - 1 sees
    mask += blockIdx.x * (size_t)length;
    logarithms += blockIdx.x * (size_t)length;
    int seen = 0;
    for (int64_t t = first; t < last; t++) seen += mask[t] != 0;
    sums[thread] = seen;
    __syncthreads();
    seen = 0;
    for (int i = (int)(start / each); i < (causal ? thread : threads); i++) seen += sums[i];
    for (int64_t t = start / each * each; t < start; t++) seen -= mask[t] != 0;
    for (int64_t t = first; t < last; t++) {
        seen += causal && mask[t] != 0;
        seen -= t >= window && mask[t - window] != 0;
        logarithms[t] = logf((float)max(seen, 1));
    }
}

// ---- states -----------------------------------------------------------------
// Computes a chunk's own states: left^T right of its rows. blockIdx.y 0: k' v^T, 1: q' g^T.
template <typename T, int SIZE>
static __global__ void __launch_bounds__(WARP *Shapes<T, SIZE>::WARPS)
    state_kernel(const CosinePass<T> p) {
    begin_kernel();
    using S = Shapes<T, SIZE>;
    using Tile = typename S::Tile;
    bf16 *left = shared_memory<bf16>(), *right = left + Tile::BYTES / sizeof(bf16);
    const CosinePlace at = place_of_block(p, S::CHUNK);
    load_operand<Tile>(left, p, at, blockIdx.y ? QUERY : KEY);
    load_operand<Tile>(right, p, at, blockIdx.y ? GRADIENT : VALUE);
    __syncthreads();
    float *state = state_of(p, at, at.chunk, blockIdx.y);
    const int lane = (int)lane_index();
    for (int m = (int)threadIdx.x / WARP * 16; m < SIZE; m += 16 * S::WARPS) {
        for (int column = 0; column < SIZE; column += S::COLUMNS) {
            Sums<1, S::COLUMNS> sums;
            sums_clear(sums);
#pragma unroll
            for (int k = 0; k < S::CHUNK; k += 16) {
                const Left<S::PARTS> a = left_columns<Tile>(left, m, k);
#pragma unroll
                for (int n = 0; n < S::COLUMNS; n += 16)
                    multiply<S::PARTS>(sums.at[0] + n / 8, a,
                                       right_columns<Tile>(right, column + n, k));
            }
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int d = m + lane / 4 + 8 * half;
                if (d >= p.size) continue;
#pragma unroll
                for (int n = 0; n < S::COLUMNS / 8; n++)
                    store_pair(state + (size_t)d * (size_t)p.size, column + 8 * n + lane % 4 * 2,
                               p.size, sums.at[0][n][2 * half], sums.at[0][n][2 * half + 1]);
            }
        }
    }
}

// Each chunk's state becomes the sum of those before it, or, with blockIdx.y 1, after it. If
// attention is not causal, chunk 0's becomes the sum of all. A thread loops over the chunks for one
// element, loading a batch at a time.
static __global__ void __launch_bounds__(256)
    scan_kernel(float *states, size_t elements, int chunks, size_t units, bool causal) {
    begin_kernel();
    constexpr int BATCH = 16;
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= elements * units) return;
    const bool suffix = blockIdx.y == 1;
    float *first =
        states + (blockIdx.y * units + i / elements) * (size_t)chunks * elements + i % elements;
    float sum = 0;
    for (int c = 0; c < chunks; c += BATCH) {
        float x[BATCH];
#pragma unroll
        for (int j = 0; j < BATCH; j++) {
            const int chunk = suffix ? chunks - 1 - c - j : c + j;
            x[j] = c + j < chunks ? first[(size_t)chunk * elements] : 0;
        }
#pragma unroll
        for (int j = 0; j < BATCH; j++) {
            const int chunk = suffix ? chunks - 1 - c - j : c + j;
            if (causal && c + j < chunks) first[(size_t)chunk * elements] = sum;
            sum += x[j];
        }
    }
    if (!causal) *first = sum;
}

// ---- outputs ----------------------------------------------------------------
// out += A state, or A state^T; `tile` is shared memory for a block of the state's rows.
template <typename S, int SIZE>
static __device__ __forceinline__ void product_state(Sums<1, SIZE> &out, const bf16 *a, int row,
                                                     bf16 *tile, const float *state, int size,
                                                     bool transposed) {
    using Tile = typename S::Tile;
    using State = typename S::State;
#pragma unroll
    for (int block = 0; block < SIZE; block += S::BLOCK) {
        __syncthreads(); // the tile has been read
        tile_load<State>(tile, state + (size_t)block * (size_t)size, (size_t)size, size - block,
                         size);
        __syncthreads();
        if (transposed) {
#pragma unroll
            for (int k = 0; k < SIZE; k += 16) {
                const Left<S::PARTS> left = left_rows<Tile>(a, row, k);
#pragma unroll
                for (int n = 0; n < S::BLOCK; n += 16)
                    multiply<S::PARTS>(out.at[0] + (block + n) / 8, left,
                                       right_rows<State>(tile, n, k));
            }
        } else {
#pragma unroll
            for (int k = 0; k < S::BLOCK; k += 16) {
                const Left<S::PARTS> left = left_rows<Tile>(a, row, block + k);
#pragma unroll
                for (int n = 0; n < SIZE; n += 16)
                    multiply<S::PARTS>(out.at[0] + n / 8, left, right_columns<State>(tile, n, k));
            }
        }
    }
}

// Converts a row's output from the gradient to x / |x| to the gradient to x (one half of the lane's
// sums). Returns its component along the row.
template <typename T, int SIZE>
static __device__ __forceinline__ float
differentiate_normalise(const CosinePass<T> &p, Sums<1, SIZE> &out, int half, const T *x,
                        bool present, bool visible) {
    const int first = (int)lane_index() % 4 * 2;
    float square = 0, along = 0;
#pragma unroll
    for (int n = 0; n < SIZE / 8; n++) {
        const float2 pair = present ? load_pair(x, 8 * n + first, p.size) : make_float2(0, 0);
        square += pair.x * pair.x + pair.y * pair.y;
        along += pair.x * out.at[0][n][2 * half] + pair.y * out.at[0][n][2 * half + 1];
    }
    const float length = inverse_length(quad_sum(square)), scale = visible ? length : 0;
    along = quad_sum(along) * scale;
#pragma unroll
    for (int n = 0; n < SIZE / 8; n++) { // reads again: registers cannot hold it all
        const float2 pair = present ? load_pair(x, 8 * n + first, p.size) : make_float2(0, 0);
        out.at[0][n][2 * half] = (out.at[0][n][2 * half] - along * pair.x * scale) * scale;
        out.at[0][n][2 * half + 1] = (out.at[0][n][2 * half + 1] - along * pair.y * scale) * scale;
    }
    return along;
}

// Stores a lane's rows of the output. row: of element [0][0][0]. Returns the lane's part of the
// gradient to sigmoid(m): dy_i . y_i = q'_i . dq'_i, times -log n.
template <typename T, int SIZE>
static __device__ __forceinline__ float store_output(const CosinePass<T> &p, const CosinePlace &at,
                                                     Output output, Sums<1, SIZE> &out,
                                                     int64_t row) {
    float dpower = 0;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int64_t i = row + 8 * half;
        const bool present = i < p.length;
        const int64_t safe = present ? i : 0;
        float scale = 1;
        const int part = (int)output - OUT_DQUERY;
        T *to = output == OUT_Y ? p.y + row_place(p, at, safe, p.channels)
                                : part_of(p.gradients, part) +
                                      row_place(p, at, safe, part_of(p.gradient_strides, part));
        if (output == OUT_Y) scale = expf(-power_of(p, at) * log_seen(p, at, safe));
        if (output == OUT_DQUERY || output == OUT_DKEY) {
            const bool visible = output == OUT_DQUERY || !hidden(p, at, safe);
            const float along = differentiate_normalise<T, SIZE>(
                p, out, half, part_row(p, at, safe, part), present, visible);
            if (output == OUT_DQUERY && present && lane_index() % 4 == 0)
                dpower -= along * log_seen(p, at, safe);
        }
        if (!present) continue;
#pragma unroll
        for (int n = 0; n < SIZE / 8; n++)
            store_pair(to, 8 * n + (int)lane_index() % 4 * 2, p.size,
                       out.at[0][n][2 * half] * scale, out.at[0][n][2 * half + 1] * scale);
    }
    return dpower;
}

// The operands of an output: masked(left right^T) third. `before`: a row of `left` is combined with
// the other rows up to it, else with those from it on.
struct ChunkOperands {
    Operand left, right, third;
    bool before;
};

// out += masked(A B^T) C, with A from chunk `at`, B and C from chunk `seen`. `other` is shared
// memory for B, then C; it is free after the next barrier.
template <typename T, int SIZE, bool WINDOWED>
static __device__ __forceinline__ void product_chunk(Sums<1, SIZE> &out, const CosinePass<T> &p,
                                                     const CosinePlace &at, const CosinePlace &seen,
                                                     const bf16 *a, int warp_row, bf16 *other,
                                                     const ChunkOperands &operands) {
    using S = Shapes<T, SIZE>;
    using Tile = typename S::Tile;
    const int lane = (int)lane_index();
    load_operand<Tile>(other, p, seen, operands.right);
    __syncthreads();
    Sums<1, S::CHUNK> w;
    sums_clear(w);
    product_rows<Tile, Tile>(w, a, warp_row, other);
#pragma unroll
    for (int n = 0; n < S::CHUNK / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int i = warp_row + lane / 4 + e / 2 * 8, j = 8 * n + lane % 4 * 2 + e % 2;
            const int after = (int)(at.row - seen.row) + i - j,
                      age = operands.before ? after : -after;
            if (age < 0 || (WINDOWED && age >= p.window)) w.at[0][n][e] = 0;
        }
    __syncthreads();
    load_operand<Tile>(other, p, seen, operands.third);
    __syncthreads();
    product_sums<Tile>(out, w, other, 0);
}

static __device__ __forceinline__ ChunkOperands operands_of(Output output) {
    switch (output) {
    case OUT_Y:
        return {QUERY, KEY, VALUE, true};
    case OUT_DQUERY:
        return {GRADIENT, VALUE, KEY, true};
    case OUT_DKEY:
        return {VALUE, GRADIENT, QUERY, false};
    default:
        return {KEY, QUERY, GRADIENT, false};
    }
}

// One output of a chunk: masked(A B^T) C + A state, or A times the state of all chunks. With a
// window, only the masked products, in a separate kernel, as it needs more registers.
template <typename T, int SIZE, bool WINDOWED>
static __global__ void __launch_bounds__(WARP *Shapes<T, SIZE>::WARPS)
    output_kernel(const CosinePass<T> p) {
    begin_kernel();
    using S = Shapes<T, SIZE>;
    using Tile = typename S::Tile;
    bf16 *a = shared_memory<bf16>(), *other = a + Tile::BYTES / sizeof(bf16);
    const CosinePlace at = place_of_block(p, S::CHUNK);
    const Output output = p.backward ? (Output)(OUT_DQUERY + blockIdx.y) : OUT_Y;
    const ChunkOperands operands = operands_of(output);
    const bool before = operands.before;
    const int lane = (int)lane_index(), warp_row = (int)threadIdx.x / WARP * 16;

    load_operand<Tile>(a, p, at, operands.left);
    Sums<1, SIZE> out;
    sums_clear(out);
    if constexpr (WINDOWED) {
        const int farthest = (int)((p.window + S::CHUNK - 2) / S::CHUNK);
        for (int n = 0; n <= farthest; n++) {
            CosinePlace seen = at;
            seen.chunk += before ? -n : n;
            seen.row = (int64_t)seen.chunk * S::CHUNK;
            if (seen.chunk < 0 || seen.chunk >= p.chunks) break;
            if (n > 0) __syncthreads(); // `other` has been read
            product_chunk<T, SIZE, true>(out, p, at, seen, a, warp_row, other, operands);
        }
    } else {
        if (p.causal) product_chunk<T, SIZE, false>(out, p, at, at, a, warp_row, other, operands);
        if (!p.causal || (before ? at.chunk > 0 : at.chunk < p.chunks - 1))
            product_state<S, SIZE>(out, a, warp_row, other,
                                   state_of(p, at, p.causal ? at.chunk : 0, !before), p.size,
                                   output == OUT_DQUERY || output == OUT_DKEY);
    }
    const float dpower =
        warp_sum(store_output<T, SIZE>(p, at, output, out, at.row + warp_row + lane / 4));
    if (output != OUT_DQUERY) return;
    float *sums = (float *)a;
    __syncthreads();
    if (lane == 0) sums[threadIdx.x / WARP] = dpower;
    __syncthreads();
    if (threadIdx.x > 0) return;
    float sum = 0;
    for (int w_index = 0; w_index < S::WARPS; w_index++) sum += sums[w_index];
    const size_t parts = gridDim.x / (unsigned)p.heads;
    p.dpower[at.h * parts + at.b * (size_t)p.chunks + (size_t)at.chunk] = sum;
}

// dexponent (H) += the sums of all chunks; one thread block per head.
static __global__ void __launch_bounds__(256)
    exponent_kernel(float *dexponent, const float *exponent, const float *dpower, size_t parts) {
    begin_kernel();
    float sum = 0;
    for (size_t i = threadIdx.x; i < parts; i += blockDim.x) sum += dpower[blockIdx.x * parts + i];
    sum = block_sum(sum, shared_memory<float>());
    const float power = sigmoid(exponent[blockIdx.x]);
    if (threadIdx.x == 0) dexponent[blockIdx.x] += sum * power * (1 - power);
}

// ---- launches ---------------------------------------------------------------
// Sets the pointers to the pass's working memory. Returns its size in floats.
template <typename T>
static size_t pass_workspace(CosinePass<T> *p, float *memory, size_t batch, size_t chunks) {
    const size_t D = (size_t)p->size, units = batch * (size_t)p->heads,
                 states = 2 * units * chunks * D * D;
    p->states = memory;
    p->logarithms = memory + (states + 3) / 4 * 4;
    p->dpower = p->logarithms + (batch * (size_t)p->length + 3) / 4 * 4;
    return (size_t)((uintptr_t)(p->dpower + units * chunks) - (uintptr_t)memory) / sizeof(float);
}

template <typename T, int SIZE>
static void run(const Device *d, CosinePass<T> p, float *workspace, size_t batch,
                float *dexponent) {
    using S = Shapes<T, SIZE>;
    const size_t units = batch * (size_t)p.heads, elements = (size_t)p.size * (size_t)p.size;
    p.chunks = (int)blocks_of((size_t)p.length, S::CHUNK);
    pass_workspace(&p, workspace, batch, (size_t)p.chunks);
    const unsigned blocks = blocks_of(units * (size_t)p.chunks, 1), sides = p.backward ? 2 : 1;
    const size_t shared = 2 * S::Tile::BYTES;
    if (p.mask)
        launch_early(d, count_kernel, dim3((unsigned)batch), 1024, 1024 * sizeof(int), p.logarithms,
                     p.mask, p.length, p.window, p.causal);
    const bool windowed = p.window < p.length;
    if (!windowed && (p.chunks > 1 || !p.causal)) {
        launch_early(d, state_kernel<T, SIZE>, dim3(blocks, sides), WARP * S::WARPS, shared, p);
        launch_early(d, scan_kernel, dim3(blocks_of(elements * units, 256), sides), 256, 0,
                     p.states, elements, p.chunks, units, p.causal);
    }
    launch_early(d, windowed ? output_kernel<T, SIZE, true> : output_kernel<T, SIZE, false>,
                 dim3(blocks, p.backward ? 3 : 1), WARP * S::WARPS, shared, p);
    if (p.backward && p.exponent)
        launch_early(d, exponent_kernel, dim3((unsigned)p.heads), 256, 32 * sizeof(float),
                     dexponent, p.exponent, p.dpower, batch * (size_t)p.chunks);
}

template <typename T>
static CosinePass<T> pass_create(Matrix y, const float *exponent, double power,
                                 const DeviceAttentionInput *in) {
    attention_check(in, y);
    if (in->queries != in->keys)
        fail("cosine attention: a sequence to itself is all that it takes on a GPU");
    CosinePass<T> p = {};
    p.length = (int64_t)in->keys;
    p.window = in->window > 0 ? min((int64_t)in->window, p.length) : p.length;
    p.heads = (int)in->heads;
    p.size = (int)(in->channels / in->heads);
    p.channels = in->channels;
    p.causal = in->causal;
    for (size_t part = QUERY; part <= VALUE; part++) {
        p.rows[part] = (const T *)in->rows[part].data;
        p.strides[part] = in->rows[part].columns;
    }
    p.exponent = exponent;
    p.power = (float)power;
    p.mask = in->mask;
    return p;
}

template <typename T>
static void run_size(const Device *d, const CosinePass<T> &p, float *workspace, size_t batch,
                     float *dexponent) {
    (p.size <= 16    ? run<T, 16>
     : p.size <= 32  ? run<T, 32>
     : p.size <= 64  ? run<T, 64>
     : p.size <= 128 ? run<T, 128>
                     : run<T, 256>)(d, p, workspace, batch, dexponent);
}

template <typename T>
static void forward(const Device *device, Matrix y, const float *exponent, double power,
                    const DeviceAttentionInput *in, float *workspace) {
    CosinePass<T> p = pass_create<T>(y, exponent, power, in);
    p.y = (T *)y.data;
    run_size(device, p, workspace, in->batch, NULL);
}

template <typename T>
static void backward(const Device *device, const DeviceAttentionGradients *gradients,
                     float *dexponent, Matrix dy, const float *exponent, double power,
                     const DeviceAttentionInput *in, float *workspace) {
    CosinePass<T> p = pass_create<T>(dy, exponent, power, in);
    p.backward = true;
    p.dy = (const T *)dy.data;
    for (size_t part = QUERY; part <= VALUE; part++) {
        p.gradients[part] = (T *)gradients->parts[part].data;
        p.gradient_strides[part] = gradients->parts[part].columns;
    }
    run_size(device, p, workspace, in->batch, dexponent);
}

} // namespace cosine

// ---- what a model calls -----------------------------------------------------
// Floats of working memory for both passes, for batches up to (batch, length).
static inline size_t cosine_attention_workspace(size_t batch, size_t length, size_t channels,
                                                size_t heads) {
    cosine::CosinePass<float> p = {};
    p.length = (int64_t)length;
    p.heads = (int)heads;
    p.size = (int)(channels / heads);
    const size_t chunk =
        p.size > 128 ? cosine::Shapes<float, 256>::CHUNK : cosine::Shapes<float, 128>::CHUNK;
    return cosine::pass_workspace(&p, NULL, batch, (length + chunk - 1) / chunk);
}

// y (B, T, C), of the type of queries, keys and values: all bf16, or all float32, computed in
// float32. exponent (H): m, or NULL to use `power`. Weights are not dropped.
static inline void cosine_attention_forward(const Device *device, Matrix y, const float *exponent,
                                            double power, const DeviceAttentionInput *in,
                                            float *workspace) {
    (y.bf16 ? cosine::forward<bf16> : cosine::forward<float>)(device, y, exponent, power, in,
                                                              workspace);
}

// Sets the gradients to queries, keys and values; dexponent (H) += its gradient if there is an
// exponent. dy (B, T, C). All have the same type.
static inline void cosine_attention_backward(const Device *device,
                                             const DeviceAttentionGradients *gradients,
                                             float *dexponent, Matrix dy, const float *exponent,
                                             double power, const DeviceAttentionInput *in,
                                             float *workspace) {
    (dy.bf16 ? cosine::backward<bf16> : cosine::backward<float>)(device, gradients, dexponent, dy,
                                                                 exponent, power, in, workspace);
}

#endif
