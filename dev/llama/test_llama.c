// Tests of Llama: gradients, reference vectors, decoding, exchange with Hugging Face.
//
//   ./test_llama [NAME]                              runs tests whose names contain NAME
//   ./test_llama -r FILE... [-p double|float|bf16]   checks reference vectors (dev/reference)

#define TESTING
#include "train_llama.c"

#include "checkpoint.h"
#include "model_test.h"

enum { IS_DOUBLE = sizeof(real) == sizeof(double) };

#define SMALL "layers=2 channels=24 heads=4 "

static const char *const kinds[] = {
    "",
    "kv-heads=2 untied=true ffn-size=20",
    "kv-heads=1 scores=qknorm norm-eps=1e-6",
    "scores=rescaled attention=softmax1:5 rotary-base=100",
    "norm=layer positions=learned ffn=relu2",
    "attention=additive+softmax kv-heads=2",
};
static const ModelKinds all = {&llama, kinds, sizeof(kinds) / sizeof(kinds[0]), 1};

// ---- The model --------------------------------------------------------------

static void test_gradients(void) {
    model_check_kind_gradients(&all, SMALL, 21, 0);
    model_check_kind_gradients(&all, SMALL "dropout=0.2", 33, 0.3);
}

static void test_decoding(void) {
    for (size_t i = 0; i < all.count; i++) {
        char *options = format_string(SMALL "%s", kinds[i]);
        ModelTest t = model_test_create(&llama, options, 2, 70, 29);
        model_check_decoding(&t, IS_DOUBLE ? 1e-12 : 2e-5);
        model_check_causality(&t);
        model_test_free(&t);
        free(options);
    }
}

static void test_batches(void) {
    model_check_kind_padding(&all, SMALL);
    model_check_kind_threads(&all, SMALL);
    model_check_kind_accumulation(&all, SMALL);
}

static void test_parameters(void) {
    ModelTest t = model_test_create(&llama, "kv-heads=2 untied=true", 1, 64, 300);
    const size_t C = 128, F = 352, V = 300;
    CHECK(t.table->parameters == 6 * (3 * C * C + 3 * C * F + 2 * C) + C + 2 * V * C);
    for (int i = 0; i < t.table->count; i++) {
        const Parameter *p = &t.table->items[i];
        CHECK(p->decay == (p->rank == 2) && p->mean == (p->rank == 1));
    }
    CHECK_TEXT(t.table->items[t.table->count - 1].name, "lm_head.weight");
    model_test_free(&t);
}

static void test_reference(void) {
    static const char *const files[] = {"llama_grouped", "llama_tied", "qwen3"};
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        char *path = format_string("dev/reference/%s.safetensors", files[i]);
        CHECK(model_reference(&llama, path, IS_DOUBLE ? "double" : "float", -1));
        free(path);
    }
}

// ---- Exchange with Hugging Face ---------------------------------------------

// Reads a config.json. Returns it as our metadata, "KEY=VALUE ...", to be freed by the caller.
static char *read_text(const char *text) {
    Json *config = json_parse(text, strlen(text), "config.json");
    Metadata *rows = NULL;
    int count = 0;
    llama_read_config(config, "config.json", &rows, &count);
    char *said = copy_string("");
    for (int i = 0; i < count; i++) append_format(&said, "%s=%s ", rows[i].key, rows[i].value);
    metadata_free(rows, count);
    json_free(config);
    return said;
}

#define SIZES                                                                                      \
    "\"num_hidden_layers\": 2, \"hidden_size\": 24, \"num_attention_heads\": 4, "                  \
    "\"max_position_embeddings\": 16, \"vocab_size\": 29, \"intermediate_size\": 40"
#define LLAMA "{\"model_type\": \"llama\", " SIZES ", "

static void test_import(void) {
    char *plain = read_text(LLAMA "\"hidden_act\": \"silu\", \"rope_scaling\": null}"),
         *full = read_text("{\"model_type\": \"qwen3\", " SIZES ", \"num_key_value_heads\": 2, "
                           "\"head_dim\": 6, \"rms_norm_eps\": 1e-5, \"rope_parameters\": "
                           "{\"rope_type\": \"proportional\", \"rope_theta\": 500000, "
                           "\"partial_rotary_factor\": 0.5}, "
                           "\"tie_word_embeddings\": true, \"use_sliding_window\": false}");
    CHECK(strstr(plain, "num_key_value_heads=4 rms_norm_eps=9.9999999999999995e-07 "
                        "rope_theta=10000 partial_rotary_factor=1 untied=true scores=plain "));
    CHECK(strstr(full, "num_key_value_heads=2 rms_norm_eps=1.0000000000000001e-05 "
                       "rope_theta=500000 partial_rotary_factor=0.5 untied=false scores=qknorm "));
    CHECK(strstr(full, "n_positions=16 vocab_size=29 intermediate_size=40 "));
    free(plain);
    free(full);
}

