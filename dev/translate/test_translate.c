// Tests of the encoder-decoder: gradients, reference vectors, padding, decoding, beam search.
//
//   ./test_translate [NAME]                              runs tests whose names contain NAME
//   ./test_translate -r FILE... [-p double|float|bf16]   checks reference vectors (dev/reference)

#define TESTING
#include "train_translate.c"

#include "beam.h"
#include "model_test.h"
#include "random.h"
#include "safetensors.h"
#include "threads.h"

enum { IS_DOUBLE = sizeof(real) == sizeof(double) };

#define SMALL "encoder-layers=2 decoder-layers=2 channels=24 heads=3 ffn=40 "

static const char *const norms[] = {"norm=post", "norm=pre"};

// A batch of sentence pairs of random lengths, except that the first sentence of each side has the
// full length. Freed with example_free().
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

static void check_gradients(const char *options, int64_t source_length, int64_t length) {
    if (!IS_DOUBLE) return; // central differences need double
#ifdef _OPENMP
    omp_set_num_threads(1); // thousands of passes too small for several threads
#endif
    for (size_t i = 0; i < 2; i++) {
        char *all = format_string("%s %s", options, norms[i]);
        const int64_t longest = source_length > length ? source_length : length;
        ModelTest t = model_test_create(&translate, all, 3, longest, 31);
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
    check_gradients(SMALL "label-smoothing=0.1 dropout=0.2 attention-dropout=0.3", 11, 12);
}

static void test_no_targets(void) {
    ModelTest t = model_test_create(&translate, SMALL "label-smoothing=0", 2, 6, 31);
    Example e = example_create(&t, 6, 2);
    for (int i = 0; i < 12; i++) ((int32_t *)e.batch.targets)[i] = -1;
    CHECK(transformer_train(t.model, &e.batch, 1) == 0 &&
          transformer_forward(t.model, &e.batch) == 0);
    CHECK(cpu_model_gradient_norm(t.model) == 0);
    example_free(&e);
    model_test_free(&t);
}

// A padded token of the source changes nothing. A padded token of the target changes only the
// logits of its own position.
static void test_padding(void) {
    enum { B = 3, S = 40, T = 35, V = 31 };
    for (size_t k = 0; k < 2; k++) {
        char *options = format_string(SMALL "%s", norms[k]);
        ModelTest t = model_test_create(&translate, options, B, S, V);
        t.setup.length = T;
        Example e = example_create(&t, S, 3);
        real *before = allocate((size_t)B * T * V, sizeof(real), "test"),
             *after = allocate((size_t)B * T * V, sizeof(real), "test");
        transformer_logits(t.model, &e.batch, before);
        for (int i = 0; i < B * S; i++)
            if (!e.source_mask[i]) e.source[i] = (e.source[i] + 1) % V;
        for (int i = 0; i < B * T; i++)
            if (!e.batch.mask[i]) ((int32_t *)e.batch.inputs)[i] = (e.batch.inputs[i] + 1) % V;
        transformer_logits(t.model, &e.batch, after);
        for (int i = 0; i < B * T; i++)
            CHECK(model_test_same(before + i * V, after + i * V, V) == (e.batch.mask[i] != 0));
        // A token that is not padding does change the logits.
        e.source[0] = (e.source[0] + 1) % V;
        transformer_logits(t.model, &e.batch, after);
        CHECK(!model_test_same(before, after, V));
        free(before);
        free(after);
        example_free(&e);
        model_test_free(&t);
        free(options);
    }
}

// Returns the norm of the batch's gradient, accumulated over parts of `rows` rows each.
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
        transformer_train(t.model, &part, 0.1);
    }
    const double norm = cpu_model_gradient_norm(t.model);
    model_test_free(&t);
    return norm;
}

// The update is the same with 1 and with 3 threads, and from two parts of one row each.
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
        CHECK(model_reference(&translate, path, IS_DOUBLE ? "double" : "float", -1));
        free(path);
    }
}

// ---- Decoding ---------------------------------------------------------------

