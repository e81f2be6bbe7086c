#include "dropout.h"

#include "random.h"
#include "tile.h"
#include <math.h>
#include <string.h>

enum {
    LANES = 16,
    WORDS = 4,
    CHANCES = 65536,
    ROUNDS = 10,
    TOGETHER = 3 // as many blocks as fit in registers: each round waits for the previous one
};

Dropout dropout_create(double rate, uint64_t seed, uint64_t step, uint32_t site) {
    Random random = random_stream(seed, RANDOM_DROPOUT, (uint32_t)step, (uint32_t)(step >> 32));
    const uint32_t low = random_u32(&random), high = random_u32(&random);
    const double kept = fmax(1.0, round(CHANCES * (1.0 - rate)));
    return (Dropout){.key = {low, high},
                     .site = site,
                     .threshold = (uint32_t)kept,
                     .scale = (real)(CHANCES / kept)};
}

typedef struct {
    uint64_t round[ROUNDS][2];
} Keys;

static Keys round_keys(const Dropout *dropout) {
    Keys keys;
    for (uint32_t r = 0; r < ROUNDS; r++) {
        keys.round[r][0] = dropout->key[0] + r * 0x9E3779B9u;
        keys.round[r][1] = dropout->key[1] + r * 0xBB67AE85u;
    }
    return keys;
}

// Philox4x32-10 (random.h) for `count` blocks from `block` on, `stride` apart: words (count, WORDS,
// LANES). Each 32-bit number is kept in 64 bits with an arbitrary upper half. Vector units multiply
// 32 by 32 bits in this layout, so that nothing moves between lanes.
#if defined(__AVX512F__)

// Intrinsics, because compilers multiply 64 by 64 bits here.
TILE_INLINE void philox(const Keys *keys, uint64_t block, uint64_t stride, uint32_t site,
                        size_t count, uint32_t *restrict words) {
    enum { XOR = 0x96 }; // truth table of a ^ b ^ c
    const __m512i multiplier0 = _mm512_set1_epi64(0xD2511F53),
                  multiplier1 = _mm512_set1_epi64(0xCD9E8D57);
    const __m512i lanes = _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i lower =
        _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    __m512i c[2 * TOGETHER][WORDS]; // half the lanes of a block each
    TILE_UNROLL
    for (size_t h = 0; h < 2 * count; h++) {
        const uint64_t first = (block + h / 2 * stride) * LANES; // a multiple of LANES
        c[h][0] =
            _mm512_add_epi64(_mm512_set1_epi64((long long)(first + h % 2 * (LANES / 2))), lanes);
        c[h][1] = _mm512_set1_epi64((long long)(first >> 32));
        c[h][2] = _mm512_set1_epi64(site);
        c[h][3] = _mm512_setzero_si512();
    }
    TILE_UNROLL
    for (size_t r = 0; r < ROUNDS; r++) {
        const __m512i key0 = _mm512_set1_epi64((long long)keys->round[r][0]);
        const __m512i key1 = _mm512_set1_epi64((long long)keys->round[r][1]);
        TILE_UNROLL
        for (size_t h = 0; h < 2 * count; h++) {
            const __m512i p0 = _mm512_mul_epu32(c[h][0], multiplier0);
            const __m512i p1 = _mm512_mul_epu32(c[h][2], multiplier1);
            c[h][0] = _mm512_ternarylogic_epi64(_mm512_srli_epi64(p1, 32), c[h][1], key0, XOR);
            c[h][1] = p1;
            c[h][2] = _mm512_ternarylogic_epi64(_mm512_srli_epi64(p0, 32), c[h][3], key1, XOR);
            c[h][3] = p0;
        }
    }
    TILE_UNROLL
    for (size_t b = 0; b < count; b++) {
        TILE_UNROLL
        for (size_t w = 0; w < WORDS; w++)
            _mm512_storeu_si512(words + (b * WORDS + w) * LANES,
                                _mm512_permutex2var_epi32(c[2 * b][w], lower, c[2 * b + 1][w]));
    }
}

#elif defined(__AVX2__)

