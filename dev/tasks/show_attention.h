// The attention of a translation, as a picture.
#ifndef TASKS_SHOW_ATTENTION_H
#define TASKS_SHOW_ATTENTION_H

#include "beam.h"
#include "run.h"

// Draws a panel for each layer of the decoder, of the sentence in `source` (count tokens, with its
// end): a row for each token of the translation, a column for each of the source, as dark as the
// weight that the heads' attention to the source has there in the mean. PNG, or SVG where the path
// ends so. A picture that cannot be drawn ends the program; show_attention_check() does so for
// obstacles that are known before.
void show_attention(const Run *run, const char *path, const int32_t *source, size_t count,
                    const Hypothesis *translation);
void show_attention_check(const char *path);

#endif
