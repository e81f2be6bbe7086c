// Checks that hold for every GPU model, given as its ModelType and that of the CPU model.
#ifndef TEST_GPU_MODEL_TEST_CUH
#define TEST_GPU_MODEL_TEST_CUH

#include "cuda_test.cuh"
#include "gpu_model.cuh"
extern "C" {
#include "file.h"
#include "model_test.h"
#include "safetensors.h"
#include "train.h"
}
#include <initializer_list>
#include <stdlib.h>
#include <unistd.h>

struct GpuPair {
    const ModelType *gpu, *cpu;
    size_t every; // one token in `every` has a target
};

// The emulator is slow and does not depend on timing: a few steps reveal every error.
#ifdef CUDA_ON_CPU
static constexpr int64_t GPU_TEST_STEPS = 4, GPU_TEST_LATER_STEPS = 2;
#else
static constexpr int64_t GPU_TEST_STEPS = 20, GPU_TEST_LATER_STEPS = 5;
#endif

static inline bool gpu_translates(const ModelType *type) {
    return type->translator_create != NULL;
}

// Returns source sentences of random lengths for a batch of a translator.
static inline SourceSide gpu_test_source(const ModelTest *t, uint32_t number) {
    const int64_t B = t->setup.batch, S = t->setup.length > 2 ? t->setup.length - 2 : 1;
    int32_t *tokens = (int32_t *)allocate((size_t)(B * S), sizeof(int32_t), "source");
    uint8_t *mask = (uint8_t *)allocate((size_t)(B * S), 1, "mask");
    Random r = random_stream(9, RANDOM_TEST, number, 0);
    for (int64_t b = 0; b < B; b++) {
        const int64_t length = b == 0 ? S : 1 + (int64_t)random_below(&r, (uint64_t)S);
        for (int64_t i = 0; i < S; i++) {
            tokens[b * S + i] = (int32_t)random_below(&r, (uint64_t)t->setup.vocabulary);
            mask[b * S + i] = i < length;
        }
    }
    return {S, tokens, mask};
}

// Free with gpu_test_batch_free().
static inline Batch gpu_test_batch(const ModelTest *t, size_t every, double padding,
                                   uint32_t number) {
    const ModelKinds kinds = {t->type, NULL, 0, every};
    Batch batch = model_kinds_batch(&kinds, t, padding, number);
    if (gpu_translates(t->type)) batch.source = gpu_test_source(t, number);
    return batch;
}

static inline void gpu_test_batch_free(Batch *batch) {
    free((int32_t *)batch->source.tokens);
    free((uint8_t *)batch->source.mask);
    model_test_batch_free(batch);
}

// Creates a model in this precision; `options` as in model_test.h.
static inline ModelTest gpu_test_create(const ModelType *type, const char *options,
                                        const char *precision, int64_t batch, int64_t length,
                                        int64_t vocabulary) {
    char *all = format_string("%s precision=%s", options, precision);
    const ModelTest t = model_test_create(type, all, batch, length, vocabulary);
    free(all);
    return t;
}

static inline float *gpu_test_read(const ModelTest *t, ModelArray which) {
    float *x = zero_numbers(t->table->total);
    t->type->read(t->model, which, x);
    return x;
}

// Returns |x - expected| / |expected| (Euclidean norms) over all parameters of the model.
static inline double gpu_test_distance(const float *x, const float *expected, size_t count) {
    double error = 0, sum = 0;
    for (size_t i = 0; i < count; i++) {
        error += ((double)x[i] - (double)expected[i]) * ((double)x[i] - (double)expected[i]);
        sum += (double)expected[i] * (double)expected[i];
    }
    return sqrt(error / sum);
}

static constexpr UpdateSettings GPU_TEST_UPDATE = {1e-3, 0.9, 0.999, 1e-8, 0.01, 1, 0, false};

// ---- one step ---------------------------------------------------------------
// Checks logits, loss and gradients against dev/reference/PREFIXNAME.safetensors.
static inline void gpu_check_references(const ModelType *type, const char *prefix,
                                        std::initializer_list<const char *> names,
                                        const char *precision, int32_t padding) {
    for (const char *name : names) {
        char *path = format_string("dev/reference/%s%s.safetensors", prefix, name);
        CHECK(model_reference(type, path, precision, padding));
        free(path);
    }
}

