// Tests of GPT-2: gradients, reference vectors, decoding, padding, exchange with Hugging Face.
//
//   ./test_gpt2 [NAME]                              runs tests whose names contain NAME
//   ./test_gpt2 -r FILE... [-p double|float|bf16]   checks reference vectors (dev/reference)

#define TESTING
#include "train_gpt2.c"

#include "bytes.h"
#include "checkpoint.h"
#include "huggingface.h"
#include "model_test.h"
#include "random.h"
#include "shard.h"
#include "threads.h"
#include <sys/resource.h>
#include <unistd.h>

enum { IS_DOUBLE = sizeof(real) == sizeof(double) };

#define SMALL "layers=2 channels=24 heads=3 "
#define LONG "layers=1 channels=16 heads=2 " // more than one tile of attention

static const char *const kinds[] = {
    "attention=softmax",
    "attention=softmax1",
    "attention=cosine",
    "attention=cosine cosine-power=0.3",
    "attention=pairwise similarity=euclidean activation=softmax1",
    "attention=pairwise:5 similarity=minkowski activation=learned-relu",
    "attention=softmax:3",
    "attention=softmax1:70",
    "attention=additive",
    "attention=additive:3"};
// The last two, of additive attention, need more than one channel per head.
enum { KINDS = sizeof(kinds) / sizeof(kinds[0]), SINGLE_KINDS = KINDS - 2 };
static const ModelKinds all = {&gpt2, kinds, KINDS, 1};

// Blocks of models newer than GPT-2: combinations of them, with the kinds of attention that support
// them.
static const char *const blocks[] = {
    "norm=rms norm-eps=1e-4 ffn=swiglu ffn-size=13",
    "positions=rotary kv-heads=1 untied=true",
    "positions=sinusoidal ffn=relu2 scores=rescaled rescale=4",
    "positions=none scores=rescaled rescale=0",
    "positions=none ffn=relu scores=qknorm attention=softmax1:3",
    "positions=rotary rotary-base=50 attention=cosine kv-heads=1 norm=rms",
    "positions=rotary rotary-part=0.5 kv-heads=1 scores=qknorm attention=additive+softmax",
    "positions=rotary kv-heads=1 attention=pairwise similarity=euclidean",
    "token-shift=0.4 attention=cosine,softmax:3",
    "token-shift=1 norm=rms positions=rotary kv-heads=1 attention=additive:4+softmax",
    "positions=none attention=additive:4+softmax query-gain=0.7",
};
static const ModelKinds of_blocks = {&gpt2, blocks, sizeof(blocks) / sizeof(blocks[0]), 1};
#define EVEN "layers=2 channels=24 heads=2 "

static void test_blocks(void) {
    model_check_kind_gradients(&of_blocks, EVEN, 21, 0);
    model_check_kind_gradients(&of_blocks, EVEN "dropout=0.3", 21, 0.3);
    model_check_kind_padding(&of_blocks, EVEN);
    model_check_kind_threads(&of_blocks, EVEN);
    model_check_kind_accumulation(&of_blocks, EVEN);
}

// ---- The model --------------------------------------------------------------

static void test_gradients(void) {
    model_check_kind_gradients(&all, SMALL, 1, 0);
    model_check_kind_gradients(&all, SMALL, 21, 0);
    model_check_kind_gradients(&all, LONG, 139, 0);
    const ModelKinds of_single = {&gpt2, kinds, SINGLE_KINDS, 1};
    model_check_kind_gradients(&of_single, "layers=1 channels=10 heads=10", 33, 0);
}

static void test_gradients_padding(void) {
    model_check_kind_gradients(&all, SMALL, 21, 0.3);
    model_check_kind_gradients(&all, LONG, 139,
                               0.9); // whole tiles of padding, rows that see no token
}

static void test_gradients_dropout(void) {
    model_check_kind_gradients(&all, SMALL "dropout=0.3", 40, 0);
    model_check_kind_gradients(&all, LONG "dropout=0.1", 139, 0.2);
}

