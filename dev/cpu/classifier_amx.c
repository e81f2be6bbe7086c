#include "classifier_amx.h"

#include "amx_tiles.h"
#include "bf16.h"
#include "tile.h"
#include "vector_math.h"

#if TILE_PAIRS

enum {
    HALF = AMX_BLOCK / 2,
    TILE = HALF * HALF, // words
    BLOCK = AMX_BLOCK * AMX_BLOCK,
    PAIRS = AMX_BLOCK / 2, // of rows
    DEPTH = 8              // groups of words per store of the sums: their e_ij stay in L1
};

// ---- operands ---------------------------------------------------------------
// Returns elements c to c + 16 of a row of n, zeros beyond it. A NULL row is all zeros.
static __m512 part_of_row(const float *row, size_t c, size_t n) {
    if (!row || c >= n) return _mm512_setzero_ps();
    if (c + HALF <= n) return _mm512_loadu_ps(row + c);
    return _mm512_maskz_loadu_ps((__mmask16)((1u << (n - c)) - 1), row + c);
}

void classifier_amx_pack(float *across, float *down, const float *weight, size_t width,
                         size_t channels) {
    const size_t blocks = (width + AMX_BLOCK - 1) / AMX_BLOCK,
                 steps = (channels + AMX_BLOCK - 1) / AMX_BLOCK;
    for (size_t b = 0; b < blocks; b++) {
        for (size_t s = 0; s < steps; s++) {
            TileVector pairs[2][HALF]; // of tokens t and t + 16: words of two channels
            for (size_t t = 0; t < HALF; t++) {
                const size_t token = b * AMX_BLOCK + t, c = s * AMX_BLOCK;
                const float *low = token < width ? weight + token * channels : NULL;
                const float *high =
                    token + HALF < width ? weight + (token + HALF) * channels : NULL;
                const __m512 x[2] = {part_of_row(low, c, channels),
                                     part_of_row(low, c + HALF, channels)};
                const __m512 y[2] = {part_of_row(high, c, channels),
                                     part_of_row(high, c + HALF, channels)};
                pairs[0][t] = (TileVector)_mm512_cvtne2ps_pbh(x[1], x[0]);
                pairs[1][t] = (TileVector)_mm512_cvtne2ps_pbh(y[1], y[0]);
                for (size_t half = 0; half < 2; half++) {
                    const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(y[half], x[half]);
                    tile_store(down + ((s * blocks + b) * 2 + half) * TILE + t * HALF,
                               (TileVector)tile_interleave(both));
                }
            }
            for (size_t half = 0; half < 2; half++) {
                float *tile = across + ((b * steps + s) * 2 + half) * TILE;
                tile_transpose(pairs[half]);
                for (size_t w = 0; w < HALF; w++) tile_store(tile + w * HALF, pairs[half][w]);
            }
        }
    }
}

void classifier_amx_transpose(float *tiles, const float *h, const float factor[AMX_BLOCK],
                              size_t channels) {
    for (size_t c = 0; c < channels; c += HALF) {
        TileVector square[HALF];
        for (size_t w = 0; w < HALF; w++) square[w] = tile_load(h + w * channels + c);
        tile_transpose(square);
        for (size_t w = 0; w < HALF; w++) tile_store(tiles + c * HALF + w * HALF, square[w]);
    }
    // Splits each factor into two bf16, so that dbias keeps 16 bits of it.
    float *last = tiles + channels * HALF;
    uint16_t parts[2][AMX_BLOCK];
    for (size_t i = 0; i < AMX_BLOCK; i++) {
        parts[0][i] = bf16_from_float(factor[i]);
        parts[1][i] = bf16_from_float(factor[i] - float_from_bf16(parts[0][i]));
    }
    memset(last, 0, TILE * sizeof(*last));
    memcpy(last, parts, sizeof(parts));
}

// ---- logits and exponentials ------------------------------------------------