// Two quarters of a block's lanes at a time: more do not fit in registers.
static inline void philox(const Keys *keys, uint64_t block, uint64_t stride, uint32_t site,
                          size_t count, uint32_t *restrict words) {
    enum { QUARTER = LANES / 4, TWO = 2, EVEN = 0x88, IN_ORDER = 0xD8 };
    const __m256i multiplier0 = _mm256_set1_epi64x(0xD2511F53),
                  multiplier1 = _mm256_set1_epi64x(0xCD9E8D57);
    const __m256i lanes = _mm256_set_epi64x(3, 2, 1, 0);
    for (size_t h = 0; h < count * 4; h += TWO) {
        const uint64_t first = (block + h / 4 * stride) * LANES; // a multiple of LANES
        __m256i c[TWO][WORDS];
        TILE_UNROLL
        for (size_t i = 0; i < TWO; i++) {
            const uint64_t lane = first + (h % 4 + i) * QUARTER;
            c[i][0] = _mm256_add_epi64(_mm256_set1_epi64x((long long)lane), lanes);
            c[i][1] = _mm256_set1_epi64x((long long)(first >> 32));
            c[i][2] = _mm256_set1_epi64x(site);
            c[i][3] = _mm256_setzero_si256();
        }
        TILE_UNROLL
        for (size_t r = 0; r < ROUNDS; r++) {
            const __m256i key0 = _mm256_set1_epi64x((long long)keys->round[r][0]);
            const __m256i key1 = _mm256_set1_epi64x((long long)keys->round[r][1]);
            TILE_UNROLL
            for (size_t i = 0; i < TWO; i++) {
                const __m256i p0 = _mm256_mul_epu32(c[i][0], multiplier0);
                const __m256i p1 = _mm256_mul_epu32(c[i][2], multiplier1);
                c[i][0] =
                    _mm256_xor_si256(_mm256_xor_si256(c[i][1], key0), _mm256_srli_epi64(p1, 32));
                c[i][1] = p1;
                c[i][2] =
                    _mm256_xor_si256(_mm256_xor_si256(c[i][3], key1), _mm256_srli_epi64(p0, 32));
                c[i][3] = p0;
            }
        }
        uint32_t *out = words + h / 4 * WORDS * LANES + h % 4 * QUARTER;
        TILE_UNROLL
        for (size_t w = 0; w < WORDS; w++) {
            const __m256 lower = _mm256_shuffle_ps((__m256)c[0][w], (__m256)c[1][w], EVEN);
            _mm256_storeu_si256((__m256i *)(out + w * LANES),
                                _mm256_permute4x64_epi64((__m256i)lower, IN_ORDER));
        }
    }
}

#else

static inline void philox(const Keys *keys, uint64_t block, uint64_t stride, uint32_t site,
                          size_t count, uint32_t *restrict words) {
    for (size_t b = 0; b < count; b++) {
        uint32_t *restrict out = words + b * WORDS * LANES;
#pragma omp simd
        for (uint32_t lane = 0; lane < LANES; lane++) {
            const uint64_t n = (block + b * stride) * LANES + lane;
            uint64_t c0 = n, c1 = n >> 32, c2 = site, c3 = 0;
            for (int r = 0; r < ROUNDS; r++) {
                const uint64_t p0 = (uint64_t)(uint32_t)c0 * 0xD2511F53u;
                const uint64_t p1 = (uint64_t)(uint32_t)c2 * 0xCD9E8D57u;
                c0 = (p1 >> 32) ^ c1 ^ keys->round[r][0];
                c1 = p1;
                c2 = (p0 >> 32) ^ c3 ^ keys->round[r][1];
                c3 = p0;
            }
            out[lane] = (uint32_t)c0;
            out[LANES + lane] = (uint32_t)c1;
            out[2 * LANES + lane] = (uint32_t)c2;
            out[3 * LANES + lane] = (uint32_t)c3;
        }
    }
}

#endif

// bits (DROPOUT_BLOCK / 32) of a block: whether the lower and the upper 16 bits of its words are
// below the threshold.
static inline void compare(const uint32_t words[WORDS * LANES], uint32_t threshold,
                           uint32_t *restrict bits) {
    TILE_UNROLL
    for (size_t pair = 0; pair < WORDS / 2; pair++) {
        const uint32_t *at = words + pair * 2 * LANES;
#if defined(__AVX512BW__) && defined(__BMI2__)
        // Compares both halves of a word at once: lower halves give the even bits of the mask,
        // upper halves the odd bits.
        const __m512i limits = _mm512_set1_epi16((short)threshold);
        const uint64_t first = _mm512_cmplt_epu16_mask(_mm512_loadu_si512(at), limits);
        const uint64_t second = _mm512_cmplt_epu16_mask(_mm512_loadu_si512(at + LANES), limits);
        const uint64_t mask = first | second << 32;
        bits[pair] = (uint32_t)_pext_u64(mask, 0x5555555555555555);
        bits[pair + 2] = (uint32_t)_pext_u64(mask, 0xAAAAAAAAAAAAAAAA);
#elif defined(__AVX2__)
        // Compares both halves of a word at once, as signed numbers. The mask gets the highest bit
        // of each half.
        const __m256i sign = _mm256_set1_epi16(INT16_MIN);
        const __m256i limits = _mm256_xor_si256(_mm256_set1_epi16((short)threshold), sign);
        uint32_t low = 0, high = 0;
        TILE_UNROLL
        for (uint32_t i = 0; i < 2 * LANES; i += 8) {
            const __m256i word = _mm256_loadu_si256((const __m256i *)(at + i));
            const __m256i below = _mm256_cmpgt_epi16(limits, _mm256_xor_si256(word, sign));
            low |= (uint32_t)_mm256_movemask_ps((__m256)_mm256_slli_epi32(below, 16)) << i;
            high |= (uint32_t)_mm256_movemask_ps((__m256)below) << i;
        }
        bits[pair] = low;
        bits[pair + 2] = high;
#else
        const uint32_t limit = threshold << 16; // compared with 16 bits at the top of a word
        uint32_t low = 0, high = 0;
#pragma omp simd reduction(| : low, high)
        for (uint32_t i = 0; i < 2 * LANES; i++) {
            low |= (uint32_t)(at[i] << 16 < limit) << i;
            high |= (uint32_t)(at[i] < limit) << i;
        }
        bits[pair] = low;
        bits[pair + 2] = high;
#endif
    }
}

