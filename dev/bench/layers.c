// Measures each layer alone, forward and backward: ms, GFLOP/s and its share of the measured peak,
// GB/s and its share of the bandwidth for reading a block of as many bytes. Prints a line of JSON
// per layer.
//
//   layers [options of train_fastformer]      of which -b -t -C -H -p and --vocabulary have an
//                                             effect; the windows are 4 and global
#define TESTING
#include "train_fastformer.c"

#include "cosine_attention.h"
#include "measure.h"
#include "random.h"
#include "residual.h"
#include "run.h"
#include "softmax_attention.h"
#include "threads.h"
#include <math.h>

// clang-format off
static const Option rows[] = {
    {.name = OPT_VOCABULARY, .kind = OPTION_INTEGER, .value = "N", .initial = "32000", .min = 2,
     .max = 1 << 28, .group = "Measurement", .help = "tokens that there are"},
};
// clang-format on

enum { WINDOW = 256 };

// A Fastformer of two layers after one training step, whose arrays the layers read and write, and
// the attention of GPT-2.
typedef struct {
    Transformer *f;
    Batch batch;
    BlockPass pass;
    size_t M;
    Dropout dropout;
    SoftmaxAttention *softmax;
    CosineAttention *cosine;
    // Causal; causal with a window; bidirectional; cross-attention to other sequences
    AttentionInput self, windowed, both, cross;
    AttentionGradients self_gradients, cross_gradients;
    Matrix attended;            // (M, C)
    real *logsumexp, *exponent; // (B, H, T), (H)
} Bench;

// ---- The layers, called as the models call them -----------------------------

static void embedding_f(Bench *b) {
    embed_forward(&b->pass, &b->f->embeddings[0], b->f->streams[0][0]);
}

static void embedding_b(Bench *b) {
    embed_backward(&b->pass, &b->f->embeddings[0]);
}

static void norm_f(Bench *b) {
    const Sublayer *s = &b->f->layers[0].ffn.sublayer;
    norm_forward(&b->pass, &s->norm, s->input, b->f->streams[0][1]);
}

static void norm_b(Bench *b) {
    const Workspace *w = b->pass.work;
    norm_backward(&b->pass, &b->f->layers[0].ffn.sublayer.norm, w->dx, w->dnorm,
                  b->f->streams[0][1]);
}

static void qkv_f(Bench *b) {
    const AttentionBlock *a = &b->f->layers[0].attention;
    linear_forward(&b->pass, &a->exact, a->projected, b->f->attention.input);
}

static void qkv_b(Bench *b) {
    const Workspace *w = b->pass.work;
    linear_backward(&b->pass, &b->f->layers[0].attention.qkv, w->dnorm, w->dqkv,
                    b->f->attention.again);
}

static AttentionInput layer_input(const Bench *b, size_t l) {
    AttentionInput in =
        attention_self(b->f->layers[l].attention.projected, NULL, b->f->plan.size.channels, true,
                       NULL, (size_t)b->batch.batch, (size_t)b->batch.length);
    in.window = b->f->plan.layers[l].attention.window;
    return in;
}

static void attention_f(Bench *b, size_t l) {
    const AttentionInput in = layer_input(b, l);
    real **x = b->f->layers[l].x;
    attention_sublayer_forward(&b->pass, &b->f->layers[l].attention.common, &in, x[1], x[0]);
}

static void attention_b(Bench *b, size_t l) {
    const AttentionInput in = layer_input(b, l);
    const AttentionGradients gradients =
        attention_self_gradients(b->pass.work->dqkv, NULL, b->f->plan.size.channels);
    attention_sublayer_backward(&b->pass, &b->f->layers[l].attention.common, &gradients, &in);
}

static void window_f(Bench *b) {
    attention_f(b, 0);
}

static void window_b(Bench *b) {
    attention_b(b, 0);
}

static void global_f(Bench *b) {
    attention_f(b, 1);
}

static void global_b(Bench *b) {
    attention_b(b, 1);
}

// Includes the normalisation and the residual connection.
static void ffn_f(Bench *b) {
    ffn_block_forward(&b->pass, &b->f->layers[0].ffn, b->f->streams[0][2], b->f->streams[0][1]);
}

static void ffn_b(Bench *b) {
    ffn_block_backward(&b->pass, &b->f->layers[0].ffn, b->f->streams[0][1]);
}

static void residual_f(Bench *b) {
    residual_forward(b->f->streams[0][2], b->f->streams[0][1], b->pass.work->output, NULL,
                     &b->dropout, 0, b->M, b->f->plan.size.channels);
}