static void check_decoding(const char *size, const char *kind, int64_t length) {
    char *options = format_string("%s%s", size, kind);
    ModelTest t = model_test_create(&gpt2, options, 2, length, 29);
    model_check_decoding(&t, IS_DOUBLE ? 1e-12 : 2e-5);
    if (length > 1) model_check_causality(&t);
    model_test_free(&t);
    free(options);
}

static void test_decoding(void) {
    static const int64_t lengths[] = {1, 64, 65, 150}; // the cache grows at 64 and 128
    for (size_t i = 0; i < KINDS; i++) {
        for (size_t l = 0; l < sizeof(lengths) / sizeof(lengths[0]); l++)
            check_decoding(SMALL, kinds[i], lengths[l]);
        check_decoding("layers=2 channels=128 heads=4 ", kinds[i], 20); // uses several threads
    }
}

static void test_decoding_blocks(void) {
    for (size_t i = 0; i < of_blocks.count; i++) {
        check_decoding(EVEN, blocks[i], 70);
        check_decoding("layers=2 channels=128 heads=4 ", blocks[i], 20);
    }
}

static void decode_too_far(void *options) {
    ModelTest t = model_test_create(&gpt2, options, 1, 3, 29);
    void *decoder = decoder_create(t.model, 1);
    const int32_t token = 1;
    real logits[29];
    for (int i = 0; i < 4; i++) decoder_decode(decoder, &token, logits);
}

static void test_decoding_ends(void) {
    CHECK_FAILS(decode_too_far, SMALL, 1, "the model has 3 positions");
    CHECK_FAILS(decode_too_far, SMALL "attention=cosine", 1, "the model has 3 positions");
}

static void test_padding(void) {
    model_check_kind_padding(&all, SMALL);
}

static void test_threads(void) {
    model_check_kind_threads(&all, SMALL);
}

static void test_accumulation(void) {
    model_check_kind_accumulation(&all, SMALL);
}

// Initialisation and weight decay are as GPT-2's authors describe them. In the default
// configuration the size is within 2% of the Fastformer's (5,475,584 parameters).
static void test_parameters(void) {
    ModelTest t = model_test_create(&gpt2, "attention=cosine", 1, 2048, 32000);
    CHECK_CLOSE(t.table->parameters, 5476352, 0.02 * 5476352);
    for (int i = 0; i < t.table->count; i++) {
        const Parameter *p = &t.table->items[i];
        const bool matrix = p->rank == 2, residual = strstr(p->name, "c_proj.weight");
        CHECK(p->decay == matrix);
        CHECK_CLOSE(p->deviation, residual ? 0.02 / sqrt(12) : matrix ? 0.02 : 0, 1e-9);
        const bool gain = strstr(p->name, "ln_") && strstr(p->name, "weight");
        CHECK_CLOSE(p->mean, gain ? 1 : strstr(p->name, "norm_const") ? 0.5 : 0, 0);
    }
    model_test_free(&t);
}

// Metadata contain the block options that differ from the default, and no others.
static void test_metadata(void) {
    static const char *const options[] = {"", "untied=true positions=none"};
    for (int i = 0; i < 2; i++) {
        ModelTest t = model_test_create(&gpt2, options[i], 1, 4, 29);
        Metadata *rows = NULL;
        int count = 0;
        options_to_metadata(t.options, OPTION_MODEL, &rows, &count);
        bool untied = false, unsaid = true;
        for (int row = 0; row < count; row++) {
            untied |= strcmp(rows[row].key, "untied") == 0;
            unsaid &= strcmp(rows[row].key, "norm") != 0 && strcmp(rows[row].key, "scores") != 0;
        }
        CHECK(untied == (i == 1) && unsaid);
        metadata_free(rows, count);
        model_test_free(&t);
    }
}

static void create_with(void *options) {
    model_test_options(&gpt2, options);
}

