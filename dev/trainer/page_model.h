// What of a model goes into the page of a run: the decoder as WebAssembly (dev/page/wasm.c), what
// the model is, as a safetensors file without tensors, its weights, and the files of the tokenizer.
//
// The weights are the parameters in the order of their table, in float32 where the page has room
// for that. Else a matrix is int8: of each row a float32 s, then its weights w as b = round(w / s),
// which the page decodes with as bfloat16.
#ifndef TRAINER_PAGE_MODEL_H
#define TRAINER_PAGE_MODEL_H

#include "bf16.h"
#include "run.h"
#include "run_page.h"

// directory: the run's, whose tokenizer is taken; without one, that of its data. With a `loss` that
// is a number, the loss of these weights on the validation split, all ranks measure the loss of
// what is in the page; for a while the model then has those weights.
PageModel page_model_create(Run *run, const char *directory, double loss);
void page_model_free(PageModel *model);

// A weight that is b in a row with scale s.
static inline real page_weight(int8_t b, float s) {
    return (real)float_from_bf16(bf16_from_float((float)b * s));
}

// The decoder; empty where make could not build it.
Text page_wasm(void);

#endif