static void residual_b(Bench *b) {
    residual_backward(b->pass.work->doutput, NULL, b->pass.work->dx, &b->dropout, 0, b->M,
                      b->f->plan.size.channels);
}

static void classifier_f(Bench *b) {
    classifier_forward(b->f->head.classifier, b->f->head.normal,
                       b->f->model.state.values + b->f->plan.bias, b->batch.targets, b->M, NULL);
}

static void classifier_fb(Bench *b) {
    real *gradients = b->f->model.state.gradients;
    classifier_train(b->f->head.classifier, b->f->head.normal,
                     b->f->model.state.values + b->f->plan.bias, b->batch.targets, b->M,
                     1.0 / (double)b->M, b->pass.work->dnorm,
                     gradients + b->f->plan.stacks[0].embedding.token, gradients + b->f->plan.bias);
}

static void softmax_f(Bench *b) {
    softmax_attention_forward(b->softmax, b->attended, b->logsumexp, &b->self);
}

static void softmax_b(Bench *b) {
    softmax_attention_backward(b->softmax, &b->self_gradients, b->pass.work->dnorm, b->attended,
                               b->logsumexp, &b->self);
}

static void softmax_window_f(Bench *b) {
    softmax_attention_forward(b->softmax, b->attended, b->logsumexp, &b->windowed);
}

static void softmax_window_b(Bench *b) {
    softmax_attention_backward(b->softmax, &b->self_gradients, b->pass.work->dnorm, b->attended,
                               b->logsumexp, &b->windowed);
}

static void softmax_both_f(Bench *b) {
    softmax_attention_forward(b->softmax, b->attended, b->logsumexp, &b->both);
}

static void softmax_both_b(Bench *b) {
    softmax_attention_backward(b->softmax, &b->self_gradients, b->pass.work->dnorm, b->attended,
                               b->logsumexp, &b->both);
}

static void softmax_cross_f(Bench *b) {
    softmax_attention_forward(b->softmax, b->attended, b->logsumexp, &b->cross);
}

static void softmax_cross_b(Bench *b) {
    softmax_attention_backward(b->softmax, &b->cross_gradients, b->pass.work->dnorm, b->attended,
                               b->logsumexp, &b->cross);
}

static void cosine_f(Bench *b) {
    cosine_attention_forward(b->cosine, b->attended, b->exponent, &b->self);
}

static void cosine_b(Bench *b) {
    cosine_attention_backward(b->cosine, &b->self_gradients, b->f->model.state.gradients,
                              b->pass.work->dnorm, b->exponent, &b->self);
}

static void cosine_both_f(Bench *b) {
    cosine_attention_forward(b->cosine, b->attended, b->exponent, &b->both);
}

static void cosine_both_b(Bench *b) {
    cosine_attention_backward(b->cosine, &b->self_gradients, b->f->model.state.gradients,
                              b->pass.work->dnorm, b->exponent, &b->both);
}

static void pack(Bench *b) {
    b->f->model.packed = false;
    cpu_model_pack(&b->f->model);
}

static void norm_of_gradients(Bench *b) {
    gradient_norm(&b->f->model.state);
}

static void update(Bench *b) {
    const UpdateSettings settings = {.learning_rate = 1e-4,
                                     .beta1 = 0.9,
                                     .beta2 = 0.999,
                                     .epsilon = 1e-8,
                                     .weight_decay = 0.01,
                                     .gradient_scale = 1,
                                     .step = 2};
    adamw_update(&b->f->model.state, &settings);
}

// ---- Measuring --------------------------------------------------------------

typedef struct {
    const char *layer, *direction;
    void (*run)(Bench *b);
    double flops; // of matrix products
    double bytes; // of all arrays that are read or written; an array that is added to counts twice
    bool exact;   // the product is float32 with any --precision
} Case;

typedef struct {
    double flops, exact_flops; // FLOP/s of a large product, in --precision and in float32
} Peaks;