static void test_bad_options(void) {
    CHECK_FAILS(create_with, "channels=24 heads=5", 1, "--heads 5");
    CHECK_FAILS(create_with, "channels=4 heads=8", 1, "--heads 8");
    CHECK_FAILS(create_with, "channels=24 heads=4 kv-heads=3", 2, "--kv-heads 3: does not divide");
    CHECK_FAILS(create_with, "channels=12 heads=4 positions=rotary", 2, "heads of 3 channels");
    CHECK_FAILS(create_with, "channels=16 heads=4 positions=rotary rotary-part=0.4", 2,
                "--rotary-part 0.4: rotates none");
    CHECK_FAILS(create_with, "channels=16 heads=4 token-shift=0.03", 2,
                "--token-shift 0.03: is less than half of one of 16 channels");
    CHECK_FAILS(create_with, "attention=cosine scores=qknorm", 2, "layer 1 has cosine attention");
    CHECK_FAILS(create_with, "attention=additive positions=rotary", 2, "no layer compares");
    CHECK_FAILS(create_with, "attention=softmax2", 2, "softmax|softmax1|cosine|additive");
}

static void test_reference(void) {
    static const char *const files[] = {"softmax", "softmax1", "cosine", "softmax_padded"};
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        char *path = format_string("dev/reference/gpt2_%s.safetensors", files[i]);
        CHECK(model_reference(&gpt2, path, IS_DOUBLE ? "double" : "float", -1));
        free(path);
    }
}

// ---- Making files as Hugging Face writes them -------------------------------

#define TINY "layers=2 channels=8 heads=2"
#define SIZES                                                                                      \
    "\"n_layer\": 2, \"n_embd\": 8, \"n_head\": 2, \"n_positions\": 16, \"vocab_size\": 1024"
#define CONFIG                                                                                     \
    "{\"model_type\": \"gpt2\", " SIZES ", \"activation_function\": \"gelu_new\", \"n_ctx\": 16, " \
    "\"layer_norm_epsilon\": 1e-05, \"n_inner\": null, \"scale_attn_weights\": true}"

// How such a file differs from one of ours.
typedef struct {
    const char *type; // F32, F16 or BF16
    bool prefix;      // names begin with "transformer."
    bool head;        // the tied matrix is stored as the output layer, too
    bool only_head;   // and not as the embedding
    bool masks;       // the buffers of attention are stored
    real change;      // added to one element of the second copy
    const char *missing, *extra;
    const char *config; // content of config.json; NULL: CONFIG
} Variant;

typedef struct {
    Bytes header, data;
} Writer;

static void add_tensor(Writer *w, const char *name, const char *type, const char *shape,
                       const void *data, size_t size) {
    char *entry = format_string(
        "%s\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}",
        w->header.size ? "," : "{", name, type, shape, w->data.size, w->data.size + size);
    bytes_append(&w->header, entry, strlen(entry));
    bytes_append(&w->data, data, size);
    free(entry);
}

// Converts to F16. Exact for multiples of 1/64 up to 2.
static uint16_t half_from(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    const uint32_t exponent = bits >> 23 & 0xff;
    return (uint16_t)(bits >> 16 & 0x8000) |
           (exponent ? (uint16_t)((exponent - 112) << 10 | (bits >> 13 & 0x3ff)) : 0);
}

// Adds a parameter with its values stored as `type`; `change` is added to the first one.
static void add_parameter(Writer *w, const char *name, const Parameter *p, const real *values,
                          const char *type, real change) {
    const size_t width = strcmp(type, "F32") == 0 ? 4 : 2;
    unsigned char *data = allocate(p->size, width, "test");
    for (size_t i = 0; i < p->size; i++) {
        const float value = (float)(values[p->offset + i] + (i == 0 ? change : 0));
        const uint16_t half = half_from(value);
        uint32_t bits;
        memcpy(&bits, &value, sizeof(bits));
        const uint16_t brain = (uint16_t)(bits >> 16);
        memcpy(data + i * width,
               width == 4     ? (const void *)&value
               : *type == 'F' ? &half
                              : &brain,
               width);
    }
    char *shape = p->rank == 2
                      ? format_string("[%lld,%lld]", (long long)p->shape[0], (long long)p->shape[1])
                      : format_string("[%lld]", (long long)p->shape[0]);
    add_tensor(w, name, type, shape, data, p->size * width);
    free(shape);
    free(data);
}

