// Exchange with Hugging Face transformers: reads and writes config.json. The class itself is
// modeling_fastformer.py, which is stored in a run's directory next to the weights.
#include "block_options.h"
#include "embed.h"
#include "error.h"
#include "fastformer.h"
#include "memory.h"
#include "text.h"
#include "transformer.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

EMBED(modeling, "dev/fastformer/modeling_fastformer.py");

static Text modeling_text(void) {
    return EMBEDDED(modeling);
}

// Returns a list of numbers as our metadata stores it: "[4, 8, 2048]".
static char *windows_text(const Json *list, const char *source) {
    if (!list || list->kind != JSON_ARRAY || list->count == 0)
        fail("%s: \"window_sizes\" is not a list of windows", source);
    char *text = copy_string("[");
    for (size_t i = 0; i < list->count; i++) {
        const Json *window = &list->items[i];
        if (window->kind != JSON_NUMBER || !(window->number >= 1 && window->number <= 1 << 28) ||
            window->number != floor(window->number))
            fail("%s: \"window_sizes\" holds something other than whole numbers from 1", source);
        append_format(&text, "%s%.0f", i ? ", " : "", window->number);
    }
    append_format(&text, "]");
    return text;
}

// Returns a list of kinds as our metadata stores it: "additive,additive,softmax".
static char *attention_text(const Json *list, const char *source) {
    char *text = copy_string("");
    if (list->kind != JSON_ARRAY) fail("%s: \"attention\" is not a list of kinds", source);
    for (size_t i = 0; i < list->count; i++) {
        const Json *kind = &list->items[i];
        if (kind->kind != JSON_STRING)
            fail("%s: \"attention\" holds something other than names", source);
        append_format(&text, "%s%s", i ? "," : "", kind->string);
    }
    return text;
}

// Adds member `key` of config.json, a number, to our metadata under the name `row`.
static void read_number(const Json *config, const char *key, const char *row, const char *source,
                        Metadata **rows, int *count) {
    const Json *value = json_find(config, key);
    if (!value || value->kind != JSON_NUMBER) fail("%s: \"%s\" is not a number", source, key);
    metadata_add(rows, count, row, format_string("%.17g", value->number));
}

// Reads the members that only some models have: strings and numbers.
static void read_choices(const Json *config, const char *source, Metadata **rows, int *count) {
    static const struct {
        const char *key, *row;
        bool number;
    } members[] = {{"positions", "positions", false},
                   {"rotary_base", "rope_theta", true},
                   {"rotary_part", "partial_rotary_factor", true},
                   {"token_shift", "token_shift", true},
                   {"query_gain", "query_gain", true},
                   {"norm", "norm", false},
                   {"norm_eps", "rms_norm_eps", true},
                   {"activation", "ffn", false},
                   {"intermediate_size", "intermediate_size", true},
                   {"scores", "scores", false}};
    for (size_t i = 0; i < sizeof(members) / sizeof(members[0]); i++) {
        const char *key = members[i].key, *row = members[i].row;
        if (!json_find(config, key)) continue;
        if (members[i].number)
            read_number(config, key, row, source, rows, count);
        else
            metadata_add(rows, count, row, copy_string(json_string(config, key, source)));
    }
    if (json_find(config, "intermediate_size")) return;
    const long long channels = json_integer(config, "hidden_size", 2, 65536, source);
    metadata_add(rows, count, "intermediate_size", // the class's default, also for SwiGLU
                 format_string("%lld", 4 * channels));
}

static void read_config(const Json *config, const char *source, Metadata **rows, int *count) {
    static const struct {
        const char *key;
        int64_t min, max;
    } integers[] = {{"n_layer", 1, 256},          {"hidden_size", 2, 65536},
                    {"n_heads", 1, 1024},         {"n_positions", 1, 1 << 28},
                    {"vocab_size", 1, INT32_MAX}, {"padding_token", -1, INT32_MAX}};
    for (size_t i = 0; i < sizeof(integers) / sizeof(integers[0]); i++) {
        const long long value =
            json_integer(config, integers[i].key, integers[i].min, integers[i].max, source);
        metadata_add(rows, count, integers[i].key, format_string("%lld", value));
    }
    read_number(config, "rescale", "rescale", source, rows, count);
    read_number(config, "eps_denominator", "eps_denominator", source, rows, count);
    metadata_add(rows, count, "pool", copy_string(json_string(config, "pool", source)));
    read_choices(config, source, rows, count);
    const Json *attention = json_find(config, "attention");
    if (attention) metadata_add(rows, count, "attention", attention_text(attention, source));
    metadata_add(rows, count, "window_sizes",
                 windows_text(json_find(config, "window_sizes"), source));
}

// Tensors have the same names in both formats.
static char *tensor_name(const char *theirs, const Safetensors *file) {
    (void)file;
    return copy_string(theirs);
}

