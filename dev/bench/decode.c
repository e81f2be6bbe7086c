// Measures tokens per second of the Fastformer's recurrent decoding from a given position on, and
// the limit set by reading the weights once per token. Prints one line of JSON.
//
//   decode [--at N] [--streams N] [--tokens N] [--vocabulary N] [options of train_fastformer]
#define TESTING
#include "train_fastformer.c"

#include "measure.h"
#include "run.h"
#include "threads.h"

// clang-format off
static const Option rows[] = {
    {.name = OPT_AT, .kind = OPTION_INTEGER, .value = "N", .initial = "100", .max = 1 << 28,
     .group = "Measurement", .help = "position of the first token that counts"},
    {.name = OPT_STREAMS, .kind = OPTION_INTEGER, .value = "N", .initial = "1", .min = 1,
     .max = 1024, .group = "Measurement", .help = "texts decoded side by side"},
    {.name = OPT_TOKENS, .kind = OPTION_INTEGER, .value = "N", .initial = "500", .min = 1,
     .max = 1 << 20, .group = "Measurement", .help = "that count, in each stream"},
    {.name = OPT_VOCABULARY, .kind = OPTION_INTEGER, .value = "N", .initial = "32000", .min = 1,
     .max = 1 << 28, .group = "Measurement", .help = "tokens that there are"},
};
// clang-format on

enum { WARM_UP = 50 }; // tokens before those that are measured

// Returns the bytes of the weights that are read per token: all except embeddings, of which one row
// is read. Queries, keys and values of exact kinds of attention are never bf16.
static double bytes_of(const Transformer *f, bool bf16) {
    const TransformerPlan *plan = &f->plan;
    const EmbeddingPlan *embedding = &plan->stacks[0].embedding;
    const size_t C = plan->size.channels;
    size_t other = f->model.state.table.total, exact = 0;
    if (embedding->position != NO_PARAMETER) other -= plan->size.positions * C;
    if (plan->untied) other -= plan->size.vocabulary * C;
    for (size_t l = 0; l < plan->size.layers; l++) {
        const AttentionPlan *a = &plan->layers[l].attention;
        if (attention_types[a->kind].exact) exact += a->qkv.shape.outputs * a->qkv.shape.inputs;
    }
    other -= exact;
    return (double)(exact * sizeof(real) + other * (bf16 ? sizeof(uint16_t) : sizeof(real)));
}

static void report(const Transformer *f, size_t at, size_t streams, double *seconds,
                   size_t tokens) {
    const ModelSizes *size = &f->plan.size;
    double all = 0;
    for (size_t i = 0; i < tokens; i++) all += seconds[i];
    const bool bf16 = f->model.decoding == PRECISION_BFLOAT16;
    const double bytes = bytes_of(f, bf16);
    const double same_size = bench_read_bandwidth((size_t)bytes),
                 memory = bench_read_bandwidth((size_t)1 << 29);
    const double mean = all / (double)tokens, median = bench_median(seconds, tokens);
    Metadata *windows = NULL;
    int count = 0;
    plan_describe_windows(&f->plan, &windows, &count);
    JsonWriter w = {0};
    json_begin(&w, '{');
    json_add_string(&w, "windows", windows[0].value);
    json_add_string(&w, "precision", bf16 ? "bf16" : "fp32");
    json_add_integer(&w, "layers", size->layers);
    json_add_integer(&w, "channels", size->channels);
    json_add_integer(&w, "vocabulary", size->vocabulary);
    json_add_integer(&w, "threads", (size_t)thread_limit());
    json_add_integer(&w, "streams", streams);
    json_add_integer(&w, "position", at);
    json_add_integer(&w, "tokens", tokens);
    json_add_number(&w, "us_per_token", 1e6 * median); // of all streams together
    json_add_number(&w, "mean_us_per_token", 1e6 * mean);
    json_add_number(&w, "tokens_per_s", (double)streams / mean);
    json_add_number(&w, "gb_per_s", 1e-9 * bytes / mean);
    json_add_number(&w, "read_gb_per_s", 1e-9 * same_size);
    json_add_number(&w, "memory_gb_per_s", 1e-9 * memory);
    json_add_number(&w, "percent_of_read", 100 * bytes / mean / same_size);
    json_add_number(&w, "percent_of_memory", 100 * bytes / mean / memory);
    bench_line(&w);
    metadata_free(windows, count);
}

int main(int argc, char **argv) {
    threads_wait_briefly(argv);
    Options *options = trainer_options_create(&fastformer);
    options_add(options, rows, sizeof(rows) / sizeof(rows[0]));
    options_parse(options, argc, argv, NULL, NULL);
    const size_t at = (size_t)options_integer(options, OPT_AT),
                 tokens = (size_t)options_integer(options, OPT_TOKENS),
                 streams = (size_t)options_integer(options, OPT_STREAMS);
    const ModelSetup setup = {.type = &fastformer,
                              .options = options,
                              .positions = (int64_t)(at + tokens),
                              .vocabulary = options_integer(options, OPT_VOCABULARY),
                              .padding_token = -1};
    Transformer *f = fastformer.create(&setup);
    parameter_initialise(&f->model.state.table, 1, f->model.state.values);
    int32_t *inputs = allocate(streams, sizeof(*inputs), "tokens");
    real *logits = allocate(streams, f->plan.size.vocabulary * sizeof(*logits), "logits");
    double *seconds = allocate(tokens, sizeof(*seconds), "times");
    void *decoder = fastformer.decoder_create(f, (int)streams);
    for (size_t i = 0; i < at + tokens; i++) {
        for (size_t s = 0; s < streams; s++)
            inputs[s] = (int32_t)((i * 7919 + s * 104729) % f->plan.size.vocabulary); // any token
        const double start = clock_seconds();
        fastformer.decode(decoder, inputs, i + WARM_UP < at ? NULL : logits);
        if (i >= at) seconds[i - at] = clock_seconds() - start;
    }
    report(f, at, streams, seconds, tokens);
    fastformer.decoder_destroy(decoder);
    fastformer.destroy(f);
    options_free(options);
    free(inputs);
    free(logits);
    free(seconds);
    return 0;
}
