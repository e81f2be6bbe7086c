// Shared by all models on the GPU: the host model, i.e. the CPU's model next to it (for options,
// parameters, translation, the attention weights of a single query and its description), memory,
// staging of batches, captured graphs, and the entries of ModelType that do not depend on the
// model. A model has a GpuModel as its first member.
//
// One train() is one graph: copy the batch, forward, backward. Work that depends on the tokens (the
// embedding's gradient) and the norm of the gradients follow on the stream. The host waits once,
// for loss and norm.
#ifndef CUDA_GPU_MODEL_CUH
#define CUDA_GPU_MODEL_CUH

#include "adamw.cuh"
#include "classifier.cuh"
#include "device_ranks.cuh"
#include "dropout.cuh"
#include "muon.cuh"
#include "statistics.cuh"
extern "C" {
#include "model.h"
#include "options.h"
}

enum GpuPrecision { GPU_FP32, GPU_TF32, GPU_BF16 };

// The encoder's input, in a model with two sides.
struct DeviceSource {
    size_t length;         // S; 0: the batch has one side
    const int32_t *tokens; // (B, S)
    const uint8_t *mask;   // (B, S) or NULL
};

// A batch on the device. The addresses of its arrays depend only on its shape.
struct DeviceBatch {
    size_t batch, length; // B, T
    DeviceSource source;
    const int32_t *inputs;  // (B, T)
    const uint8_t *mask;    // (B, T) or NULL
    size_t chosen;          // number of predicted rows
    const int32_t *rows;    // (chosen) their indices, -1: none; NULL: all B T
    const int32_t *targets; // (chosen) -1: not counted
    size_t bytes;           // size of the copy
    bool last;              // of an update: gradients are summed over ranks as they become final
};

// The work of a graph. GPU_DECODE: a forward pass of one token of each text, without the output
// layer.
enum GpuWork { GPU_FORWARD, GPU_TRAIN, GPU_DECODE };

struct GpuGraph {
    GpuWork work;
    DeviceBatch batch;
    cudaGraphExec_t graph; // NULL: not captured yet
};

// The results that the host waits for.
struct GpuResults {
    ClassifierResult classifier;
    double norm; // of the gradients
};

static inline void gpu_graph_free(GpuGraph *graph) {
    if (graph->graph) CUDA_CHECK(cudaGraphExecDestroy(graph->graph));
}

static constexpr int GPU_GRAPHS = 16; // evaluation also has short batches

struct GpuModel {
    const ModelType *host_type;
    const OptionName *lower; // (2) options that reduce the batch size
    void *host;              // CPU model; has working memory only if it translates or shows
                             // attention
    bool host_current;       // its parameters equal those of `state`
    Profile *profile;        // NULL: disabled
    void (*say_size)(const char *model, size_t parameters, size_t bytes); // NULL: not needed
    size_t batch, length; // largest B and T; if only B T is limited, that limit and 1
    int64_t vocabulary;   // V
    size_t row_limit;     // limit of B*T so that indices fit, for every head
    bool chooses;         // predicts only rows that have a target
    bool training, recompute;
    bool fuses_output; // training stores no logits in memory
    bool measures;     // --stats
    bool uses_muon;    // Muon updates hidden matrices, AdamW all others
    GpuPrecision precision;
    uint64_t seed;
    double dropout, attention_dropout; // the latter of attention's weights
    // Issues the launches and copies for a batch, between device pointers. It is captured, so it
    // must not wait for anything.
    void (*run)(GpuModel *model, GpuWork work, const DeviceBatch *batch);
    void (*carve)(GpuModel *model, DeviceArena *arena); // the model's own arrays

    Device device;
    Blas blas;
    double peak_flops; // measured, training only
    DeviceArena arena;
    size_t available, fits; // bytes that were free, and the largest batch that fits in them
    ParameterState state;
    Muon muon; // if used
    PartialSums sums;
    char *on_host, *on_device; // a batch as copied: StepParameters, then its arrays
    GpuResults *results;       // on the device
    GpuResults *host_results;  // pinned
    double norm;               // of the current gradients; negative: not known
    DeviceStatistics statistics;
    GpuGraph graphs[GPU_GRAPHS];
    int graph_count;
    DeviceReduction *reduction; // sums gradients over ranks; NULL: only one rank
    size_t given_from;          // the last pass of an update passes gradients from here on
    bool given;                 // they were
};