// Compares each parameter's gradient with the CPU's, relative to its norm plus 1% of the norm of
// all gradients: a gradient that cancels out (a window of one row) consists of rounding errors.
static inline void gpu_compare_gradients(const ParameterTable *table, const float *gpu,
                                         const float *cpu, double tolerance) {
    double all = 0;
    for (size_t i = 0; i < table->total; i++) all += (double)cpu[i] * (double)cpu[i];
    for (int p = 0; p < table->count; p++) {
        const Parameter *parameter = &table->items[p];
        double error = 0, norm = 0;
        for (size_t i = parameter->offset; i < parameter->offset + parameter->size; i++) {
            error += ((double)gpu[i] - (double)cpu[i]) * ((double)gpu[i] - (double)cpu[i]);
            norm += (double)cpu[i] * (double)cpu[i];
        }
        const double relative = sqrt(error) / (sqrt(norm) + 1e-2 * sqrt(all));
        if (!(relative <= tolerance))
            test_fail(__FILE__, __LINE__, "gradient of %s: error %.3g", parameter->name, relative);
    }
}

// Compares loss, norm and gradients of a batch with the CPU's in float32, and the loss without
// dropout. Runs twice: the second time, the graph exists and the gradients are accumulated.
static inline void gpu_check_step(GpuPair pair, const char *options, const char *precision,
                                  int64_t length, double padding, double tolerance) {
    ModelTest gpu = gpu_test_create(pair.gpu, options, precision, 2, length, 61),
              cpu = gpu_test_create(pair.cpu, options, "fp32", 2, length, 61);
    for (uint32_t number = 0; number < 2; number++) {
        Batch batch = gpu_test_batch(&gpu, pair.every, padding, number);
        batch.step = 9 + number;
        batch.first_row = 3;
        const double loss = cpu.type->train(cpu.model, &batch, 0.1),
                     plain = cpu.type->forward(cpu.model, &batch);
        CHECK_CLOSE(gpu.type->train(gpu.model, &batch, 0.1), loss, tolerance * fabs(loss));
        CHECK_CLOSE(gpu.type->forward(gpu.model, &batch), plain, tolerance * fabs(plain));
        if (gpu.type->token_losses)
            compare("losses of tokens", gpu.type->token_losses(gpu.model),
                    cpu.type->token_losses(cpu.model), (size_t)(batch.batch * length), tolerance);
        gpu_test_batch_free(&batch);
    }
    float *gradients = gpu_test_read(&gpu, MODEL_GRADIENTS),
          *expected = gpu_test_read(&cpu, MODEL_GRADIENTS);
    gpu_compare_gradients(gpu.table, gradients, expected, tolerance);
    const double norm = cpu.type->gradient_norm(cpu.model);
    CHECK_CLOSE(gpu.type->gradient_norm(gpu.model), norm, tolerance * norm);
    free(gradients);
    free(expected);
    model_test_free(&gpu);
    model_test_free(&cpu);
}

// Batches that are shorter and smaller than planned, with and without a mask, one after the other.
static inline void gpu_check_shapes(GpuPair pair, const char *options) {
    ModelTest gpu = gpu_test_create(pair.gpu, options, "fp32", 3, 40, 61),
              cpu = gpu_test_create(pair.cpu, options, "fp32", 3, 40, 61);
    for (int64_t round = 0; round < 2; round++) {
        for (int64_t rows = 1; rows <= 3; rows++) {
            for (int64_t length = 1; length <= 40; length += 13) {
                Batch batch =
                    gpu_test_batch(&gpu, pair.every, rows == 2 ? 0.3 : 0, (uint32_t)length);
                batch.batch = rows;
                batch.length = length;
                const double expected = cpu.type->forward(cpu.model, &batch);
                CHECK_CLOSE(gpu.type->forward(gpu.model, &batch), expected,
                            1e-5 * fabs(expected) + 1e-6);
                gpu_test_batch_free(&batch);
            }
        }
    }
    model_test_free(&gpu);
    model_test_free(&cpu);
}

