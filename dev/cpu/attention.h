// Multi-head attention of the kinds of --attention (attention_type.h): one table of functions per
// kind, so that blocks.h and decoder.h are independent of them. Each kind's file defines its table.
//
// B sequences, T tokens of each, M = B*T, C channels, H heads, D = C/H, S streams.
#ifndef CPU_ATTENTION_H
#define CPU_ATTENTION_H

#include "arena.h"
#include "attention_input.h"
#include "attention_type.h"
#include "statistics.h"

// What the working memory is for: batches up to (batch, length), with at most `rows` tokens per
// side.
typedef struct {
    const AttentionPlan *plan; // of a layer of this kind
    size_t channels, heads;
    size_t batch, length, rows;
    size_t largest_window; // over all layers of this kind
    Precision precision;
} AttentionShape;

// One layer in one pass.
typedef struct {
    const AttentionPlan *plan;
    size_t channels, heads;
    void *memory;           // working memory, shared by all layers of the kind
    real *kept;             // AttentionKernel.kept numbers, from the forward to the backward pass
    AttentionInput in;      // with the dropout of the first site
    const Dropout *dropout; // of the second site; NULL: none
    const real *learned[ATTENTION_LEARNED]; // the kind's parameters; NULL: none
    Matrix y;  // (M, C) the result, input of the projection; or without one,
    real *out; // out = x + result, (M, C)
    const real *x;
} AttentionCall;

// One layer while decoding.
typedef struct {
    const AttentionPlan *plan;
    const real *learned[ATTENTION_LEARNED];
    size_t streams, channels, heads;
} AttentionDecoding;

// One token of each stream.
typedef struct {
    real *qkv;        // (S, 3C) queries, keys and values; overwritten
    const real *bias; // (3C) their bias, or NULL
    real *y;          // (S, C) the result; without a projection the result is added to it
    size_t count;     // number of previous tokens
} AttentionStep;

typedef struct {
    bool adds_bias; // adds biases to queries, keys, values; else the caller does, and `in` has none
    void *(*create)(const AttentionShape *shape); // returns working memory
    void (*carve)(void *memory, Arena *arena, bool training);
    void (*free)(void *memory);
    // Returns how many numbers a layer keeps for that many rows; NULL: none.
    size_t (*kept)(size_t rows, size_t channels, size_t heads);
    void (*forward)(const AttentionCall *call);
    // Sets the gradients to queries, keys and values from dy (M, C), the gradient to the result,
    // and adds to the gradients of biases and to dlearned.
    void (*backward)(const AttentionCall *call, const AttentionGradients *gradients,
                     real *const dlearned[ATTENTION_LEARNED], const real *dy);
    // Measures the scores and weights of a layer after its forward pass, for queries that are not
    // padding (tokens (B, T) is 1, or tokens is NULL). names: what to call the weights and the
    // scores, for kinds without names of their own.
    void (*measure)(const AttentionCall *call, const uint8_t *tokens, Statistics *statistics,
                    size_t layer, const char *const names[2]);
    // Creates a layer's state between the tokens of `streams` texts; NULL: the kind cannot decode.
    void *(*state_create)(const AttentionDecoding *layer);
    // Makes room for a token after `count` others. Most texts have at most `positions`. May be
    // NULL.
    void (*state_grow)(void *state, size_t count, size_t positions);
    // Called by all threads of a parallel region. They share the work, and must wait for each other
    // afterwards.
    void (*step)(void *state, const AttentionDecoding *layer, const AttentionStep *step);
    void (*state_free)(void *state);
} AttentionKernel;

extern const AttentionKernel softmax_kernel, cosine_kernel, additive_kernel, additive_global_kernel,
    pairwise_kernel;

const AttentionKernel *attention_kernel(AttentionKind kind);

// Working memory of all kinds in a model.
typedef struct {
    void *memory[ATTENTION_KINDS];
} AttentionMemory;

// Adds memory for the layers of the shape's kind, once per kind.
void attention_memory_add(AttentionMemory *memory, const AttentionShape *shape);
void attention_memory_carve(const AttentionMemory *memory, Arena *arena, bool training);
void attention_memory_free(AttentionMemory *memory);

// Keys and values of all tokens of a text so far, of `units` heads (streams, heads): (units, room,
// D) each, with token t in row t % room. Room grows with the text, so a short text does not need
// memory for the model's maximum length.
typedef struct {
    size_t units, heads, head_size, room;
    size_t ring;                   // largest room, the window: the oldest are overwritten; 0: no
                                   // limit
    real *keys, *values, *weights; // weights (threads, room)
} KeyValueCache;

// The state of kinds that keep nothing else: state_create, state_grow, state_free.
void *key_value_cache_create(const AttentionDecoding *layer);
void key_value_cache_grow(void *cache, size_t count, size_t positions);
void key_value_cache_free(void *cache);

// A head's query and what it sees, after the token's key and value were added to the cache. Biases
// are included.
typedef struct {
    size_t head, own, count;     // own: the token's row; count: visible rows, in ring order
    real *query, *keys, *values; // (D), (count, D) each
    real *weights, *y;           // (count) of this thread, (D) the result
} KeyValueStep;
KeyValueStep key_value_step(const KeyValueCache *cache, const AttentionStep *token, size_t unit);

// For kinds whose weights depend on the product of each query with each key. A MeasureRow adds one
// row to m, from the scores q . k (count) of a query of head h, which it overwrites.
typedef void (*MeasureRow)(Measurement *m, const AttentionCall *call, size_t h, real *scores,
                           const uint8_t *mask, size_t count);
// Measures all queries. unit: queries and keys are scaled to length 1; else scores are divided by
// sqrt(D).
void attention_measure_pairs(const AttentionCall *call, bool unit, MeasureRow row,
                             const uint8_t *tokens, Statistics *statistics, size_t layer,
                             const char *const names[2]);

// Adds the weights exp(score) / (sum of exp(score) + sink) of a row of scores (count). Overwrites
// the scores.
void attention_measure_exponentials(Measurement *m, real *scores, const uint8_t *mask, size_t count,
                                    double sink);

#endif
