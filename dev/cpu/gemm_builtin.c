// Matrix products without a library: the right-hand matrix is packed into panels as wide as a
// register tile, the left-hand one block by block (Goto and van de Geijn, "Anatomy of
// High-Performance Matrix Multiplication", TOMS 2008). Register tiles are computed with the
// compiler's vector types.
#ifndef USE_ONEDNN

#include "arena.h"
#include "error.h"
#include "gemm.h"
#include "memory.h"
#include "sizes.h"
#include "threads.h"
#include <stdlib.h>
#include <string.h>

// The tile of c whose sums stay in registers. Its size depends on the width and number of the
// processor's vector registers.
#if defined(__AVX512F__)
enum { VECTOR_BYTES = 64, TILE_ROWS = 12, TILE_VECTORS = 2 };
#elif defined(__AVX__)
enum { VECTOR_BYTES = 32, TILE_ROWS = 6, TILE_VECTORS = 2 };
#elif defined(__aarch64__)
enum { VECTOR_BYTES = 16, TILE_ROWS = 8, TILE_VECTORS = 3 };
#else
enum { VECTOR_BYTES = 16, TILE_ROWS = 4, TILE_VECTORS = 2 };
#endif
typedef real Vector __attribute__((vector_size(VECTOR_BYTES)));

enum {
    LANES = VECTOR_BYTES / sizeof(real),
    TILE_COLUMNS = TILE_VECTORS * LANES,
    // A panel of b (DEPTH, TILE_COLUMNS) stays in the L1 cache, a block of a (BLOCK_ROWS, DEPTH)
    // and the panels of b for BLOCK_COLUMNS in the L2 cache.
    DEPTH = 1024 / sizeof(real),
    BLOCK_ROWS = 16 * TILE_ROWS,
    BLOCK_COLUMNS = 256 / TILE_COLUMNS * TILE_COLUMNS,
};

// A matrix whose element (i, j) is data[i * row + j * column]; one of the two strides is 1.
typedef struct {
    const real *data;
    size_t row, column;
} StridedMatrix;

// The right-hand matrix (K, N), packed: slices of DEPTH rows, each divided into panels of
// TILE_COLUMNS columns, which are stored row by row. Columns beyond N are 0.
typedef struct {
    real *data;
    size_t columns; // N rounded up to whole panels
} Panels;

// Memory for the packed blocks of one thread.
typedef struct {
    real *left, *right;
} Buffers;

struct Gemm {
    Buffers *buffers; // one per thread
    int threads;
};

struct GemmWeight {
    size_t n, k;
    WeightLayout layout;
    Panels forward, backward; // (K, N) for y = x w^T, (N, K) for dx = dy w
    const char *what;         // the arena's name for them
};

static StridedMatrix matrix_from(StridedMatrix a, size_t i, size_t j) {
    return (StridedMatrix){a.data + i * a.row + j * a.column, a.row, a.column};
}

static bool rows_are_contiguous(StridedMatrix a) {
    return a.column == 1;
}

// ---- handles ----------------------------------------------------------------

bool gemm_supports(Precision precision) {
    return precision == PRECISION_FLOAT32;
}

static Gemm *create(int threads) {
    Gemm *gemm = allocate(1, sizeof(*gemm), "a GEMM handle");
    gemm->threads = threads;
    gemm->buffers = allocate((size_t)threads, sizeof(*gemm->buffers), "the GEMM's buffers");
    for (int i = 0; i < threads; i++) {
        gemm->buffers[i].left =
            allocate((size_t)BLOCK_ROWS * DEPTH, sizeof(real), "the GEMM's buffers");
        gemm->buffers[i].right =
            allocate((size_t)BLOCK_COLUMNS * DEPTH, sizeof(real), "the GEMM's buffers");
    }
    return gemm;
}

Gemm *gemm_create(Precision precision) {
    if (!gemm_supports(precision)) fail("bf16 products: this build has no oneDNN; use float32");
    threads_settle();
    return create(thread_limit());
}

Gemm *gemm_create_serial(const Gemm *parent) {
    (void)parent; // all handles use the same packing
    return create(1);
}

