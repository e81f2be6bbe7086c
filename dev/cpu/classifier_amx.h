// The classifier's products and exponentials where a processor has AMX (amx.h), which multiplies so
// fast that logits must not leave the nearest cache: a strip of rows and a slice of the vocabulary
// become e_ij block by block, and while the tile registers make the logits of one block, vector
// units make e_ij of the one before. Every operand is stored as the tiles that read it, each 1 KiB
// in one piece: rows that are a power of two apart would share a few sets of the cache and drive
// each other out.
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

// The slice's weight (width, C) as both products read it, zeros beyond width and C. `across`
// (width' / 32, C' / 32, 2 tiles): words of two channels; `down` (C' / 32, width' / 32, 2 tiles):
// words of tokens t and t
// + 16.
void classifier_amx_pack(real *across, real *down, const real *weight, size_t width,
                         size_t channels);

// AMX_BLOCK rows and a slice.
typedef struct {
    const uint16_t *h; // (32, C') bf16, `h_row` apart
    size_t h_row;
    const real *across;     // the slice's weight
    const real *bias;       // (width') -Inf beyond the vocabulary
    const real *shift;      // (32)
    const int32_t *targets; // (32) their places in the slice; those outside are in another
    size_t width, channels; // width', C'
    size_t words_step;      // from one block of `words` to the next
} ClassifierStrip;

// The logits, bias added, into (32, width').
void classifier_amx_logits(real *logits, const ClassifierStrip *strip);

// e_ij = exp(l_ij - c_i), 0 for the target, whose logit goes to target_logit (32); sums (32) over
// the slice. e_ij are kept in bf16, where `left` is not NULL: left (width' / 32, 32, 16 words of t
// and t + 16) for dh; words (width' / 32 blocks, 16 words of two rows, 32) for dE.
void classifier_amx_exponentials(real sums[AMX_BLOCK], real target_logit[AMX_BLOCK], real *left,
                                 real *words, const ClassifierStrip *strip);

// dh (32, C') += e E, from the strip's `left` and the slice's `down`.
void classifier_amx_add_dh(real *dh, const real *left, const real *down, size_t width,
                           size_t channels);

// What 32 rows give to dE, for classifier_amx_gradient(): `tiles` (C' / 16 + 1, 1 tile), of which
// the last has the rows' factors. h (16, C') has words of two rows of factor h.
void classifier_amx_transpose(real *tiles, const real *h, const real factor[AMX_BLOCK],
                              size_t channels);

// Of AMX_BLOCK tokens: sums (C' + 16, 32) = the tiles of `groups` times 32 rows, times their words
// of e (groups 16, 32). Row C' and the next one add up to what dbias gets. `next`: words that will
// be read next.
void classifier_amx_gradient(real *sums, const real *tiles, const real *words, const real *next,
                             size_t groups, size_t channels);

#endif
