// Muon (Jordan et al. 2024) on the GPU: the same update as dev/cpu/muon.h.
//
// Hidden matrices of one shape are orthogonalised together: each product of a Newton-Schulz step is
// one batched product over all of them, because a layer's matrices are small and numerous. The
// launches of an update are always the same, so they are captured in a graph. Values that change
// between updates are in device memory.
#ifndef CUDA_MUON_CUH
#define CUDA_MUON_CUH

#include "adamw.cuh"
#include <algorithm>
extern "C" {
#include "muon_constants.h"
}

static constexpr size_t MUON_SHAPES = 16; // most distinct shapes per model
static constexpr int MUON_THREADS = 256;
// Elements per batch of matrices, which has at least one matrix, and elements per thread.
#ifdef CUDA_ON_CPU // small, so that tests have several such matrices and thread blocks
static constexpr size_t MUON_NUMBERS = 650;
static constexpr int MUON_EACH = 1;
#else
static constexpr size_t MUON_NUMBERS = (size_t)1 << 24;
static constexpr int MUON_EACH = 16;
#endif

// Location of a hidden matrix among the parameters.
struct MuonMatrix {
    uint64_t offset;
    uint32_t decay; // 1: weight decay applies
};

// Matrices of one shape (R, K). Each starts at a multiple of 16 elements in working memory.
struct MuonShape {
    size_t rows, columns;
    size_t first, count; // range among all hidden matrices, sorted by shape
};

// Values that change between updates.
struct MuonSettings {
    double learning_rate, weight_decay;
    float gradient_scale;
};

struct Muon {
    MuonShape shapes[MUON_SHAPES];
    size_t shape_count, matrix_count;
    MuonMatrix *matrices;      // (matrix_count)
    MuonSettings *settings;    // (1)
    double *squares;           // sums of squares of matrix elements, one per thread block
    Matrix x[2];               // the matrices before and after a step, as input of products
    float *orthogonal;         // the matrices after the last step
    float *gram, *square;      // (N, N) per matrix, N = min(R, K): x^T x or x x^T; its square
    Matrix gram_input, factor; // gram as input of products; the polynomial that multiplies x
    bool updated;              // has run once, without a graph
    cudaGraphExec_t graph;     // NULL: not captured yet
};

static inline size_t muon_padded(size_t numbers) {
    return (numbers + 15) / 16 * 16;
}

static inline size_t muon_side(const MuonShape &s) {
    return s.rows < s.columns ? s.rows : s.columns;
}

// Number of matrices of a shape that are processed together.
static inline size_t muon_together(const MuonShape &s) {
    const size_t most = MUON_NUMBERS / muon_padded(s.rows * s.columns);
    return most < 1 ? 1 : most < s.count ? most : s.count;
}

static inline size_t muon_blocks(const MuonShape &s) {
    return blocks_of(s.rows * s.columns, MUON_THREADS * MUON_EACH);
}

// ---- memory -----------------------------------------------------------------

static inline bool muon_has_shape(const MuonShape &s, const Parameter *p) {
    return s.rows == (size_t)p->shape[0] && s.columns == (size_t)p->shape[1];
}

static inline void muon_find_shapes(Muon *m, const ParameterTable *table) {
    for (int i = 0; i < table->count; i++) {
        const Parameter *p = &table->items[i];
        if (!p->hidden) continue;
        size_t s = 0;
        while (s < m->shape_count && !muon_has_shape(m->shapes[s], p)) s++;
        if (s == MUON_SHAPES)
            fail("--optimizer muon: hidden matrices of more than %zu shapes", MUON_SHAPES);
        if (s == m->shape_count)
            m->shapes[m->shape_count++] = {(size_t)p->shape[0], (size_t)p->shape[1], 0, 0};
        m->shapes[s].count++;
        m->matrix_count++;
    }
    for (size_t s = 1; s < m->shape_count; s++)
        m->shapes[s].first = m->shapes[s - 1].first + m->shapes[s - 1].count;
}

