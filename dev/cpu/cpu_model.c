#include "cpu_model.h"

#include "error.h"
#include "memory.h"
#include "threads.h"
#include "tile.h"
#include <stdlib.h>
#include <string.h>

// Returns NULL if there are no other ranks to sum gradients with.
static Reduction *create_reduction(const ModelSetup *setup, const ParameterTable *table) {
    if (ranks_size(setup->ranks) == 1) return NULL;
    const ReductionPlan plan = {.count = table->total,
                                .early = table->items[0].size,
                                .bf16 =
                                    strcmp(options_text(setup->options, OPT_REDUCE), "bf16") == 0};
    return reduction_create(setup->ranks, &plan);
}

static void lookups_carve(Lookups *l, Arena *arena, const Parameter *embedding) {
    l->rows = (size_t)embedding->shape[0];
    l->columns = (size_t)embedding->shape[1];
    l->gradients = arena_reals(arena, l->rows, l->columns, "gradients");
    l->touched = arena_array(arena, l->rows, 1, "gradients");
}

static void create_products(CpuModel *m, Precision precision) {
    m->gemm = gemm_create(precision);
    m->threads = thread_limit();
    m->serial = allocate((size_t)m->threads, sizeof(Gemm *), "threads");
    for (int i = 0; i < m->threads; i++) m->serial[i] = gemm_create_serial(m->gemm);
}

void cpu_model_create(CpuModel *m, const ModelSetup *setup) {
    m->type = setup->type;
    m->arena = arena_create();
    m->training = setup->training;
    m->rows = setup->rows > 0 ? (size_t)setup->rows : (size_t)setup->batch * (size_t)setup->length;
    m->dropout = m->attention_dropout = setup->type->facts(setup->options, NULL).dropout;
    m->seed = (uint64_t)options_integer(setup->options, OPT_SEED);
    m->profile = setup->profile;
    m->say_size = setup->say_size;
    m->decoding = setup->float32
                      ? PRECISION_FLOAT32
                      : cpu_decode_precision(options_text(setup->options, OPT_PRECISION));
    m->ranks = setup->ranks;
    m->state.muon = m->training && strcmp(options_text(setup->options, OPT_OPTIMIZER), "muon") == 0;
    if (m->training) m->state.reduction = create_reduction(setup, &m->state.table);
    if (m->rows) create_products(m, cpu_precision(setup));
    if (m->state.muon) m->muon = muon_create(m->gemm, &m->state.table);
}

bool ffn_remade(Precision precision, size_t channels, size_t inner) {
    enum { CACHED = 1 << 17 }; // numbers of a weight that stays in cache
    return channels * inner <= CACHED &&
           tile_multiplier(precision == PRECISION_BFLOAT16) == MULTIPLY_AMX;
}

void cpu_model_carve_workspace(CpuModel *m, size_t channels, size_t hidden, size_t inner) {
    const char *what = "gradients of activations";
    Workspace *w = &m->work;
    Arena *arena = m->arena;
    const size_t M = m->rows, C = channels, F = inner;
    const size_t own = (size_t)m->threads * FFN_ROWS;
    const bool remade = m->training && ffn_remade(gemm_precision(m->gemm), C, F);
    w->output = arena_reals(arena, M > own ? M : own, C, "activations");
    w->hidden = arena_reals(arena, own, hidden, "activations");
    w->activated = gemm_input_carve(m->gemm, arena, remade && M > own ? M : own, F, "activations");
    if (!m->training) return;
    w->dx = arena_reals(arena, M, C, what);
    w->dnorm = arena_reals(arena, M, C, what);
    w->doutput = gemm_input_carve(m->gemm, arena, M, C, what);
    ArenaUnion shared = arena_union(arena);
    w->dattended = arena_reals(arena, M, C, what);
    ArenaUnion projected = arena_union(arena);
    w->dqkv = gemm_input_carve(m->gemm, arena, M, 3 * C, what);
    arena_member(arena, &projected);
    w->dquery = gemm_input_carve(m->gemm, arena, M, C, what);
    w->dkey_value = gemm_input_carve(m->gemm, arena, M, 2 * C, what);
    arena_close(arena, &projected);
    arena_member(arena, &shared);
    w->dactivated = arena_reals(arena, own, F, what);
    w->dhidden = gemm_input_carve(m->gemm, arena, M, hidden, what);
    arena_close(arena, &shared);
}

// Returns whether an array grows with the parameters, independent of the batch.
static bool grows_with_parameters(const char *what) {
    static const char *const arrays[] = {"parameters", "gradients", "moments", "packed weights",
                                         "orthogonalisation"};
    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++)
        if (strcmp(what, arrays[i]) == 0) return true;
    return false;
}

// Exits with an error if the model needs more memory than is available, before the kernel kills it.
static void check_memory(const CpuModel *m) {
    const size_t needed = arena_bytes(m->arena),
                 available = memory_available() / (size_t)ranks_on_machine(m->ranks);
    if (needed <= available) return;
    size_t count, parameters = 0;
    const ArenaItem *items = arena_items(m->arena, &count);
    for (size_t i = 0; i < count; i++)
        if (grows_with_parameters(items[i].what)) parameters += items[i].bytes;
    const OptionName *lower = parameters > needed / 2 ? m->type->lower : m->type->task->lower;
    char *need = format_bytes(needed), *have = format_bytes(available);
    fail("--%s: the model needs %s of memory, %s are available; lower it or --%s",
         options_name(lower[0]), need, have, options_name(lower[1]));
}

