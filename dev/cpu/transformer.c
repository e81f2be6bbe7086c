#include "transformer.h"

void transformer_create(Transformer *t, const OuterParameters *parameters, const ModelSizes *size,
                        int32_t padding) {
    t->embedding = (Embedding){.token = parameters->token,
                               .scale = 1,
                               .position = parameters->position,
                               .channels = size->channels,
                               .site = 0,
                               .padding = padding};
    head_create(&t->head, &t->model, &parameters->norm, parameters->token, parameters->bias,
                size->vocabulary);
}

void transformer_carve(Transformer *t, size_t inner) {
    head_carve(&t->head, &t->model);
    cpu_model_carve_workspace(&t->model, t->embedding.channels, inner);
}

double transformer_forward(void *model, const Batch *batch) {
    Transformer *t = model;
    const BlockPass pass = pass_forward(&t->model, batch, false, NULL);
    return head_forward(&pass, &t->head, t->layers->forward(t, &pass));
}

double transformer_train(void *model, const Batch *batch, double scale) {
    Transformer *t = model;
    const BlockPass forward = pass_forward(&t->model, batch, true, NULL),
                    backward = pass_backward(&forward);
    const double loss =
        head_train(&forward, &backward, &t->head, t->layers->forward(t, &forward), scale);
    t->layers->backward(t, &backward);
    return loss;
}

void transformer_logits(void *model, const Batch *batch, real *logits) {
    Transformer *t = model;
    const BlockPass pass = pass_forward(&t->model, batch, false, NULL);
    head_logits(&pass, &t->head, t->layers->forward(t, &pass), logits);
}

void transformer_statistics(void *model, const Batch *batch, Statistics *statistics) {
    Transformer *t = model;
    const BlockPass pass = pass_forward(&t->model, batch, false, statistics);
    t->layers->forward(t, &pass);
}
