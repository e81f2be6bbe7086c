// GPU implementation of all models with a TransformerType: their passes, and the entries of
// ModelType based on them. Compiled once for all programs.
#include "blocks.cuh"
#include "decoder.cuh"
#include "on_gpu.h"

// The encoder's side of a batch, as a separate batch.
static DeviceBatch source_batch(const DeviceBatch *batch) {
    DeviceBatch source = *batch;
    source.length = batch->source.length;
    source.inputs = batch->source.tokens;
    source.mask = batch->source.mask;
    return source;
}

// Computes the parts of the current weights for q, k and v, with one launch for layers whose
// weights are equally spaced.
static void qkv_parts_forward(const Transformer *t) {
    const size_t L = t->plan.size.layers;
    for (size_t l = 0, next; l < L; l = next) {
        const LinearParameters *first = &t->plan.layers[l].attention.qkv;
        size_t step = 0;
        for (next = l + 1; next < L && t->layers[l].qkv_parts && t->layers[next].qkv_parts;
             next++) {
            const size_t distance = t->plan.layers[next].attention.qkv.weight -
                                    t->plan.layers[next - 1].attention.qkv.weight;
            if (step != 0 && distance != step) break;
            step = distance;
        }
        if (!t->layers[l].qkv_parts) continue;
        weight_parts(&t->base.device, t->layers[l].qkv_parts, transformer_values(t, first->weight),
                     step, next - l, &first->shape);
    }
}

static void transformer_run(GpuModel *g, GpuWork work, const DeviceBatch *batch) {
    Transformer *t = (Transformer *)g;
    const size_t K = batch->chosen, C = t->plan.size.channels, last = t->plan.stack_count - 1;
    const BlockPass pass = {t, work, batch, source_batch(batch)};
    qkv_parts_forward(t);
    t->predicted = t->stacks[last].result;
    t->type->forward(&gpu_blocks, &pass, &t->plan);
    if (work == GPU_DECODE || g->statistics.to) return;
    const ClassifierInput in = {t->predicted, output_weight(t), batch->targets, K};
    if (work == GPU_FORWARD) {
        classifier_forward(&g->device, &g->blas, &t->classifier, in, &g->results->classifier);
        return;
    }
    const ClassifierGradients to = {
        float_matrix(t->dnorm, C), transformer_gradients(t, t->plan.output),
        t->plan.bias_fixed ? NULL : transformer_gradients(t, t->plan.bias)};
    classifier_train(&g->device, &g->blas, &g->sums, &t->classifier, in, gpu_step(g), to,
                     &g->results->classifier);
    gpu_lap(g, work, "classifier", PROFILE_STEP,
            6 * (double)K * (double)t->plan.size.vocabulary * (double)C);
    if (last > 0)
        CUDA_CHECK(cudaMemsetAsync(t->dresult, 0,
                                   pass.source.batch * pass.source.length * C * sizeof(float),
                                   g->device.stream));
    t->type->backward(&gpu_blocks, &pass, &t->plan);
}

// ---- entries of ModelType ---------------------------------------------------

// Exits with an error if the attention of a layer has no GPU implementation.
static void check_kinds(const TransformerPlan *plan) {
    for (size_t l = 0; l < plan->size.layers; l++) {
        const AttentionPlan *a = &plan->layers[l].attention;
        if (!attention_kernel(a)->forward)
            fail_usage("--attention: %s is computed on the CPU alone",
                       attention_types[a->kind].name);
    }
}

void *transformer_create(const ModelType *host, const ModelSetup *setup) {
    Transformer *t = (Transformer *)allocate(1, sizeof(Transformer), "model");
    GpuModel *g = &t->base;
    gpu_model_create(g, host, setup);
    t->type = host->transformer;
    t->plan = *transformer_plan(g->host);
    check_kinds(&t->plan);
    if (g->fuses_output &&
        !classifier_fuses(&g->device, t->plan.size.channels, g->precision == GPU_BF16))
        fail_usage("--fused-output: needs an sm_90 GPU, -p bf16, and at most 256 channels, a "
                   "multiple of 8");
    t->layers = (DeviceLayer *)allocate(t->plan.size.layers, sizeof(DeviceLayer), "layers");
    g->chooses = predicts(t);
    g->run = transformer_run;
    g->carve = transformer_carve;
    g->given_from = t->plan.layers[0].first;
    gpu_memory_create(g);
    if (t->sinusoids || t->angles) upload_positions(t);
    if (gpu_rows(g) > 0) t->token_losses = (float *)allocate(gpu_rows(g), sizeof(float), "losses");
    return t;
}

static void transformer_destroy(void *model) {
    Transformer *t = (Transformer *)model;
    gpu_model_destroy(&t->base);
    for (DeviceStack &stack : t->stacks) embedding_order_free(&stack.order);
    free(t->layers);
    free(t->token_losses);
    free(t);
}

static const float *transformer_token_losses(const void *model) {
    const Transformer *t = (const Transformer *)model;
    const GpuModel *g = &t->base;
    CUDA_CHECK(cudaMemcpyAsync(t->token_losses, t->classifier.losses, gpu_rows(g) * sizeof(float),
                               cudaMemcpyDeviceToHost, g->device.stream));
    device_synchronize(&g->device);
    return t->token_losses;
}

static double transformer_train(void *model, const Batch *batch, double scale) {
    Transformer *t = (Transformer *)model;
    GpuModel *g = &t->base;
    const DeviceBatch staged = gpu_stage(g, batch, scale);
    gpu_launch(g, GPU_TRAIN, &staged);
    for (size_t i = 0; i < t->plan.stack_count; i++) {
        const bool source = i + 1 < t->plan.stack_count;
        const EmbeddingPlan *plan = &t->plan.stacks[i].embedding;
        token_backward(
            &g->device, &t->stacks[i].order, transformer_gradients(t, plan->token), t->stacks[i].dx,
            source ? batch->source.tokens : batch->inputs, plan->scale, plan->padding,
            staged.batch * (source ? staged.source.length : staged.length), t->plan.size.channels);
    }
    return gpu_finish_training(g);
}

static void transformer_logits(void *model, const Batch *batch, float *logits) {
    Transformer *t = (Transformer *)model;
    GpuModel *g = &t->base;
    Batch all = *batch;
    all.targets = NULL;
    const DeviceBatch staged = gpu_stage(g, &all, 0);
    gpu_issue(g, GPU_FORWARD, &staged); // the loss is not needed here
    classifier_logits(&g->device, &g->blas, &t->classifier, t->predicted, output_weight(t),
                      staged.chosen, logits);
}

ModelType transformer_type(const ModelType *host, const char *program,
                           void *(*create)(const ModelSetup *)) {
    ModelType type = gpu_model_type(host, program);
    type.create = create;
    type.destroy = transformer_destroy;
    type.train = transformer_train;
    type.logits = transformer_logits;
    if (host->token_losses) type.token_losses = transformer_token_losses;
    if (host->decoder_create) {
        type.decoder_create = decoder_create;
        type.decode = decoder_decode;
        type.decoder_place = decoder_place;
        type.decoder_destroy = decoder_destroy;
    }
    return type;
}

void transformer_type_free(ModelType *type) {
    gpu_model_type_free(type);
}