static void carve_all(CpuModel *m, void (*carve)(void *model)) {
    parameter_state_carve(&m->state, m->arena, m->training);
    if (m->state.reduction) lookups_carve(&m->lookups, m->arena, &m->state.table.items[0]);
    if (m->muon) muon_carve(m->muon, m->arena);
    for (size_t i = 0; i < m->weight_count; i++) gemm_weight_carve(m->weights[i].weight, m->arena);
    carve(m);
}

void cpu_model_allocate(CpuModel *m, void (*carve)(void *model)) {
    carve_all(m, carve);
    if (m->say_size) m->say_size(m->type->name, m->state.table.parameters, arena_bytes(m->arena));
    check_memory(m);
    arena_allocate(m->arena);
    carve_all(m, carve);
}

char *cpu_model_memory(const void *model) {
    const CpuModel *m = model;
    size_t count;
    const ArenaItem *items = arena_items(m->arena, &count);
    char *text = format_bytes(arena_bytes(m->arena));
    for (size_t i = 0; i < count; i++) {
        char *bytes = format_bytes(items[i].bytes);
        append_format(&text, "%s %s %s", i == 0 ? ":" : ",", items[i].what, bytes);
        free(bytes);
    }
    return text;
}

GemmWeight *cpu_model_weight(CpuModel *m, Gemm *gemm, size_t n, size_t k, WeightLayout layout,
                             size_t offset) {
    m->weights = grow_list(m->weights, m->weight_count, sizeof(PackedWeight), "weights");
    GemmWeight *weight = gemm_weight_create(gemm, n, k, layout, "packed weights");
    m->weights[m->weight_count++] = (PackedWeight){weight, offset};
    return weight;
}

void cpu_model_pack(CpuModel *m) {
    if (m->packed) return;
    const real *values = m->state.values;
    // The matrices are small: one thread packs each, several at a time.
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < m->weight_count; i++)
        gemm_weight_pack(m->weights[i].weight, values + m->weights[i].offset);
    if (m->classifier) classifier_pack(m->classifier, values + m->classifier_weight);
    m->packed = true;
}

void cpu_model_destroy(CpuModel *m) {
    for (size_t i = 0; i < m->weight_count; i++) gemm_weight_free(m->weights[i].weight);
    free(m->weights);
    classifier_free(m->classifier);
    muon_free(m->muon);
    for (int i = 0; i < m->threads; i++) gemm_free(m->serial[i]);
    free(m->serial);
    gemm_free(m->gemm);
    parameter_state_free(&m->state);
    arena_free(m->arena);
}

void cpu_model_device(const void *model, DeviceInfo *info) {
    cpu_device(((const CpuModel *)model)->gemm, info);
}

const ParameterTable *cpu_model_parameters(const void *model) {
    return &((const CpuModel *)model)->state.table;
}

const real *cpu_model_view(const void *model, ModelArray which) {
    return parameter_state_array(&((const CpuModel *)model)->state, which);
}

void cpu_model_read(const void *model, ModelArray which, real *out) {
    const ParameterState *state = &((const CpuModel *)model)->state;
    memcpy(out, parameter_state_array(state, which), state->table.total * sizeof(real));
}

void cpu_model_write(void *model, ModelArray which, const real *in) {
    CpuModel *m = model;
    memcpy(parameter_state_array(&m->state, which), in, m->state.table.total * sizeof(real));
    m->packed = false;
}

// Sums the gradients of lookups over all ranks, only of the rows that any rank looked up, packed
// into one array.
static void reduce_lookups(CpuModel *m) {
    const Lookups *l = &m->lookups;
    const size_t C = l->columns;
    size_t count = 0;
    ranks_union(m->ranks, l->touched, l->rows);
    for (size_t row = 0; row < l->rows; row++) count += l->touched[row];
    real *rows = allocate(count * C, sizeof(real), "gradients");
    count = 0;
    for (size_t row = 0; row < l->rows; row++)
        if (l->touched[row]) memcpy(rows + C * count++, l->gradients + C * row, C * sizeof(real));
    reduction_add(m->state.reduction, rows, count * C);
    count = 0;
    for (size_t row = 0; row < l->rows; row++) {
        if (!l->touched[row]) continue;
        real *gradient = m->state.gradients + C * row;
        for (size_t c = 0; c < C; c++) gradient[c] += rows[C * count + c];
        memset(l->gradients + C * row, 0, C * sizeof(real));
        l->touched[row] = 0;
        count++;
    }
    free(rows);
}

void cpu_model_reduce(void *model) {
    CpuModel *m = model;
    reduction_end(m->state.reduction, m->state.gradients);
    if (m->lookups.gradients) reduce_lookups(m);
}

double cpu_model_gradient_norm(const void *model) {
    return gradient_norm(&((const CpuModel *)model)->state);
}

void cpu_model_update(void *model, const UpdateSettings *settings) {
    CpuModel *m = model;
    adamw_update(&m->state, settings);
    if (m->muon) muon_update(m->muon, &m->state, settings);
    m->packed = false;
}

void cpu_model_clear_gradients(void *model) {
    gradients_clear(&((CpuModel *)model)->state);
}