// ---- decoding ---------------------------------------------------------------
// Compares the logits of each decoded token with the CPU's, in a model that trains in bf16. Beyond
// the last position, the second half of the positions is reused.
static inline void gpu_check_decoding(GpuPair pair, const char *options) {
    enum { STREAMS = 3, POSITIONS = 24, TOKENS = 70, VOCABULARY = 61 };
    ModelTest t[] = {gpu_test_create(pair.gpu, options, "bf16", 1, POSITIONS, VOCABULARY),
                     gpu_test_create(pair.cpu, options, "fp32", 1, POSITIONS, VOCABULARY)};
    float logits[2][STREAMS * VOCABULARY];
    void *decoders[2];
    Random r = random_stream(4, RANDOM_TEST, 0, 0);
    for (int i = 0; i < 2; i++) decoders[i] = t[i].type->decoder_create(t[i].model, STREAMS);
    for (int64_t n = 0; n < TOKENS; n++) {
        int32_t tokens[STREAMS];
        for (int32_t &token : tokens) token = (int32_t)random_below(&r, VOCABULARY);
        for (int i = 0; i < 2; i++) {
            if (n >= POSITIONS)
                t[i].type->decoder_place(decoders[i], POSITIONS / 2 + n % (POSITIONS / 2));
            t[i].type->decode(decoders[i], tokens, n % 3 == 1 ? NULL : logits[i]);
        }
        if (n % 3 != 1) compare(options, logits[0], logits[1], STREAMS * VOCABULARY, 2e-5);
    }
    for (int i = 0; i < 2; i++) {
        t[i].type->decoder_destroy(decoders[i]);
        model_test_free(&t[i]);
    }
}

// The same check with too little GPU memory, so that the CPU decodes.
static inline void gpu_check_decoding_without_memory(GpuPair pair, const char *options) {
#ifdef CUDA_ON_CPU
    cuda_available = 1 << 10;
    gpu_check_decoding(pair, options);
    cuda_available = CUDA_MEMORY;
#else
    (void)pair, (void)options;
#endif
}

// A decoder never needs more memory than was free when it was created, for texts as long as the
// model's positions: with one byte less than it needed, the CPU decodes.
static inline void gpu_check_decoding_memory(const ModelType *type, const char *options) {
#ifdef CUDA_ON_CPU
    enum { POSITIONS = 40 };
    ModelTest t = gpu_test_create(type, options, "bf16", 1, POSITIONS, 61);
    for (int round = 0; round < 2; round++) {
        const size_t before = cuda_most_used = cuda_used;
        const int32_t token = 5;
        void *decoder = type->decoder_create(t.model, 1);
        for (int n = 0; n < POSITIONS; n++) type->decode(decoder, &token, NULL);
        type->decoder_destroy(decoder);
        CHECK(cuda_used == before);
        CHECK(cuda_most_used - before <= cuda_available && (round > 0 || cuda_most_used > before));
        cuda_available = cuda_most_used - before - 1;
    }
    cuda_available = CUDA_MEMORY;
    model_test_free(&t);
#else
    (void)type, (void)options;
#endif
}

// ---- statistics -------------------------------------------------------------
// NaN equals NaN: neither has a value.
static inline void gpu_compare_number(const Measurement *m, const char *what, double x,
                                      double expected, double tolerance) {
    if (!(fabs(x - expected) <= tolerance) && !(isnan(x) && isnan(expected)))
        test_fail(__FILE__, __LINE__, "%s of %s in layer %zu: %.9g, expected %.9g", what, m->place,
                  m->layer, x, expected);
}