// Returns whether the class supports the model: each layer's kind of attention (additive, softmax
// or softmax1) and scores, the positions and the output layer.
static bool is_known(const TransformerPlan *plan) {
    for (size_t l = 0; l < plan->size.layers; l++) {
        const AttentionPlan *a = &plan->layers[l].attention;
        const bool softmax = a->kind == ATTENTION_SOFTMAX || a->kind == ATTENTION_SOFTMAX1;
        if (a->groups != plan->size.heads || (!softmax && a->kind != ATTENTION_ADDITIVE) ||
            (a->scores != attention_types[a->kind].usual && a->scores != SCORES_QKNORM))
            return false;
    }
    return plan->positions != POSITIONS_SINUSOIDAL && !plan->untied;
}

// Writes each layer's kind of attention, unless all are additive.
static void write_attention(const TransformerPlan *plan, JsonWriter *w) {
    if (plan_attends(plan, ATTENTION_ADDITIVE)) return;
    json_open(w, "attention", '[');
    for (size_t l = 0; l < plan->size.layers; l++)
        json_write_string(w, attention_types[plan->layers[l].attention.kind].name);
    json_end(w, ']');
}

// Returns the class's name of the activation, which equals the value of --ffn.
static const char *activation_name(ActivationKind kind) {
    return kind == RELU ? "relu" : kind == RELU2 ? "relu2" : kind == SWIGLU ? "swiglu" : "gelu";
}

// Writes the members in which the model differs from the published one.
static void write_blocks(const TransformerPlan *plan, JsonWriter *w) {
    const Rotary rotary = plan_rotary(plan);
    if (plan->positions != POSITIONS_LEARNED)
        json_add_string(w, "positions", plan->positions == POSITIONS_ROTARY ? "rotary" : "none");
    if (rotary.base > 0) {
        json_add_number(w, "rotary_base", rotary.base);
        json_add_number(w, "rotary_part", rotary.part);
    }
    if (plan_shifted(plan) > 0)
        json_add_number(w, "token_shift", (double)plan_shifted(plan) / (double)plan->size.channels);
    if (plan->rms) json_add_string(w, "norm", "rms");
    if (plan->epsilon != NORM_EPSILON) json_add_number(w, "norm_eps", plan->epsilon);
    if (plan->activation != GELU_ERF)
        json_add_string(w, "activation", activation_name(plan->activation));
    if (plan->inner != 4 * plan->size.channels)
        json_add_integer(w, "intermediate_size", (int64_t)plan->inner);
    bool qknorm = false;
    for (size_t l = 0; l < plan->size.layers; l++)
        qknorm |= plan->layers[l].attention.scores == SCORES_QKNORM;
    if (qknorm) json_add_string(w, "scores", "qknorm");
}

// Returns false if the class does not support the model.
static bool write_config(const void *model, JsonWriter *w) {
    const TransformerPlan *plan = transformer_plan(model);
    const ModelSizes *size = &plan->size;
    const AttentionPlan *attention = &plan->layers[0].attention; // the first additive one, if any
    if (!is_known(plan)) return false;
    for (size_t l = size->layers; l-- > 0;)
        if (plan->layers[l].attention.kind == ATTENTION_ADDITIVE)
            attention = &plan->layers[l].attention;
    json_open(w, "architectures", '[');
    json_write_string(w, "FastformerForCausalLM");
    json_end(w, ']');
    json_open(w, "auto_map", '{');
    json_add_string(w, "AutoConfig", "modeling_fastformer.FastformerConfig");
    json_add_string(w, "AutoModelForCausalLM", "modeling_fastformer.FastformerForCausalLM");
    json_end(w, '}');
    const struct {
        const char *key;
        int64_t value;
    } integers[] = {
        {"n_layer", (int64_t)size->layers},        {"hidden_size", (int64_t)size->channels},
        {"n_heads", (int64_t)size->heads},         {"n_positions", (int64_t)size->positions},
        {"vocab_size", (int64_t)size->vocabulary}, {"padding_token", plan->padding}};
    for (size_t i = 0; i < sizeof(integers) / sizeof(integers[0]); i++)
        json_add_integer(w, integers[i].key, integers[i].value);
    const struct {
        const char *key;
        double value;
    } numbers[] = {{"rescale", attention->rescale},
                   {"eps_denominator", attention->sink},
                   {"dropout", plan->dropout}};
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        json_add_number(w, numbers[i].key, numbers[i].value);
    write_attention(plan, w);
    json_add_string(w, "pool", attention->pool_raw ? "raw" : "normalised");
    if (attention->query_gain > 0) json_add_number(w, "query_gain", attention->query_gain);
    write_blocks(plan, w);
    json_open(w, "window_sizes", '[');
    for (size_t l = 0; l < size->layers; l++) {
        const size_t window = plan->layers[l].attention.window;
        json_write_integer(w, (int64_t)(window ? window : size->positions));
    }
    json_end(w, ']');
    return true;
}

const Exchange fastformer_exchange = {
    .model_type = "fastformer",
    .code_name = "modeling_fastformer.py",
    .code = modeling_text,
    .read_config = read_config,
    .tensor_name = tensor_name,
    .write_config = write_config,
};
