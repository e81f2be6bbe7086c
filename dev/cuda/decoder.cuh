// Decoding on the GPU: one token of each text at a time, through the blocks of a forward pass, with
// separate memory and cached attention state (attention_step.cuh). It uses float32, so that the
// output is the same as on the CPU. The second token is captured as a graph, which is reused for
// the rest. If a training run leaves too little GPU memory, or heads are too large, the CPU
// decodes.
#ifndef CUDA_DECODER_CUH
#define CUDA_DECODER_CUH

#include "blocks.cuh"

static constexpr size_t DECODER_ROOM = 32; // initial capacity in tokens

struct DeviceDecoder {
    Transformer t;            // the model's parameters, and memory for a token of each text
    DeviceArena memory;       // of attention, for t.room tokens
    uint64_t position, count; // of the next token; number of tokens before it
    void *host;               // the CPU's decoder, if used instead; or NULL
};

static inline void decoder_memory_carve(DeviceDecoder *d) {
    Transformer *t = &d->t;
    for (size_t l = 0; l < t->plan.size.layers; l++) {
        const AttentionPlan *plan = &t->plan.layers[l].attention;
        const DeviceAttentionShape shape = attention_shape(t, plan);
        t->layers[l].attended.memory =
            arena_array<float>(&d->memory, attention_kernel(plan)->memory(&shape, t->room),
                               "what attention remembers");
    }
}

// Memory for a pass, and for the previous token's shifted channels.
static inline void decoder_pass_carve(DeviceDecoder *d) {
    Transformer *t = &d->t;
    const size_t shifted = plan_shifted(&t->plan);
    gpu_pass_carve(&t->base, &t->base.arena);
    if (shifted > 0)
        t->before = arena_array<float>(
            &t->base.arena, t->plan.size.layers * gpu_rows(&t->base) * shifted, "activations");
}

// Returns the capacity after `room`: twice as much, but first the positions, where most texts end.
static inline size_t decoder_next_room(const Transformer *t, size_t room) {
    const size_t positions = t->plan.size.positions, next = room ? 2 * room : DECODER_ROOM;
    return room < positions && next > positions ? positions : next;
}

// Grows the memory to `room` tokens of each text, keeping its contents.
static inline void decoder_grow(DeviceDecoder *d, size_t room) {
    Transformer *t = &d->t;
    const Device *device = &t->base.device;
    const size_t L = t->plan.size.layers, before = t->room;
    DeviceArena old = d->memory;
    float **from = (float **)allocate(L, sizeof(float *), "decoder");
    for (size_t l = 0; l < L; l++) from[l] = t->layers[l].attended.memory;
    t->room = room;
    d->memory = DeviceArena();
    decoder_memory_carve(d);
    arena_allocate(&d->memory, "write fewer texts side by side (--samples), or shorter ones");
    decoder_memory_carve(d);
    for (size_t l = 0; l < L && before > 0; l++) {
        const AttentionPlan *plan = &t->plan.layers[l].attention;
        const DeviceAttentionShape shape = attention_shape(t, plan);
        const size_t size = attention_kernel(plan)->memory(&shape, before) * sizeof(float);
        CUDA_CHECK(cudaMemcpyAsync(t->layers[l].attended.memory, from[l], size,
                                   cudaMemcpyDeviceToDevice, device->stream));
    }
    device_synchronize(device);
    arena_free(&old);
    free(from);
    gpu_forget_graphs(&t->base); // they refer to the old addresses
}

// Returns whether there is memory for a pass, and for texts as long as the model's positions allow.
// While it grows, the memory exists twice.
static inline bool decoder_fits(DeviceDecoder *d) {
    Transformer *t = &d->t;
    size_t available = 0, total = 0;
    CUDA_CHECK(cudaMemGetInfo(&available, &total));
    size_t before = 0, room = decoder_next_room(t, 0);
    for (; room < t->plan.size.positions; room = decoder_next_room(t, room)) before = room;
    decoder_pass_carve(d);
    t->room = room;
    decoder_memory_carve(d);
    t->room = before;
    if (before > 0) decoder_memory_carve(d);
    const size_t needed = t->base.arena.used + d->memory.used;
    t->room = 0;
    t->base.arena = d->memory = DeviceArena();
    return needed <= available;
}

static inline void *decoder_create(void *model, int streams) {
    DeviceDecoder *d = (DeviceDecoder *)allocate(1, sizeof(*d), "decoder");
    Transformer *t = &d->t;
    GpuModel *g = &t->base;
    *t = *(const Transformer *)model;
    t->layers = (DeviceLayer *)allocate(t->plan.size.layers, sizeof(DeviceLayer), "decoder");
    g->batch = (size_t)streams;
    g->length = 1;
    g->training = g->recompute = t->groups_weights = false;
    g->profile = NULL;
    g->precision = GPU_FP32;
    g->reduction = NULL;
    g->sums = PartialSums();
    g->graph_count = 0;
    g->arena = DeviceArena();
    if (t->plan.size.head_size > LARGEST_HEAD || !decoder_fits(d)) {
        gpu_update_host((GpuModel *)model);
        d->host = g->host_type->decoder_create(g->host, streams);
        return d;
    }
    blas_create(&g->blas, &g->device, false);
    decoder_pass_carve(d);
    arena_allocate(&g->arena, "write fewer texts side by side (--samples)");
    decoder_pass_carve(d);
    CUDA_CHECK(cudaMallocHost((void **)&g->on_host, gpu_batch_bytes(gpu_rows(g))));
    if (t->sinusoids || t->angles) upload_positions(t);
    decoder_grow(d, decoder_next_room(t, 0));
    return d;
}

static inline void decoder_destroy(void *decoder) {
    DeviceDecoder *d = (DeviceDecoder *)decoder;
    GpuModel *g = &d->t.base;
    if (d->host) {
        g->host_type->decoder_destroy(d->host);
    } else {
        device_synchronize(&g->device);
        gpu_forget_graphs(g);
        arena_free(&d->memory);
        arena_free(&g->arena);
        CUDA_CHECK(cudaFreeHost(g->on_host));
        blas_destroy(&g->blas);
    }
    free(d->t.layers);
    free(d);
}

static inline void decoder_decode(void *decoder, const int32_t *tokens, float *logits) {
    DeviceDecoder *d = (DeviceDecoder *)decoder;
    Transformer *t = &d->t;
    GpuModel *g = &t->base;
    if (d->host) {
        g->host_type->decode(d->host, tokens, logits);
        return;
    }
    if (d->position == t->plan.size.positions)
        fail("decoding: the model has %zu positions, no token can follow", t->plan.size.positions);
    if (d->count == t->room) decoder_grow(d, decoder_next_room(t, t->room));
    Batch batch = {};
    batch.batch = (int64_t)g->batch;
    batch.length = 1;
    batch.inputs = tokens;
    const DeviceBatch staged = gpu_stage(g, &batch, 0);
    StepParameters *step = (StepParameters *)g->on_host;
    step->position = d->position++;
    step->count = d->count++;
    gpu_launch(g, GPU_DECODE, &staged);
    if (logits)
        classifier_logits(&g->device, &g->blas, &t->classifier,
                          t->stacks[t->plan.stack_count - 1].result, output_weight(t), g->batch,
                          logits);
    else
        device_synchronize(&g->device); // before the next token is staged
}

static inline void decoder_place(void *decoder, int64_t position) {
    DeviceDecoder *d = (DeviceDecoder *)decoder;
    if (d->host) d->t.base.host_type->decoder_place(d->host, position);
    d->position = (uint64_t)position;
}

#endif