// Compares measurements of the same places and numbers; `tolerance` is relative to the deviation.
static inline void gpu_compare_statistics(const Statistics *found, const Statistics *expected,
                                          double tolerance) {
    CHECK(found->count == expected->count && found->count > 0);
    for (size_t i = 0; i < found->count && i < expected->count; i++) {
        const Measurement *m = found->items[i], *n = expected->items[i];
        const double deviation = moments_deviation(&n->values), largest = n->values.largest;
        CHECK(m->layer == n->layer && strcmp(m->place, n->place) == 0);
        CHECK(m->values.count == n->values.count && m->queries == n->queries &&
              m->rows == n->rows && m->scores == n->scores);
        gpu_compare_number(m, "mean", m->values.mean, n->values.mean, tolerance * largest);
        gpu_compare_number(m, "deviation", moments_deviation(&m->values), deviation,
                           tolerance * (deviation + 1e-3 * largest));
        gpu_compare_number(m, "largest", m->values.largest, largest, 5 * tolerance * largest);
        if (deviation > 1e-3 * largest)
            gpu_compare_number(m, "kurtosis", moments_kurtosis(&m->values),
                               moments_kurtosis(&n->values),
                               10 * tolerance * (3 + fabs(moments_kurtosis(&n->values))));
        gpu_compare_number(m, "entropy", measurement_entropy(m), measurement_entropy(n), tolerance);
        gpu_compare_number(m, "sink's share", measurement_sink_share(m), measurement_sink_share(n),
                           tolerance);
        gpu_compare_number(m, "saturated share", measurement_saturated_share(m),
                           measurement_saturated_share(n), tolerance + 0.5 / (double)n->scores);
    }
}

// Checks that --stats measures the same as on the CPU with the same parameters, in float32 and
// approximately in bf16. Batches with and without padding are accumulated.
static inline void gpu_check_statistics(GpuPair pair, const char *options) {
    char *all = format_string("%s stats=1", options);
    for (const char *precision : {"fp32", "bf16"}) {
        ModelTest gpu = gpu_test_create(pair.gpu, all, precision, 2, 40, 61),
                  cpu = gpu_test_create(pair.cpu, all, "fp32", 2, 40, 61);
        Statistics found = {}, expected = {};
        for (uint32_t number = 0; number < 2; number++) {
            Batch batch = gpu_test_batch(&gpu, pair.every, number ? 0.2 : 0, number);
            gpu.type->statistics(gpu.model, &batch, &found);
            cpu.type->statistics(cpu.model, &batch, &expected);
            gpu_test_batch_free(&batch);
        }
        gpu_compare_statistics(&found, &expected, strcmp(precision, "fp32") == 0 ? 1e-5 : 2e-2);
        statistics_free(&found);
        statistics_free(&expected);
        model_test_free(&gpu);
        model_test_free(&cpu);
    }
    free(all);
}

static inline char *gpu_kept_weights(const ModelTest *t, const Batch *batch) {
    Statistics s = {};
    JsonWriter w = {};
    s.keeps = true;
    s.query = 11;
    t->type->statistics(t->model, batch, &s);
    statistics_weights_to_json(&s, &w);
    statistics_free(&s);
    return w.text;
}

// The weights of one query equal the CPU's, after an update that the host must notice.
static inline void gpu_check_kept_weights(GpuPair pair, const char *options) {
    ModelTest gpu = gpu_test_create(pair.gpu, options, "bf16", 2, 24, 61),
              cpu = gpu_test_create(pair.cpu, options, "fp32", 2, 24, 61);
    Batch batch = gpu_test_batch(&gpu, 1, 0, 1);
    gpu.type->destroy(gpu.model);
    gpu.setup.float32 = true; // as the display of attention requires
    gpu.model = gpu.type->create(&gpu.setup);
    gpu.table = gpu.type->parameters(gpu.model);
    gpu.type->write(gpu.model, MODEL_VALUES, gpu.values);
    gpu.type->train(gpu.model, &batch, 1);
    UpdateSettings settings = GPU_TEST_UPDATE;
    settings.step = 1;
    gpu.type->update(gpu.model, &settings);
    float *values = gpu_test_read(&gpu, MODEL_VALUES);
    cpu.type->write(cpu.model, MODEL_VALUES, values);
    char *found = gpu_kept_weights(&gpu, &batch), *expected = gpu_kept_weights(&cpu, &batch);
    CHECK(strcmp(found, expected) == 0 && strstr(found, "0."));
    gpu_test_batch_free(&batch);
    free(found);
    free(expected);
    free(values);
    model_test_free(&gpu);
    model_test_free(&cpu);
}

// ---- training ---------------------------------------------------------------
// Runs steps first .. last-1 and returns the last loss.
static inline double gpu_train(ModelTest *t, int64_t first, int64_t last) {
    double loss = 0;
    for (int64_t step = first; step < last; step++) {
        Batch batch = gpu_test_batch(t, 1, 0, (uint32_t)step);
        batch.step = (uint64_t)step;
        const double scale = 1 / (double)(batch.batch * batch.length);
        loss = t->type->train(t->model, &batch, scale) * scale;
        UpdateSettings settings = GPU_TEST_UPDATE;
        settings.step = step + 1;
        t->type->update(t->model, &settings);
        gpu_test_batch_free(&batch);
    }
    return loss;
}