// Writes model.safetensors and config.json to the test's directory. Returns the path of the former.
static const char *write_theirs(const ModelTest *t, Variant v) {
    Writer w = {0};
    for (int i = 0; i < t->table->count; i++) {
        const Parameter *p = &t->table->items[i];
        const char *name = p->name + (v.prefix ? 0 : strlen("transformer."));
        const bool token = strstr(name, "wte"),
                   left_out = v.missing && strcmp(v.missing, name) == 0;
        if (!left_out && !(token && v.only_head)) add_parameter(&w, name, p, t->values, v.type, 0);
        if (token && v.head) add_parameter(&w, "lm_head.weight", p, t->values, v.type, v.change);
    }
    const uint8_t mask[16 * 16] = {0};
    const float number = -1e4f;
    if (v.masks) {
        add_tensor(&w, v.prefix ? "transformer.h.0.attn.bias" : "h.0.attn.bias", "BOOL",
                   "[1,1,16,16]", mask, sizeof(mask));
        add_tensor(&w, v.prefix ? "transformer.h.0.attn.masked_bias" : "h.0.attn.masked_bias",
                   "F32", "[]", &number, sizeof(number));
    }
    if (v.extra) add_tensor(&w, v.extra, "F32", "[1]", &number, sizeof(number));
    bytes_append(&w.header, "}", 1);

    Bytes file = {0};
    const uint64_t length = w.header.size;
    bytes_append(&file, &length, sizeof(length));
    bytes_append(&file, w.header.data, w.header.size);
    bytes_append(&file, w.data.data, w.data.size);
    const char *path = test_file("model.safetensors", file.data, file.size);
    const char *config = v.config ? v.config : CONFIG;
    test_file("config.json", config, strlen(config));
    bytes_free(&file);
    bytes_free(&w.header);
    bytes_free(&w.data);
    return path;
}

// Creates a model whose values are exact in all three types.
static ModelTest exact_model(const char *options) {
    ModelTest t = model_test_create(&gpt2, options, 1, 16, 1024);
    Random r = random_stream(21, RANDOM_TEST, 0, 0);
    for (int i = 0; i < t.table->count; i++)
        for (size_t j = 0; j < t.table->items[i].size; j++)
            t.values[t.table->items[i].offset + j] = ((real)random_below(&r, 129) - 64) / 64;
    cpu_model_write(t.model, MODEL_VALUES, t.values);
    return t;
}

// ---- From Hugging Face ------------------------------------------------------

static void check_import(const ModelTest *t, Variant v) {
    Safetensors *file = safetensors_open(write_theirs(t, v));
    huggingface_import(file, &gpt2);
    checkpoint_check_type(file, &gpt2);
    CHECK(safetensors_integer(file, "n_positions", 1, 100) == 16);
    ModelTest loaded = model_test_create(&gpt2, TINY, 1, 16, 1024);
    options_from_metadata(loaded.options, OPTION_MODEL, file, "");
    CHECK(options_integer(loaded.options, OPT_LAYERS) == 2);
    const Run run = {.type = &gpt2, .model = loaded.model};
    checkpoint_load_weights(file, &run);
    cpu_model_read(loaded.model, MODEL_VALUES, loaded.values);
    CHECK(memcmp(loaded.values, t->values, t->table->total * sizeof(real)) == 0);
    model_test_free(&loaded);
    safetensors_close(file);
}

static void test_import(void) {
    ModelTest t = exact_model(TINY);
    static const char *const types[] = {"F32", "F16", "BF16"};
    for (size_t i = 0; i < 3; i++) {
        for (int prefix = 0; prefix < 2; prefix++) {
            check_import(&t, (Variant){.type = types[i], .prefix = prefix});
            check_import(
                &t, (Variant){.type = types[i], .prefix = prefix, .head = true, .masks = true});
        }
    }
    check_import(&t, (Variant){.type = "F32", .head = true, .only_head = true});
    model_test_free(&t);
}

// Writes a data set with a vocabulary of 1,024 to the test's directory. Hugging Face's files do not
// say what data a model was trained on.
static void write_data(void) {
    const int32_t header[SHARD_HEADER_SIZE / sizeof(int32_t)] = {SHARD_MAGIC, 1, 64};
    char shard[SHARD_HEADER_SIZE + 64 * sizeof(uint16_t)] = {0};
    memcpy(shard, header, sizeof(header));
    test_file("train_000000.bin", shard, sizeof(shard));
    test_file("val_000000.bin", shard, sizeof(shard));
    static const char meta[] =
        "{\"tokenizer\": \"none\", \"vocab_size\": 1024, \"pad\": -1, \"end\": 0}";
    test_file("meta.json", meta, strlen(meta));
}