void gemm_free(Gemm *gemm) {
    if (!gemm) return;
    for (int i = 0; i < gemm->threads; i++) {
        free(gemm->buffers[i].left);
        free(gemm->buffers[i].right);
    }
    free(gemm->buffers);
    free(gemm);
}

const char *gemm_library(const Gemm *gemm) {
    (void)gemm;
    return "built-in";
}

char *gemm_library_name(void) {
    return copy_string("built-in products");
}

Precision gemm_precision(const Gemm *gemm) {
    (void)gemm;
    return PRECISION_FLOAT32;
}

// ---- packing ----------------------------------------------------------------
// Packs one panel: `depth` rows and `columns` <= TILE_COLUMNS columns of b.
static void pack_panel(real *restrict out, StridedMatrix b, size_t depth, size_t columns) {
    if (columns < TILE_COLUMNS) memset(out, 0, depth * TILE_COLUMNS * sizeof(real));
    if (b.column == 1 && columns == TILE_COLUMNS) {
        for (size_t i = 0; i < depth; i++)
            memcpy(out + i * TILE_COLUMNS, b.data + i * b.row, TILE_COLUMNS * sizeof(real));
    } else {
        for (size_t j = 0; j < columns; j++)
            for (size_t i = 0; i < depth; i++)
                out[i * TILE_COLUMNS + j] = b.data[i * b.row + j * b.column];
    }
}

static void pack_right(real *restrict out, StridedMatrix b, size_t depth, size_t columns) {
    for (size_t j = 0; j < columns; j += TILE_COLUMNS)
        pack_panel(out + j * depth, matrix_from(b, 0, j), depth,
                   smaller(columns - j, TILE_COLUMNS));
}

// Packs `rows` <= TILE_ROWS rows of a: element (i, k) goes to i * DEPTH + k if rows of a are
// contiguous, else to k * TILE_ROWS + i. Missing rows are 0.
static void pack_left(real *restrict out, StridedMatrix a, size_t rows, size_t depth) {
    if (rows < TILE_ROWS) memset(out, 0, TILE_ROWS * DEPTH * sizeof(real));
    if (rows_are_contiguous(a)) {
        for (size_t i = 0; i < rows; i++)
            memcpy(out + i * DEPTH, a.data + i * a.row, depth * sizeof(real));
    } else if (rows == TILE_ROWS) {
        for (size_t k = 0; k < depth; k++)
            memcpy(out + k * TILE_ROWS, a.data + k * a.column, TILE_ROWS * sizeof(real));
    } else {
        for (size_t k = 0; k < depth; k++)
            for (size_t i = 0; i < rows; i++) out[k * TILE_ROWS + i] = a.data[i + k * a.column];
    }
}

// ---- the kernel -------------------------------------------------------------

static inline Vector load(const real *p) {
    Vector v;
    memcpy(&v, p, sizeof(v));
    return v;
}

static inline void store(real *p, Vector v) {
    memcpy(p, &v, sizeof(v));
}

// Computes a tile: c (TILE_ROWS, TILE_COLUMNS) = or += a b. Always inlined, so that the strides of
// a are constants.
static inline __attribute__((always_inline)) void
tile_product(real *restrict c, size_t c_row, const real *restrict a, size_t a_row, size_t a_column,
             const real *restrict b, size_t depth, bool add) {
    Vector sums[TILE_ROWS][TILE_VECTORS] = {0};
    for (size_t k = 0; k < depth; k++) {
        Vector right[TILE_VECTORS];
        for (int v = 0; v < TILE_VECTORS; v++) right[v] = load(b + k * TILE_COLUMNS + v * LANES);
        for (int i = 0; i < TILE_ROWS; i++) {
            const real left = a[(size_t)i * a_row + k * a_column];
            for (int v = 0; v < TILE_VECTORS; v++) sums[i][v] += left * right[v];
        }
    }
    for (int i = 0; i < TILE_ROWS; i++)
        for (int v = 0; v < TILE_VECTORS; v++) {
            real *out = c + (size_t)i * c_row + v * LANES;
            store(out, add ? load(out) + sums[i][v] : sums[i][v]);
        }
}