static void measure_case(Bench *b, const Case *c, const Peaks *peaks) {
    enum { WARM_UP = 2, LEAST = 5, MOST = 200 };
    const double duration = 0.3;
    double seconds[MOST] = {0};
    size_t count = 0;
    for (int i = 0; i < WARM_UP; i++) c->run(b);
    const double begin = clock_seconds();
    while (count < LEAST || (count < MOST && clock_seconds() - begin < duration)) {
        const double start = clock_seconds();
        c->run(b);
        seconds[count++] = clock_seconds() - start;
    }
    const double median = bench_median(seconds, count);
    JsonWriter w = {0};
    json_begin(&w, '{');
    json_add_string(&w, "layer", c->layer);
    json_add_string(&w, "direction", c->direction);
    json_add_string(&w, "precision",
                    !c->exact && gemm_precision(b->f->model.gemm) == PRECISION_BFLOAT16 ? "bf16"
                                                                                        : "fp32");
    json_add_integer(&w, "threads", (size_t)thread_limit());
    json_add_number(&w, "ms", 1e3 * median);
    json_add_number(&w, "lowest_ms", 1e3 * seconds[0]);
    if (c->flops > 0) json_add_number(&w, "gflops", 1e-9 * c->flops / median);
    if (c->flops > 0)
        json_add_number(&w, "percent_of_peak",
                        100 * c->flops / median / (c->exact ? peaks->exact_flops : peaks->flops));
    json_add_number(&w, "gb_per_s", 1e-9 * c->bytes / median);
    json_add_number(&w, "percent_of_read",
                    100 * c->bytes / median / bench_read_bandwidth((size_t)c->bytes));
    bench_line(&w);
}

static void measure_all(Bench *b) {
    const ModelSizes *size = &b->f->plan.size;
    const double r = sizeof(real),
                 g = gemm_precision(b->f->model.gemm) == PRECISION_BFLOAT16 ? 2 : r;
    const double MC = (double)(b->M * size->channels),
                 CC = (double)(size->channels * size->channels);
    const double VC = (double)(size->vocabulary * size->channels),
                 N = (double)b->f->model.state.table.total;
    const double product = 2 * MC * (double)size->channels,
                 classes = 2 * MC * (double)size->vocabulary;
    const double softmax = 2 * MC * (double)b->batch.length,
                 cosine = 4 * MC * (double)size->head_size;
    const double T = (double)b->batch.length, window = fmin(WINDOW, T),
                 windowed = 4 * MC * window * (1 - window / (2 * T));
    const double layers = 2 * 11 * CC; // weights
    const Case cases[] = {
        {"embedding", "forward", embedding_f, 0, 3 * MC * r, false},
        {"embedding", "backward", embedding_b, 0, 5 * MC * r, false},
        {"norm", "forward", norm_f, 0, MC * (r + g), false},
        {"norm", "backward", norm_b, 0, 4 * MC * r, false},
        {"qkv", "forward", qkv_f, 3 * product, (4 * MC + 3 * CC) * r, true},
        {"qkv", "backward", qkv_b, 6 * product, 4 * MC * g + MC * r + 3 * CC * (g + 2 * r), false},
        {"attention, window 4", "forward", window_f, 0, 7 * MC * r, false},
        {"attention, window 4", "backward", window_b, 0, MC * (6 * r + 3 * g), false},
        {"attention, global", "forward", global_f, 0, 7 * MC * r, false},
        {"attention, global", "backward", global_b, 0, MC * (6 * r + 3 * g), false},
        {"ffn", "forward", ffn_f, 8 * product, MC * (6 * r + 6 * g) + 8 * CC * g, false},
        {"ffn", "backward", ffn_b, 16 * product, MC * (9 * r + 15 * g) + 8 * CC * (g + 2 * r),
         false},
        {"residual", "forward", residual_f, 0, 3 * MC * r, false},
        {"residual", "backward", residual_b, 0, MC * (r + g), false},
        {"classifier", "forward", classifier_f, classes, (VC + MC) * g, false},
        {"classifier", "both", classifier_fb, 3 * classes, (VC + MC) * g + MC * r + 2 * VC * r,
         false},
        {"softmax attention", "forward", softmax_f, softmax, MC * (3 * r + g), false},
        {"softmax attention", "backward", softmax_b, 2 * softmax, MC * (4 * r + 4 * g), false},
        {"softmax, window 256", "forward", softmax_window_f, windowed, MC * (3 * r + g), false},
        {"softmax, window 256", "backward", softmax_window_b, 2 * windowed, MC * (4 * r + 4 * g),
         false},
        {"softmax, both ways", "forward", softmax_both_f, 2 * softmax, MC * (3 * r + g), false},
        {"softmax, both ways", "backward", softmax_both_b, 4 * softmax, MC * (4 * r + 4 * g),
         false},
        {"softmax, half the keys", "forward", softmax_cross_f, softmax, MC * (2 * r + g), false},
        {"softmax, half the keys", "backward", softmax_cross_b, 2 * softmax, MC * (3 * r + 3 * g),
         false},
        {"cosine attention", "forward", cosine_f, cosine, MC * (3 * r + g), false},
        {"cosine attention", "backward", cosine_b, 2 * cosine, MC * (4 * r + 3 * g), false},
        {"cosine, both ways", "forward", cosine_both_f, cosine, MC * (3 * r + g), false},
        {"cosine, both ways", "backward", cosine_both_b, 2 * cosine, MC * (4 * r + 3 * g), false},
        {"gradient norm", "update", norm_of_gradients, 0, N * r, false},
        {"adamw", "update", update, 0, 8 * N * r, false},
        {"pack weights", "update", pack, 0, (layers + VC) * (r + g), false},
    };
    const Peaks peaks = {gemm_measure_peak(b->f->model.gemm),
                         gemm_measure_peak(b->f->attention.gemm)};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        measure_case(b, &cases[i], &peaks);
}