static void run_program(void *arguments) {
    model_test_program(&gpt2, arguments);
}

static void check_runs(const char *arguments) {
    char text[4096];
    const int code = test_child(run_program, (void *)arguments, text, sizeof(text));
    if (code != 0) test_fail(__FILE__, __LINE__, "%s: exit code %d: %s", arguments, code, text);
}

static void check_refused(const ModelTest *t, Variant v, const char *message) {
    v.type = "F32";
    write_theirs(t, v);
    CHECK_FAILS(run_program, "-e model.safetensors -i . --eval val -m 1", 1, message);
}

// Must not take quadratic time: with 300,000 names it would be 5e10 comparisons.
static void import_many(void *argument) {
    (void)argument;
    setrlimit(RLIMIT_CPU, &(struct rlimit){20, 20}); // seconds; quadratic time would be minutes
    Writer w = {0};
    for (int i = 0; i < 300000; i++) {
        char *name = format_string("h.0.attn.a_name_as_long_as_theirs_are.%d", i);
        add_tensor(&w, name, "F32", "[0]", "", 0);
        free(name);
    }
    bytes_append(&w.header, "}", 1);
    Bytes bytes = {0};
    const uint64_t length = w.header.size;
    bytes_append(&bytes, &length, sizeof(length));
    bytes_append(&bytes, w.header.data, w.header.size);
    test_file("config.json", CONFIG, strlen(CONFIG));
    Safetensors *file = safetensors_open(test_file("model.safetensors", bytes.data, bytes.size));
    huggingface_import(file, &gpt2);
    ModelTest t = model_test_create(&gpt2, TINY, 1, 16, 1024);
    checkpoint_check_tensors(file, &gpt2, t.table);
}

static void test_import_many(void) {
    CHECK_FAILS(import_many, NULL, 1, "is missing");
}

static void test_import_refused(void) {
    ModelTest t = exact_model(TINY);
    write_data();
    check_refused(&t, (Variant){.missing = "h.1.mlp.c_fc.bias"},
                  "transformer.h.1.mlp.c_fc.bias is missing");
    check_refused(&t, (Variant){.prefix = true, .missing = "transformer.wpe.weight"},
                  "transformer.wpe.weight is missing");
    check_refused(&t, (Variant){.extra = "h.1.crossattention.c_attn.bias"},
                  "h.1.crossattention.c_attn.bias");
    check_refused(&t, (Variant){.head = true, .change = 1}, "lm_head.weight");
    check_refused(&t, (Variant){.config = "[]"}, "config.json: is not a JSON object");
    check_refused(&t, (Variant){.config = "{\"model_type\": \"bert\", " SIZES "}"},
                  "\"model_type\" is bert");
    check_refused(&t, (Variant){.config = "{" SIZES "}"}, "model_type");
    check_refused(&t, (Variant){.config = "{\"model_type\": \"gpt2\"}"}, "n_layer");
    check_refused(&t, (Variant){.config = "{\"model_type\": \"gpt2\", \"n_layer\": 0}"}, "n_layer");
#define WITH(member) "{\"model_type\": \"gpt2\", " SIZES ", " member "}"
    check_refused(&t, (Variant){.config = WITH("\"activation_function\": \"relu\"")}, "gelu_new");
    check_refused(&t, (Variant){.config = WITH("\"layer_norm_epsilon\": 1e-6")},
                  "layer_norm_epsilon");
    check_refused(&t, (Variant){.config = WITH("\"scale_attn_by_inverse_layer_idx\": true")},
                  "scale_attn_by_inverse_layer_idx");
    check_refused(&t, (Variant){.config = WITH("\"tie_word_embeddings\": false")},
                  "tie_word_embeddings");
    check_refused(&t, (Variant){.config = WITH("\"n_inner\": 16")}, "n_inner");
#undef WITH
    check_refused(
        &t,
        (Variant){.config =
                      "{\"model_type\": \"gpt2\", \"n_layer\": 2, \"n_embd\": 8, \"n_head\": 3, "
                      "\"n_positions\": 16, \"vocab_size\": 1024}"},
        "model.safetensors: has 8 channels and 3 heads");
    write_theirs(&t, (Variant){.type = "F32"});
    check_runs("-e model.safetensors -i . --eval val -m 1 -b 1");
    CHECK_FAILS(run_program, "-e model.safetensors -i . --eval val --attention cosine", 1,
                "--attention cosine");
    CHECK_FAILS(run_program, "-e model.safetensors -i . --eval val -t 17", 1, "--seq-len 17");
    CHECK_FAILS(run_program, "-e model.safetensors -i . -o . -x 1 -b 1", 1,
                "choose another --output");
    char *config = format_string("%s/config.json", test_directory());
    unlink(config);
    CHECK_FAILS(run_program, "-e model.safetensors -i . --eval val", 1,
                "config.json, which would, is missing");
    free(config);
    model_test_free(&t);
}

