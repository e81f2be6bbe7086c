// Softmax attention (softmax_attention.h) of one token at a time to the keys and values so far.
#include "softmax_attention.h"

#include "memory.h"
#include "rows.h"
#include "softmax_attention_amx.h"
#include "tile.h"
#include "vector_math.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

// offsets (n): where the cache holds the keys and values of positions j0, j0 + 1, ... of a head of
// a stream. Prefetches those of the next head: they are too few for the hardware prefetcher.
static void find_rows(size_t *offsets, const AttentionCache *cache, size_t stream, size_t head,
                      size_t heads, size_t j0, size_t n, size_t size) {
    const uint32_t *origins = cache->origins ? cache->origins + stream * cache->positions : NULL;
    size_t row = j0 % cache->positions;
    for (size_t j = 0; j < n; j++) {
        const size_t origin = origins ? origins[row] : stream;
        offsets[j] = ((origin * heads + head) * cache->positions + row) * size;
        for (size_t d = 0; d < size; d += TILE_LANES) {
            __builtin_prefetch(cache->keys + offsets[j] + cache->positions * size + d);
            __builtin_prefetch(cache->values + offsets[j] + cache->positions * size + d);
        }
        if (++row == cache->positions) row = 0;
    }
}

// Computes scores (n) of a query, padded with -Inf to a whole vector. Returns the greatest, or
// `top` if that is greater.
static real decode_scores(real *restrict scores, const real *restrict q, const real *restrict keys,
                          const size_t *offsets, size_t n, size_t size, real top) {
    TileVector greatest = (TileVector){0} + top;
    for (size_t j = 0; j < n; j += TILE_LANES) {
        TileVector lanes[TILE_LANES];
        for (size_t l = 0; l < TILE_LANES; l++) {
            lanes[l] = (TileVector){0} + (j + l < n ? 0 : -INFINITY);
            for (size_t d = 0; d < size && j + l < n; d += TILE_LANES)
                lanes[l] += row_get(q, d, size) * row_get(keys + offsets[j + l], d, size);
        }
        const TileVector sums = tile_sums_of_lanes(lanes);
        greatest = tile_max(sums, greatest);
        tile_store(scores + j, sums);
    }
    return tile_greatest_lane(greatest);
}

// Computes y (D) of the query at `position` over the keys of its head; q (D) is multiplied with
// log2(e) / sqrt(D) already.
static void decode_unit(real *restrict y, const real *restrict q, const AttentionCache *cache,
                        size_t stream, size_t head, size_t heads, double sink, size_t position,
                        size_t size) {
    const bool full = cache->window > 0 && position >= cache->window;
    const size_t begin = full ? position + 1 - cache->window : 0;
    real top = sink > 0 ? (real)log2(sink) : (real)-1e30, sum = sink > 0 ? 1 : 0;
    for (size_t d = 0; d < size; d++) y[d] = 0;
    for (size_t j0 = begin; j0 <= position; j0 += KEYS) {
        const size_t n = smaller(KEYS, position + 1 - j0);
        size_t offsets[KEYS];
        _Alignas(64) real weights[KEYS];
        find_rows(offsets, cache, stream, head, heads, j0, n, size);
        const real raised = decode_scores(weights, q, cache->keys, offsets, n, size, top);
        TileVector sums = {0};
        for (size_t j = 0; j < n; j += TILE_LANES) {
            const TileVector e = tile_exp2(tile_load(weights + j) - raised, false);
            sums += e;
            tile_store(weights + j, e);
        }
        const real shrink = (real)exp2((double)(top - raised));
        top = raised;
        sum = sum * shrink + tile_sum_of_lanes(sums);
        for (size_t d = 0; d < size; d += TILE_LANES) {
            TileVector v = row_get(y, d, size) * shrink;
            for (size_t j = 0; j < n; j++)
                v += weights[j] * row_get(cache->values + offsets[j], d, size);
            row_put(y, d, size, v);
        }
    }
    for (size_t d = 0; d < size; d++) y[d] /= sum;
}

void softmax_attention_decode(real *restrict y, const AttentionCache *cache, real *restrict qkv,
                              const real *restrict bias, double sink, size_t position,
                              size_t streams, size_t channels, size_t heads) {
    const size_t size = channels / heads;
    const real scale = (real)(LOG2_E / sqrt((double)size));
#pragma omp for schedule(static) nowait
    for (size_t unit = 0; unit < streams * heads; unit++) {
        const size_t stream = unit / heads, head = unit % heads, at = head * size;
        const size_t row = (unit * cache->positions + position % cache->positions) * size;
        real *q = qkv + stream * 3 * channels + at, *k = q + channels, *v = k + channels;
        for (size_t d = 0; d < size; d++) {
            q[d] = (q[d] + (bias ? bias[at + d] : 0)) * scale;
            cache->keys[row + d] = k[d] + (bias ? bias[channels + at + d] : 0);
            cache->values[row + d] = v[d] + (bias ? bias[2 * channels + at + d] : 0);
        }
        decode_unit(y + stream * channels + at, q, cache, stream, head, heads, sink, position,
                    size);
    }
}
