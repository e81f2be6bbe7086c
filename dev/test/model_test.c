#include "model_test.h"

#include "error.h"
#include "file.h"
#include "memory.h"
#include "random.h"
#include "run.h"
#include "train.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif

// ---- models and batches -----------------------------------------------------

static void set_options(Options *options, const char *list) {
    char *copy = copy_string(list), *rest = NULL;
    for (char *pair = strtok_r(copy, " ", &rest); pair; pair = strtok_r(NULL, " ", &rest)) {
        char *value = strchr(pair, '=');
        if (!value) fail("test option %s: expected name=value", pair);
        *value++ = '\0';
        options_set(options, options_find_name(pair, strlen(pair)), value, "test");
    }
    free(copy);
}

ModelTest model_test_create(const ModelType *type, const char *options, int64_t batch,
                            int64_t length, int64_t vocabulary) {
    ModelTest t = {.type = type, .options = trainer_options_create(type)};
    set_options(t.options, "dropout=0 precision=fp32");
    set_options(t.options, options);
    t.setup = (ModelSetup){.type = type,
                           .options = t.options,
                           .batch = batch,
                           .length = length,
                           .positions = length,
                           .vocabulary = vocabulary,
                           .padding_token = 0,
                           .training = true};
    t.model = type->create(&t.setup);
    t.table = type->parameters(t.model);
    t.values = allocate(t.table->total, sizeof(real), "parameters");
    parameter_initialise(t.table, 1, t.values);
    // Move away from the initial values: gains off 1, biases off 0, matrices large enough that
    // every path carries weight.
    Random r = random_stream(2, RANDOM_TEST, 0, 0);
    for (int i = 0; i < t.table->count; i++)
        for (size_t j = 0; j < t.table->items[i].size; j++)
            t.values[t.table->items[i].offset + j] += (real)(0.15 * random_normal(&r));
    type->write(t.model, MODEL_VALUES, t.values);
    return t;
}

void model_test_free(ModelTest *t) {
    t->type->destroy(t->model);
    options_free(t->options);
    free(t->values);
}

Batch model_test_batch(const ModelTest *t, double padding, uint32_t number) {
    const size_t M = (size_t)(t->setup.batch * t->setup.length);
    int32_t *inputs = allocate(M, sizeof(int32_t), "inputs"),
            *targets = allocate(M, sizeof(int32_t), "targets");
    uint8_t *mask = allocate(M, 1, "mask");
    Random r = random_stream(3, RANDOM_TEST, number, 0);
    for (size_t i = 0; i < M; i++) {
        inputs[i] = (int32_t)random_below(&r, (uint64_t)t->setup.vocabulary);
        mask[i] = random_uniform(&r) >= padding;
        targets[i] = mask[i] ? (int32_t)random_below(&r, (uint64_t)t->setup.vocabulary) : -1;
    }
    return (Batch){.batch = t->setup.batch,
                   .length = t->setup.length,
                   .inputs = inputs,
                   .targets = targets,
                   .mask = padding > 0 ? mask : (free(mask), NULL)};
}

void model_test_batch_free(Batch *batch) {
    free((int32_t *)batch->inputs);
    free((int32_t *)batch->targets);
    free((uint8_t *)batch->mask);
}

bool model_test_same(const real *a, const real *b, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (!(a[i] == b[i])) return false;
    return true;
}

// ---- gradients --------------------------------------------------------------
// Returns the loss with one parameter changed. Only train() applies dropout and label smoothing, so
// it computes the loss if either is on.
static double loss_with(ModelTest *t, const Batch *batch, size_t element, double change) {
    const real before = t->values[element];
    t->values[element] = before + (real)change;
    t->type->write(t->model, MODEL_VALUES, t->values);
    const bool drops = options_number(t->options, OPT_DROPOUT) > 0 || t->type->unsmoothed;
    const double loss =
        drops ? t->type->train(t->model, batch, 0) : t->type->forward(t->model, batch);
    t->values[element] = before;
    return loss;
}

