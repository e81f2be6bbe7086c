// What tokens of a text each head of each layer drew on: the weights of attention, as numbers.
#ifndef TASKS_ATTENTION_VIEW_H
#define TASKS_ATTENTION_VIEW_H

#include "run.h"

typedef struct AttentionView AttentionView;

// For texts of up to so many tokens, no more than the model has positions.
AttentionView *attention_view_create(const Run *run, size_t length);
void attention_view_free(AttentionView *view);

// Writes the weights with which token `query` of a batch's only text, and of its source, drew on
// the tokens in the layers from `first` on, as JSON (statistics_weights_to_json): those of additive
// attention are two poolings', of queries and of keys; of a bidirectional one the heads of both,
// one after the other.
void attention_view_write(AttentionView *view, const Batch *batch, size_t query, size_t first,
                          JsonWriter *w);

// Prints them as a line with the text of a token: {"token": "the", "attention": [...]}.
void attention_view_print(const Run *run, AttentionView *view, const Batch *batch, size_t query,
                          size_t first, int32_t token);

// --show-attention TEXT: such a line for each token.
void show_text_attention(Run *run);

#endif
