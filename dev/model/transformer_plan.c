#include "transformer_plan.h"

#include "attention_options.h"
#include "memory.h"
#include "text.h"
#include <stdlib.h>

TransformerPlan plan_create(const ModelSetup *setup, bool causal) {
    TransformerPlan p = {.size = model_sizes(setup),
                         .stack_count = 1,
                         .prediction.transform = no_linear(),
                         .padding = setup->padding_token,
                         .end = setup->end_token,
                         .epsilon = NORM_EPSILON,
                         .output = NO_PARAMETER,
                         .bias = NO_PARAMETER};
    const size_t L = p.size.layers, C = p.size.channels;
    p.inner = 4 * C;
    p.dropout = p.attention_dropout = setup->type->facts(setup->options, NULL).dropout;
    p.layers = allocate(L, sizeof(LayerPlan), "layers");
    AttentionPlan *attention = attention_plans(setup->options, L, p.size.positions, causal);
    for (size_t l = 0; l < L; l++) p.layers[l].attention = attention[l];
    free(attention);
    p.stacks[0] = (StackPlan){.end = L,
                              .embedding = {.scale = 1,
                                            .type = NO_PARAMETER,
                                            .norm = no_norm(C),
                                            .padding = setup->padding_token},
                              .norm = no_norm(C)};
    return p;
}

void plan_free(TransformerPlan *plan) {
    free(plan->layers);
}

// Assigns the dropout sites of attention: those of the weights and of the projection's output.
static void number_attention(AttentionPlan *a, uint32_t *site) {
    a->weight_sites[0] = (*site)++;
    a->site = a->weight_sites[1] = (*site)++;
}

void plan_complete(TransformerPlan *plan) {
    uint32_t site = (uint32_t)plan->stack_count;
    if (plan->output == NO_PARAMETER)
        plan->output = plan->stacks[plan->stack_count - 1].embedding.token;
    for (size_t i = 0; i < plan->stack_count; i++) plan->stacks[i].embedding.site = (uint32_t)i;
    for (size_t l = 0; l < plan->size.layers; l++) {
        LayerPlan *layer = &plan->layers[l];
        const size_t norm = layer->attention.norm.gain, product = layer->attention.qkv.weight;
        layer->first = norm < product ? norm : product; // NO_PARAMETER is the largest value
        number_attention(&layer->attention, &site);
        if (layer->crosses) number_attention(&layer->cross, &site);
        layer->ffn_site = site++;
    }
    // Additional sites come last, so that they do not change the numbers of the others.
    for (size_t l = 0; l < plan->size.layers; l++) {
        AttentionPlan *a = &plan->layers[l].attention;
        if (attention_types[a->kind].pools && attention_projects(a)) a->weight_sites[1] = site++;
    }
}

void plan_add_parameters(const ModelSetup *setup, ParameterTable *table) {
    TransformerPlan plan = setup->type->transformer->plan(setup, table);
    plan_free(&plan);
}

void plan_stack_forward(const TransformerPlan *plan, const Blocks *blocks, const BlockPass *pass,
                        size_t stack) {
    blocks->embed_forward(pass, stack);
    for (size_t l = plan->stacks[stack].first; l < plan->stacks[stack].end; l++) {
        blocks->attention_forward(pass, l);
        if (plan->layers[l].crosses) blocks->cross_attention_forward(pass, l);
        blocks->ffn_forward(pass, l);
    }
}

void plan_stack_backward(const TransformerPlan *plan, const Blocks *blocks, const BlockPass *pass,
                         size_t stack) {
    for (size_t l = plan->stacks[stack].end; l-- > plan->stacks[stack].first;) {
        blocks->ffn_backward(pass, l);
        if (plan->layers[l].crosses) blocks->cross_attention_backward(pass, l);
        blocks->attention_backward(pass, l);
    }
    blocks->embed_backward(pass, stack);
}

static double linear_flops(const LinearParameters *linear) {
    return 2 * (double)linear->shape.outputs * (double)linear->shape.inputs;
}

static double attention_layer_flops(const TransformerPlan *plan, const AttentionPlan *a,
                                    double keys) {
    enum { LINEARS = 4 };
    const LinearParameters *const linears[LINEARS] = {&a->qkv, &a->query, &a->key_value,
                                                      &a->projection};
    double flops = attention_flops(a, plan->size.channels, plan->size.heads, 1, keys);
    for (size_t i = 0; i < LINEARS; i++) flops += linear_flops(linears[i]);
    return flops;
}

static double layer_flops(const TransformerPlan *plan, const LayerPlan *layer, double keys) {
    double flops =
        linear_flops(&layer->ffn.up) + linear_flops(&layer->ffn.down) +
        attention_layer_flops(plan, &layer->attention, layer->attention.causal ? keys / 2 : keys);
    if (layer->crosses) flops += attention_layer_flops(plan, &layer->cross, keys);
    return flops;
}

double plan_layers_flops(const TransformerPlan *plan, const StackPlan *stack, int64_t length) {
    double flops = 0;
    for (size_t l = stack->first; l < stack->end; l++)
        flops += layer_flops(plan, &plan->layers[l], (double)length);
    return 3 * flops;
}

double plan_state_bytes(const TransformerPlan *plan, int64_t tokens) {
    double numbers = 0;
    for (size_t l = 0; l < plan->size.layers; l++) {
        const AttentionPlan *a = &plan->layers[l].attention;
        numbers += attention_types[a->kind].state(a, plan->size.channels, plan->size.heads,
                                                  (double)tokens) +
                   (double)a->shifted;
    }
    return numbers * sizeof(float);
}

bool plan_attends(const TransformerPlan *plan, AttentionKind kind) {
    for (size_t l = 0; l < plan->size.layers; l++)
        if (plan->layers[l].attention.kind != kind) return false;
    return true;
}

size_t plan_shifted(const TransformerPlan *plan) {
    return plan->layers[0].attention.shifted;
}

bool plan_has_windows(const TransformerPlan *plan) {
    for (size_t l = 0; l < plan->size.layers; l++)
        if (plan->layers[l].attention.window > 0) return true;
    return false;
}

bool plan_prepares(const TransformerPlan *plan) {
    for (size_t l = 0; l < plan->size.layers; l++)
        if (plan->layers[l].attention.prepares) return true;
    return false;
}

Rotary plan_rotary(const TransformerPlan *plan) {
    Rotary rotary = {0};
    for (size_t l = 0; l < plan->size.layers && !(rotary.base > 0); l++)
        rotary = plan->layers[l].attention.rotary;
    return rotary;
}

void plan_describe_windows(const TransformerPlan *plan, Metadata **rows, int *count) {
    char *text = copy_string("[");
    for (size_t l = 0; l < plan->size.layers; l++) {
        const size_t window = plan->layers[l].attention.window;
        append_format(&text, "%zu%s", window ? window : plan->size.positions,
                      l + 1 < plan->size.layers ? ", " : "]");
    }
    metadata_add(rows, count, "window_sizes", text);
}
