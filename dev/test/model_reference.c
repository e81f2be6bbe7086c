// Reference vectors: outputs of the published implementations in float64 (dev/reference/README.md).

#include "checkpoint.h"
#include "error.h"
#include "memory.h"
#include "model_test.h"
#include "options.h"
#include "random.h"
#include "run.h"
#include "safetensors.h"
#include "schedule.h"
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const Safetensors *file;
    const ModelType *type;
    Options *options;
    ModelSetup setup;
    void *model;
    const ParameterTable *table;
} Reference;

// Returns the Euclidean norm of ours - expected; stores that of expected in `norm`.
static double distance(const real *ours, const double *expected, size_t count, double *norm) {
    double error = 0, sum = 0;
    for (size_t i = 0; i < count; i++) {
        error += ((double)ours[i] - expected[i]) * ((double)ours[i] - expected[i]);
        sum += expected[i] * expected[i];
    }
    *norm = sqrt(sum);
    return sqrt(error);
}

static double relative(double value, double expected) {
    return fabs(value - expected) / fabs(expected);
}

// Returns the relative error of a loss. Hugging Face's classes compute the loss in float32 even if
// everything else is float64, and its last digit is wrong: if `expected` is a float32, only the
// error beyond two units in the last place counts.
static double loss_error(double value, double expected) {
    const double error = relative(value, expected);
    const double known = (double)(float)expected == expected ? 2 * (double)FLT_EPSILON : 0;
    return error <= known ? 0 : error - known;
}

static double *read_doubles(const Safetensors *file, const char *name, size_t count) {
    const Tensor *tensor = safetensors_find(file, name);
    if (!tensor) fail("%s: tensor %s is missing", file->file.path, name);
    if (tensor->count != count)
        fail("%s: tensor %s has %zu elements, expected %zu", file->file.path, name, tensor->count,
             count);
    double *values = allocate(count, sizeof(double), name);
    tensor_read_double(file, tensor, values);
    return values;
}

static int32_t *read_integers(const Safetensors *file, const char *name, size_t count) {
    const Tensor *tensor = safetensors_find(file, name);
    if (!tensor) fail("%s: tensor %s is missing", file->file.path, name);
    if (tensor->count != count)
        fail("%s: tensor %s has %zu elements, expected %zu", file->file.path, name, tensor->count,
             count);
    int32_t *values = allocate(count, sizeof(int32_t), name);
    tensor_read_int32(file, tensor, values);
    return values;
}

// Loads the file's parameters, each changed by up to `perturbation` of itself; clears the
// optimiser.
static void load_values(Reference *r, double perturbation) {
    real *values = allocate(r->table->total, sizeof(real), "parameters");
    r->type->write(r->model, MODEL_FIRST_MOMENT, values);
    r->type->write(r->model, MODEL_SECOND_MOMENT, values);
    for (int i = 0; i < r->table->count; i++) {
        const Parameter *p = &r->table->items[i];
        const Tensor *tensor = safetensors_find(r->file, p->name);
        if (!tensor || tensor->count != p->size)
            fail("%s: tensor %s is missing or not of %zu elements", r->file->file.path, p->name,
                 p->size);
        tensor_read_real(r->file, tensor, values + p->offset);
    }
    Random random = random_stream(1, RANDOM_TEST, 0, 0);
    for (size_t i = 0; perturbation > 0 && i < r->table->total; i++)
        values[i] *= (real)(1 + perturbation * (2 * random_uniform(&random) - 1));
    r->type->write(r->model, MODEL_VALUES, values);
    free(values);
}