static void check_other(const char *file, const char *options, const char *message) {
    char *path = realpath(file, NULL),
         *arguments = format_string("-e %s --eval val %s", path, options);
    CHECK_FAILS(run_program, arguments, 1, message);
    free(path);
    free(arguments);
}

static void test_other_checkpoints(void) {
    check_other("dev/reference/fastformer_global.safetensors", "",
                "holds a model of type fastformer");
    check_other("dev/reference/gpt2_softmax1.safetensors", "--attention softmax", "has softmax1");
    CHECK_FAILS(run_program, "-e none.safetensors --eval val", 1, "none.safetensors");
    CHECK_FAILS(run_program, "--attention sofmax", 2, "\"sofmax\" is no causal attention");
}

// ---- To Hugging Face --------------------------------------------------------

// Checks what DIR/model.safetensors links to; "": it is not a link.
static void check_link(const char *directory, const char *expected) {
    char *path = format_string("%s/model.safetensors", directory), target[256] = "";
    const ssize_t length = readlink(path, target, sizeof(target) - 1);
    target[length > 0 ? length : 0] = '\0';
    CHECK_TEXT(target, expected);
    free(path);
}

static void check_config(const char *directory, const void *model) {
    const TransformerPlan *plan = transformer_plan(model);
    char *path = format_string("%s/config.json", directory);
    FileMap map = file_map(path);
    Json *config = json_parse((const char *)map.data, map.size, path);
    CHECK_TEXT(json_string(config, "model_type", path), "gpt2");
    CHECK_TEXT(json_find(config, "architectures")->items[0].string, "GPT2LMHeadModel");
    CHECK(json_find(config, "eos_token_id")->kind == JSON_NULL);
    CHECK_CLOSE(json_find(config, "attn_pdrop")->number, plan->dropout, 0);
    Metadata *rows = NULL;
    int count = 0;
    gpt2_read_config(config, path, &rows, &count); // fails if it cannot be read back
    CHECK_TEXT(rows[0].key, "n_layer");
    CHECK(atoi(rows[0].value) == (int)plan->size.layers);
    metadata_free(rows, count);
    json_free(config);
    file_unmap(&map);
    free(path);
}

// Measures all statistics and checks those of the residual stream.
static void measure_model(ModelTest *t, const Batch *batch, Statistics *s) {
    transformer_statistics(t->model, batch, s);
    CHECK(s->count == 2 * 6 + 1);
    for (size_t l = 0; l < 2; l++) model_check_residual_statistics(s, batch, l, 12);
}

#define MEASURED "layers=2 channels=12 heads=3 "

