// What must hold of the encoder-decoder: gradients, reference vectors, padding, decoding, exchange with
// Hugging Face.
//
//   ./test_translate [NAME]                              tests whose names contain NAME
//   ./test_translate -r FILE... [-p double|float|bf16]   reference vectors of dev/reference

#define TESTING
#include "train_translate.c"

#include "checkpoint.h"
#include "model_test.h"
#include "random.h"
#include "threads.h"

enum { IS_DOUBLE = sizeof(real) == sizeof(double) };

#define SMALL "encoder-layers=2 decoder-layers=2 channels=24 heads=3 ffn=40 "

static const char *const norms[] = {"norm=post", "norm=pre"};

// Sentences of random lengths on both sides, the first of them as long as the batch; freed with
// example_free().
typedef struct {
    int32_t *source;
    uint8_t *source_mask;
    Batch batch;
} Example;

static Example example_create(const ModelTest *t, int64_t source_length, uint32_t number) {
    const int64_t B = t->setup.batch, S = source_length, T = t->setup.length;
    Example e = {.source = allocate((size_t)(B * S), sizeof(int32_t), "source"),
                 .source_mask = allocate((size_t)(B * S), 1, "mask"),
                 .batch = model_test_batch(t, 1e-9, number)};
    Random random = random_stream(9, RANDOM_TEST, number, 0);
    for (int64_t b = 0; b < B; b++) {
        const int64_t source = b == 0 ? S : 1 + (int64_t)random_below(&random, (uint64_t)S);
        const int64_t target = b == 0 ? T : 1 + (int64_t)random_below(&random, (uint64_t)T);
        for (int64_t i = b * S; i < (b + 1) * S; i++) {
            e.source[i] = (int32_t)random_below(&random, (uint64_t)t->setup.vocabulary);
            e.source_mask[i] = i < b * S + source;
        }
        for (int64_t i = b * T + target; i < (b + 1) * T; i++) {
            ((int32_t *)e.batch.targets)[i] = -1;
            ((uint8_t *)e.batch.mask)[i] = 0;
        }
    }
    e.batch.source = (SourceSide){S, e.source, e.source_mask};
    return e;
}

static void example_free(Example *e) {
    free(e->source);
    free(e->source_mask);
    model_test_batch_free(&e->batch);
}

// The lookup of padding sends no gradient, which central differences do not know: here no token is padding.
static ModelTest create_unpadded(const char *options, int64_t batch, int64_t length) {
    ModelTest t = model_test_create(&translate, options, batch, length, 31);
    ((Translate *)t.model)->source.padding = ((Translate *)t.model)->target.padding = -1;
    return t;
}

static void check_gradients(const char *options, int64_t source_length, int64_t length) {
    if (!IS_DOUBLE) return; // central differences need double
#ifdef _OPENMP
    omp_set_num_threads(1); // thousands of passes so small that threads would mostly wait for each other
#endif
    for (size_t i = 0; i < 2; i++) {
        char *all = format_string("%s %s", options, norms[i]);
        const int64_t longest = source_length > length ? source_length : length;
        ModelTest t = create_unpadded(all, 3, longest);
        t.setup.length = length;
        Example e = example_create(&t, source_length, 1);
        model_check_gradients(&t, &e.batch);
        example_free(&e);
        model_test_free(&t);
        free(all);
    }
}

static void test_gradients(void) {
    check_gradients(SMALL "label-smoothing=0", 7, 5);
    check_gradients(SMALL "label-smoothing=0", 1, 9);
    check_gradients(SMALL "label-smoothing=0", 34, 1);
}

static void test_gradients_smoothing(void) {
    check_gradients(SMALL "label-smoothing=0.3", 6, 8);
}

static void test_gradients_dropout(void) {
    check_gradients(SMALL "label-smoothing=0.1 dropout=0.2", 11, 12);
}

// Only the tied classifier sends a gradient to the row of the padding token.
static void test_padding_token(void) {
    ModelTest t = model_test_create(&translate, SMALL "label-smoothing=0", 2, 6, 31);
    Example e = example_create(&t, 6, 2);
    for (int i = 0; i < 12; i++) ((int32_t *)e.batch.targets)[i] = -1;
    for (int i = 0; i < 12; i++) e.source[i] = 0;
    translate_train(t.model, &e.batch, 1);
    CHECK(cpu_model_gradient_norm(t.model) == 0); // nothing to predict
    example_free(&e);
    model_test_free(&t);
}