// Carves working memory for updates of the table's hidden matrices. in_bf16: products read bf16.
static inline void muon_carve(Muon *m, DeviceArena *arena, const ParameterTable *table,
                              bool in_bf16) {
    const char *purpose = "orthogonalisation";
    size_t numbers = 0, squares = 0, blocks = 0;
    *m = Muon();
    muon_find_shapes(m, table);
    for (size_t s = 0; s < m->shape_count; s++) {
        const MuonShape &shape = m->shapes[s];
        const size_t count = muon_together(shape), side = muon_side(shape);
        numbers = std::max(numbers, count * muon_padded(shape.rows * shape.columns));
        squares = std::max(squares, count * muon_padded(side * side));
        blocks = std::max(blocks, count * muon_blocks(shape));
    }
    m->matrices = arena_array<MuonMatrix>(arena, m->matrix_count, purpose);
    m->settings = arena_array<MuonSettings>(arena, 1, purpose);
    m->squares = arena_array<double>(arena, blocks, purpose);
    for (int i = 0; i < 2; i++) m->x[i] = arena_matrix(arena, 1, numbers, in_bf16, purpose);
    m->gram = arena_array<float>(arena, squares, purpose);
    m->square = arena_array<float>(arena, squares, purpose);
    m->factor = arena_matrix(arena, 1, squares, in_bf16, purpose);
    m->orthogonal =
        in_bf16 ? arena_array<float>(arena, numbers, purpose) : (float *)m->x[MUON_STEPS % 2].data;
    m->gram_input =
        in_bf16 ? arena_matrix(arena, 1, squares, true, purpose) : float_matrix(m->gram, squares);
}

// Uploads the offsets of the hidden matrices. Call after muon_carve().
static inline void muon_start(const Device *d, const Muon *m, const ParameterTable *table) {
    MuonMatrix *matrices = (MuonMatrix *)allocate(m->matrix_count, sizeof(MuonMatrix), "matrices");
    size_t at = 0;
    for (size_t s = 0; s < m->shape_count; s++)
        for (int i = 0; i < table->count; i++)
            if (table->items[i].hidden && muon_has_shape(m->shapes[s], &table->items[i]))
                matrices[at++] = {table->items[i].offset, table->items[i].decay};
    CUDA_CHECK(cudaMemcpyAsync(m->matrices, matrices, m->matrix_count * sizeof(MuonMatrix),
                               cudaMemcpyHostToDevice, d->stream));
    device_synchronize(d);
    free(matrices);
}

static inline void muon_free(Muon *m) {
    if (m->graph) CUDA_CHECK(cudaGraphExecDestroy(m->graph));
}

// ---- kernels ----------------------------------------------------------------
// Matrices that are processed together. In kernels, block (x, i) processes a part of matrix i.
struct MuonBatch {
    const MuonMatrix *matrices;
    const MuonSettings *settings;
    size_t size, step; // elements per matrix; from one matrix to the next in working memory
    size_t blocks;     // thread blocks per matrix
    double *squares;   // (matrices, blocks)
};

static __global__ void muon_settings_kernel(MuonSettings *to, const MuonSettings from) {
    begin_kernel();
    *to = from;
}

// m += (1 - momentum) (scale g - m); g = scale g + momentum (m - scale g), the direction to
// orthogonalise. Also sums its squares.
static __global__ void __launch_bounds__(MUON_THREADS)
    muon_momentum_kernel(const MuonBatch b, float *moments, float *gradients) {
    begin_kernel();
    __shared__ double shared[WARP];
    const float momentum = (float)MUON_MOMENTUM, rest = (float)(1 - MUON_MOMENTUM),
                scale = b.settings->gradient_scale;
    const size_t first = b.matrices[blockIdx.y].offset;
    float *const m = moments + first, *const g = gradients + first;
    double sum = 0;
    for (int k = 0; k < MUON_EACH; k++) {
        const size_t i = ((size_t)blockIdx.x * MUON_EACH + (size_t)k) * MUON_THREADS + threadIdx.x;
        if (i >= b.size) break;
        const float gradient = scale * g[i], mean = m[i] + rest * (gradient - m[i]),
                    direction = gradient + momentum * (mean - gradient);
        m[i] = mean;
        g[i] = direction;
        sum += (double)direction * (double)direction;
    }
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) b.squares[blockIdx.y * b.blocks + blockIdx.x] = sum;
}