static void test_statistics(void) {
    const char *const sinks[] = {MEASURED, MEASURED "attention=softmax1"};
    for (size_t sink = 0; sink < 2; sink++) {
        ModelTest t =
            model_test_create(&gpt2, sinks[sink], 2, 150, 29); // several blocks of queries
        Batch batch = model_test_batch(&t, 0.3, 9);
        Statistics s = {0}, equal = {0};
        measure_model(&t, &batch, &s);
        for (size_t l = 0; l < 2; l++)
            model_check_weight_statistics(statistics_find(&s, l, "attention_weights"), &batch, 3,
                                          0);

        // With scores of 0, the sink of 1 weighs as much as one token.
        const AttentionPlan *a = &transformer_plan(t.model)->layers[0].attention;
        memset(t.values + a->qkv.weight, 0, 12 * 3 * 12 * sizeof(real));
        memset(t.values + a->qkv.bias, 0, 3 * 12 * sizeof(real));
        cpu_model_write(t.model, MODEL_VALUES, t.values);
        const uint8_t *mask = batch.mask;
        batch.mask = NULL;
        batch.length = 2;
        measure_model(&t, &batch, &equal);
        const Measurement *m = statistics_find(&equal, 0, "attention_weights");
        CHECK_CLOSE(measurement_sink_share(m), sink ? (1.0 / 2 + 1.0 / 3) / 2 : 0, 1e-12);
        CHECK_CLOSE(m->values.largest, sink ? 1.0 / 2 : 1, 1e-12);
        CHECK_CLOSE(measurement_entropy(m), log(2) / 2, 1e-12); // of 1 key, and of 2 equal ones
        CHECK(statistics_find(&equal, 0, "attention_scores")->values.largest == 0);
        batch.mask = mask;
        statistics_free(&s);
        statistics_free(&equal);
        model_test_batch_free(&batch);
        model_test_free(&t);
    }
}

static void test_statistics_cosine(void) {
    ModelTest t = model_test_create(&gpt2, MEASURED "attention=cosine", 1, 3, 29);
    Batch batch = model_test_batch(&t, 0, 9);
    const AttentionPlan *a = &transformer_plan(t.model)->layers[0].attention;
    // Every query and key equals its bias: cosines are 1, or -1 if the key points the other way.
    memset(t.values + a->qkv.weight, 0, 12 * 3 * 12 * sizeof(real));
    for (size_t i = 0; i < 24; i++) t.values[a->qkv.bias + i] = (real)(i < 20 ? 0.1 : -0.1);
    for (size_t h = 0; h < 3; h++) t.values[a->learned[0] + h] = (real)0.5;
    cpu_model_write(t.model, MODEL_VALUES, t.values);
    Statistics s = {0};
    measure_model(&t, &batch, &s);
    const Measurement *m = statistics_find(&s, 0, "attention_weights");
    CHECK(m->values.count == 3 * 6 && m->queries == 0);
    const double power = 1 / (1 + exp(-0.5)), sum = 1 + 2 / pow(2, power) + 3 / pow(3, power);
    CHECK_CLOSE(m->values.mean * 18, (2 - 1) * sum, 1e-5);
    CHECK_CLOSE(m->values.largest, 1, 1e-6);
    CHECK_CLOSE(measurement_entropy(m), (log(2) + log(3)) / 3, 1e-6);
    CHECK(measurement_saturated_share(statistics_find(&s, 0, "attention_scores")) == 1);
    statistics_free(&s);
    model_test_batch_free(&batch);
    model_test_free(&t);
}

// Every query and key equals its bias, and all values are 0.5. If keys point the other way, ReLU
// makes a whole row 0.
static void test_statistics_pairwise(void) {
    ModelTest t = model_test_create(
        &gpt2, MEASURED "attention=pairwise activation=relu cosine-power=0", 1, 3, 29);
    Batch batch = model_test_batch(&t, 0, 9);
    const AttentionPlan *a = &transformer_plan(t.model)->layers[0].attention;
    memset(t.values + a->qkv.weight, 0, 12 * 3 * 12 * sizeof(real));
    for (size_t i = 0; i < 36; i++)
        t.values[a->qkv.bias + i] = (real)(i < 20 ? 1 : i < 24 ? -1 : 0.5);
    cpu_model_write(t.model, MODEL_VALUES, t.values);
    Statistics s = {0};
    transformer_statistics(t.model, &batch, &s);
    // Two of the three heads have scores of 4 / sqrt(4); rows sum over 1, 2 and 3 keys.
    CHECK_CLOSE(statistics_find(&s, 0, "row_sums")->values.mean, 2 * (2 + 4 + 6) / 9.0, 1e-6);
    CHECK_CLOSE(statistics_find(&s, 0, "dead_rows")->values.mean, 1.0 / 3, 1e-6);
    CHECK_CLOSE(statistics_find(&s, 0, "attention_scores")->values.largest, 2, 1e-6);
    const Measurement *output = statistics_find(&s, 0, "attention_output");
    CHECK(output->values.count == 3 * 12);
    CHECK_CLOSE(output->values.largest, 3 * 2 * 0.5, 1e-6);
    statistics_free(&s);
    model_test_batch_free(&batch);
    model_test_free(&t);
}