// Returns the larger of `largest` and |x|. Not fmax of doubles: over an array of floats, gcc 12
// fails to compile that for arm64.
static real larger(real largest, real x) {
    const real size = x < 0 ? -x : x;
    return size > largest ? size : largest;
}

void model_check_gradients(ModelTest *t, const Batch *batch) {
    enum { SAMPLES = 4 };
    const double step = 2e-6, scale = 0.7;
    real *gradients = allocate(t->table->total, sizeof(real), "gradients");
    t->type->clear_gradients(t->model);
    t->type->train(t->model, batch, scale);
    t->type->read(t->model, MODEL_GRADIENTS, gradients);
    real largest = 0;
    for (size_t i = 0; i < t->table->total; i++) largest = larger(largest, gradients[i]);
    Random r = random_stream(4, RANDOM_TEST, 0, 0);
    for (int i = 0; i < t->table->count; i++) {
        const Parameter *p = &t->table->items[i];
        for (int sample = p->fixed ? SAMPLES : 0; sample < SAMPLES; sample++) {
            const size_t element = p->offset + (size_t)random_below(&r, p->size);
            const double numeric =
                scale * (loss_with(t, batch, element, step) - loss_with(t, batch, element, -step)) /
                (2 * step);
            const double analytic = (double)gradients[element];
            if (!(fabs(numeric - analytic) <= 1e-6 * (fabs(analytic) + (double)largest)))
                test_fail(__FILE__, __LINE__, "%s[%zu]: gradient %.9g, central difference %.9g",
                          p->name, element - p->offset, analytic, numeric);
        }
    }
    t->type->write(t->model, MODEL_VALUES, t->values);
    t->type->clear_gradients(t->model);
    free(gradients);
}

// ---- decoding and causality -------------------------------------------------

static real *all_logits(ModelTest *t, const Batch *batch) {
    real *logits = allocate((size_t)(batch->batch * batch->length * t->setup.vocabulary),
                            sizeof(real), "logits");
    t->type->logits(t->model, batch, logits);
    return logits;
}

void model_check_decoding(ModelTest *t, double tolerance) {
    Batch batch = model_test_batch(t, 0, 5);
    const int64_t S = batch.batch, T = batch.length, V = t->setup.vocabulary;
    real *expected = all_logits(t, &batch),
         *logits = allocate((size_t)(S * V), sizeof(real), "logits");
    int32_t *tokens = allocate((size_t)S, sizeof(int32_t), "tokens");
    void *decoder = t->type->decoder_create(t->model, (int)S);
    real worst = 0;
    for (int64_t i = 0; i < T; i++) {
        for (int64_t s = 0; s < S; s++) tokens[s] = batch.inputs[s * T + i];
        const bool asked = i % 3 != 1; // the tokens in between still count
        t->type->decode(decoder, tokens, asked ? logits : NULL);
        for (int64_t s = 0; asked && s < S; s++)
            for (int64_t v = 0; v < V; v++)
                worst = larger(worst, logits[s * V + v] - expected[(s * T + i) * V + v]);
    }
    CHECK_CLOSE(worst, 0, tolerance);
    t->type->decoder_destroy(decoder);
    free(tokens);
    free(logits);
    free(expected);
    model_test_batch_free(&batch);
}

void model_check_causality(ModelTest *t) {
    Batch batch = model_test_batch(t, 0, 6);
    const int64_t T = batch.length, V = t->setup.vocabulary, cut = T / 2;
    real *before = all_logits(t, &batch);
    int32_t *inputs = (int32_t *)batch.inputs;
    for (int64_t b = 0; b < batch.batch; b++)
        for (int64_t i = cut; i < T; i++) inputs[b * T + i] = (inputs[b * T + i] + 1) % (int32_t)V;
    real *after = all_logits(t, &batch);
    for (int64_t b = 0; b < batch.batch; b++)
        CHECK(model_test_same(before + b * T * V, after + b * T * V, (size_t)(cut * V)));
    CHECK(!model_test_same(before + cut * V, after + cut * V, (size_t)V));
    free(before);
    free(after);
    model_test_batch_free(&batch);
}

