// Blocks in a minimal model of two stacks: an encoder (embedding and final norm) and a decoder
// (embedding with the same table, cross-attention, feed-forward network with ReLU, head). Its
// gradients are checked against central differences.
#include "blocks.h"
#include "embedding.h"
#include "memory.h"
#include "random.h"
#include "test.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { B = 3, T = 5, S = 7, C = 8, H = 2, F = 12, V = 11, PADDING = 0 };

typedef struct {
    NormOrder order;
    AttentionKind attention;
    double smoothing;
    const char *dropout; // NULL: 0
} Kind;

typedef struct {
    CpuModel base;
    LayerPlan layer;
    AttentionShared attention;
    Embedding source, target; // share one table
    Encoded encoded;
    CrossAttentionBlock cross;
    FfnBlock ffn;
    OutputHead head;
    real *read, *x[3]; // (B S, C); each (B T, C)
    real *sinusoids;   // (S, C)
} Pair;

static ModelFacts facts(const Options *options, const char *file) {
    (void)file;
    return (ModelFacts){.dropout = options_number(options, OPT_DROPOUT)};
}
static const ModelType type = {.facts = facts};

static Options *make_options(void) {
    // clang-format off
    static const Option rows[] = {
        {.name = OPT_SEED, .kind = OPTION_INTEGER, .scope = OPTION_TRAINING, .value = "N",
         .initial = "7", .max = 100, .group = "", .help = ""},
        {.name = OPT_PRECISION, .kind = OPTION_TEXT, .scope = OPTION_TRAINING, .value = "P",
         .initial = "fp32", .group = "", .help = ""},
        {.name = OPT_OPTIMIZER, .kind = OPTION_TEXT, .scope = OPTION_TRAINING, .value = "O",
         .initial = "adamw", .group = "", .help = ""},
        {.name = OPT_DROPOUT, .kind = OPTION_NUMBER, .scope = OPTION_TRAINING, .value = "P",
         .initial = "0", .max = 1, .group = "", .help = ""}};
    // clang-format on
    Options *options = options_create("test", "");
    options_add(options, rows, sizeof(rows) / sizeof(rows[0]));
    return options;
}

typedef struct {
    size_t token;
    NormParameters encoder_norm, final_norm;
    AttentionPlan cross;
    FfnParameters ffn;
} TestParameters;

static TestParameters add_parameters(ParameterTable *table, const Kind *kind) {
    static const char *const parts[] = {"key", "value"};
    const bool pre = kind->order == PRE_NORM;
    TestParameters o = {.token = add_matrix(table, "token", V, C, 0.5)};
    o.cross = attention_plan(kind->attention, false);
    o.cross.sink = kind->attention == ATTENTION_SOFTMAX1 ? 1 : 0;
    o.cross.weight_sites[0] = 2;
    o.cross.site = 3;
    o.encoder_norm = pre ? add_norm(table, C, "encoder_norm") : no_norm(C);
    o.cross.norm = add_norm(table, C, "cross.norm");
    o.cross.query = add_linear(table, (LinearShape){C, C, WEIGHT_OUT_IN, true, 0.5}, "cross.query");
    o.cross.key_value = add_joined_linear(table, (LinearShape){2 * C, C, WEIGHT_OUT_IN, true, 0.5},
                                          "cross", parts, NULL, 2);
    o.cross.projection =
        add_linear(table, (LinearShape){C, C, WEIGHT_OUT_IN, true, 0.5}, "cross.projection");
    if (kind->attention == ATTENTION_COSINE)
        o.cross.learned[0] = add_vector(table, "cross.exponent", H, 0.5);
    o.ffn.norm = add_norm(table, C, "ffn.norm");
    o.ffn.up = add_linear(table, (LinearShape){F, C, WEIGHT_OUT_IN, true, 0.5}, "ffn.up");
    o.ffn.down = add_linear(table, (LinearShape){C, F, WEIGHT_OUT_IN, true, 0.5}, "ffn.down");
    o.final_norm = pre ? add_norm(table, C, "final_norm") : no_norm(C);
    return o;
}

static void embeddings_create(Pair *p, size_t token) {
    p->source = (Embedding){.plan = {.token = token,
                                     .scale = sqrt(C),
                                     .position = NO_PARAMETER,
                                     .type = NO_PARAMETER,
                                     .norm = no_norm(C),
                                     .site = 0,
                                     .padding = -1},
                            .channels = C};
    p->target = p->source;
    p->target.plan.site = 1;
}

