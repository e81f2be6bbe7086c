// The feed-forward network of small models, of at most 128 channels and in bf16: both products with what
// stands before, between and behind them, in one kernel each way.
//
//     forward:   LayerNorm, where n is not there yet,
//                hidden = n W_1^T + b_1,  activated = f(hidden),  y = activated W_2^T + b_2,
//                then the residual connection and the next LayerNorm
//     backward:  dhidden = (dy W_2) f'(hidden),  dn = dhidden W_1
//
// Either way rows of C numbers become F and then C again. A block has 32 rows. Of its eight warps two share
// the rows, 16 each, and four the F numbers between, 64 at a time, 16 each. They lie as the second product
// reads its left operand, so what one product gives the other never leaves the registers; only what the
// backward pass and the products for the gradients of the weights read is written. In the end the four warps'
// sums are added up in order.
#ifndef CUDA_FFN_CUH
#define CUDA_FFN_CUH

#include "gemm.cuh"
#include "residual.cuh"
#include "tile.cuh"

namespace ffn {

static constexpr int ROWS = 32, ROW_WARPS = 2, INNER_WARPS = 4, WARPS = ROW_WARPS * INNER_WARPS;
static constexpr int INNER = 16 * INNER_WARPS, CHANNELS = 128; // of a tile; the latter at most

typedef TileShape<ROWS, CHANNELS, 1> Input;
// 64 of the F numbers by all channels, and the transpose: a weight lies as one of them.
typedef TileShape<INNER, CHANNELS, 1> Wide;
typedef TileShape<CHANNELS, INNER, 1> Tall;

struct Size {
    size_t m;
    int channels, inner; // C, F
};

static constexpr size_t WEIGHTS = Wide::BYTES + Tall::BYTES, SHARED = Input::BYTES + 2 * WEIGHTS;
static_assert(2 * WEIGHTS >= sizeof(float) * INNER_WARPS * ROWS * CHANNELS, "the sums take their place");

// ---- what the first product reads ------------------------------------------------------------------------

// (M, C): there already, or LayerNorm of rows that are.
struct Start {
    const bf16 *in;                         // NULL: LayerNorm
    LayerNormForward<bf16, PlainRows> norm; // y is none of its results yet
    __device__ __forceinline__ void run(bf16 *tile, size_t first, int rows, const Size &size) const {
        const size_t channels = (size_t)size.channels;
        if (in) {
            tile_load<Input>(tile, in + first * channels, channels, rows, size.channels);
            return;
        }
        LayerNormForward<bf16, PlainRows> p = norm;
        p.y = tile;
        p.first = first;
        p.stride = Input::STRIDE;
        for (int r = (int)threadIdx.x / WARP; r < ROWS; r += WARPS) {
            if (r < rows) layernorm_forward_row<bf16, PlainRows, 4, 1>(p, first + (size_t)r);
            const int end = r < rows ? size.channels : 0;
            for (int c = end + 2 * (int)lane_index(); c < CHANNELS; c += 2 * WARP)
                tile_put<Input>(tile, r, c, 0, 0);
        }
    }
};

// ---- what stands between the products --------------------------------------------------------------------

// Two neighbouring numbers, of hidden channel f and the next, become what the second product reads.
template <ActivationKind KIND> struct Activate {
    bf16 *hidden, *activated; // (M, F)
    const float *bias;        // (F) or NULL
    __device__ __forceinline__ void run(float &x, float &y, size_t at, int f) const {
        if (bias) x += bias[f];
        if (bias) y += bias[f + 1];
        store_two(hidden + at, x, y);
        x = activation_value<KIND>(x);
        y = activation_value<KIND>(y);
        store_two(activated + at, x, y);
    }
};

template <ActivationKind KIND> struct ActivateBackward {
    const bf16 *hidden; // (M, F)
    bf16 *dhidden;      // (M, F)
    __device__ __forceinline__ void run(float &x, float &y, size_t at, int) const {
        const float2 before = load_two(hidden + at);
        x *= activation_slope<KIND>(before.x);
        y *= activation_slope<KIND>(before.y);
        store_two(dhidden + at, x, y);
    }
};

// ---- what stands behind them -----------------------------------------------------------------------------

// y (rows of the block, C) in shared memory, by the whole block. T: of the LayerNorm's result.
template <typename T> struct AddAndNormalise {
    LayerNormForward<T, ResidualRows> norm; // y is none of its sources yet
    const float *bias;                      // (C) or NULL
    __device__ __forceinline__ void run(float *y, size_t first, int rows, int channels) const {
        LayerNormForward<T, ResidualRows> p = norm;
        p.source.y = y;
        p.source.first = first;
        if (bias)
            for (int i = (int)threadIdx.x; i < rows * channels; i += WARPS * WARP) y[i] += bias[i % channels];
        __syncthreads();
        for (int r = (int)threadIdx.x / WARP; r < rows; r += WARPS)
            layernorm_forward_row<T, ResidualRows, 4, 1>(p, first + (size_t)r);
    }
};

// Nothing: only what stands between the products is wanted.
struct Leave {
    __device__ __forceinline__ void run(float *, size_t, int, int) const {}
};

struct Store {
    float *out; // (M, C)
    bool add;
    __device__ __forceinline__ void run(const float *y, size_t first, int rows, int channels) const {
        float *const to = out + first * (size_t)channels;
        for (int i = (int)threadIdx.x; i < rows * channels; i += WARPS * WARP)
            to[i] = add ? to[i] + y[i] : y[i];
    }
};

// ---- the kernel ------------------------------------------------------------------------------------------

// Weights of 64 of the F numbers, from f on, of which one product's are wide and the other's tall.
static __device__ __forceinline__ void load_weights(bf16 *tiles, const bf16 *wide, const bf16 *tall, int f,
                                                    const Size &size) {
    const int left = size.inner - f < INNER ? size.inner - f : INNER;
    tile_load<Wide>(tiles, wide + (size_t)f * (size_t)size.channels, (size_t)size.channels, left,
                    size.channels);
    tile_load<Tall>(tiles + Wide::PLANE, tall + f, (size_t)size.inner, size.channels, left);
}

// Right operands: of the product to the F numbers, n of them; of that from them, k of them.
template <bool WIDE> static __device__ __forceinline__ Right<1> into_inner(const bf16 *tiles, int n, int k) {
    if constexpr (WIDE)
        return right_rows<Wide>(tiles, n, k);
    else
        return right_columns<Tall>(tiles + Wide::PLANE, n, k);
}

template <bool WIDE> static __device__ __forceinline__ Right<1> from_inner(const bf16 *tiles, int n, int k) {
    if constexpr (WIDE)
        return right_columns<Wide>(tiles, n, k);
    else
        return right_rows<Tall>(tiles + Wide::PLANE, n, k);
}

// A warp's 16 by 16 numbers between the products, as the second one's left operand. row: its first.
template <typename Between>
static __device__ __forceinline__ Left<1> pass_between(Sums<1, 16> &x, const Between &between, size_t row,
                                                       int f, const Size &size) {
    const unsigned lane = lane_index();
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const size_t r = row + lane / 4 + 8 * (unsigned)half;
            const int column = f + 8 * n + (int)(lane % 4) * 2;
            float *const pair = x.at[0][n] + 2 * half;
            if (r < size.m && column < size.inner)
                between.run(pair[0], pair[1], r * (size_t)size.inner + (size_t)column, column);
        }
    return left_sums<1>(x.at[0][0], x.at[0][1]);
}