// ---- options ----------------------------------------------------------------
// The options of the CPU model and of the GPU. The caller frees the array.
static inline Option *gpu_options(const ModelType *host, int *count) {
    static const struct {
        OptionName name;
        const char *help;
    } flags[] = {{OPT_RECOMPUTE, "keep less for the backward pass, compute it again"},
                 {OPT_FUSED_OUTPUT,
                  "no logits in memory (sm_90, up to 256 channels; speed not yet measured)"}};
    Option *rows = (Option *)allocate((size_t)host->option_count + 2, sizeof(Option), "options");
    memcpy(rows, host->options, (size_t)host->option_count * sizeof(Option));
    *count = host->option_count;
    for (const auto &flag : flags) { // C++17 has no designated initialisers
        Option *row = &rows[(*count)++];
        row->name = flag.name;
        row->kind = OPTION_FLAG;
        row->group = "Model";
        row->help = flag.help;
    }
    return rows;
}

static inline GpuPrecision gpu_precision(const Options *options) {
    const char *name = options_text(options, OPT_PRECISION);
    return strcmp(name, "fp32") == 0 ? GPU_FP32 : strcmp(name, "tf32") == 0 ? GPU_TF32 : GPU_BF16;
}

// ---- memory -----------------------------------------------------------------

static inline size_t gpu_rows(const GpuModel *g) {
    return g->batch * g->length;
}

// Inputs, rows, targets and mask, tokens and mask of the source, each padded to whole int32.
static inline size_t gpu_batch_bytes(size_t rows) {
    return sizeof(StepParameters) + rows * 4 * sizeof(int32_t) + 2 * (rows + sizeof(int32_t));
}

// Memory for passes through the model.
static inline void gpu_pass_carve(GpuModel *g, DeviceArena *a) {
    g->results = arena_array<GpuResults>(a, 1, "batches");
    g->on_device = arena_array<char>(a, gpu_batch_bytes(gpu_rows(g)), "batches");
    if (gpu_rows(g) == 0) return;
    if (g->measures)
        g->statistics.parts = arena_array<Measurement>(a, MEASURED_PARTS, "statistics");
    blas_workspace(&g->blas, a);
    g->carve(g, a);
}

static inline void gpu_carve(GpuModel *g, DeviceArena *a) {
    const ParameterTable *table = g->host_type->parameters(g->host);
    parameter_state_carve(&g->state, a, table, g->training, g->uses_muon, g->precision == GPU_BF16);
    if (gpu_rows(g) > 0 && g->uses_muon) muon_carve(&g->muon, a, table, g->precision == GPU_BF16);
    gpu_pass_carve(g, a);
}

static inline size_t gpu_bytes(GpuModel *g, size_t batch) {
    const size_t before = g->batch;
    DeviceArena counting = {};
    g->batch = batch;
    gpu_carve(g, &counting);
    g->batch = before;
    return counting.used;
}

// Returns the largest batch that fits in `available` bytes, or 0.
static inline size_t gpu_largest_batch(GpuModel *g, size_t available) {
    size_t fits = 0, step = 1;
    while (fits + step <= g->row_limit / g->length && gpu_bytes(g, fits + step) <= available) {
        fits += step;
        step *= 2;
    }
    for (; step > 0; step /= 2)
        if (fits + step <= g->row_limit / g->length && gpu_bytes(g, fits + step) <= available)
            fits += step;
    return fits;
}

static inline char *gpu_memory(const void *model) {
    const GpuModel *g = (const GpuModel *)model;
    const DeviceArena *a = &g->arena;
    char *text = format_string("%.1f MiB (", (double)a->used / 1048576);
    for (int i = 0; i < a->purpose_count; i++)
        append_format(&text, "%s%s %.1f", i ? ", " : "", a->purposes[i].name,
                      (double)a->purposes[i].bytes / 1048576);
    append_format(&text, ") of %.1f MiB that are free; --%s %zu would fit",
                  (double)g->available / 1048576, options_name(g->lower[0]), g->fits);
    return text;
}