static void pair_carve(void *model) {
    Pair *p = model;
    CpuModel *m = &p->base;
    p->sinusoids = arena_reals(m->arena, S, C, "positions");
    p->source.sinusoids = p->target.sinusoids = p->sinusoids;
    embed_carve(&p->source, m, S);
    embed_carve(&p->target, m, T);
    attention_shared_carve(&p->attention, m);
    encoded_carve(&p->encoded, m);
    p->read = arena_reals(m->arena, m->rows, C, "activations");
    stream_carve(p->x, m->arena, 2, m->rows, C, true);
    cross_attention_block_carve(&p->cross, m);
    ffn_block_carve(&p->ffn, m);
    head_carve(&p->head, m);
    cpu_model_carve_workspace(m, C, F, F);
}

static Pair *pair_create(const Kind *kind, const Options *options) {
    Pair *p = allocate(1, sizeof(Pair), "model");
    CpuModel *m = &p->base;
    const TestParameters o = add_parameters(&m->state.table, kind);
    cpu_model_create(
        m, &(ModelSetup){
               .type = &type, .options = options, .batch = B, .length = S, .training = true});
    embeddings_create(p, o.token);
    p->layer =
        (LayerPlan){.attention = {.kind = kind->attention}, .crosses = true, .cross = o.cross};
    const ModelSizes size = {.channels = C, .heads = H};
    attention_shared_create(&p->attention, m, &size, &p->layer, 1, B, S);
    p->encoded.norm.parameters = o.encoder_norm;
    cross_attention_block_create(&p->cross, m, &p->attention, &p->encoded, &p->layer.cross,
                                 kind->order, 0);
    ffn_block_create(&p->ffn, m, &o.ffn, RELU, kind->order, 0, 4);
    head_create(&p->head, m, &o.final_norm, o.token, NO_PARAMETER, V);
    classifier_smooth(p->head.classifier, kind->smoothing);
    cpu_model_allocate(m, pair_carve);
    sinusoidal_positions(p->sinusoids, S, C);
    return p;
}

static void pair_free(Pair *p) {
    attention_shared_free(&p->attention);
    cpu_model_destroy(&p->base);
    free(p);
}

static double pair_train(Pair *p, const Batch *batch, double scale) {
    Batch of_source;
    BlockPass forward = pass_forward(&p->base, batch, true, NULL);
    const BlockPass source = pass_source(&forward, &of_source),
                    source_backward = pass_backward(&source);
    forward.source = &source;
    BlockPass backward = pass_backward(&forward);
    backward.source = &source_backward;
    embed_forward(&source, &p->source, p->read);
    encoded_forward(&source, &p->encoded, p->read);
    embed_forward(&forward, &p->target, p->x[0]);
    cross_attention_block_forward(&forward, &p->cross, p->x[1], p->x[0]);
    ffn_block_forward(&forward, &p->ffn, p->x[2], p->x[1]);
    const double loss = head_train(&forward, &backward, &p->head, p->x[2], scale);
    ffn_block_backward(&backward, &p->ffn, p->x[1]);
    cross_attention_block_backward(&backward, &p->cross, p->x[0]);
    embed_backward(&backward, &p->target);
    encoded_backward(&source_backward, &p->encoded, p->read);
    embed_backward(&source_backward, &p->source);
    return loss;
}

// Both sides have padding, one source is a single token, and some targets do not count.
typedef struct {
    int32_t source[B * S], inputs[B * T], targets[B * T];
    uint8_t source_mask[B * S], mask[B * T];
    Batch batch;
} Example;

static void example_create(Example *e) {
    static const int source_lengths[B] = {7, 1, 4}, lengths[B] = {3, 5, 4};
    Random random = random_stream(5, RANDOM_TEST, 0, 0);
    for (int i = 0; i < B * S; i++) {
        e->source_mask[i] = i % S < source_lengths[i / S];
        e->source[i] = e->source_mask[i] ? 1 + (int32_t)random_below(&random, V - 1) : PADDING;
    }
    for (int i = 0; i < B * T; i++) {
        e->mask[i] = i % T < lengths[i / T];
        e->inputs[i] =
            e->mask[i] && i % T > 0 ? 1 + (int32_t)random_below(&random, V - 1) : PADDING;
        e->targets[i] = e->mask[i] ? (int32_t)random_below(&random, V) : -1;
    }
    e->batch = (Batch){.batch = B,
                       .length = T,
                       .inputs = e->inputs,
                       .targets = e->targets,
                       .mask = e->mask,
                       .source = {.length = S, .tokens = e->source, .mask = e->source_mask},
                       .step = 3};
}