// y (rows, C) = the sums of the warps that share the rows, in shared memory, in place of the weights.
static __device__ __forceinline__ void add_up(float *y, const Sums<1, CHANNELS> &sums, int row,
                                              int inner_warp, int rows, const Size &size) {
    const int lane = (int)lane_index(), part = ROWS * size.channels;
#pragma unroll
    for (int n = 0; n < CHANNELS / 8; n++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int column = 8 * n + lane % 4 * 2;
            float *const at = y + inner_warp * part + (row + lane / 4 + 8 * half) * size.channels + column;
            if (column < size.channels)
                *(float2 *)at = make_float2(sums.at[0][n][2 * half], sums.at[0][n][2 * half + 1]);
        }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < rows * size.channels; i += WARPS * WARP) {
        float total = y[i];
#pragma unroll
        for (int w = 1; w < INNER_WARPS; w++) total += y[w * part + i];
        y[i] = total;
    }
    __syncthreads();
}

// WIDE: the first weight lies as (F, C) and the second as (C, F), else the other way round.
template <typename Between, typename End, bool WIDE>
static __global__ void __launch_bounds__(WARPS *WARP, 2)
    kernel(const Start start, const bf16 *wide, const bf16 *tall, const Between between, const End end,
           const Size size) {
    begin_kernel();
    bf16 *const input = shared_memory<bf16>(), *const weights = input + Input::PLANE;
    const int warp = (int)threadIdx.x / WARP, row = warp % ROW_WARPS * 16, inner_warp = warp / ROW_WARPS;
    const size_t first = (size_t)blockIdx.x * ROWS;
    const int rows = size.m - first < ROWS ? (int)(size.m - first) : ROWS;
    Left<1> left[CHANNELS / 16];
    Sums<1, CHANNELS> sums;
    sums_clear(sums);
    load_weights(weights, wide, tall, 0, size);
    start.run(input, first, rows, size);
    cp_async_commit();
    for (int f = 0, turn = 0; f < size.inner; f += INNER, turn ^= 1) {
        const bf16 *const tiles = weights + turn * (int)(WEIGHTS / sizeof(bf16));
        if (f + INNER < size.inner)
            load_weights(weights + (turn ^ 1) * (int)(WEIGHTS / sizeof(bf16)), wide, tall, f + INNER, size);
        cp_async_commit();
        cp_async_wait<1>();
        __syncthreads();
        Sums<1, 16> inner;
        sums_clear(inner);
#pragma unroll
        for (int k = 0; k < CHANNELS; k += 16) {
            if (f == 0) left[k / 16] = left_rows<Input>(input, row, k);
            if (k < size.channels)
                multiply<1>(inner.at[0], left[k / 16], into_inner<WIDE>(tiles, 16 * inner_warp, k));
        }
        const Left<1> between_left =
            pass_between(inner, between, first + (size_t)row, f + 16 * inner_warp, size);
#pragma unroll
        for (int n = 0; n < CHANNELS; n += 16)
            if (n < size.channels)
                multiply<1>(sums.at[0] + n / 8, between_left, from_inner<!WIDE>(tiles, n, 16 * inner_warp));
        __syncthreads(); // the next turn's weights take the place of these
    }
    add_up((float *)weights, sums, row, inner_warp, rows, size);
    end.run((float *)weights, first, rows, size.channels);
}