// Counts, allocates and carves.
static inline void gpu_memory_create(GpuModel *g) {
    size_t total = 0;
    char advice[160] = "use a smaller model";
    CUDA_CHECK(cudaMemGetInfo(&g->available, &total));
    gpu_carve(g, &g->arena);
    if (g->say_size)
        g->say_size(g->host_type->name, g->host_type->parameters(g->host)->parameters,
                    g->arena.used);
    if (gpu_rows(g) > 0) {
        const char *other = g->recompute || !g->training ? "" : ", or add --recompute";
        const size_t reserve = total / 64; // graphs, and the driver's memory
        g->fits = gpu_largest_batch(g, g->available > reserve ? g->available - reserve : 0);
        if (g->fits)
            snprintf(advice, sizeof(advice), "lower --%s to %zu%s", options_name(g->lower[0]),
                     g->fits, other);
        else
            snprintf(advice, sizeof(advice), "lower --%s or --%s%s", options_name(g->lower[0]),
                     options_name(g->lower[1]), other);
    }
    arena_allocate(&g->arena, advice);
    gpu_carve(g, &g->arena);
    CUDA_CHECK(cudaMallocHost((void **)&g->on_host, gpu_batch_bytes(gpu_rows(g))));
    CUDA_CHECK(cudaMallocHost((void **)&g->host_results, sizeof(GpuResults)));
    const ParameterTable *table = g->host_type->parameters(g->host);
    parameter_state_start(&g->device, &g->state, table);
    if (g->uses_muon) muon_start(&g->device, &g->muon, table);
}

// ---- create and destroy -----------------------------------------------------

static inline void gpu_device_create(GpuModel *g, Ranks *ranks) {
    device_choose(ranks);
    g->device = device_create();
    blas_create(&g->blas, &g->device, g->precision == GPU_TF32);
    if (g->training) g->peak_flops = blas_measure_peak(&g->blas, g->precision == GPU_BF16);
}

static inline void gpu_reduction_create(GpuModel *g, const ModelSetup *setup) {
    ReductionPlan plan = {};
    plan.count = g->host_type->parameters(g->host)->total;
    plan.bf16 = strcmp(options_text(setup->options, OPT_REDUCE), "bf16") == 0;
    g->reduction = device_reduction_create(setup->ranks, &plan);
    g->given_from = plan.count;
}

// Creates the host model first, which checks the options. The model calls gpu_memory_create() once
// it knows its shapes.
static inline void gpu_model_create(GpuModel *g, const ModelType *host_type,
                                    const ModelSetup *setup) {
    ModelSetup host = *setup;
    const ModelFacts facts = host_type->facts(setup->options, NULL);
    const bool translates =
        host_type->translator_create && !setup->training; // in the memory of a batch
    if (!setup->float32 && !translates)                   // it shows no attention
        host.batch = host.length = host.rows = 0;
    host.training = false;
    host.say_size = NULL; // the host's memory is not the GPU's
    host.float32 = true;  // this processor may lack features of the GPU
    g->host_type = host_type;
    g->lower = host_type->task->lower;
    g->host = host_type->create(&host);
    g->batch = (size_t)(setup->rows > 0 ? setup->rows : setup->batch);
    g->length = (size_t)(setup->rows > 0 ? 1 : setup->length);
    g->vocabulary = setup->vocabulary;
    g->training = setup->training;
    g->measures = options_integer(setup->options, OPT_STATS) > 0;
    g->uses_muon =
        setup->training && strcmp(options_text(setup->options, OPT_OPTIMIZER), "muon") == 0;
    g->profile = setup->profile;
    g->say_size = setup->say_size;
    g->recompute = options_flag(setup->options, OPT_RECOMPUTE);
    g->fuses_output = options_flag(setup->options, OPT_FUSED_OUTPUT);
    g->precision = gpu_precision(setup->options);
    g->seed = (uint64_t)options_integer(setup->options, OPT_SEED);
    g->dropout = g->attention_dropout = facts.dropout;
    g->norm = -1;
    g->row_limit = (size_t)INT32_MAX / (size_t)facts.heads;
    if (g->length > 0 && g->batch > g->row_limit / g->length)
        fail("--%s, --%s: a batch of more than %zu tokens", options_name(g->lower[0]),
             options_name(g->lower[1]), g->row_limit);
    gpu_device_create(g, setup->ranks);
    if (g->training) gpu_reduction_create(g, setup);
}

static inline void gpu_forget_graphs(GpuModel *g) {
    for (int i = 0; i < g->graph_count; i++) gpu_graph_free(&g->graphs[i]);
    g->graph_count = 0;
}