// ---- threads and accumulation -----------------------------------------------
// Returns the loss after a few updates.
static double train_some(const ModelType *type, const char *options, int threads) {
#ifdef _OPENMP
    const int before = omp_get_max_threads();
    omp_set_num_threads(threads);
#else
    (void)threads;
#endif
    ModelTest t = model_test_create(type, options, 2, 40, 50);
    Batch batch = model_test_batch(&t, 0, 7);
    double loss = 0;
    for (int64_t step = 0; step < 5; step++) {
        batch.step = (uint64_t)step;
        loss = t.type->train(t.model, &batch, 1.0 / 80) / 80;
        t.type->update(t.model,
                       &(UpdateSettings){1e-3, 0.9, 0.999, 1e-8, 0.01, 1, step + 1, false});
    }
    model_test_batch_free(&batch);
    model_test_free(&t);
#ifdef _OPENMP
    omp_set_num_threads(before);
#endif
    return loss;
}

void model_check_threads(const ModelType *type, const char *options) {
    const double one = train_some(type, options, 1), three = train_some(type, options, 3);
    CHECK_CLOSE(three, one, 1e-5 * one);
    CHECK(train_some(type, options, 3) == three);
}

void model_check_accumulation(const ModelType *type, const char *options) {
    ModelTest large = model_test_create(type, options, 2, 24, 50),
              small = model_test_create(type, options, 1, 24, 50);
    Batch batch = model_test_batch(&large, 0, 8);
    batch.step = 9;
    const double whole = type->train(large.model, &batch, 0.1);
    double parts = 0;
    for (int64_t row = 0; row < 2; row++) {
        const Batch part = {.batch = 1,
                            .length = 24,
                            .inputs = batch.inputs + row * 24,
                            .targets = batch.targets + row * 24,
                            .step = 9,
                            .first_row = row};
        parts += type->train(small.model, &part, 0.1);
    }
    CHECK_CLOSE(parts, whole, 1e-6 * fabs(whole));
    const double norm = type->gradient_norm(large.model);
    CHECK_CLOSE(type->gradient_norm(small.model), norm, 1e-5 * norm);
    model_test_batch_free(&batch);
    model_test_free(&large);
    model_test_free(&small);
}

// ---- kinds of attention -----------------------------------------------------

Batch model_kinds_batch(const ModelKinds *kinds, const ModelTest *t, double padding,
                        uint32_t number) {
    Batch batch = model_test_batch(t, padding, number);
    int32_t *targets = (int32_t *)batch.targets;
    for (size_t i = 0; i < (size_t)(batch.batch * batch.length); i++)
        if (i % kinds->every != 0) targets[i] = -1;
    return batch;
}

void model_check_kind_gradients(const ModelKinds *kinds, const char *options, int64_t length,
                                double padding) {
    if (sizeof(real) != sizeof(double)) return; // central differences need double
#ifdef _OPENMP
    omp_set_num_threads(
        1); // thousands of passes so small that threads would mostly wait for each other
#endif
    for (size_t i = 0; i < kinds->count; i++) {
        char *all = format_string("%s %s", options, kinds->kinds[i]);
        ModelTest t = model_test_create(kinds->type, all, 2, length, 29);
        Batch batch = model_kinds_batch(kinds, &t, padding, 1);
        model_check_gradients(&t, &batch);
        model_test_batch_free(&batch);
        model_test_free(&t);
        free(all);
    }
}

static void check_padding(const ModelType *type, const char *options) {
    enum { T = 140, V = 29 };
    ModelTest t = model_test_create(type, options, 1, T, V);
    Batch batch = model_test_batch(&t, 0.5, 2);
    uint8_t *mask = (uint8_t *)batch.mask;
    memset(mask, 0, 10);
    real *before = all_logits(&t, &batch);
    for (int i = 0; i < T; i++)
        if (!mask[i]) ((int32_t *)batch.inputs)[i] = (batch.inputs[i] + 1) % V;
    real *after = all_logits(&t, &batch);
    for (int i = 0; i < T; i++) {
        CHECK(model_test_same(before + i * V, after + i * V, V) == (mask[i] != 0));
        for (int v = 0; v < V; v++) CHECK(isfinite(before[i * V + v]));
    }
    free(before);
    free(after);
    model_test_batch_free(&batch);
    model_test_free(&t);
}