// What stands in a padded position of the source shows nowhere, and in the target nowhere else.
static void test_padding(void) {
    enum { B = 3, S = 40, T = 35, V = 31 };
    for (size_t k = 0; k < 2; k++) {
        char *options = format_string(SMALL "%s", norms[k]);
        ModelTest t = model_test_create(&translate, options, B, S, V);
        t.setup.length = T;
        Example e = example_create(&t, S, 3);
        real *before = allocate((size_t)B * T * V, sizeof(real), "test"),
             *after = allocate((size_t)B * T * V, sizeof(real), "test");
        translate_logits(t.model, &e.batch, before);
        for (int i = 0; i < B * S; i++)
            if (!e.source_mask[i]) e.source[i] = (e.source[i] + 1) % V;
        for (int i = 0; i < B * T; i++)
            if (!e.batch.mask[i]) ((int32_t *)e.batch.inputs)[i] = (e.batch.inputs[i] + 1) % V;
        translate_logits(t.model, &e.batch, after);
        for (int i = 0; i < B * T; i++)
            CHECK(model_test_same(before + i * V, after + i * V, V) == (e.batch.mask[i] != 0));
        // And what no padding is does show.
        e.source[0] = (e.source[0] + 1) % V;
        translate_logits(t.model, &e.batch, after);
        CHECK(!model_test_same(before, after, V));
        free(before);
        free(after);
        example_free(&e);
        model_test_free(&t);
        free(options);
    }
}

// The same update with 1 and with 3 threads; and from two batches of one row each.
static double norm_of_update(const Batch *batch, int64_t rows, int threads, const char *options) {
#ifdef _OPENMP
    omp_set_num_threads(threads);
#else
    (void)threads;
#endif
    ModelTest t = model_test_create(&translate, options, rows, 24, 31);
    for (int64_t row = 0; row < batch->batch; row += rows) {
        Batch part = *batch;
        part.batch = rows;
        part.first_row = row;
        part.inputs += row * batch->length;
        part.targets += row * batch->length;
        part.mask += row * batch->length;
        part.source.tokens += row * batch->source.length;
        part.source.mask += row * batch->source.length;
        translate_train(t.model, &part, 0.1);
    }
    const double norm = cpu_model_gradient_norm(t.model);
    model_test_free(&t);
    return norm;
}

static void test_threads_and_accumulation(void) {
    for (size_t k = 0; k < 2; k++) {
        char *options = format_string(SMALL "dropout=0.2 %s", norms[k]);
        ModelTest t = model_test_create(&translate, options, 2, 24, 31);
        Example e = example_create(&t, 20, 4);
        const double norm = norm_of_update(&e.batch, 2, 1, options);
        CHECK_CLOSE(norm_of_update(&e.batch, 2, 3, options), norm, 1e-5 * norm);
        CHECK_CLOSE(norm_of_update(&e.batch, 1, 1, options), norm, 1e-5 * norm);
        example_free(&e);
        model_test_free(&t);
        free(options);
    }
}

static void test_reference(void) {
    static const char *const files[] = {"postnorm", "prenorm"};
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        char *path = format_string("dev/reference/translate_%s.safetensors", files[i]);
        CHECK(model_reference(&translate, path, IS_DOUBLE ? "double" : "float", 0));
        free(path);
    }
}

static void create_with(void *options) {
    ModelTest t = model_test_create(&translate, options, 1, 16, 20);
    model_test_free(&t);
}

static void test_bad_options(void) {
    CHECK_FAILS(create_with, "channels=24 heads=5", 1, "--heads 5");
    CHECK_FAILS(create_with, "norm=middle", 1, "post|pre");
}

int main(int argc, char **argv) {
    static const TestCase cases[] = {
        {"reference vectors", test_reference},
        {"gradients", test_gradients},
        {"gradients with label smoothing", test_gradients_smoothing},
        {"gradients with dropout", test_gradients_dropout},
        {"the padding token", test_padding_token},
        {"padding", test_padding},
        {"threads and accumulation", test_threads_and_accumulation},
        {"bad options", test_bad_options},
    };
    return model_test_main(argc, argv, &translate, 0, cases, sizeof(cases) / sizeof(*cases));
}