// Frees the results of gpu_model_create() and gpu_memory_create().
static inline void gpu_model_destroy(GpuModel *g) {
    device_synchronize(&g->device);
    gpu_forget_graphs(g);
    device_reduction_free(g->reduction);
    partial_sums_free(&g->sums);
    muon_free(&g->muon);
    arena_free(&g->arena);
    CUDA_CHECK(cudaFreeHost(g->on_host));
    CUDA_CHECK(cudaFreeHost(g->host_results));
    blas_destroy(&g->blas);
    device_destroy(&g->device);
    g->host_type->destroy(g->host);
}

// ---- where the time goes ----------------------------------------------------
// profile_lap() for work on the stream, after waiting for it. Evaluations are not profiled by kind.
static inline void gpu_lap(const GpuModel *g, GpuWork work, const char *kind, ProfilePart part,
                           double flops) {
    if (!g->profile || work != GPU_TRAIN) return;
    device_synchronize(&g->device);
    profile_lap(g->profile, kind, part, flops);
}

// ---- batches and graphs -----------------------------------------------------
// The step parameters, as kernels read them.
static inline const StepParameters *gpu_step(const GpuModel *g) {
    return (const StepParameters *)g->on_device;
}

// Dropout at a site of the model; none when evaluating.
static inline DropoutSite gpu_dropout(const GpuModel *g, GpuWork work, double rate, uint32_t site) {
    return work == GPU_TRAIN && rate > 0 ? dropout_site(gpu_step(g), rate, site) : dropout_none();
}

// Invalid tokens would make kernels read out of bounds. Written so that compilers vectorise it.
static inline void gpu_check_tokens(const int32_t *tokens, size_t count, int32_t least,
                                    int64_t vocabulary) {
    int32_t smallest = 0, largest = 0;
    for (size_t i = 0; i < count; i++) {
        smallest = tokens[i] < smallest ? tokens[i] : smallest;
        largest = tokens[i] > largest ? tokens[i] : largest;
    }
    if (smallest < least || largest >= vocabulary)
        fail("token %d: the vocabulary has %lld", smallest < least ? smallest : largest,
             (long long)vocabulary);
}

// Appends an array to the staged batch and returns it, to be filled; *place: its address on the
// device.
template <typename T>
static inline T *gpu_stage_array(GpuModel *g, DeviceBatch *to, size_t count, const T **place) {
    T *const array = (T *)(g->on_host + to->bytes);
    *place = (const T *)(g->on_device + to->bytes);
    to->bytes += (count * sizeof(T) + sizeof(int32_t) - 1) / sizeof(int32_t) * sizeof(int32_t);
    return array;
}

// Stages the rows that have a target, and these targets. Their number is rounded up to a multiple
// of a sixteenth of the batch's rows, so that batches of one shape mostly have the same graph.
static inline void gpu_stage_chosen(GpuModel *g, DeviceBatch *to, const int32_t *targets,
                                    size_t rows) {
    const size_t step = (rows + 15) / 16;
    size_t count = 0, filled = 0;
    for (size_t i = 0; i < rows; i++) count += targets[i] >= 0;
    to->chosen = count <= step ? step : (count + step - 1) / step * step;
    if (to->chosen > rows) to->chosen = rows;
    int32_t *const chosen = gpu_stage_array(g, to, to->chosen, &to->rows), *const wanted =
                                                                               gpu_stage_array(
                                                                                   g, to,
                                                                                   to->chosen,
                                                                                   &to->targets);
    for (size_t i = 0; i < rows; i++) {
        if (targets[i] < 0) continue;
        chosen[filled] = (int32_t)i;
        wanted[filled++] = targets[i];
    }
    for (; filled < to->chosen; filled++) chosen[filled] = wanted[filled] = -1;
}