void dropout_bits(const Dropout *dropout, uint64_t block, uint64_t stride, size_t count,
                  uint32_t *restrict bits) {
    if (dropout->threshold == CHANCES) {
        memset(bits, 0xff, count * DROPOUT_BLOCK / 8);
        return;
    }
    const Keys keys = round_keys(dropout);
    for (size_t done = 0; done < count; done += TOGETHER) {
        const size_t n = count - done < TOGETHER ? count - done : TOGETHER;
        uint32_t words[TOGETHER * WORDS * LANES], group[TOGETHER * DROPOUT_BLOCK / 32];
        philox(&keys, block + done * stride, stride, dropout->site, TOGETHER, words);
        TILE_UNROLL
        for (size_t b = 0; b < TOGETHER; b++)
            compare(words + b * WORDS * LANES, dropout->threshold,
                    group + b * (DROPOUT_BLOCK / 32));
        memcpy(bits + done * (DROPOUT_BLOCK / 32), group, n * (DROPOUT_BLOCK / 8));
    }
}

// Computes the factors of `count` whole blocks, for a threshold below 65536. `count` is a constant.
TILE_INLINE void block_factors(const Keys *keys, const Dropout *dropout, uint64_t block,
                               size_t count, real *restrict factors) {
    uint32_t words[TOGETHER * WORDS * LANES];
    philox(keys, block, 1, dropout->site, count, words);
    const uint32_t limit = dropout->threshold << 16;
    const real scale = dropout->scale;
    for (size_t b = 0; b < count; b++) {
        const uint32_t *restrict at = words + b * WORDS * LANES;
        real *restrict out = factors + b * DROPOUT_BLOCK;
#if defined(__AVX512F__) && !defined(REAL_IS_DOUBLE)
        // Intrinsics, because compilers may prefer shorter vectors.
        const __m512i limits = _mm512_set1_epi32((int)limit);
        const __m512 scales = _mm512_set1_ps(scale);
        TILE_UNROLL
        for (size_t i = 0; i < DROPOUT_BLOCK / 2; i += LANES) {
            const __m512i word = _mm512_loadu_si512(at + i);
            const __mmask16 low = _mm512_cmplt_epu32_mask(_mm512_slli_epi32(word, 16), limits);
            const __mmask16 high = _mm512_cmplt_epu32_mask(word, limits);
            _mm512_storeu_ps(out + i, _mm512_maskz_mov_ps(low, scales));
            _mm512_storeu_ps(out + DROPOUT_BLOCK / 2 + i, _mm512_maskz_mov_ps(high, scales));
        }
#else
        for (size_t i = 0; i < DROPOUT_BLOCK / 2; i++) {
            out[i] = at[i] << 16 < limit ? scale : 0;
            out[DROPOUT_BLOCK / 2 + i] = at[i] < limit ? scale : 0;
        }
#endif
    }
}

void dropout_factors(const Dropout *dropout, uint64_t first, size_t count, real *restrict factors) {
    if (dropout->threshold == CHANCES) {
        for (size_t i = 0; i < count; i++) factors[i] = 1;
        return;
    }
    const Keys keys = round_keys(dropout);
    for (size_t done = 0, n; done < count; done += n) {
        const uint64_t element = first + done, block = element / DROPOUT_BLOCK;
        const size_t skip = element % DROPOUT_BLOCK, left = count - done;
        if (skip == 0 && left >= TOGETHER * DROPOUT_BLOCK) {
            n = TOGETHER * DROPOUT_BLOCK;
            block_factors(&keys, dropout, block, TOGETHER, factors + done);
        } else if (skip == 0 && left >= DROPOUT_BLOCK) {
            n = DROPOUT_BLOCK;
            block_factors(&keys, dropout, block, 1, factors + done);
        } else {
            real whole[DROPOUT_BLOCK];
            n = left < DROPOUT_BLOCK - skip ? left : DROPOUT_BLOCK - skip;
            block_factors(&keys, dropout, block, 1, whole);
            memcpy(factors + done, whole + skip, n * sizeof(real));
        }
    }
}

void dropout_apply(const Dropout *dropout, uint64_t first, size_t count, real *restrict x) {
    enum { PIECE = 4 * DROPOUT_BLOCK }; // elements whose factors are computed at a time
    for (size_t c = 0; c < count; c += PIECE) {
        const size_t n = count - c < PIECE ? count - c : PIECE;
        real factors[PIECE];
        dropout_factors(dropout, first + c, n, factors);
        for (size_t i = 0; i < n; i++) x[c + i] *= factors[i];
    }
}