static Reference reference_open(const ModelType *type, const Safetensors *file,
                                const char *precision, int32_t padding) {
    Reference r = {.file = file, .type = type, .options = trainer_options_create(type)};
    checkpoint_check_type(file, type);
    options_from_metadata(r.options, OPTION_MODEL, file, NULL);
    options_set(r.options, OPT_DROPOUT, "0", "test");
    options_set(r.options, OPT_PRECISION, strcmp(precision, "bf16") == 0 ? "bf16" : "fp32", "test");
    const Tensor *ids = safetensors_find(file, "input_ids");
    if (!ids || ids->rank != 2)
        fail("%s: tensor input_ids is missing or not (B, T)", file->file.path);
    r.setup = (ModelSetup){.type = type,
                           .options = r.options,
                           .batch = ids->shape[0],
                           .length = ids->shape[1],
                           .positions = ids->shape[1],
                           .vocabulary = safetensors_integer(file, "vocab_size", 1, INT32_MAX),
                           .padding_token = padding,
                           .training = true};
    r.model = type->create(&r.setup);
    r.table = type->parameters(r.model);
    load_values(&r, 0);
    return r;
}

// In a language model, position i predicts labels[i + 1] and the last one of a row predicts
// nothing; in others, position i predicts labels[i].
static void read_targets(const ModelType *type, const int32_t *labels, int64_t batch,
                         int64_t length, int32_t *targets) {
    const int64_t ahead = strcmp(type->task->name, "language") == 0;
    for (int64_t b = 0; b < batch; b++)
        for (int64_t t = 0; t < length; t++)
            targets[b * length + t] = t + ahead < length && labels[b * length + t + ahead] >= 0
                                          ? labels[b * length + t + ahead]
                                          : -1;
}

// Returns the length of a row of labels, which equals the inputs' length without a source side.
static int64_t label_length(const Reference *r, const char *name) {
    const Tensor *labels = safetensors_find(r->file, name);
    return labels && labels->rank > 0 ? labels->shape[labels->rank - 1] : r->setup.length;
}

// Returns a batch of ids (B, S), mask (B, S) or NULL, and labels (B, T). S = T except in
// translation, whose decoder reads the labels shifted right by one, after a 0. The caller owns
// inputs and targets (B, T).
static Batch make_batch(const Reference *r, const int32_t *ids, const uint8_t *mask,
                        const int32_t *labels, int64_t length, int32_t *inputs, int32_t *targets) {
    const int64_t B = r->setup.batch, T = length;
    Batch batch = {.batch = B, .length = T, .inputs = ids, .targets = targets, .mask = mask};
    read_targets(r->type, labels, B, T, targets);
    if (strcmp(r->type->task->name, "translation") != 0) return batch;
    for (int64_t i = 0; i < B * T; i++)
        inputs[i] = i % T > 0 && labels[i - 1] > 0 ? labels[i - 1] : 0;
    batch.source = (SourceSide){r->setup.length, ids, mask};
    batch.inputs = inputs;
    batch.mask = NULL;
    return batch;
}

static int64_t counted(const int32_t *targets, size_t count) {
    int64_t n = 0;
    for (size_t i = 0; i < count; i++) n += targets[i] >= 0;
    return n;
}

// Returns the largest error of a parameter, each against PREFIX.NAME; stores that one in `worst`.
static double worst_error(const Reference *r, const char *prefix, const real *ours,
                          const Parameter **worst) {
    double total = 0, largest = 0;
    for (int pass = 0; pass < 2; pass++) { // first the norm of all tensors
        for (int i = 0; i < r->table->count; i++) {
            const Parameter *p = &r->table->items[i];
            if (p->fixed) continue;
            char *name = format_string("%s%s", prefix, p->name);
            double *expected = read_doubles(r->file, name, p->size), norm;
            const double error = distance(ours + p->offset, expected, p->size, &norm);
            free(expected);
            free(name);
            if (pass == 0) total += norm * norm;
            const double relative = error / (norm + 1e-3 * sqrt(total));
            if (pass == 1 && !(relative <= largest)) { // a NaN is the worst
                largest = relative;
                *worst = p;
            }
        }
    }
    return largest;
}

typedef struct {
    double logits, loss, gradients, training;
    const Parameter *worst;
    size_t steps, compared; // training steps in the file, and those before rounding dominates
} Errors;

