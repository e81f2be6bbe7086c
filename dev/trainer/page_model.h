// What of a model goes into the page of a run: the decoder as WebAssembly (dev/page/wasm.c), the
// weights as safetensors, and the files of the tokenizer.
//
// The weights are float32 where the page has room for them, else bfloat16, else int8: then a matrix
// NAME is U8, b = 128 + round(w / s), and its row r has the scale s = NAME.scale[r]; the weight is
// (b - 128) s, rounded to bfloat16, which the page decodes with. Vectors stay float32.
#ifndef TRAINER_PAGE_MODEL_H
#define TRAINER_PAGE_MODEL_H

#include "run.h"
#include "run_page.h"

// directory: the run's, whose tokenizer is taken; without one, that of its data. With a `loss` that
// is a number, the loss of these weights on the validation split, all ranks measure the loss of
// what is in the page; for a while the model then has those weights.
PageModel page_model_create(Run *run, const char *directory, double loss);
void page_model_free(PageModel *model);

// The decoder; empty where make could not build it.
Text page_wasm(void);

#endif