TILE_INLINE void start_logits(const float *bias) {
    AMX_LOAD(0, bias, 0);
    AMX_LOAD(1, bias + HALF, 0);
    AMX_LOAD(2, bias, 0);
    AMX_LOAD(3, bias + HALF, 0);
}

// Adds the products of AMX_BLOCK channels.
TILE_INLINE void add_logits(const float *h, size_t h_row, const float *across) {
    AMX_LOAD(4, h, h_row);
    AMX_LOAD(6, across, HALF);
    AMX_LOAD(7, across + TILE, HALF);
    AMX_MULTIPLY_ADD(0, 4, 6);
    AMX_LOAD(5, h + HALF * h_row, h_row);
    AMX_MULTIPLY_ADD(1, 4, 7);
    AMX_MULTIPLY_ADD(2, 5, 6);
    AMX_MULTIPLY_ADD(3, 5, 7);
}

TILE_INLINE void store_block(float *to, size_t row) {
    AMX_STORE(0, to, row);
    AMX_STORE(1, to + HALF, row);
    AMX_STORE(2, to + HALF * row, row);
    AMX_STORE(3, to + HALF * row + HALF, row);
}

void classifier_amx_logits(float *logits, const ClassifierStrip *strip) {
    const size_t steps = strip->channels / AMX_BLOCK, h_row = strip->h_row / 2;
    const float *h = (const float *)(const void *)strip->h;
    for (size_t b = 0; b < strip->width / AMX_BLOCK; b++) {
        start_logits(strip->bias + b * AMX_BLOCK);
        for (size_t s = 0; s < steps; s++)
            add_logits(h + s * HALF, h_row, strip->across + (b * steps + s) * 2 * TILE);
        store_block(logits + b * AMX_BLOCK, strip->width);
    }
}

// Rounds to bf16 in the upper half; the lower half is not cleared.
TILE_INLINE __m512i round_up_half(__m512 e) {
    return _mm512_add_epi32(_mm512_castps_si512(e), _mm512_set1_epi32(0x8000));
}

// Returns words of a low and a high bf16 from two such vectors.
TILE_INLINE __m512i join(__m512i low, __m512i high) {
    return _mm512_mask_mov_epi16(_mm512_srli_epi32(low, 16), 0xaaaaaaaa, high);
}

// Input and output of the exponentials of a block.
typedef struct {
    const float *logits; // (32, 32)
    const float *shift;  // (32) times log2(e)
    __m512 *sums;        // (32) one sum per lane
    float *left, *words; // or NULL
} Exponentials;

// Rows 2p and 2p + 1.
TILE_INLINE void two_rows(const Exponentials *x, size_t p, bool keep) {
    __m512 e[2][2];
    for (size_t r = 0; r < 2; r++) {
        const size_t row = 2 * p + r;
        const __m512 shift = _mm512_set1_ps(x->shift[row]), base = _mm512_set1_ps((float)LOG2_E);
        for (size_t half = 0; half < 2; half++) {
            const __m512 logits = _mm512_load_ps(x->logits + row * AMX_BLOCK + half * HALF);
            e[r][half] = (__m512)tile_exp2((TileVector)_mm512_fmsub_ps(logits, base, shift), false);
        }
        x->sums[row] = _mm512_add_ps(x->sums[row], _mm512_add_ps(e[r][0], e[r][1]));
    }
    if (!keep) return;
    const __m512i a[2] = {round_up_half(e[0][0]), round_up_half(e[0][1])};
    const __m512i b[2] = {round_up_half(e[1][0]), round_up_half(e[1][1])};
    _mm512_store_si512((void *)(x->left + 2 * p * HALF), join(a[0], a[1]));
    _mm512_store_si512((void *)(x->left + (2 * p + 1) * HALF), join(b[0], b[1]));
    _mm512_store_si512((void *)(x->words + p * AMX_BLOCK), join(a[0], b[0]));
    _mm512_store_si512((void *)(x->words + p * AMX_BLOCK + HALF), join(a[1], b[1]));
}