// Draws values away from the initial ones: gains off 1, biases off 0.
static real *draw_values(const ParameterTable *table) {
    real *values = allocate(table->total, sizeof(real), "parameters");
    parameter_initialise(table, 1, values);
    Random random = random_stream(6, RANDOM_TEST, 0, 0);
    for (int i = 0; i < table->count; i++)
        for (size_t j = 0; j < table->items[i].size; j++)
            values[table->items[i].offset + j] += (real)(0.15 * random_normal(&random));
    return values;
}

// Returns the loss with values + change * direction (total).
static double loss_at(Pair *p, const Batch *batch, const real *values, const real *direction,
                      double change) {
    const size_t total = p->base.state.table.total;
    real *changed = allocate(total, sizeof(real), "parameters");
    for (size_t i = 0; i < total; i++) changed[i] = values[i] + (real)change * direction[i];
    cpu_model_write(p, MODEL_VALUES, changed);
    free(changed);
    return pair_train(p, batch, 0);
}

// Compares the derivative of the loss in a direction, from the gradient, with central differences.
static void check_direction(Pair *p, const Batch *batch, const real *values, const real *gradients,
                            const real *direction, const char *what) {
    const double step = sizeof(real) == sizeof(double) ? 1e-6 : 1e-3,
                 tolerance = sizeof(real) == sizeof(double) ? 1e-7 : 1e-2;
    double expected = 0, norm = 0;
    for (size_t i = 0; i < p->base.state.table.total; i++) {
        expected += (double)gradients[i] * (double)direction[i];
        norm += (double)gradients[i] * (double)gradients[i];
    }
    const double difference =
        (loss_at(p, batch, values, direction, step) - loss_at(p, batch, values, direction, -step)) /
        (2 * step);
    if (!(fabs(difference - expected) <= tolerance * sqrt(norm)))
        test_fail(__FILE__, __LINE__, "%s: derivative %.9g, central difference %.9g", what,
                  expected, difference);
}

// Checks the direction of the gradient; in double also single elements of each parameter (in float
// they drown in rounding or hit the kink of ReLU).
static void check_gradients(Pair *p, const Batch *batch) {
    enum { SAMPLES = 6 };
    const ParameterTable *table = cpu_model_parameters(p);
    real *values = draw_values(table),
         *gradients = allocate(table->total, sizeof(real), "gradients"),
         *direction = allocate(table->total, sizeof(real), "directions");
    cpu_model_write(p, MODEL_VALUES, values);
    cpu_model_clear_gradients(p);
    pair_train(p, batch, 1);
    cpu_model_read(p, MODEL_GRADIENTS, gradients);
    double norm = 0;
    for (size_t i = 0; i < table->total; i++) norm += (double)gradients[i] * (double)gradients[i];
    for (size_t i = 0; i < table->total; i++) direction[i] = gradients[i] / (real)sqrt(norm);
    check_direction(p, batch, values, gradients, direction, "gradient");
    memset(direction, 0, table->total * sizeof(real));
    Random random = random_stream(8, RANDOM_TEST, 0, 0);
    for (int i = 0; sizeof(real) == sizeof(double) && i < SAMPLES * table->count; i++) {
        const Parameter *of = &table->items[i / SAMPLES];
        const size_t element = of->offset + (size_t)random_below(&random, of->size);
        direction[element] = 1;
        check_direction(p, batch, values, gradients, direction, of->name);
        direction[element] = 0;
    }
    free(direction);
    free(values);
    free(gradients);
}

// The padding token learns like any other here: central differences make no exception.
static void check_pair(const Kind *kind) {
    Options *options = make_options();
    if (kind->dropout) options_set(options, OPT_DROPOUT, kind->dropout, "test");
    Example e;
    example_create(&e);
    Pair *p = pair_create(kind, options);
    check_gradients(p, &e.batch);
    pair_free(p);
    options_free(options);
}

static void test_cross_attention(void) {
    for (int order = PRE_NORM; order <= POST_NORM; order++) {
        check_pair(&(Kind){.order = (NormOrder)order});
        check_pair(&(Kind){.order = (NormOrder)order, .attention = ATTENTION_SOFTMAX1});
        check_pair(&(Kind){.order = (NormOrder)order, .attention = ATTENTION_COSINE});
        check_pair(&(Kind){.order = (NormOrder)order, .dropout = "0.3", .smoothing = 0.2});
    }
}

int main(int argc, char **argv) {
    static const TestCase cases[] = {
        {"cross-attention", test_cross_attention},
    };
    return test_main(argc, argv, "blocks", cases, sizeof(cases) / sizeof(*cases));
}