static void check_export(const char *options, bool expected) {
    ModelTest t = exact_model(options);
    Dataset data = {.name = "test", .padding = -1, .mask = -1, .end = -1};
    const Run run = {
        .type = &gpt2, .model = t.model, .options = t.options, .dataset = &data, .setup = t.setup};
    char *directory = format_string("%s/%d", test_directory(), expected);
    directory_create(directory);
    huggingface_check_output(&run, directory);
    checkpoint_save(&run, directory, &(Progress){.step = 3}, 1);
    check_link(directory, expected ? "step_00000003.safetensors" : "");
    checkpoint_save(&run, directory, &(Progress){.step = 4}, 1);
    check_link(directory, expected ? "step_00000004.safetensors" : "");
    checkpoint_save_best(&run, directory, 5, &(Evaluation){.loss = 1.5, .tokens = 9});
    checkpoint_save(&run, directory, &(Progress){.step = 6}, 1);
    check_link(directory, expected ? "best.safetensors" : "");
    huggingface_check_output(&run, directory); // a run may resume in it
    if (expected) check_config(directory, t.model);
    char *config = format_string("%s/config.json", directory);
    CHECK(file_exists(config) == expected);
    free(config);
    free(directory);
    model_test_free(&t);
}

static void test_export(void) {
    check_export(TINY " dropout=0.25", true);
    check_export(TINY " attention=softmax1", false);
    check_export(TINY " attention=cosine", false);
}

// The program can read the directories that it writes.
static void test_export_program(void) {
#define RUN " -m 2 -b 2 -t 16 -L 1 -C 8 -H 2"
    check_runs("-o run -x 4 -v 2" RUN);
    char *directory = format_string("%s/run", test_directory());
    check_link(directory, "best.safetensors");
    free(directory);
    check_runs("-e run/model.safetensors --eval val -m 2 --stats 1");
    check_runs("-o run -y -x 6" RUN);
    check_runs("-o softmax1 -x 2 --attention softmax1" RUN);
    check_runs("-e softmax1/best.safetensors --eval test -m 2 --attention softmax1");
    check_runs("-o cosine -x 2 --attention cosine" RUN);
    check_runs("-e cosine/best.safetensors --prompt x -g 100 --attention cosine");
#undef RUN
}

static void test_audit(void) {
    model_check_audit(
        &gpt2, "--preset published -L 1 -C 16 -H 2 -t 32 -b 2 --total-batch 128 -x 5 -v 5 -m 1 "
               "--dropout 0.1 --no-test");
}

int main(int argc, char **argv) {
    static const TestCase cases[] = {
        {"gradients", test_gradients},
        {"gradients: padding", test_gradients_padding},
        {"gradients: dropout", test_gradients_dropout},
        {"decoding", test_decoding},
        {"decoding ends", test_decoding_ends},
        {"blocks", test_blocks},
        {"decoding of blocks", test_decoding_blocks},
        {"padding", test_padding},
        {"threads", test_threads},
        {"accumulation", test_accumulation},
        {"parameters", test_parameters},
        {"metadata", test_metadata},
        {"bad options", test_bad_options},
        {"audit", test_audit},
        {"reference", test_reference},
        {"import", test_import},
        {"import of many tensors", test_import_many},
        {"import refused", test_import_refused},
        {"other checkpoints", test_other_checkpoints},
        {"statistics", test_statistics},
        {"statistics: cosine", test_statistics_cosine},
        {"statistics: pairwise", test_statistics_pairwise},
        {"export", test_export},
        {"export by the program", test_export_program},
    };
    return model_test_main(argc, argv, &gpt2, -1, cases, sizeof(cases) / sizeof(cases[0]));
}
