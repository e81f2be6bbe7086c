// The parts of a model in the page of a run: the decoder as WebAssembly (dev/page/wasm.c), a
// description of the model as a safetensors file without tensors, its weights, and the files of the
// tokenizer.
//
// The weights are the parameters in the order of their table, in float32 if the page has room for
// it. Otherwise a matrix is int8: for each row a float32 s, then its weights w as b = round(w / s),
// which the page uses as bfloat16.
#ifndef TRAINER_PAGE_MODEL_H
#define TRAINER_PAGE_MODEL_H

#include "bf16.h"
#include "run.h"
#include "run_page.h"

// directory: that of the run, whose tokenizer is taken; if it has none, that of its data. If
// `loss`, the loss of these weights on the validation split, is a number, all ranks measure the
// loss of the weights in the page; meanwhile the model has those weights.
PageModel page_model_create(Run *run, const char *directory, double loss);
void page_model_free(PageModel *model);

// Returns the weight that is b in a row with scale s.
static inline real page_weight(int8_t b, float s) {
    return (real)float_from_bf16(bf16_from_float((float)b * s));
}

// Returns the decoder; empty if make could not build it.
Text page_wasm(void);

#endif