// Pairs of rows from *p to end.
TILE_INLINE void rows_until(const Exponentials *x, size_t *p, size_t end, bool keep) {
    for (; *p < end; (*p)++) two_rows(x, *p, keep);
}

// For targets among the tokens from `first` on: moves their logits from the block (32, 32) to
// target_logit, and replaces them by -Inf.
static void take_targets(float *logits, float *target_logit, const int32_t *targets,
                         int32_t first) {
    for (size_t i = 0; i < AMX_BLOCK; i += HALF) {
        const __m512i place = _mm512_sub_epi32(_mm512_loadu_si512((const void *)(targets + i)),
                                               _mm512_set1_epi32(first));
        unsigned found = _mm512_cmplt_epu32_mask(place, _mm512_set1_epi32(AMX_BLOCK));
        for (; found; found &= found - 1) {
            const size_t row = i + (size_t)__builtin_ctz(found);
            float *logit = logits + row * AMX_BLOCK + (targets[row] - first);
            target_logit[row] = *logit;
            *logit = -INFINITY;
        }
    }
}

// Computes the logits of each block, and between its products the exponentials of the previous
// block.
TILE_INLINE void exponentials_of_slice(const ClassifierStrip *strip, __m512 *sums,
                                       float *target_logit, float *left, float *words, bool keep) {
    _Alignas(64) float logits[2][BLOCK], shift[AMX_BLOCK];
    const size_t blocks = strip->width / AMX_BLOCK, steps = strip->channels / AMX_BLOCK;
    const size_t h_row = strip->h_row / 2;
    const float *h = (const float *)(const void *)strip->h;
    for (size_t i = 0; i < AMX_BLOCK; i++) shift[i] = strip->shift[i] * (float)LOG2_E;
    for (size_t b = 0; b <= blocks; b++) {
        const Exponentials before = {logits[(b + 1) % 2], shift, sums,
                                     keep && b > 0 ? left + (b - 1) * BLOCK / 2 : NULL,
                                     keep && b > 0 ? words + (b - 1) * strip->words_step : NULL};
        size_t p = b > 0 ? 0 : PAIRS;
        if (b == blocks) {
            rows_until(&before, &p, PAIRS, keep);
            return;
        }
        start_logits(strip->bias + b * AMX_BLOCK);
        for (size_t s = 0; s < steps; s++) {
            // A few pairs of rows after each product: more at once would fill the queue in which
            // products wait.
            const float *rows = h + s * HALF, *tokens = strip->across + (b * steps + s) * 2 * TILE;
            const size_t done = PAIRS * 4 * s, all = 4 * steps;
            AMX_LOAD(4, rows, h_row);
            AMX_LOAD(6, tokens, HALF);
            AMX_MULTIPLY_ADD(0, 4, 6);
            rows_until(&before, &p, (done + PAIRS) / all, keep);
            AMX_LOAD(7, tokens + TILE, HALF);
            AMX_MULTIPLY_ADD(1, 4, 7);
            rows_until(&before, &p, (done + 2 * PAIRS) / all, keep);
            AMX_LOAD(5, rows + HALF * h_row, h_row);
            AMX_MULTIPLY_ADD(2, 5, 6);
            rows_until(&before, &p, (done + 3 * PAIRS) / all, keep);
            AMX_MULTIPLY_ADD(3, 5, 7);
            rows_until(&before, &p, (done + 4 * PAIRS) / all, keep);
        }
        store_block(logits[b % 2], AMX_BLOCK);
        take_targets(logits[b % 2], target_logit, strip->targets, (int32_t)(b * AMX_BLOCK));
    }
}