// Copies parameters and moments from `from` to `to`.
static inline void gpu_hand_over(const ModelTest *from, ModelTest *to) {
    for (ModelArray which : {MODEL_VALUES, MODEL_FIRST_MOMENT, MODEL_SECOND_MOMENT}) {
        float *x = gpu_test_read(from, which);
        to->type->write(to->model, which, x);
        free(x);
    }
}

// Compares steps with dropout with the CPU's; then each device continues from the other's state.
static inline void gpu_check_training(GpuPair pair, const char *options, const char *precision,
                                      double tolerance) {
    ModelTest gpu = gpu_test_create(pair.gpu, options, precision, 2, 24, 61),
              cpu = gpu_test_create(pair.cpu, options, "fp32", 2, 24, 61);
    const int64_t steps = GPU_TEST_STEPS, end = steps + GPU_TEST_LATER_STEPS;
    for (int64_t step = 0; step < steps; step++) {
        const double expected = gpu_train(&cpu, step, step + 1);
        CHECK_CLOSE(gpu_train(&gpu, step, step + 1), expected, tolerance * expected);
    }
    ModelTest gpu_later = gpu_test_create(pair.gpu, options, precision, 2, 24, 61),
              cpu_later = gpu_test_create(pair.cpu, options, "fp32", 2, 24, 61);
    gpu_hand_over(&cpu, &gpu_later);
    gpu_hand_over(&gpu, &cpu_later);
    const double expected = gpu_train(&cpu, steps, end);
    CHECK_CLOSE(gpu_train(&gpu_later, steps, end), expected, tolerance * expected);
    CHECK_CLOSE(gpu_train(&cpu_later, steps, end), gpu_train(&gpu, steps, end),
                tolerance * expected);
    model_test_free(&gpu);
    model_test_free(&cpu);
    model_test_free(&gpu_later);
    model_test_free(&cpu_later);
}

// Allowed difference of weight gradients that different products computed: the library may add in
// another order, the emulator does not.
#ifdef CUDA_ON_CPU
static constexpr double GPU_TEST_ORDER = 0;
#else
static constexpr double GPU_TEST_ORDER = 1e-5;
#endif

// Compares the accumulated gradients of two batches with those of a model that keeps other data for
// the backward pass: with other options or planned for another batch size.
static inline void gpu_check_kept(const ModelType *type, const char *options, const char *precision,
                                  const char *other_options, int64_t other_batch) {
    ModelTest model = gpu_test_create(type, options, precision, 2, 40, 61),
              other = gpu_test_create(type, other_options, precision, other_batch, 40, 61);
    for (uint32_t number = 0; number < 2; number++) {
        Batch batch = gpu_test_batch(&model, 1, 0, number);
        const double loss = model.type->train(model.model, &batch, 0.1);
        CHECK(other.type->train(other.model, &batch, 0.1) == loss);
        gpu_test_batch_free(&batch);
    }
    float *expected = gpu_test_read(&model, MODEL_GRADIENTS),
          *gradients = gpu_test_read(&other, MODEL_GRADIENTS);
    CHECK(gpu_test_distance(gradients, expected, model.table->total) <= GPU_TEST_ORDER);
    free(expected);
    free(gradients);
    model_test_free(&model);
    model_test_free(&other);
}

// A run and one that another model continues half way have the same bits; so have the gradients
// with --recompute, which keeps less.
static inline void gpu_check_bits(const ModelType *type, const char *options,
                                  const char *precision) {
    ModelTest whole = gpu_test_create(type, options, precision, 2, 40, 61),
              half = gpu_test_create(type, options, precision, 2, 40, 61),
              rest = gpu_test_create(type, options, precision, 2, 40, 61);
    const double loss = gpu_train(&whole, 0, 4);
    gpu_train(&half, 0, 2);
    gpu_hand_over(&half, &rest);
    CHECK(gpu_train(&rest, 2, 4) == loss);
    float *expected = gpu_test_read(&whole, MODEL_VALUES),
          *resumed = gpu_test_read(&rest, MODEL_VALUES);
    CHECK(model_test_same(resumed, expected, whole.table->total));
    free(expected);
    free(resumed);
    model_test_free(&whole);
    model_test_free(&half);
    model_test_free(&rest);
    char *less = format_string("%s recompute=true", options);
    gpu_check_kept(type, options, precision, less, 2);
    free(less);
}

