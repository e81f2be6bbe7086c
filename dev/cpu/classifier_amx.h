// The classifier's products and exponentials with AMX (amx.h). AMX multiplies so fast that logits
// must stay in the nearest cache. A strip of rows and a slice of the vocabulary become e_ij block
// by block: while the tile registers compute the logits of one block, the vector units compute the
// e_ij of the previous one. Every operand is stored as the tiles that are loaded, each 1 KiB in one
// piece: rows that are a power of two apart would map to a few sets of the cache and evict each
// other.
//
// C' and width' are channels and tokens of a slice rounded up to AMX_BLOCK; a word holds two bf16.
// All products are between amx_begin() and amx_end().
#ifndef CPU_CLASSIFIER_AMX_H
#define CPU_CLASSIFIER_AMX_H

#include "amx.h"
#include "real.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Packs a slice's weight (width, C) for both products, with zeros beyond width and C. `across`
// (width' / 32, C' / 32, 2 tiles) holds words of two channels, `down` (C' / 32, width' / 32, 2
// tiles) words of tokens t and t + 16.
void classifier_amx_pack(real *across, real *down, const real *weight, size_t width,
                         size_t channels);

// The input for AMX_BLOCK rows and a slice.
typedef struct {
    const uint16_t *h; // (32, C') bf16, `h_row` apart
    size_t h_row;
    const real *across;     // the slice's weight
    const real *bias;       // (width') -Inf beyond the vocabulary
    const real *shift;      // (32)
    const int32_t *targets; // (32) numbers within the slice; targets in other slices are outside it
    size_t width, channels; // width', C'
    size_t words_step;      // distance between blocks of `words`
} ClassifierStrip;

// Computes the logits, including the bias: (32, width').
void classifier_amx_logits(real *logits, const ClassifierStrip *strip);

// Computes e_ij = exp(l_ij - c_i), 0 for the target, whose logit is stored in target_logit (32),
// and the sums (32) of e_ij over the slice. If `left` is not NULL, keeps the e_ij in bf16: left
// (width' / 32, 32, 16 words of t and t + 16) for dh; words (width' / 32 blocks, 16 words of two
// rows, 32) for dE.
void classifier_amx_exponentials(real sums[AMX_BLOCK], real target_logit[AMX_BLOCK], real *left,
                                 real *words, const ClassifierStrip *strip);

// dh (32, C') += e E, from the strip's `left` and the slice's `down`.
void classifier_amx_add_dh(real *dh, const real *left, const real *down, size_t width,
                           size_t channels);

// Prepares the part of 32 rows in dE for classifier_amx_gradient(): `tiles` (C' / 16 + 1, 1 tile),
// of which the last holds the factors of the rows. h (16, C') holds words of two rows of factor h.
void classifier_amx_transpose(real *tiles, const real *h, const real factor[AMX_BLOCK],
                              size_t channels);

// For AMX_BLOCK tokens: sums (C' + 16, 32) = the tiles of `groups` times 32 rows, times their words
// of e (groups 16, 32). The sum of rows C' and C' + 1 belongs to dbias. `next`: words to prefetch,
// because they are read next.
void classifier_amx_gradient(real *sums, const real *tiles, const real *words, const real *next,
                             size_t groups, size_t channels);

#endif