static void tile_of_rows(real *restrict c, size_t c_row, const real *restrict a,
                         const real *restrict b, size_t depth, bool add) {
    tile_product(c, c_row, a, DEPTH, 1, b, depth, add);
}

static void tile_of_columns(real *restrict c, size_t c_row, const real *restrict a,
                            const real *restrict b, size_t depth, bool add) {
    tile_product(c, c_row, a, 1, TILE_ROWS, b, depth, add);
}

// Writes the part of a tile that is inside c, (rows, columns), at the edge of c.
static void tile_at_edge(real *restrict c, size_t c_row, const real *restrict tile, size_t rows,
                         size_t columns, bool add) {
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < columns; j++) {
            const real value = tile[i * TILE_COLUMNS + j];
            c[i * c_row + j] = add ? c[i * c_row + j] + value : value;
        }
}

// c (rows, columns) = or += packed left block times packed panels.
static void block_product(real *restrict c, size_t c_row, const real *restrict left, bool left_rows,
                          const real *restrict right, size_t rows, size_t columns, size_t depth,
                          bool add) {
    real edge[TILE_ROWS * TILE_COLUMNS];
    for (size_t j = 0; j < columns; j += TILE_COLUMNS)
        for (size_t i = 0; i < rows; i += TILE_ROWS) {
            const size_t tile_rows = smaller(rows - i, TILE_ROWS),
                         tile_columns = smaller(columns - j, TILE_COLUMNS);
            const bool whole = tile_rows == TILE_ROWS && tile_columns == TILE_COLUMNS;
            real *out = whole ? c + i * c_row + j : edge;
            const size_t out_row = whole ? c_row : TILE_COLUMNS;
            if (left_rows)
                tile_of_rows(out, out_row, left + i * DEPTH, right + j * depth, depth,
                             add && whole);
            else
                tile_of_columns(out, out_row, left + i * DEPTH, right + j * depth, depth,
                                add && whole);
            if (!whole) tile_at_edge(c + i * c_row + j, c_row, edge, tile_rows, tile_columns, add);
        }
}

// ---- products ---------------------------------------------------------------
// c (M, N) = or += a (M, K) b (K, N); rows of c are contiguous. `panels` is b already packed, or
// NULL.
typedef struct {
    size_t m, n, k;
    real *c;
    StridedMatrix a, b;
    const Panels *panels;
    bool add;
} Product;

// Computes the block of c that starts at (i0, j0), summed over all of K in a fixed order.
static void product_block(const Product *p, Buffers buffers, size_t i0, size_t rows, size_t j0,
                          size_t columns) {
    for (size_t k0 = 0; k0 < p->k; k0 += DEPTH) {
        const size_t depth = smaller(p->k - k0, DEPTH);
        const real *right = buffers.right;
        if (p->panels)
            right = p->panels->data + k0 * p->panels->columns + j0 * depth;
        else
            pack_right(buffers.right, matrix_from(p->b, k0, j0), depth, columns);
        for (size_t i = 0; i < rows; i += TILE_ROWS)
            pack_left(buffers.left + i * DEPTH, matrix_from(p->a, i0 + i, k0),
                      smaller(rows - i, TILE_ROWS), depth);
        block_product(p->c + i0 * p->n + j0, p->n, buffers.left, rows_are_contiguous(p->a), right,
                      rows, columns, depth, p->add || k0 > 0);
    }
}

static void product(const Gemm *gemm, const Product *p) {
    const size_t column_blocks = (p->n + BLOCK_COLUMNS - 1) / BLOCK_COLUMNS,
                 threads = (size_t)gemm->threads;
    // Use fewer rows per block if there would be fewer blocks than threads.
    size_t rows = BLOCK_ROWS;
    while (rows > TILE_ROWS && (p->m + rows - 1) / rows * column_blocks < threads)
        rows = round_up(rows / 2, TILE_ROWS);
    const size_t row_blocks = (p->m + rows - 1) / rows;
#pragma omp parallel for schedule(dynamic, 1) num_threads(gemm->threads)
    for (size_t block = 0; block < row_blocks * column_blocks; block++) {
        const size_t i = block % row_blocks * rows, j = block / row_blocks * BLOCK_COLUMNS;
        product_block(p, gemm->buffers[thread_index()], i, smaller(p->m - i, rows), j,
                      smaller(p->n - j, BLOCK_COLUMNS));
    }
}