static void compare_batch(Reference *r, Errors *errors) {
    const int64_t T = label_length(r, "labels");
    const size_t N = (size_t)(r->setup.batch * r->setup.length), M = (size_t)(r->setup.batch * T),
                 V = (size_t)r->setup.vocabulary;
    int32_t *ids = read_integers(r->file, "input_ids", N),
            *mask = read_integers(r->file, "attention_mask", N);
    int32_t *labels = read_integers(r->file, "labels", M),
            *targets = allocate(M, sizeof(int32_t), "targets"),
            *inputs = allocate(M, sizeof(int32_t), "inputs");
    uint8_t *bytes = allocate(N, 1, "mask");
    for (size_t i = 0; i < N; i++) bytes[i] = mask[i] != 0;
    const Batch batch = make_batch(r, ids, bytes, labels, T, inputs, targets);
    const double scale = 1.0 / (double)counted(targets, M);

    real *logits = allocate(M * V, sizeof(real), "logits");
    r->type->logits(r->model, &batch, logits);
    double *expected = read_doubles(r->file, "logits", M * V), norm;
    const double error = distance(logits, expected, M * V, &norm);
    errors->logits = error / (norm * (1 + 1e-3));
    free(expected);

    const double loss = r->type->train(r->model, &batch, scale) * scale;
    expected = read_doubles(r->file, "loss", 1);
    errors->loss = loss_error(loss, expected[0]);
    free(expected);
    double plain = loss; // without label smoothing
    if (r->type->unsmoothed) {
        expected = read_doubles(r->file, "loss_without_smoothing", 1);
        plain = r->type->unsmoothed(r->model) * scale;
        errors->loss = fmax(errors->loss, loss_error(plain, expected[0]));
        free(expected);
    }
    const double forward = r->type->forward(r->model, &batch) * scale;
    errors->loss = fmax(errors->loss, relative(forward, plain));

    real *gradients = allocate(r->table->total, sizeof(real), "gradients");
    r->type->read(r->model, MODEL_GRADIENTS, gradients);
    errors->gradients = worst_error(r, "grad.", gradients, &errors->worst);
    r->type->clear_gradients(r->model);
    free(gradients);
    free(logits);
    free(bytes);
    free(inputs);
    free(targets);
    free(labels);
    free(mask);
    free(ids);
}

// ---- training steps ---------------------------------------------------------

typedef struct {
    real *losses, *norms; // (steps), norms before clipping
    real *values;         // (total) after the last step
} Trajectory;

static void trajectory_free(Trajectory *t) {
    free(t->losses);
    free(t->norms);
    free(t->values);
}

// Trains with the file's settings, from parameters changed by `perturbation`.
static Trajectory train_steps(Reference *r, size_t steps, double perturbation) {
    const bool labelled = safetensors_find(r->file, "train.labels") != NULL;
    const int64_t T = labelled ? label_length(r, "train.labels") : r->setup.length;
    const size_t N = (size_t)(r->setup.batch * r->setup.length), M = (size_t)(r->setup.batch * T);
    const double lr = safetensors_number(r->file, "train_lr"),
                 decay = safetensors_number(r->file, "train_weight_decay");
    int32_t *ids = read_integers(r->file, "train.input_ids", steps * N);
    int32_t *targets = allocate(M, sizeof(int32_t), "targets"), *labels = ids,
            *inputs = allocate(M, sizeof(int32_t), "inputs");
    if (labelled) labels = read_integers(r->file, "train.labels", steps * M);
    const Trajectory t = {.losses = allocate(steps, sizeof(real), "losses"),
                          .norms = allocate(steps, sizeof(real), "norms"),
                          .values = allocate(r->table->total, sizeof(real), "parameters")};
    load_values(r, perturbation);
    for (size_t i = 0; i < steps; i++) {
        const Batch batch = make_batch(r, ids + i * N, NULL, labels + i * M, T, inputs, targets);
        const double scale = 1.0 / (double)counted(targets, M);
        t.losses[i] = (real)(r->type->train(r->model, &batch, scale) * scale);
        const double norm = r->type->gradient_norm(r->model);
        t.norms[i] = (real)norm;
        r->type->update(r->model,
                        &(UpdateSettings){.learning_rate = lr * (1 - (double)i / (double)steps),
                                          .beta1 = 0.9,
                                          .beta2 = 0.999,
                                          .epsilon = 1e-8,
                                          .weight_decay = decay,
                                          .gradient_scale = clip_scale(norm, 1),
                                          .step = (int64_t)i + 1});
    }
    r->type->read(r->model, MODEL_VALUES, t.values);
    if (labels != ids) free(labels);
    free(ids);
    free(inputs);
    free(targets);
    return t;
}