// Runs both checks for a model of this size with each kind of attention or of blocks.
template <typename Kinds>
static inline void gpu_check_kinds(GpuPair pair, const char *size, const Kinds &kinds) {
    for (const char *kind : kinds) {
        char *options = format_string("%s dropout=0.1 %s", size, kind);
        gpu_check_training(pair, options, "fp32", 1e-4);
        gpu_check_bits(pair.gpu, options, "bf16");
        free(options);
    }
}

// ---- the program ------------------------------------------------------------

struct GpuProgram {
    const ModelType *type;
    const char *arguments;
};

// Writes to the case's directory a shard of random tokens, or of pairs of sentences of 5 and 9
// tokens that end with token 1, and a meta.json with the vocabulary.
static inline void gpu_write_dataset(bool paired) {
    enum { HEADER = 256, PAIR = 14, TOKENS = 70 * PAIR, VOCABULARY = 61 };
    int32_t header[HEADER] = {20240520, 1, TOKENS};
    char file[sizeof(header) + TOKENS * sizeof(uint16_t)];
    Random r = random_stream(6, RANDOM_TEST, 0, 0);
    memcpy(file, header, sizeof(header));
    for (size_t i = 0; i < TOKENS; i++) {
        const bool ends = paired && (i % PAIR == 4 || i % PAIR == PAIR - 1);
        const uint16_t token = ends ? 1 : (uint16_t)(2 + random_below(&r, VOCABULARY - 2));
        memcpy(file + sizeof(header) + i * sizeof(token), &token, sizeof(token));
    }
    char *meta =
        format_string("{\"tokenizer\": \"none\", \"vocab_size\": 61, \"pad\": 0, \"end\": %d, "
                      "\"mask\": 60, \"paired\": %s}",
                      paired ? 1 : -1, paired ? "true" : "false");
    test_file("train_000000.bin", file, sizeof(file));
    test_file("meta.json", meta, strlen(meta));
    free(meta);
}

// Runs the program in the case's directory.
static inline void gpu_run_program(void *program) {
    const GpuProgram *p = (const GpuProgram *)program;
    char name[] = "program", *argv[32] = {name}, *rest = NULL;
    int argc = 1;
    for (char *word = strtok_r(copy_string(p->arguments), " ", &rest); word && argc < 32;
         word = strtok_r(NULL, " ", &rest))
        argv[argc++] = word;
    if (chdir(test_directory()) != 0 || !freopen("/dev/null", "w", stdout))
        fail("the test cannot begin");
    exit(train_main(argc, argv, p->type));
}

static inline void gpu_check_program(const ModelType *type, const char *arguments) {
    GpuProgram program = {type, arguments};
    char text[4096];
    const int code = test_child(gpu_run_program, &program, text, sizeof(text));
    if (code != 0)
        test_fail(__FILE__, __LINE__, "%s %s: exit code %d: %s", type->program, arguments, code,
                  text);
}

// Compares the tensors of two files in the case's directory; a tolerance of 0 requires equality.
static inline void gpu_compare_files(const char *name, const char *other, double tolerance) {
    char *paths[2] = {format_string("%s/%s", test_directory(), name),
                      format_string("%s/%s", test_directory(), other)};
    Safetensors *a = safetensors_open(paths[0]), *b = safetensors_open(paths[1]);
    CHECK(a->tensor_count == b->tensor_count);
    for (int i = 0; i < a->tensor_count; i++) {
        const Tensor *x = &a->tensors[i], *y = safetensors_find(b, x->name);
        if (!y || x->count != y->count) {
            test_fail(__FILE__, __LINE__, "%s is not in both", x->name);
            continue;
        }
        float *found = zero_numbers(x->count), *expected = zero_numbers(x->count);
        tensor_read_real(a, x, found);
        tensor_read_real(b, y, expected);
        if (tolerance == 0)
            CHECK(model_test_same(found, expected, x->count));
        else
            compare(x->name, found, expected, x->count, tolerance);
        free(found);
        free(expected);
    }
    safetensors_close(a);
    safetensors_close(b);
    free(paths[0]);
    free(paths[1]);
}