// ---- linear layers ----------------------------------------------------------

static void panels_pack(Panels *panels, StridedMatrix b, size_t rows, size_t columns) {
    for (size_t k0 = 0; k0 < rows; k0 += DEPTH) {
        const size_t depth = smaller(rows - k0, DEPTH);
#pragma omp parallel for schedule(static)
        for (size_t j = 0; j < columns; j += TILE_COLUMNS)
            pack_panel(panels->data + k0 * panels->columns + j * depth, matrix_from(b, k0, j),
                       depth, smaller(columns - j, TILE_COLUMNS));
    }
}

GemmWeight *gemm_weight_create(Gemm *gemm, size_t n, size_t k, WeightLayout layout,
                               const char *what) {
    (void)gemm;
    if (n == 0 || k == 0 || n > INT32_MAX || k > INT32_MAX)
        fail("%s: a weight of %zu outputs and %zu inputs; each must be from 1 to %d", what, n, k,
             INT32_MAX);
    GemmWeight *weight = allocate(1, sizeof(*weight), what);
    weight->n = n;
    weight->k = k;
    weight->layout = layout;
    weight->what = what;
    weight->forward.columns = round_up(n, TILE_COLUMNS);
    weight->backward.columns = round_up(k, TILE_COLUMNS);
    return weight;
}

void gemm_weight_carve(GemmWeight *weight, Arena *arena) {
    Panels *forward = &weight->forward, *backward = &weight->backward;
    forward->data = arena_reals(arena, weight->k, forward->columns, weight->what);
    backward->data = arena_reals(arena, weight->n, backward->columns, weight->what);
}

void gemm_weight_free(GemmWeight *weight) {
    free(weight);
}

void gemm_weight_pack(GemmWeight *weight, const real *values) {
    const size_t n = weight->n, k = weight->k;
    const bool rows_are_outputs = weight->layout == WEIGHT_OUT_IN;
    const StridedMatrix w = {values, rows_are_outputs ? k : 1, rows_are_outputs ? 1 : n}; // (N, K)
    panels_pack(&weight->forward, (StridedMatrix){values, w.column, w.row}, k, n);
    panels_pack(&weight->backward, w, n, k);
}

static StridedMatrix rows_of(Matrix x) {
    return (StridedMatrix){x.data, x.columns, 1};
}

static StridedMatrix transpose_of(Matrix x) {
    return (StridedMatrix){x.data, 1, x.columns};
}

void gemm_forward(Gemm *gemm, real *y, Matrix x, const GemmWeight *weight, size_t m) {
    gemm_check_input(gemm, x, m, weight->k, "x");
    product(gemm, &(Product){m, weight->n, weight->k, y, rows_of(x), {0}, &weight->forward, false});
}

void gemm_backward_input(Gemm *gemm, real *dx, Matrix dy, const GemmWeight *weight, size_t m) {
    gemm_check_input(gemm, dy, m, weight->n, "dy");
    product(gemm,
            &(Product){m, weight->k, weight->n, dx, rows_of(dy), {0}, &weight->backward, false});
}

void gemm_backward_input_add(Gemm *gemm, real *dx, Matrix dy, const GemmWeight *weight, size_t m) {
    gemm_check_input(gemm, dy, m, weight->n, "dy");
    product(gemm,
            &(Product){m, weight->k, weight->n, dx, rows_of(dy), {0}, &weight->backward, true});
}

void gemm_backward_weight(Gemm *gemm, real *dw, Matrix dy, Matrix x, const GemmWeight *weight,
                          size_t m) {
    gemm_check_input(gemm, dy, m, weight->n, "dy");
    gemm_check_input(gemm, x, m, weight->k, "x");
    const bool rows_are_outputs = weight->layout == WEIGHT_OUT_IN;
    const Matrix left = rows_are_outputs ? dy : x, right = rows_are_outputs ? x : dy;
    product(gemm, &(Product){left.columns, right.columns, m, dw, transpose_of(left), rows_of(right),
                             NULL, true});
}

#endif