static Batch random_batch(const ModelSetup *setup) {
    const size_t M = (size_t)(setup->batch * setup->length);
    int32_t *inputs = allocate(M, sizeof(*inputs), "inputs"),
            *targets = allocate(M, sizeof(*targets), "targets");
    Random random = random_stream(1, RANDOM_TEST, 0, 0);
    for (size_t i = 0; i < M; i++) {
        inputs[i] = (int32_t)random_below(&random, (uint64_t)setup->vocabulary);
        targets[i] = (int32_t)random_below(&random, (uint64_t)setup->vocabulary);
    }
    return (Batch){
        .batch = setup->batch, .length = setup->length, .inputs = inputs, .targets = targets};
}

// Cross-attention reads queries, keys and values from the same array, with half as many keys as
// queries.
static void inputs_create(Bench *b, size_t B, size_t T) {
    const size_t C = b->f->plan.size.channels;
    const real *qkv = b->f->layers[0].attention.projected;
    b->self = attention_self(qkv, NULL, C, true, NULL, B, T);
    b->self.dropout = &b->dropout;
    b->windowed = b->self;
    b->windowed.window = WINDOW;
    b->both = b->self;
    b->both.causal = false;
    b->cross = attention_cross(qkv, NULL, qkv, NULL, C, NULL, B, T, (T + 1) / 2);
    b->cross.dropout = &b->dropout;
    b->self_gradients = attention_self_gradients(b->pass.work->dqkv, NULL, C);
    b->cross_gradients =
        attention_cross_gradients(b->pass.work->doutput, NULL, b->pass.work->dqkv, NULL, C);
}

static void attention_memory(Bench *b, Arena *arena, size_t M, size_t channels) {
    softmax_attention_carve(b->softmax, arena, true);
    cosine_attention_carve(b->cosine, arena);
    b->attended = gemm_input_carve(b->f->model.gemm, arena, M, channels, "attention");
}

int main(int argc, char **argv) {
    threads_wait_briefly(argv);
    Options *options = trainer_options_create(&fastformer);
    options_add(options, rows, sizeof(rows) / sizeof(rows[0]));
    options_parse(options, argc, argv, NULL, NULL);
    options_set(options, OPT_LAYERS, "2", argv[0]);
    options_set(options, OPT_WINDOWS, "4,global", argv[0]);
    const ModelSetup setup = {.type = &fastformer,
                              .options = options,
                              .batch = options_integer(options, OPT_BATCH),
                              .length = options_integer(options, OPT_SEQ_LEN),
                              .positions = options_integer(options, OPT_SEQ_LEN),
                              .vocabulary = options_integer(options, OPT_VOCABULARY),
                              .padding_token = -1,
                              .training = true};
    Transformer *f = fastformer.create(&setup);
    parameter_initialise(&f->model.state.table, 1, f->model.state.values);
    const size_t B = (size_t)setup.batch, T = (size_t)setup.length, C = f->plan.size.channels,
                 H = f->plan.size.heads;
    Bench b = {.f = f,
               .batch = random_batch(&setup),
               .M = B * T,
               .dropout = dropout_create(f->model.dropout, 1, 1, 1),
               .softmax =
                   softmax_attention_create(gemm_precision(f->model.gemm), 0, B, T, T, B * T, C, H),
               .cosine = cosine_attention_create(gemm_precision(f->model.gemm), 0, B, T, T, C, H),
               .logsumexp = allocate(B * T * H, sizeof(real), "attention"),
               .exponent = allocate(H, sizeof(real), "attention")};
    Arena *arena = arena_create();
    ARENA_CARVE(arena, attention_memory(&b, arena, B * T, C));
    fastformer.train(f, &b.batch, 1.0 / (double)b.M);
    b.pass = pass_forward(&f->model, &b.batch, true, NULL);
    inputs_create(&b, B, T);
    measure_all(&b);

    softmax_attention_free(b.softmax);
    cosine_attention_free(b.cosine);
    arena_free(arena);
    free(b.logsumexp);
    free(b.exponent);
    free((int32_t *)b.batch.inputs);
    free((int32_t *)b.batch.targets);
    fastformer.destroy(f);
    options_free(options);
    return 0;
}