// Stages a batch and returns it with its device addresses. The previous copy must have completed.
static inline DeviceBatch gpu_stage(GpuModel *g, const Batch *batch, double scale) {
    const size_t rows = (size_t)batch->batch * (size_t)batch->length;
    const size_t source_rows = (size_t)batch->batch * (size_t)batch->source.length;
    if (rows > gpu_rows(g) || source_rows > gpu_rows(g))
        fail("a batch of %zu tokens, planned for %zu", rows > source_rows ? rows : source_rows,
             gpu_rows(g));
    gpu_check_tokens(batch->inputs, rows, 0, g->vocabulary);
    gpu_check_tokens(batch->source.tokens, source_rows, 0, g->vocabulary);
    if (batch->targets) gpu_check_tokens(batch->targets, rows, -1, g->vocabulary);
    const Dropout dropout = dropout_create(g->dropout, g->seed, batch->step, 0);
    StepParameters *step = (StepParameters *)g->on_host;
    step->dropout_key[0] = dropout.key[0];
    step->dropout_key[1] = dropout.key[1];
    step->first_row = (uint64_t)batch->first_row;
    step->scale = (float)scale;
    step->position = step->count = 0;
    DeviceBatch to = {};
    to.batch = (size_t)batch->batch;
    to.length = (size_t)batch->length;
    to.chosen = rows;
    to.bytes = sizeof(StepParameters);
    to.last = g->reduction && batch->last;
    memcpy(gpu_stage_array(g, &to, rows, &to.inputs), batch->inputs, rows * sizeof(int32_t));
    if (!batch->targets) // -1: not counted
        memset(gpu_stage_array(g, &to, rows, &to.targets), 0xff, rows * sizeof(int32_t));
    else if (g->chooses)
        gpu_stage_chosen(g, &to, batch->targets, rows);
    else
        memcpy(gpu_stage_array(g, &to, rows, &to.targets), batch->targets, rows * sizeof(int32_t));
    if (batch->mask) memcpy(gpu_stage_array(g, &to, rows, &to.mask), batch->mask, rows);
    if (source_rows == 0) return to;
    const SourceSide *source = &batch->source;
    to.source.length = (size_t)source->length;
    memcpy(gpu_stage_array(g, &to, source_rows, &to.source.tokens), source->tokens,
           source_rows * sizeof(int32_t));
    if (source->mask)
        memcpy(gpu_stage_array(g, &to, source_rows, &to.source.mask), source->mask, source_rows);
    return to;
}

// Gradients from `from` on are final, those from `end` on were final before: their sums over ranks
// may start. A model that calls this in its backward pass sets given_from to the smallest `from`.
static inline void gpu_gradients_final(GpuModel *g, const DeviceBatch *batch, size_t from,
                                       size_t end) {
    if (!batch->last) return;
    partial_sums_finish(&g->device, &g->sums);
    partial_sums_start(&g->sums);
    device_reduction_final(g->reduction, g->state.gradients, from, end, g->device.stream);
}

// Copies a staged batch to the device and runs the work on the stream.
static inline void gpu_issue(GpuModel *g, GpuWork work, const DeviceBatch *batch) {
    CUDA_CHECK(cudaMemcpyAsync(g->on_device, g->on_host, batch->bytes, cudaMemcpyHostToDevice,
                               g->device.stream));
    partial_sums_start(&g->sums);
    g->run(g, work, batch);
    partial_sums_finish(&g->device, &g->sums);
    gpu_lap(g, work, "row sums", PROFILE_BACKWARD, 0);
    if (batch->last) device_reduction_join(g->reduction, g->device.stream);
}

// Returns whether a graph of one batch can run the other.
static inline bool gpu_same_shape(const DeviceBatch &a, const DeviceBatch &b) {
    return a.batch == b.batch && a.length == b.length && a.mask == b.mask && a.chosen == b.chosen &&
           a.rows == b.rows && a.source.length == b.source.length && a.source.mask == b.source.mask;
}

// Starts the work on a batch. The first batch of a shape runs without a graph: libraries make their
// plans, kernels are loaded, and a shape that does not recur costs no graph. The second one is
// captured. Never captured: training with --profile, which waits after every kind of work, and sums
// of gradients (device_reduction_final()).
static inline void gpu_launch(GpuModel *g, GpuWork work, const DeviceBatch *batch) {
    g->given = g->given || batch->last;
    if (batch->last || (g->profile && work == GPU_TRAIN)) {
        gpu_issue(g, work, batch);
        return;
    }
    for (int i = 0; i < g->graph_count; i++) {
        GpuGraph *known = &g->graphs[i];
        if (known->work != work || !gpu_same_shape(known->batch, *batch)) continue;
        if (!known->graph)
            known->graph = device_capture(&g->device, [&] { gpu_issue(g, work, batch); });
        CUDA_CHECK(cudaGraphLaunch(known->graph, g->device.stream));
        return;
    }
    if (g->graph_count == GPU_GRAPHS) gpu_graph_free(&g->graphs[--g->graph_count]);
    g->graphs[g->graph_count++] = {work, *batch, NULL};
    gpu_issue(g, work, batch);
}

