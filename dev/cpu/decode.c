#include "decode.h"

#include "bf16.h"
#include "memory.h"
#include "rows.h"
#include "threads.h"
#include "tile.h"
#include <stdlib.h>
#include <string.h>

enum {
#if defined(__AVX512F__) || defined(__aarch64__)
    STREAMS = 4, // the sums of that many streams stay in registers
#else
    STREAMS = 2,
#endif
    VECTORS = 2,
    PANEL = VECTORS * TILE_LANES, // columns of y that are summed together
    PARALLEL = 1 << 18,           // weights from which threads are worth their synchronisation
    AHEAD = 1 << 13               // prefetch distance in bytes
};

// A weight is cut into panels of PANEL columns of y. A panel consists of pairs, each multiplied
// with two neighbours in x: PANEL numbers for the even one, then PANEL numbers for the odd one; or
// in bf16 PANEL words of both, the even one in the lower half. Missing numbers are 0.

typedef uint32_t Words __attribute__((vector_size(TILE_LANES * sizeof(uint32_t))));
typedef float Floats __attribute__((vector_size(TILE_LANES * sizeof(float))));

static size_t panel_count(size_t n) {
    return (n + PANEL - 1) / PANEL;
}

static size_t pair_bytes(bool bf16) {
    return PANEL * (bf16 ? sizeof(uint32_t) : 2 * sizeof(real));
}

static size_t panel_bytes(size_t k, bool bf16) {
    return (k + 1) / 2 * pair_bytes(bf16);
}

// Packs one panel, `columns` columns of y.
// Element (j, i) of the weight is values[j * row + i * column].
static void pack_panel(char *panel, const real *values, size_t row, size_t column, size_t columns,
                       size_t k, bool bf16) {
    for (size_t i = 0; i < k; i++) {
        void *const pair = panel + i / 2 * pair_bytes(bf16);
        for (size_t j = 0; j < columns; j++) {
            const real value = values[j * row + i * column];
            if (bf16)
                ((uint32_t *)pair)[j] |= (uint32_t)bf16_from_float((float)value) << i % 2 * 16;
            else
                ((real *)pair)[i % 2 * PANEL + j] = value;
        }
    }
}

DecodeWeight decode_weight_create(Precision precision, const real *values, size_t n, size_t k,
                                  WeightLayout layout) {
    const bool bf16 = precision == PRECISION_BFLOAT16;
    const size_t row = layout == WEIGHT_OUT_IN ? k : 1, column = layout == WEIGHT_OUT_IN ? 1 : n;
    char *const panels = allocate(panel_count(n), panel_bytes(k, bf16), "a weight for decoding");
#pragma omp parallel for schedule(static)
    for (size_t j = 0; j < n; j += PANEL)
        pack_panel(panels + j / PANEL * panel_bytes(k, bf16), values + j * row, row, column,
                   n - j < PANEL ? n - j : PANEL, k, bf16);
    return (DecodeWeight){.n = n, .k = k, .bf16 = bf16, .panels = panels};
}

void decode_weight_free(DecodeWeight *weight) {
    free(weight->panels);
    *weight = (DecodeWeight){0};
}

// ---- products ---------------------------------------------------------------
// Always inlined, so that `streams` and `bf16` are constants.

typedef TileVector Row[VECTORS];

TILE_INLINE void load_pair(Row even, Row odd, const char *pair, bool bf16) {
    TILE_UNROLL
    for (size_t v = 0; v < VECTORS; v++) {
        if (bf16) {
            const Words words = ((const Words *)pair)[v];
            even[v] = __builtin_convertvector((Floats)(words << 16), TileVector);
            odd[v] = __builtin_convertvector((Floats)(words & 0xffff0000u), TileVector);
        } else {
            even[v] = ((const TileVector *)pair)[v];
            odd[v] = ((const TileVector *)pair)[VECTORS + v];
        }
    }
}

TILE_INLINE void multiply_add(Row sums, real x, const Row row) {
    TILE_UNROLL
    for (size_t v = 0; v < VECTORS; v++) sums[v] += x * row[v];
}

// Computes `columns` columns of y (streams, N) from x (streams, K), a panel and the bias.
TILE_INLINE void panel_product(real *restrict y, const real *restrict x, const char *panel,
                               const real *bias, size_t n, size_t k, size_t columns, size_t streams,
                               bool bf16) {
    Row evens[STREAMS] = {0}, odds[STREAMS] = {0}, even, odd;
    size_t i = 0;
    for (; i + 2 <= k; i += 2, panel += pair_bytes(bf16)) {
        load_pair(even, odd, panel, bf16);
        for (size_t at = 0; at < pair_bytes(bf16); at += 64) __builtin_prefetch(panel + AHEAD + at);
        TILE_UNROLL
        for (size_t s = 0; s < streams; s++) {
            multiply_add(evens[s], x[s * k + i], even);
            multiply_add(odds[s], x[s * k + i + 1], odd);
        }
    }
    if (i < k) {
        load_pair(even, odd, panel, bf16);
        TILE_UNROLL
        for (size_t s = 0; s < streams; s++) multiply_add(evens[s], x[s * k + i], even);
    }
    TILE_UNROLL
    for (size_t s = 0; s < streams; s++) {
        TILE_UNROLL
        for (size_t v = 0; v < VECTORS; v++) {
            const size_t j = v * TILE_LANES;
            if (j >= columns) continue;
            TileVector sum = evens[s][v] + odds[s][v];
            if (bias) sum += row_get(bias, j, columns);
            row_put(y + s * n, j, columns, sum);
        }
    }
}

// Computes the columns of y in the panels of a share. A panel stays in cache while all streams use
// it.
TILE_INLINE void product(real *restrict y, const real *restrict x, DecodeWeight w, const real *bias,
                         DecodeShare share, size_t streams, bool bf16) {
    const size_t n = w.n, k = w.k, end = share.begin + share.count;
    for (size_t j = share.begin; j < end; j += PANEL) {
        const char *const panel = w.panels + j / PANEL * panel_bytes(k, bf16);
        const real *const b = bias ? bias + j : NULL;
        const size_t columns = end - j < PANEL ? end - j : PANEL;
        size_t s = 0;
        for (; s + STREAMS <= streams; s += STREAMS)
            panel_product(y + s * n + j, x + s * k, panel, b, n, k, columns, STREAMS, bf16);
        for (; s < streams; s++)
            panel_product(y + s * n + j, x + s * k, panel, b, n, k, columns, 1, bf16);
    }
}

int decode_threads(size_t weights) {
    return weights < PARALLEL ? 1 : thread_limit();
}

DecodeShare decode_share(size_t n) {
    const size_t panels = panel_count(n), threads = (size_t)thread_count(),
                 thread = (size_t)thread_index();
    const size_t begin = panels * thread / threads * PANEL,
                 end = panels * (thread + 1) / threads * PANEL;
    return (DecodeShare){begin, (end < n ? end : n) - begin};
}

void decode_product(real *restrict y, const real *restrict x, const DecodeWeight *weight,
                    const real *bias, size_t streams) {
    const DecodeShare share = decode_share(weight->n);
    if (weight->bf16)
        product(y, x, *weight, bias, share, streams, true);
    else
        product(y, x, *weight, bias, share, streams, false);
}
