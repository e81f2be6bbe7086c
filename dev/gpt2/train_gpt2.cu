// GPT-2 on the GPU: the model of train_gpt2.c, whose options, parameters, decoding, statistics and
// description it takes; forward and backward pass in CUDA. Both programs read and write the same
// checkpoints, and drop the same elements.
//
// Products and attention read bf16 (or float32, with --precision fp32 and tf32); the residual
// stream, statistics and gradients of parameters are float32.

#include "self_attention.cuh"
extern "C" {
#include "gpt2.h"
#include "train.h"
}

static void *gpt2_create(const ModelSetup *setup) {
    SelfAttention *m = transformer_allocate<SelfAttention>(&gpt2, setup);
    const TransformerPlan *plan = transformer_plan(m->base.base.host);
    self_attention_choose(m, plan);
    self_attention_create(m, transformer_shape(plan), self_attention_parts(),
                          [&](size_t l) { return self_attention_layer(&plan->layers[l], NULL); });
    return m;
}

ModelType gpt2_on_gpu() {
    return transformer_type(&gpt2, "train_gpt2cu", gpt2_create, self_attention_destroy);
}

TRANSFORMER_MAIN(gpt2_on_gpu())
