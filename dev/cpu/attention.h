// Multi-head attention of the kinds that --attention names (attention_type.h): a row of functions
// for each, so that blocks.h and decoder.h know none of them. A kind's file has its row.
//
// B sequences, T tokens of each, M = B*T, C channels, H heads, D = C/H, S streams.
#ifndef CPU_ATTENTION_H
#define CPU_ATTENTION_H

#include "arena.h"
#include "attention_input.h"
#include "attention_type.h"
#include "statistics.h"

// What working memory is for: batches up to (batch, length), with at most `rows` tokens of a side.
typedef struct {
    const AttentionPlan *plan; // of a layer of the kind
    size_t channels, heads;
    size_t batch, length, rows;
    size_t largest_window; // of the kind's layers
    Precision precision;
} AttentionShape;

// One layer in one pass.
typedef struct {
    const AttentionPlan *plan;
    size_t channels, heads;
    void *memory;           // working memory, which all layers of the kind share
    real *kept;             // AttentionKernel.kept numbers, from the forward to the backward pass
    AttentionInput in;      // its dropout is that of the first site
    const Dropout *dropout; // of the second; NULL: none
    const real *learned[ATTENTION_LEARNED]; // the kind's parameters; NULL: it has none
    Matrix y;  // (M, C) the result, which the projection reads; or, with none,
    real *out; // out = x + result, (M, C)
    const real *x;
} AttentionCall;

// One layer that decodes.
typedef struct {
    const AttentionPlan *plan;
    const real *learned[ATTENTION_LEARNED];
    size_t streams, channels, heads;
} AttentionDecoding;

// A token of each stream.
typedef struct {
    real *qkv;        // (S, 3C), which is overwritten
    const real *bias; // (3C), of these; or NULL
    real *y;          // (S, C) the result, or without a projection what that is added to
    size_t count;     // tokens before it
} AttentionStep;

typedef struct {
    bool adds_bias; // to queries, keys and values; else the caller does, and `in` has none
    void *(*create)(const AttentionShape *shape); // working memory
    void (*carve)(void *memory, Arena *arena, bool training);
    void (*free)(void *memory);
    // Numbers that a layer keeps, of so many rows; NULL: none.
    size_t (*kept)(size_t rows, size_t channels, size_t heads);
    void (*forward)(const AttentionCall *call);
    // Sets the gradients to queries, keys and values from dy (M, C), that to the result, and adds
    // those to biases and dlearned.
    void (*backward)(const AttentionCall *call, const AttentionGradients *gradients,
                     real *const dlearned[ATTENTION_LEARNED], const real *dy);
    // Adds the weights of a layer whose forward pass was taken, of queries that are no padding
    // (tokens (B, T) 1, or NULL), and its scores. names: what weights and scores are called, in
    // kinds that have no names of their own.
    void (*measure)(const AttentionCall *call, const uint8_t *tokens, Statistics *statistics,
                    size_t layer, const char *const names[2]);
    // What a layer remembers between the tokens of `streams` texts; NULL: the kind cannot decode.
    void *(*state_create)(const AttentionDecoding *layer);
    // Before a token after `count` others, of texts that mostly have at most `positions`; NULL.
    void (*state_grow)(void *state, size_t count, size_t positions);
    // In a parallel region: threads divide the work, and must then wait for each other.
    void (*step)(void *state, const AttentionDecoding *layer, const AttentionStep *step);
    void (*state_free)(void *state);
} AttentionKernel;

extern const AttentionKernel softmax_kernel, cosine_kernel, additive_kernel, additive_global_kernel,
    pairwise_kernel;

const AttentionKernel *attention_kernel(AttentionKind kind);

// Working memory of the kinds that a model has.
typedef struct {
    void *memory[ATTENTION_KINDS];
} AttentionMemory;

// Adds memory for a layer of the shape's kind; once per kind.
void attention_memory_add(AttentionMemory *memory, const AttentionShape *shape);
void attention_memory_carve(const AttentionMemory *memory, Arena *arena, bool training);
void attention_memory_free(AttentionMemory *memory);

// Keys and values of all tokens of a text so far, of `units` heads (streams, heads): (units, room,
// D) each, those of token t in row t % room. Room grows with the text: a short one needs no memory
// for all that the model could take.
typedef struct {
    size_t units, heads, head_size, room;
    size_t ring;                   // most room, the window: then the oldest give way; 0: none do
    real *keys, *values, *weights; // the last (threads, room)
} KeyValueCache;

// A kind's state, if that is all that it remembers: state_create, state_grow, state_free.
void *key_value_cache_create(const AttentionDecoding *layer);
void key_value_cache_grow(void *cache, size_t count, size_t positions);
void key_value_cache_free(void *cache);

// What a head's query sees once the token's key and value have joined the cache, their bias added.
typedef struct {
    size_t head, own, count; // the token's row, of as many as are seen, in the order of the ring
    real *query, *keys, *values; // (D), (count, D) each
    real *weights, *y;           // (count) of this thread, (D) the result
} KeyValueStep;
KeyValueStep key_value_step(const KeyValueCache *cache, const AttentionStep *token, size_t unit);

// For kinds whose weights come of a product of each query with each key: measures all of them.
// Adds row by row, from the scores q . k (count) of a query of head h, which are overwritten.
typedef void (*MeasureRow)(Measurement *m, const AttentionCall *call, size_t h, real *scores,
                           const uint8_t *mask, size_t count);
// unit: queries and keys have length 1; else scores are over sqrt(D).
void attention_measure_pairs(const AttentionCall *call, bool unit, MeasureRow row,
                             const uint8_t *tokens, Statistics *statistics, size_t layer,
                             const char *const names[2]);

// Adds the weights exp(score) / (sum of exp(score) + sink) of a row of scores (count), which are
// overwritten.
void attention_measure_exponentials(Measurement *m, real *scores, const uint8_t *mask, size_t count,
                                    double sink);

#endif