void classifier_amx_exponentials(float sums[AMX_BLOCK], float target_logit[AMX_BLOCK], float *left,
                                 float *words, const ClassifierStrip *strip) {
    __m512 lanes[AMX_BLOCK];
    for (size_t i = 0; i < AMX_BLOCK; i++) lanes[i] = _mm512_setzero_ps();
    if (left)
        exponentials_of_slice(strip, lanes, target_logit, left, words, true);
    else
        exponentials_of_slice(strip, lanes, target_logit, NULL, NULL, false);
    for (size_t i = 0; i < AMX_BLOCK; i++) sums[i] = _mm512_reduce_add_ps(lanes[i]);
}

// ---- gradients --------------------------------------------------------------

TILE_INLINE void load_block(const float *from, size_t row) {
    AMX_LOAD(0, from, row);
    AMX_LOAD(1, from + HALF, row);
    AMX_LOAD(2, from + HALF * row, row);
    AMX_LOAD(3, from + HALF * row + HALF, row);
}

void classifier_amx_add_dh(float *dh, const float *left, const float *down, size_t width,
                           size_t channels) {
    const size_t blocks = width / AMX_BLOCK;
    for (size_t s = 0; s < channels / AMX_BLOCK; s++) {
        load_block(dh + s * AMX_BLOCK, channels);
        for (size_t b = 0; b < blocks; b++)
            add_logits(left + b * BLOCK / 2, HALF, down + (s * blocks + b) * 2 * TILE);
        store_block(dh + s * AMX_BLOCK, channels);
    }
}

void classifier_amx_gradient(float *sums, const float *tiles, const float *words, const float *next,
                             size_t groups, size_t channels) {
    const size_t steps = channels / AMX_BLOCK, of_group = (channels + HALF) * HALF;
    const size_t share =
        (BLOCK / 2 + steps - 1) / steps; // words of the next group to prefetch per step
    memset(sums, 0, (channels + HALF) * AMX_BLOCK * sizeof(*sums));
    for (size_t first = 0; first < groups; first += DEPTH) {
        const size_t end = groups - first < DEPTH ? groups : first + DEPTH;
        for (size_t s = 0; s < steps; s++) {
            load_block(sums + s * BLOCK, AMX_BLOCK);
            for (size_t g = first; g < end; g++) {
                const float *rows = tiles + g * of_group + s * 2 * TILE, *e = words + g * BLOCK / 2;
                const float *ahead = next + g * BLOCK / 2 + s * share;
                for (size_t i = 0; i < share; i += HALF) __builtin_prefetch(ahead + i, 0, 2);
                AMX_LOAD(4, rows, HALF);
                AMX_LOAD(6, e, AMX_BLOCK);
                AMX_LOAD(7, e + HALF, AMX_BLOCK);
                AMX_MULTIPLY_ADD(0, 4, 6);
                AMX_LOAD(5, rows + TILE, HALF);
                AMX_MULTIPLY_ADD(1, 4, 7);
                AMX_MULTIPLY_ADD(2, 5, 6);
                AMX_MULTIPLY_ADD(3, 5, 7);
            }
            store_block(sums + s * BLOCK, AMX_BLOCK);
        }
        float *factors = sums + steps * BLOCK;
        AMX_LOAD(0, factors, AMX_BLOCK);
        AMX_LOAD(1, factors + HALF, AMX_BLOCK);
        for (size_t g = first; g < end; g++) {
            AMX_LOAD(4, tiles + g * of_group + steps * 2 * TILE, HALF);
            AMX_LOAD(6, words + g * BLOCK / 2, AMX_BLOCK);
            AMX_LOAD(7, words + g * BLOCK / 2 + HALF, AMX_BLOCK);
            AMX_MULTIPLY_ADD(0, 4, 6);
            AMX_MULTIPLY_ADD(1, 4, 7);
        }
        AMX_STORE(0, factors, AMX_BLOCK);
        AMX_STORE(1, factors + HALF, AMX_BLOCK);
    }
}

#endif