// Runs check(type, "OPTIONS KIND") for each kind.
static void check_kinds(const ModelKinds *kinds, const char *options,
                        void (*check)(const ModelType *type, const char *options)) {
    for (size_t i = 0; i < kinds->count; i++) {
        char *all = format_string("%s %s", options, kinds->kinds[i]);
        check(kinds->type, all);
        free(all);
    }
}

void model_check_kind_padding(const ModelKinds *kinds, const char *options) {
    check_kinds(kinds, options, check_padding);
}

void model_check_kind_threads(const ModelKinds *kinds, const char *options) {
    char *drops = format_string("%s dropout=0.2", options),
         *muon = format_string("%s optimizer=muon", options);
    check_kinds(kinds, drops, model_check_threads);
    model_check_threads(kinds->type, muon);
    free(drops);
    free(muon);
}

void model_check_kind_accumulation(const ModelKinds *kinds, const char *options) {
    char *drops = format_string("%s dropout=0.2", options);
    check_kinds(kinds, drops, model_check_accumulation);
    free(drops);
}

// ---- the program ------------------------------------------------------------

void model_test_options(const ModelType *type, const char *options) {
    ModelTest t = model_test_create(type, options, 1, 16, 20);
    model_test_free(&t);
}

void model_test_program(const ModelType *type, const char *arguments) {
    char *argv[32] = {(char *)type->program}, *rest = NULL;
    int argc = 1;
    for (char *word = strtok_r(copy_string(arguments), " ", &rest); word;
         word = strtok_r(NULL, " ", &rest))
        argv[argc++] = word;
    if (chdir(test_directory()) != 0 || !freopen("/dev/null", "w", stdout))
        fail("the test cannot begin");
    exit(train_main(argc, argv, type));
}

// ---- --audit ----------------------------------------------------------------

static struct {
    const ModelType *type;
    int calls, flip; // calls of train(), and the one whose gradients are changed (0: none)
} audited;

static double train_and_flip(void *model, const Batch *batch, double scale) {
    const double loss = audited.type->train(model, batch, scale);
    if (++audited.calls != audited.flip) return loss;
    const size_t total = audited.type->parameters(model)->total;
    real *gradients = allocate(total, sizeof(real), "gradients");
    audited.type->read(model, MODEL_GRADIENTS, gradients);
    ((unsigned char *)&gradients[total / 2])[sizeof(real) - 1] ^= 1 << 6; // a bit of the exponent
    audited.type->write(model, MODEL_GRADIENTS, gradients);
    free(gradients);
    return loss;
}

static void run_audited(void *arguments) {
    ModelType type = *audited.type;
    type.train = train_and_flip;
    model_test_program(&type, arguments);
}

// Runs the program and returns the weights' checksum of its last evaluation, as a new string.
static char *audited_weights(const char *arguments, const char *name) {
    char *all = format_string("%s --output %s", arguments, name), text[1024];
    if (test_child(run_audited, all, text, sizeof(text)) != 0)
        test_fail(__FILE__, __LINE__, "%s: %s", all, text);
    char *path = format_string("%s/%s/log.jsonl", test_directory(), name);
    FileMap log = file_map(path);
    char *lines = format_string("%.*s", (int)log.size, (const char *)log.data), *found = NULL;
    static const char key[] = "\"parameters\":\"";
    for (char *at = lines; (at = strstr(at, key));) found = at += sizeof(key) - 1;
    char *checksum = format_string("%.16s", found ? found : "none");
    file_unmap(&log);
    free(lines);
    free(path);
    free(all);
    return checksum;
}