// x = g / max(|g|, epsilon)
template <typename T>
static __global__ void __launch_bounds__(MUON_THREADS)
    muon_normalise_kernel(const MuonBatch b, T *x, const float *gradients) {
    begin_kernel();
    __shared__ double shared[WARP];
    double sum = 0;
    for (size_t i = threadIdx.x; i < b.blocks; i += MUON_THREADS)
        sum += b.squares[blockIdx.y * b.blocks + i];
    const float scale = (float)(1 / fmax(sqrt(block_sum(sum, shared)), MUON_EPSILON));
    const float *const g = gradients + b.matrices[blockIdx.y].offset;
    for (int k = 0; k < MUON_EACH; k++) {
        const size_t i = ((size_t)blockIdx.x * MUON_EACH + (size_t)k) * MUON_THREADS + threadIdx.x;
        if (i < b.size) x[blockIdx.y * b.step + i] = (T)(scale * g[i]);
    }
}

// factor = A I + B gram + C square. factor, gram and square (side, side): matrices are `step`
// elements apart. Block (x, i) computes a part of matrix i.
template <typename T>
static __global__ void __launch_bounds__(MUON_THREADS)
    muon_polynomial_kernel(T *factor, const float *gram, const float *square, size_t side,
                           size_t step) {
    begin_kernel();
    const size_t i = (size_t)blockIdx.x * MUON_THREADS + threadIdx.x, at = blockIdx.y * step + i;
    if (i >= side * side) return;
    const float sum = (float)MUON_B * gram[at] + (float)MUON_C * square[at];
    factor[at] = (T)(i / side == i % side ? sum + (float)MUON_A : sum);
}

// values -= lr (reach orthogonal + decay values); gradients = 0
static __global__ void __launch_bounds__(MUON_THREADS)
    muon_step_kernel(const MuonBatch b, float *values, bf16 *rounded, float *gradients,
                     const float *orthogonal, double reach) {
    begin_kernel();
    const MuonMatrix matrix = b.matrices[blockIdx.y];
    const double lr = b.settings->learning_rate;
    const float rate = (float)(lr * reach),
                decay = matrix.decay ? (float)(lr * b.settings->weight_decay) : 0;
    for (int k = 0; k < MUON_EACH; k++) {
        const size_t i = ((size_t)blockIdx.x * MUON_EACH + (size_t)k) * MUON_THREADS + threadIdx.x;
        if (i >= b.size) break;
        const size_t at = matrix.offset + i;
        const float x =
            values[at] - (rate * orthogonal[blockIdx.y * b.step + i] + decay * values[at]);
        values[at] = x;
        gradients[at] = 0;
        if (rounded) rounded[at] = (bf16)x;
    }
}

// ---- an update --------------------------------------------------------------

static inline void muon_multiply(Blas *blas, const BlasProduct &p, const void *a, const void *b,
                                 void *d) {
    if (!blas_run(blas, p, {a, b, d, NULL, NULL}))
        fail("--optimizer muon: cuBLASLt cannot multiply (%zu, %zu) by (%zu, %zu), %zu times", p.n,
             p.k, p.k, p.m, p.count);
}

// gram = x^T x if x (R, K) has at least as many rows as columns, else x x^T.
static inline BlasProduct muon_gram_product(const MuonShape &s, size_t count, bool in_bf16) {
    const bool tall = s.rows >= s.columns;
    BlasProduct p = {};
    p.transpose_a = !tall;
    p.transpose_b = tall;
    p.a_bf16 = in_bf16;
    p.m = p.n = p.ldd = muon_side(s);
    p.k = tall ? s.rows : s.columns;
    p.lda = p.ldb = s.columns;
    p.count = count;
    p.step_a = p.step_b = muon_padded(s.rows * s.columns);
    p.step_d = muon_padded(p.m * p.m);
    return p;
}

// square = gram gram
static inline BlasProduct muon_square_product(const MuonShape &s, size_t count, bool in_bf16) {
    BlasProduct p = {};
    p.a_bf16 = in_bf16;
    p.m = p.n = p.k = p.lda = p.ldb = p.ldd = muon_side(s);
    p.count = count;
    p.step_a = p.step_b = p.step_d = muon_padded(p.m * p.m);
    return p;
}

// x factor if x has at least as many rows as columns, else factor x. BLAS is column-major, so x
// factor has the factor, which is symmetric, as its first operand.
static inline BlasProduct muon_next_product(const MuonShape &s, size_t count, bool in_bf16,
                                            bool to_bf16) {
    const bool tall = s.rows >= s.columns;
    const size_t of_x = muon_padded(s.rows * s.columns),
                 of_factor = muon_padded(muon_side(s) * muon_side(s));
    BlasProduct p = {};
    p.a_bf16 = in_bf16;
    p.d_bf16 = to_bf16;
    p.m = p.ldd = s.columns;
    p.n = s.rows;
    p.k = p.ldb = muon_side(s);
    p.lda = s.columns;
    p.count = count;
    p.step_a = tall ? of_factor : of_x;
    p.step_b = tall ? of_x : of_factor;
    p.step_d = of_x;
    return p;
}