// Waits for all started work and copies its results.
static inline void gpu_wait(GpuModel *g) {
    CUDA_CHECK(cudaMemcpyAsync(g->host_results, g->results, sizeof(GpuResults),
                               cudaMemcpyDeviceToHost, g->device.stream));
    if (g->reduction) device_reduction_wait(g->reduction, g->device.stream);
    device_synchronize(&g->device);
}

static inline double gpu_forward(void *model, const Batch *batch) {
    GpuModel *g = (GpuModel *)model;
    const DeviceBatch staged = gpu_stage(g, batch, 0);
    gpu_launch(g, GPU_FORWARD, &staged);
    gpu_wait(g);
    return g->host_results->classifier.loss;
}

static inline int64_t gpu_correct(const void *model) {
    const GpuModel *g = (const GpuModel *)model;
    return llround(g->host_results->classifier.correct);
}

// After a GPU_TRAIN graph and the work that follows it: computes the gradient norm for the training
// loop, with the same wait as for the loss. The norm of sums over ranks needs another wait.
static inline double gpu_finish_training(GpuModel *g) {
    if (g->reduction && g->profile)
        device_reduction_wait(g->reduction, g->device.stream); // before the lap does
    gpu_lap(g, GPU_TRAIN, "embedding", PROFILE_BACKWARD, 0);
    if (!g->reduction) gradient_norm(&g->device, &g->state, &g->results->norm);
    gpu_wait(g);
    g->norm = g->reduction ? -1 : g->host_results->norm;
    return g->host_results->classifier.loss;
}

// ---- entries of ModelType ---------------------------------------------------
static inline void gpu_device(const void *model, DeviceInfo *info) {
    static const char *const names[] = {"fp32", "tf32", "bf16"};
    const GpuModel *g = (const GpuModel *)model;
    snprintf(info->processor, sizeof(info->processor), "%.100s, %d SMs", g->device.name,
             g->device.sms);
    snprintf(info->library, sizeof(info->library), "%s", blas_library(&g->blas));
    info->precision = names[g->precision];
    info->threads = 1;
    info->on_gpu = true;
    info->peak_flops = g->peak_flops;
}

static inline void gpu_describe(const void *model, Metadata **rows, int *count) {
    const GpuModel *g = (const GpuModel *)model;
    g->host_type->describe(g->host, rows, count);
}

static inline double gpu_flops_per_token(const void *model, int64_t length, double targets) {
    const GpuModel *g = (const GpuModel *)model;
    return g->host_type->flops_per_token(g->host, length, targets);
}

static inline double gpu_state_bytes(const void *model, int64_t tokens) {
    const GpuModel *g = (const GpuModel *)model;
    return g->host_type->state_bytes(g->host, tokens);
}

static inline const ParameterTable *gpu_parameters(const void *model) {
    const GpuModel *g = (const GpuModel *)model;
    return g->host_type->parameters(g->host);
}

static inline void gpu_read(const void *model, ModelArray which, float *out) {
    const GpuModel *g = (const GpuModel *)model;
    parameter_state_read(&g->device, &g->state, which, out);
}

static inline void gpu_write(void *model, ModelArray which, const float *in) {
    GpuModel *g = (GpuModel *)model;
    parameter_state_write(&g->device, &g->state, which, in);
    if (which == MODEL_VALUES) g->host_current = false;
    if (which == MODEL_GRADIENTS) g->norm = -1;
}

static inline void gpu_reduce(void *model) {
    GpuModel *g = (GpuModel *)model;
    if (!g->reduction) return;
    device_reduction_end(g->reduction, g->state.gradients,
                         g->given ? g->given_from : g->state.total, g->device.stream);
    device_reduction_wait(g->reduction, g->device.stream);
    g->given = false;
    g->norm = -1;
}