template <typename Between, typename End>
static inline void launch_pass(const Device *d, const Start &start, const Between &between, const End &end,
                               DeviceWeight up, DeviceWeight down, bool forward, size_t m) {
    if (up.layout != down.layout || !up.rounded) fail("feed-forward network: an unknown layout");
    const bool up_wide = up.layout == WEIGHT_OUT_IN;
    const bf16 *const wide = (up_wide ? up : down).rounded, *const tall = (up_wide ? down : up).rounded;
    const Size size = {m, (int)up.k, (int)up.n};
    const dim3 grid(blocks_of(m, ROWS)), block(WARPS * WARP);
    if (up_wide == forward)
        launch_early(d, kernel<Between, End, true>, grid, block, SHARED, start, wide, tall, between, end,
                     size);
    else
        launch_early(d, kernel<Between, End, false>, grid, block, SHARED, start, wide, tall, between, end,
                     size);
}

} // namespace ffn

// ---- the interface ---------------------------------------------------------------------------------------

// Whether these kernels can do it.
static inline bool fused_ffn_fits(size_t channels, size_t inner) {
    return channels <= (size_t)ffn::CHANNELS && channels % 8 == 0 && inner % 8 == 0 && inner < INT32_MAX;
}

// What it reads: n (M, C), or LayerNorm of x (M, C), of which mean and rstd (M) are left.
struct FfnSource {
    GemmInput n; // without data: LayerNorm
    const float *x;
    LayerNormOutput to;
    LayerNormWeights weights;
};

// hidden, activated (M, F) = n (M, C) W_1^T + b_1, and f of it; then what stands behind the network, of the
// result (M, C). behind NULL: nothing else is wanted. up: W_1, down: W_2.
static inline void fused_ffn_forward(const Device *d, GemmInput hidden, GemmInput activated,
                                     const FfnSource &from, DeviceWeight up, DeviceWeight down,
                                     ActivationKind kind, const ResidualNorm *behind, size_t m) {
    const ffn::Start start = {(const bf16 *)from.n.data,
                              layernorm_forward_pass<bf16>(NULL, from.to, PlainRows{from.x}, dropout_none(),
                                                           from.weights, 1, up.k)};
    WITH_ACTIVATION(kind, KIND, {
        const ffn::Activate<KIND> between = {(bf16 *)hidden.data, (bf16 *)activated.data, up.bias};
        if (!behind) {
            ffn::launch_pass(d, start, between, ffn::Leave(), up, down, true, m);
            return;
        }
        WITH_TYPE(behind->to.norm, T, {
            const ffn::AddAndNormalise<T> end = {
                layernorm_forward_pass<T>(behind->out, behind->to, ResidualRows{behind->x, NULL, 0},
                                          behind->site, behind->weights, behind->length, up.k),
                down.bias};
            ffn::launch_pass(d, start, between, end, up, down, true, m);
        });
    });
}

// dhidden (M, F) = (dy (M, C) W_2) f'(hidden); dn (M, C) = dhidden W_1, or += it.
static inline void fused_ffn_backward(const Device *d, float *dn, bool add, GemmInput dhidden, GemmInput dy,
                                      GemmInput hidden, DeviceWeight up, DeviceWeight down,
                                      ActivationKind kind, size_t m) {
    WITH_ACTIVATION(kind, KIND, {
        const ffn::ActivateBackward<KIND> between = {(const bf16 *)hidden.data, (bf16 *)dhidden.data};
        ffn::launch_pass(d, ffn::Start{(const bf16 *)dy.data, {}}, between, ffn::Store{dn, add}, up, down,
                         false, m);
    });
}

#endif