// Returns whether a file in the case's directory contains the text.
static inline bool gpu_file_holds(const char *name, const char *text) {
    char *path = format_string("%s/%s", test_directory(), name);
    FileMap file = file_map(path);
    const bool holds = memmem(file.data, file.size, text, strlen(text)) != NULL;
    file_unmap(&file);
    free(path);
    return holds;
}

// A run that is stopped and resumed equals an uninterrupted one, and each device resumes the
// other's checkpoint. `options`: those of a small model, as on a command line.
static inline void gpu_check_programs(GpuPair pair, const char *options) {
    gpu_write_dataset(gpu_translates(pair.cpu));
    static const char *const runs[][3] = {
        // directory, GPU arguments of the first and second run; empty: on the CPU
        {"whole", "", "-x 6"},
        {"parts", "-x 3", "-x 6 -y --profile"}, // without graphs
        {"to-cpu", "-x 3", ""},
        {"from-cpu", "", "-x 6 -y"},
    };
    for (size_t i = 0; i < sizeof(runs) / sizeof(runs[0]); i++) {
        char *common = format_string("-i . -o %s -k constant -p fp32 %s", runs[i][0], options);
        char *first = format_string("%s %s", common, *runs[i][1] ? runs[i][1] : "-x 3"),
             *second = format_string("%s %s", common, *runs[i][2] ? runs[i][2] : "-x 6 -y");
        if (i > 0) gpu_check_program(*runs[i][1] ? pair.gpu : pair.cpu, first);
        gpu_check_program(*runs[i][2] ? pair.gpu : pair.cpu, second);
        free(common);
        free(first);
        free(second);
    }
#define LAST "step_00000006"
    gpu_compare_files("parts/" LAST ".safetensors", "whole/" LAST ".safetensors", 0);
    gpu_compare_files("parts/" LAST ".state.safetensors", "whole/" LAST ".state.safetensors", 0);
    gpu_compare_files("to-cpu/" LAST ".safetensors", "whole/" LAST ".safetensors", 1e-3);
    gpu_compare_files("from-cpu/" LAST ".safetensors", "whole/" LAST ".safetensors", 1e-3);
#undef LAST
    for (const char *kind : {"attention", "classifier", "row sums", "optimiser"}) {
        char *member = format_string("\"kind\":\"%s\"", kind);
        CHECK(gpu_file_holds("parts/log.jsonl", member));
        free(member);
    }
}

// ---- kernels ----------------------------------------------------------------

// Checks that a training step's graph has at most `most` nodes: kernels stay fused. Emulator only.
static inline void gpu_check_nodes(const ModelType *type, const char *options, size_t most) {
#ifdef CUDA_ON_CPU
    ModelTest t = gpu_test_create(type, options, "bf16", 2, 16, 61);
    gpu_train(&t, 0, 2); // the second step is captured
    const GpuModel *g = (const GpuModel *)t.model;
    size_t nodes = 0;
    for (const CudaNode *node = g->graphs[0].graph->first; node; node = node->next) nodes++;
    if (nodes > most)
        test_fail(__FILE__, __LINE__, "%s: %zu nodes, at most %zu expected", options, nodes, most);
    model_test_free(&t);
#else
    (void)type, (void)options, (void)most;
#endif
}

// ---- memory -----------------------------------------------------------------

static inline void gpu_create_huge(void *type) {
    ModelTest t = gpu_test_create((const ModelType *)type, "channels=256 heads=1", "fp32", 1 << 12,
                                  1 << 15, 61);
    model_test_free(&t);
}

// Needs more memory than any GPU has: the message says how much is available and what to do.
static inline void gpu_check_memory(const ModelType *type) {
    CHECK_FAILS(gpu_create_huge, (void *)type, 1, "out of GPU memory");
    CHECK_FAILS(gpu_create_huge, (void *)type, 1, "--batch");
}

#endif
