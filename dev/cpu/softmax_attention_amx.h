// Softmax attention's tiles by AMX (amx.h). Only softmax_attention.c calls it.
//
// Operands of one head, made of words of two bf16. A left operand is (T', W): a word is two
// neighbouring channels. A turned one is the same with its squares of 16 x 16 words transposed, so
// that the 16 rows of a square hold words of channels, and its columns the tokens. A right one is
// (T' / 2, D'): a word is two tokens 16 apart, so that two vectors of 16 tokens become a vector of
// words without moving anything between lanes. A square that is loaded into a tile register never
// has its rows further apart than W words, or D': rows that are a power of 2 of cache lines apart
// would fall into few sets of the cache.
#ifndef CPU_SOFTMAX_ATTENTION_AMX_H
#define CPU_SOFTMAX_ATTENTION_AMX_H

#include "dropout.h"
#include "tile.h"

enum {
    QUERIES = 32,   // rows of a tile
    KEYS = 128,     // columns of a tile, a multiple of rows: a block of the dropout generator
    MARGIN = 32,    // log2 of how far a weight may pass 1
    PAIR_APART = 16 // tokens of a word of a right operand
};

typedef uint32_t Kept[KEYS / 32]; // by dropout: a bit a key

// The softmax of a tile's rows so far: `top`, what is subtracted from scores, and, lane by lane,
// the sum of 2^(s - top). top is a score (the sink counts as one), and none so far is above it by
// more than MARGIN: as sums are seldom rescaled, scores need not wait in memory for the largest of
// their tile.
typedef struct {
    real top[QUERIES];
    TileVector sum[QUERIES];
} SoftmaxRows;

typedef struct {
    size_t words;                          // W
    const real *queries, *keys_transposed; // left, turned
    const real *values;                    // right (forward)
    const real *values_transposed, *keys;  // turned, right (backward)
    const real *doutput;                   // left (backward)
    const real *queries_transposed,
        *doutput_transposed;         // right, squares of 16 x 16 words transposed (backward)
    const real *hidden;              // (Tk') -Inf for padding, else 0
    const real *logsumexp, *product; // (Tq') (backward)
    const Dropout *dropout;          // or NULL
    uint64_t block, blocks;          // of its generator: the first of query 0, those of a query
    size_t query_end, key_end;       // whole tiles
    bool causal;
    size_t window; // causal: keys that a query sees
} AmxHead;

// output (QUERIES, D') += weights of the queries from i0 on times values, and `rows` of all their
// scores.
void amx_attention_forward(const AmxHead *head, size_t i0, SoftmaxRows *rows, real *output);

// The gradients that come from the KEYS keys from j0 on: dqueries (Tq', D') += theirs; dkeys and
// dvalues (KEYS, D') are set.
void amx_attention_backward(const AmxHead *head, size_t j0, real *dqueries, real *dkeys,
                            real *dvalues);

#endif