void model_check_audit(const ModelType *type, const char *arguments) {
    enum { STEP = 3 };
    char *audits = format_string("%s --audit %d", arguments, STEP),
         *bad = format_string("%s --output bad", audits);
    audited.type = type;
    char *without = audited_weights(arguments, "without"), *with = audited_weights(audits, "with");
    CHECK_TEXT(with, without);
    // Steps of two micro-batches: the first two steps are not audited, the third is.
    audited.flip = 2 * STEP - 1;
    CHECK_FAILS(run_audited, bad, 1, "--audit: step 3 computed twice differs: loss ");
    audited.flip = 2 * STEP + 2; // in the repetition
    bad[strlen(bad) - 1] = 'c';
    CHECK_FAILS(run_audited, bad, 1, "--audit: step 3 computed twice differs: loss ");
    audited.flip = 0;
    char *strings[] = {audits, bad, without, with};
    for (size_t i = 0; i < sizeof(strings) / sizeof(*strings); i++) free(strings[i]);
}

static const char *const own_precision = sizeof(real) == sizeof(double) ? "double" : "float";

// Runs the same program of the float build.
static _Noreturn void run_float_build(char **argv) {
    const char *path = format_string("%s/bin/%s", FLOAT_BUILD, path_name(argv[0]));
    execv(path, argv);
    fail("%s: cannot be run; build it with make", path);
}

static int reference_main(int argc, char **argv, const ModelType *type, int32_t padding) {
    const char *precision = own_precision;
    for (int i = 1; i + 1 < argc; i++)
        if (strcmp(argv[i], "-p") == 0) precision = argv[i + 1];
    if (strcmp(precision, "double") != 0 && strcmp(precision, "float") != 0 &&
        strcmp(precision, "bf16") != 0)
        fail_usage("-p %s: expected double, float or bf16", precision);
    const bool needs_double = strcmp(precision, "double") == 0;
    if (needs_double != (sizeof(real) == sizeof(double))) {
        if (needs_double) fail("-p double: this is the float build; the double one does both");
        run_float_build(argv);
    }
    int passed = 0, failed = 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "-r") == 0) continue;
        if (strcmp(argv[i], "-p") == 0) {
            i++;
            continue;
        }
        if (model_reference(type, argv[i], precision, padding))
            passed++;
        else
            failed++;
    }
    if (passed + failed == 0) fail_usage("-r: expected reference files");
    return failed > 0;
}

static bool is_token(const Batch *batch, int64_t i) {
    return !batch->mask || batch->mask[i];
}

void model_check_residual_statistics(Statistics *s, const Batch *batch, size_t layer,
                                     size_t channels) {
    const Moments *in = &statistics_find(s, layer, "residual")->values,
                  *attention = &statistics_find(s, layer, "attention")->values,
                  *middle = &statistics_find(s, layer, "residual_middle")->values,
                  *ffn = &statistics_find(s, layer, "ffn")->values,
                  *out = &statistics_find(s, layer + 1, "residual")->values;
    const double tolerance = sizeof(real) == sizeof(double) ? 1e-12 : 1e-6;
    CHECK_CLOSE(in->mean + attention->mean, middle->mean, tolerance);
    CHECK_CLOSE(middle->mean + ffn->mean, out->mean, tolerance);
    int64_t tokens = 0;
    for (int64_t i = 0; i < batch->batch * batch->length; i++) tokens += is_token(batch, i);
    CHECK(in->count == tokens * (int64_t)channels && attention->count == in->count);
}

void model_check_weight_statistics(const Measurement *m, const Batch *batch, size_t heads,
                                   size_t window) {
    int64_t tokens = 0, pairs = 0;
    for (int64_t i = 0; i < batch->batch * batch->length; i++) {
        tokens += is_token(batch, i);
        for (int64_t j = i - i % batch->length; j <= i; j++)
            pairs += is_token(batch, i) && is_token(batch, j) &&
                     (window == 0 || i - j < (int64_t)window);
    }
    CHECK(m->values.count == pairs * (int64_t)heads && m->queries == tokens * (int64_t)heads);
    const double mass = m->values.mean * (double)m->values.count + m->sink_share;
    CHECK_CLOSE(mass, (double)m->queries, 1e-9 * (double)m->queries);
}

int model_test_main(int argc, char **argv, const ModelType *type, int32_t padding,
                    const TestCase *cases, int count) {
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "-r") == 0) return reference_main(argc, argv, type, padding);
    return test_main(argc, argv, type->name, cases, count);
}
