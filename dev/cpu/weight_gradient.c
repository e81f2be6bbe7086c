#include "weight_gradient.h"

#include "sizes.h"
#include "threads.h"
#include "tile.h"

bool weight_gradient_suits(size_t n, size_t k) {
    return n % AMX_BLOCK == 0 && k % AMX_BLOCK == 0;
}

#if TILE_PAIRS

// A thread computes a block of up to BLOCK numbers of dw. It packs ROWS rows of both matrices at a
// time as words of two rows; the words and the block stay in its L2 cache.
enum {
    BLOCK = 1 << 16,
    SIDE = 512, // largest side of a block
    ROWS = 256,
    DEPTH = ROWS / 2,         // words
    LEFT_STRIDE = DEPTH + 16, // not a power of two: rows would share sets of the L1 cache
    PANEL = AMX_BLOCK,        // columns of the right operand side by side
    AHEAD = 32                // rows to prefetch
};

typedef struct {
    float left[SIDE * LEFT_STRIDE]; // (SIDE, DEPTH), transposed
    float right[SIDE * DEPTH];      // panels of (DEPTH, PANEL)
} Packed;

// Part of a matrix, from a first row and column on.
typedef struct {
    const uint16_t *data;
    size_t columns, rows;
} PackedRows;

// Words of 16 columns from `column` on, of rows 2s and 2s + 1; missing rows are 0.
TILE_INLINE TileVector words_at(PackedRows x, size_t s, size_t column) {
    const uint16_t *even = x.data + 2 * s * x.columns + column;
    __m512i both = _mm512_setzero_si512();
    __builtin_prefetch(even + AHEAD * x.columns);
    __builtin_prefetch(even + (AHEAD + 1) * x.columns);
    if (2 * s < x.rows) both = _mm512_zextsi256_si512(_mm256_loadu_si256((const void *)even));
    if (2 * s + 1 < x.rows)
        both = _mm512_inserti64x4(both, _mm256_loadu_si256((const void *)(even + x.columns)), 1);
    return (TileVector)tile_interleave(both);
}

static void pack_left(float *out, PackedRows x, size_t depth, size_t count) {
    for (size_t s = 0; s < depth; s += TILE_LANES) {
        for (size_t i = 0; i < count; i += TILE_LANES) {
            TileVector square[TILE_LANES];
            TILE_UNROLL
            for (size_t l = 0; l < TILE_LANES; l++) square[l] = words_at(x, s + l, i);
            tile_transpose(square);
            TILE_UNROLL
            for (size_t l = 0; l < TILE_LANES; l++)
                tile_store(out + (i + l) * LEFT_STRIDE + s, square[l]);
        }
    }
}

static void pack_right(float *out, PackedRows x, size_t depth, size_t count) {
    for (size_t s = 0; s < depth; s++) {
        for (size_t j = 0; j < count; j += PANEL) {
            float *words = out + j * DEPTH + s * PANEL;
            tile_store(words, words_at(x, s, j));
            tile_store(words + TILE_LANES, words_at(x, s, j + TILE_LANES));
        }
    }
}

// Adds the gradient of one block to dw (n, k), rows `stride` apart.
static void block_gradient(float *dw, size_t stride, const uint16_t *left, size_t left_columns,
                           const uint16_t *right, size_t right_columns, size_t n, size_t k,
                           size_t m, Packed *packed) {
    for (size_t row = 0; row < m; row += ROWS) {
        const size_t rows = smaller(m - row, ROWS), depth = round_up((rows + 1) / 2, AMX_WORDS);
        pack_left(packed->left, (PackedRows){left + row * left_columns, left_columns, rows}, depth,
                  n);
        pack_right(packed->right, (PackedRows){right + row * right_columns, right_columns, rows},
                   depth, k);
        for (size_t j = 0; j < k; j += PANEL)
            amx_product(dw + j, stride, dw + j, stride, (TileView){packed->left, LEFT_STRIDE, 1},
                        packed->right + j * DEPTH, PANEL, n, PANEL, depth);
    }
}

bool weight_gradient_available(void) {
    return tile_multiplier(true) == MULTIPLY_AMX;
}

size_t weight_gradient_scratch(int threads) {
    return (size_t)threads * sizeof(Packed);
}

static size_t parts(size_t count, size_t size) {
    return (count + size - 1) / size;
}

void weight_gradient(real *dw, const uint16_t *left, const uint16_t *right, size_t n, size_t k,
                     size_t m, void *scratch, int threads) {
    Packed *packed = scratch;
    size_t width = smaller(k, SIDE), height = smaller(n, SIDE);
    if (width * height > BLOCK) height = BLOCK / SIDE;
    // Use smaller blocks if there would be fewer blocks than threads.
    while (parts(n, height) * parts(k, width) < (size_t)threads && width * height > PANEL * PANEL) {
        size_t *longer = width > height ? &width : &height;
        *longer = round_up(*longer / 2, PANEL);
    }
    const size_t downwards = parts(n, height), blocks = downwards * parts(k, width);
#pragma omp parallel num_threads(threads)
    {
        amx_begin();
#pragma omp for schedule(static)
        for (size_t block = 0; block < blocks; block++) {
            const size_t i = block % downwards * height, j = block / downwards * width;
            block_gradient(dw + i * k + j, k, left + i, n, right + j, k, smaller(n - i, height),
                           smaller(k - j, width), m, &packed[thread_index()]);
        }
        amx_end();
    }
}

#else

bool weight_gradient_available(void) {
    return false;
}

size_t weight_gradient_scratch(int threads) {
    (void)threads;
    return 0;
}

void weight_gradient(real *dw, const uint16_t *left, const uint16_t *right, size_t n, size_t k,
                     size_t m, void *scratch, int threads) {
    (void)dw;
    (void)left;
    (void)right;
    (void)n;
    (void)k;
    (void)m;
    (void)scratch;
    (void)threads;
}

#endif