// Runs the Newton-Schulz steps on `count` matrices in m->x[0]: x = x (A + B x^T x + C (x^T x)^2).
static inline void muon_orthogonalise(const Device *d, Blas *blas, const Muon *m,
                                      const MuonShape &s, size_t count) {
    const bool in_bf16 = m->factor.bf16, tall = s.rows >= s.columns;
    const size_t side = muon_side(s), step = muon_padded(side * side);
    const dim3 grid(blocks_of(side * side, MUON_THREADS), (unsigned)count);
    for (int i = 0; i < MUON_STEPS; i++) {
        const bool last = i == MUON_STEPS - 1;
        const void *x = m->x[i % 2].data, *factor = m->factor.data;
        muon_multiply(blas, muon_gram_product(s, count, in_bf16), x, x, m->gram);
        if (in_bf16) round_to_bf16(d, (bf16 *)m->gram_input.data, m->gram, count * step);
        muon_multiply(blas, muon_square_product(s, count, in_bf16), m->gram_input.data,
                      m->gram_input.data, m->square);
        WITH_TYPE(m->factor, T,
                  launch_early(d, muon_polynomial_kernel<T>, grid, MUON_THREADS, 0,
                               (T *)m->factor.data, m->gram, m->square, side, step));
        muon_multiply(blas, muon_next_product(s, count, in_bf16, in_bf16 && !last),
                      tall ? factor : x, tall ? x : factor,
                      last ? m->orthogonal : m->x[(i + 1) % 2].data);
    }
}

// Updates `count` matrices of a shape, starting with number `first`.
static inline void muon_update_some(const Device *d, Blas *blas, const Muon *m,
                                    const ParameterState *state, const MuonShape &s, size_t first,
                                    size_t count) {
    MuonBatch batch = {};
    batch.matrices = m->matrices + s.first + first;
    batch.settings = m->settings;
    batch.size = s.rows * s.columns;
    batch.step = muon_padded(batch.size);
    batch.blocks = muon_blocks(s);
    batch.squares = m->squares;
    const dim3 grid((unsigned)batch.blocks, (unsigned)count);
    launch_early(d, muon_momentum_kernel, grid, MUON_THREADS, 0, batch, state->first_moment,
                 state->gradients);
    WITH_TYPE(m->x[0], T,
              launch_early(d, muon_normalise_kernel<T>, grid, MUON_THREADS, 0, batch,
                           (T *)m->x[0].data, state->gradients));
    muon_orthogonalise(d, blas, m, s, count);
    const double reach = MUON_REACH * sqrt((double)(s.rows > s.columns ? s.rows : s.columns));
    launch_early(d, muon_step_kernel, grid, MUON_THREADS, 0, batch, state->values, state->rounded,
                 state->gradients, m->orthogonal, reach);
}

static inline void muon_update_all(const Device *d, Blas *blas, const Muon *m,
                                   const ParameterState *state) {
    for (size_t s = 0; s < m->shape_count; s++) {
        const MuonShape &shape = m->shapes[s];
        const size_t together = muon_together(shape);
        for (size_t first = 0; first < shape.count; first += together)
            muon_update_some(d, blas, m, state, shape, first,
                             std::min(together, shape.count - first));
    }
}

// Updates every hidden matrix and clears its gradient (dev/cpu/muon.h). The first call selects
// cuBLASLt's plans; the second is captured in a graph.
static inline void muon_update(const Device *d, Blas *blas, Muon *m, const ParameterState *state,
                               const UpdateSettings *u) {
    const MuonSettings settings = {u->learning_rate, u->weight_decay, (float)u->gradient_scale};
    launch_early(d, muon_settings_kernel, 1, 1, 0, m->settings, settings);
    if (!m->updated) {
        muon_update_all(d, blas, m, state);
        m->updated = true;
        return;
    }
    if (!m->graph) m->graph = device_capture(d, [&] { muon_update_all(d, blas, m, state); });
    CUDA_CHECK(cudaGraphLaunch(m->graph, d->stream));
}

#endif