static void read_bad(void *text) {
    free(read_text(text));
}

static void test_import_refused(void) {
    CHECK_FAILS(read_bad, LLAMA "\"hidden_act\": \"gelu\"}", 1, "\"hidden_act\"");
    CHECK_FAILS(read_bad, LLAMA "\"attention_bias\": true}", 1, "\"attention_bias\"");
    CHECK_FAILS(read_bad, LLAMA "\"head_dim\": 8}", 1, "\"head_dim\"");
    CHECK_FAILS(read_bad, LLAMA "\"rope_scaling\": {\"rope_type\": \"llama3\"}}", 1, "\"llama3\"");
    CHECK_FAILS(read_bad, LLAMA "\"rope_theta\": \"many\"}", 1, "\"rope_theta\"");
    CHECK_FAILS(read_bad, LLAMA "\"rope_parameters\": {\"partial_rotary_factor\": 0.5}}", 1,
                "\"partial_rotary_factor\"");
    CHECK_FAILS(read_bad,
                LLAMA "\"rope_parameters\": {\"rope_type\": \"proportional\", \"factor\": 2}}", 1,
                "\"factor\"");
    CHECK_FAILS(read_bad, "{\"model_type\": \"llama\"}", 1, "num_attention_heads");
}

static void check_name(const char *theirs, bool untied, const char *ours) {
    char yes[] = "true", no[] = "false";
    Metadata row = {(char[]){"untied"}, untied ? yes : no};
    const Safetensors file = {.metadata = &row, .metadata_count = 1};
    char *name = llama_tensor_name(theirs, &file);
    if (ours)
        CHECK_TEXT(name ? name : "none", ours);
    else
        CHECK(!name);
    free(name);
}

static void test_names(void) {
    check_name("lm_head.weight", true, "lm_head.weight");
    check_name("lm_head.weight", false, "model.embed_tokens.weight");
    check_name("layers.0.mlp.up_proj.weight", false, "model.layers.0.mlp.up_proj.weight");
    check_name("model.norm.weight", true, "model.norm.weight");
    check_name("model.layers.0.self_attn.rotary_emb.inv_freq", true, NULL);
}

// Writes a config.json and checks that reading it gives `expected`. type NULL: Hugging Face has no
// such class.
static void check_config(const char *options, const char *type, const char *expected) {
    ModelTest t = model_test_create(&llama, options, 1, 16, 29);
    JsonWriter w = {0};
    json_begin(&w, '{');
    CHECK(is_qwen3(t.model) == (type && strcmp(type, "qwen3") == 0) || !type);
    json_add_string(&w, "model_type", type ? type : "llama");
    CHECK(llama_write_config(t.model, &w) == (type != NULL));
    json_end(&w, '}');
    char *said = type ? read_text(w.text) : NULL;
    if (type && !strstr(said, expected))
        test_fail(__FILE__, __LINE__, "%s: %s, expected %s", options, said, expected);
    free(said);
    json_writer_free(&w);
    model_test_free(&t);
}

static void test_export(void) {
    check_config(SMALL "kv-heads=2 untied=true", "llama",
                 "num_key_value_heads=2 rms_norm_eps=1.0000000000000001e-05 rope_theta=10000 "
                 "partial_rotary_factor=1 untied=true scores=plain");
    check_config(SMALL "scores=qknorm rotary-base=77 rotary-part=0.75 ffn-size=10", "qwen3",
                 "intermediate_size=10 num_key_value_heads=4 rms_norm_eps=1.0000000000000001e-05 "
                 "rope_theta=77 partial_rotary_factor=0.75 untied=false scores=qknorm");
    check_config(SMALL "attention=softmax:3", NULL, NULL);
    check_config(SMALL "scores=rescaled", NULL, NULL);
    check_config(SMALL "norm=layer", NULL, NULL);
    check_config(SMALL "ffn=relu", NULL, NULL);
}

int main(int argc, char **argv) {
    static const TestCase cases[] = {
        {"gradients", test_gradients},
        {"decoding", test_decoding},
        {"batches", test_batches},
        {"parameters", test_parameters},
        {"reference", test_reference},
        {"import", test_import},
        {"import refused", test_import_refused},
        {"names of tensors", test_names},
        {"export", test_export},
    };
    return model_test_main(argc, argv, &llama, -1, cases, sizeof(cases) / sizeof(cases[0]));
}
