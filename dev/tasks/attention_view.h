// Attention weights as numbers: how much each head of each layer draws on each token of a text.
#ifndef TASKS_ATTENTION_VIEW_H
#define TASKS_ATTENTION_VIEW_H

#include "run.h"

typedef struct AttentionView AttentionView;

// Creates a view for texts of up to `length` tokens, at most as many as the model has positions.
AttentionView *attention_view_create(const Run *run, size_t length);
void attention_view_free(AttentionView *view);

// Writes as JSON (statistics_weights_to_json) the weights with which token `query` of a batch's
// only text draws on the tokens of the text and of its source, in the layers from `first` on.
// Additive attention has the weights of two poolings, of queries and of keys; bidirectional
// additive attention has the heads of both, one after the other.
void attention_view_write(AttentionView *view, const Batch *batch, size_t query, size_t first,
                          JsonWriter *w);

// Prints these weights as one line with the text of a token: {"token": "the", "attention": [...]}.
void attention_view_print(const Run *run, AttentionView *view, const Batch *batch, size_t query,
                          size_t first, int32_t token);

// --show-attention TEXT: prints such a line for each token.
void show_text_attention(Run *run);

#endif