// Training amplifies rounding, in some models by a factor of 1e14 in 20 steps. To measure this, the
// same steps are run from parameters perturbed by this precision's rounding. Steps are compared as
// long as the two runs agree to a tenth of the tolerance, and the final parameters if all steps
// are.
static void compare_training(Reference *r, double rounding, double tolerance, Errors *errors) {
    if (!safetensors_metadata(r->file, "train_steps")) return;
    const size_t steps = (size_t)safetensors_integer(r->file, "train_steps", 1, 1000000);
    Trajectory plain = train_steps(r, steps, 0), perturbed = train_steps(r, steps, rounding);
    double *losses = read_doubles(r->file, "train.losses", steps),
           *norms = read_doubles(r->file, "train.grad_norms", steps);
    size_t i = 0;
    for (; i < steps; i++) {
        const double change = fmax(relative((double)perturbed.losses[i], (double)plain.losses[i]),
                                   relative((double)perturbed.norms[i], (double)plain.norms[i]));
        if (i > 0 && !(change <= 0.1 * tolerance)) break;
        const double error = fmax(loss_error((double)plain.losses[i], losses[i]),
                                  relative((double)plain.norms[i], norms[i]));
        if (!(error <= errors->training)) errors->training = error;
    }
    const Parameter *worst = NULL;
    if (i == steps)
        errors->training = fmax(errors->training, worst_error(r, "final.", plain.values, &worst));
    errors->steps = steps;
    errors->compared = i;
    free(losses);
    free(norms);
    trajectory_free(&plain);
    trajectory_free(&perturbed);
}

bool model_reference(const ModelType *type, const char *path, const char *precision,
                     int32_t padding) {
    static const struct {
        const char *name;
        double tolerance, rounding;
    } precisions[] = {{"double", 1e-7, 16 * DBL_EPSILON},
                      {"float", 1e-4, 16 * (double)FLT_EPSILON},
                      {"bf16", 5e-2, 1e-2}};
    size_t which = 0;
    while (strcmp(precisions[which].name, precision) != 0) which++;
    const double tolerance = precisions[which].tolerance;

    Safetensors *file = safetensors_open(path);
    Reference r = reference_open(type, file, precision, padding);
    Errors e = {0};
    compare_batch(&r, &e);
    compare_training(&r, precisions[which].rounding, tolerance, &e);
    const bool passed = e.logits <= tolerance && e.loss <= tolerance && e.gradients <= tolerance &&
                        e.training <= tolerance;
    printf("%s logits %.2e loss %.2e grad %.2e (%s) train ", path, e.logits, e.loss, e.gradients,
           e.worst ? e.worst->name : "none");
    printf(e.steps ? "%.2e" : "-", e.training);
    printf(": %s", passed ? "PASS" : "FAIL");
    if (e.compared < e.steps)
        printf(" (training: %zu of %zu steps, rounding decides the rest)", e.compared, e.steps);
    printf("\n");
    type->destroy(r.model);
    options_free(r.options);
    safetensors_close(file);
    return passed;
}