static inline double gpu_gradient_norm(const void *model) {
    const GpuModel *g = (const GpuModel *)model;
    if (g->norm >= 0 || g->norm != g->norm) return g->norm;
    double norm = 0;
    gradient_norm(&g->device, &g->state, &g->results->norm);
    CUDA_CHECK(cudaMemcpyAsync(&norm, &g->results->norm, sizeof(norm), cudaMemcpyDeviceToHost,
                               g->device.stream));
    device_synchronize(&g->device);
    return norm;
}

static inline void gpu_update(void *model, const UpdateSettings *settings) {
    GpuModel *g = (GpuModel *)model;
    adamw_update(&g->device, &g->state, settings);
    if (g->uses_muon) muon_update(&g->device, &g->blas, &g->muon, &g->state, settings);
    if (g->profile) device_synchronize(&g->device); // so that the loop's next lap excludes it
    g->host_current = false;
    g->norm = 0;
}

static inline void gpu_clear_gradients(void *model) {
    GpuModel *g = (GpuModel *)model;
    gradients_clear(&g->device, &g->state);
    g->norm = 0;
}

// Copies the current parameters to the CPU's model.
static inline void gpu_update_host(GpuModel *g) {
    if (g->host_current) return;
    float *values = (float *)allocate(g->state.total, sizeof(float), "parameters");
    gpu_read(g, MODEL_VALUES, values);
    g->host_type->write(g->host, MODEL_VALUES, values);
    g->host_current = true;
    free(values);
}

// Runs a measured forward pass, without a graph, as measuring waits for the device. The weights of
// a single query come from the CPU's model, in float32.
static inline void gpu_statistics(void *model, const Batch *batch, Statistics *statistics) {
    GpuModel *g = (GpuModel *)model;
    if (statistics->keeps) {
        gpu_update_host(g);
        g->host_type->statistics(g->host, batch, statistics);
        return;
    }
    const DeviceBatch staged = gpu_stage(g, batch, 0);
    g->statistics.to = statistics;
    gpu_issue(g, GPU_FORWARD, &staged);
    g->statistics.to = NULL;
}

// Beam search runs on the CPU.
static inline void *gpu_translator_create(void *model, const Batch *batch, int beams,
                                          int64_t positions) {
    GpuModel *g = (GpuModel *)model;
    gpu_update_host(g);
    return g->host_type->translator_create(g->host, batch, beams, positions);
}

static inline double gpu_unsmoothed(const void *model) {
    const GpuModel *g = (const GpuModel *)model;
    return g->host_results->classifier.unsmoothed;
}

static inline bool gpu_write_config(const void *model, JsonWriter *w) {
    const GpuModel *g = (const GpuModel *)model;
    return g->host_type->exchange->write_config(g->host, w);
}

static inline bool gpu_is_other(const void *model) {
    const GpuModel *g = (const GpuModel *)model;
    return g->host_type->exchange->is_other(g->host);
}

// The CPU's entries, with those common to all models on the GPU replaced.
static inline ModelType gpu_model_type(const ModelType *host, const char *program) {
    ModelType type = *host;
    type.program = program;
    type.options = gpu_options(host, &type.option_count);
    type.device = gpu_device;
    type.describe = host->describe ? gpu_describe : NULL;
    type.memory = gpu_memory;
    type.flops_per_token = gpu_flops_per_token;
    type.state_bytes = host->state_bytes ? gpu_state_bytes : NULL;
    type.parameters = gpu_parameters;
    type.view = NULL;
    type.read = gpu_read;
    type.write = gpu_write;
    type.forward = gpu_forward;
    type.correct = gpu_correct;
    type.statistics = gpu_statistics;
    type.reduce = gpu_reduce;
    type.gradient_norm = gpu_gradient_norm;
    type.update = gpu_update;
    type.clear_gradients = gpu_clear_gradients;
    type.translator_create = host->translator_create ? gpu_translator_create : NULL;
    type.unsmoothed = host->unsmoothed ? gpu_unsmoothed : NULL;
    if (host->exchange) {
        Exchange *exchange = (Exchange *)allocate(1, sizeof(Exchange), "exchange");
        *exchange = *host->exchange;
        exchange->write_config = gpu_write_config;
        exchange->is_other = host->exchange->is_other ? gpu_is_other : NULL;
        type.exchange = exchange;
    }
    return type;
}

static inline void gpu_model_type_free(ModelType *type) {
    free((void *)type->options);
    free((void *)type->exchange);
}

#endif
