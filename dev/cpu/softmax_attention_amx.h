// Computes tiles of softmax attention with AMX (amx.h). Only softmax_attention.c calls these
// functions.
//
// Operands of one head consist of words of two bf16 numbers. A left operand is (T', W): a word is
// two neighbouring channels. A turned operand is a left one with its squares of 16 x 16 words
// transposed: the rows of a square are words of channels, the columns are tokens. A right operand
// is (T' / 2, D'): a word is two tokens 16 apart, so that two vectors of 16 tokens become a vector
// of words without moving data between lanes. The rows of a square that is loaded into a tile
// register are at most W or D' words apart: rows that are a power of 2 of cache lines apart would
// fall into few sets of the cache.
#ifndef CPU_SOFTMAX_ATTENTION_AMX_H
#define CPU_SOFTMAX_ATTENTION_AMX_H

#include "dropout.h"
#include "tile.h"

enum {
    QUERIES = 32,   // rows of a tile
    KEYS = 128,     // columns of a tile, a multiple of rows; a block of the dropout generator
    MARGIN = 32,    // log2 of how far a weight may exceed 1
    PAIR_APART = 16 // distance between the two tokens in a word of a right operand
};

typedef uint32_t Kept[KEYS / 32]; // a bit per key that dropout keeps

// The running softmax of a tile's rows: `top` is subtracted from scores, and `sum` is the sum of
// 2^(s - top), lane by lane. No score so far exceeds top by more than MARGIN. As sums are seldom
// rescaled, scores need not be stored until the largest of their tile is known.
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
    uint64_t block, blocks;          // of its generator: the first of query 0, number per query
    size_t query_end, key_end;       // rounded up to QUERIES
    bool causal;
    size_t window; // causal: keys that a query sees
} AmxHead;

// output (QUERIES, D') += weights times values for the queries from i0 on. Updates `rows` with all
// their scores.
void amx_attention_forward(const AmxHead *head, size_t i0, SoftmaxRows *rows, real *output);

// Gradients from the KEYS keys from j0 on: adds to dqueries (Tq', D') and sets dkeys and dvalues
// (KEYS, D').
void amx_attention_backward(const AmxHead *head, size_t j0, real *dqueries, real *dkeys,
                            real *dvalues);

#endif