// Decoding gives the logits of the parallel form at every position, also for selected streams.
static void test_decoding(void) {
    enum { B = 3, S = 9, T = 14, V = 31, BEAMS = 2, CUT = 6 };
    for (size_t k = 0; k < 2; k++) {
        char *options = format_string(SMALL "%s", norms[k]);
        ModelTest t = model_test_create(&translate, options, B, T, V);
        Example e = example_create(&t, S, 5);
        free((uint8_t *)e.batch.mask); // the decoder takes none
        e.batch.mask = NULL;
        real *expected = allocate((size_t)B * T * V, sizeof(real), "test"),
             *logits = allocate((size_t)B * BEAMS * V, sizeof(real), "test");
        transformer_logits(t.model, &e.batch, expected);
        void *d = translator_create(t.model, &e.batch, BEAMS, T);
        // The second stream of each sentence reads other tokens until it is replaced by the first.
        size_t sentences[B] = {0, 1, 2}, count = B;
        double worst = 0;
        for (int i = 0; i < T; i++) {
            int32_t tokens[B * BEAMS];
            for (size_t s = 0; s < count; s++) {
                tokens[s * BEAMS] = e.batch.inputs[sentences[s] * T + (size_t)i];
                tokens[s * BEAMS + 1] = i < CUT ? (int32_t)((size_t)i + s) : tokens[s * BEAMS];
            }
            translator_decode(d, tokens, logits);
            for (size_t s = 0; s < count; s++)
                for (size_t v = 0; v < V; v++)
                    worst = fmax(worst,
                                 fabs((double)(logits[(s * BEAMS + (i >= CUT)) * V + v] -
                                               expected[(sentences[s] * T + (size_t)i) * V + v])));
            if (i == CUT - 1) translator_select(d, (size_t[]){0, 0, 2, 2, 4, 4}, B * BEAMS);
            if (i == CUT + 2) { // the second sentence is done
                translator_select(d, (size_t[]){1, 0, 4, 5}, 2 * BEAMS);
                sentences[1] = 2;
                count = 2;
            }
        }
        CHECK_CLOSE(worst, 0, IS_DOUBLE ? 1e-12 : 2e-5);
        free(d);
        free(expected);
        free(logits);
        example_free(&e);
        model_test_free(&t);
        free(options);
    }
}

// The best hypothesis of each sentence and its score equal those of the reference vectors.
static void check_beams(const char *name) {
    char *path = format_string("dev/reference/translate_%s.safetensors", name);
    Safetensors *file = safetensors_open(path);
    char *options = format_string("encoder-layers=2 decoder-layers=2 channels=32 ffn=64 norm=%s",
                                  safetensors_metadata(file, "norm"));
    const int64_t longest = safetensors_integer(file, "beam_longest", 1, 100);
    ModelTest t = model_test_create(&translate, options, 3, longest,
                                    safetensors_integer(file, "vocab_size", 1, 100));
    for (int i = 0; i < t.table->count; i++)
        tensor_read_real(file, safetensors_find(file, t.table->items[i].name),
                         t.values + t.table->items[i].offset);
    cpu_model_write(t.model, MODEL_VALUES, t.values);

    const Tensor *ids = safetensors_find(file, "input_ids"),
                 *sequences = safetensors_find(file, "beam.sequences");
    const int64_t S = ids->shape[1];
    int32_t source[3 * 32], mask[3 * 32], expected[3 * 32];
    uint8_t bytes[3 * 32];
    double scores[3];
    tensor_read_int32(file, ids, source);
    tensor_read_int32(file, safetensors_find(file, "attention_mask"), mask);
    tensor_read_int32(file, sequences, expected);
    tensor_read_double(file, safetensors_find(file, "beam.scores"), scores);
    for (int64_t i = 0; i < 3 * S; i++) bytes[i] = mask[i] != 0;
    const BeamSettings settings = {.beams = (int)safetensors_integer(file, "beams", 1, 64),
                                   .best = 1,
                                   .alpha = safetensors_number(file, "beam_alpha"),
                                   .vocabulary = t.setup.vocabulary,
                                   .start = 0,
                                   .end = 1,
                                   .longest = (int64_t[]){longest, longest, longest}};
    const Batch batch = {.batch = 3, .source = {S, source, bytes}};
    Hypothesis best[3];
    Room logits = {0};
    beam_search(&translate, t.model, &settings, &batch, &logits, best);
    free(logits.memory);
    for (int64_t b = 0; b < 3; b++) {
        CHECK_CLOSE(best[b].score, scores[b], (IS_DOUBLE ? 1e-7 : 1e-4) * fabs(scores[b]));
        for (int64_t i = 0; i < sequences->shape[1]; i++)
            CHECK(expected[b * sequences->shape[1] + i] ==
                  (i < (int64_t)best[b].count ? best[b].tokens[i] : 0));
        free(best[b].tokens);
    }
    model_test_free(&t);
    safetensors_close(file);
    free(options);
    free(path);
}

static void test_beams(void) {
    check_beams("postnorm");
    check_beams("prenorm");
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
        {"nothing to predict", test_no_targets},
        {"padding", test_padding},
        {"threads and accumulation", test_threads_and_accumulation},
        {"decoding", test_decoding},
        {"beam search", test_beams},
        {"bad options", test_bad_options},
    };
    return model_test_main(argc, argv, &translate, -1, cases, sizeof(cases) / sizeof(*cases));
}
