// What must hold of the Fastformer model: gradients, reference vectors, the windowed sum,
// recurrence, invariants.
//
//   ./test_fastformer [NAME]                              tests whose names contain NAME
//   ./test_fastformer -r FILE... [-p double|float|bf16]   reference vectors of dev/reference

#define TESTING
#include "additive_attention.c"
#include "train_fastformer.c"

#include "model_test.h"
#include "random.h"
#include <math.h>

enum { IS_DOUBLE = sizeof(real) == sizeof(double) };

// ---- The windowed sum against its definition, O(T k) ------------------------
// Rows of the size that scores of -s..s give, the hard case for a difference of running sums.
static void check_window_sum(size_t T, size_t window, size_t D, double rescale, ptrdiff_t step) {
    Arena *arena = arena_create();
    real *y = allocate(T * D, sizeof(real), "test"), *e = allocate(T, sizeof(real), "test");
    real *sum = allocate(T * D, sizeof(real), "test"), *total = allocate(T, sizeof(real), "test");
    real *scale = allocate(T, sizeof(real), "test");
    Random r = random_stream(11, RANDOM_TEST, (uint32_t)T, (uint32_t)window);
    for (size_t i = 0; i < T; i++) {
        e[i] = (real)exp(rescale * (2 * random_uniform(&r) - 1));
        scale[i] = (real)random_normal(&r);
        for (size_t d = 0; d < D; d++) y[i * D + d] = (real)random_normal(&r);
    }
    WindowSum w;
    ARENA_CARVE(arena, w = window_sum_carve(arena, window, D, "test"));
    window_sum_reset(&w, window, D);
    for (size_t done = 0; done < T;) { // in pieces of odd sizes
        const size_t n = T - done < 7 ? T - done : 7, at = step > 0 ? done : T - done - n;
        window_sum_weights(&w, step, e + at, total + at, n);
        window_sum_rows(&w, step, sum + at * D, scale + at, y + at * D, D, e + at, n, D);
        done += n;
    }
    const size_t k = window == 0 || window > T ? T : window;
    const double tolerance = IS_DOUBLE ? 1e-14 : 2e-6;
    for (size_t i = 0; i < T; i++) {
        const size_t first = step > 0 ? (i + 1 > k ? i + 1 - k : 0) : i,
                     last = step > 0 ? i : (i + k < T ? i + k : T) - 1;
        double weights = 0;
        for (size_t j = first; j <= last; j++) weights += (double)e[j];
        CHECK_CLOSE(total[i], weights, tolerance * weights);
        for (size_t d = 0; d < D; d++) {
            double expected = 0, size = 0;
            for (size_t j = first; j <= last; j++) {
                expected += (double)e[j] * (double)y[j * D + d];
                size += fabs((double)e[j] * (double)y[j * D + d]);
            }
            CHECK_CLOSE(sum[i * D + d], (double)scale[i] * expected,
                        tolerance * fabs((double)scale[i]) * size);
        }
    }
    arena_free(arena);
    free(y);
    free(e);
    free(sum);
    free(total);
    free(scale);
}

static void test_window_sum(void) {
    for (size_t window = 0; window <= 70; window++) {
        check_window_sum(67, window, 3, 40, 1);
        check_window_sum(67, window, 3, 40, -1);
    }
    check_window_sum(1, 1, 4, 40, 1);
    check_window_sum(1000, 0, 2, 40, 1);
    check_window_sum(1000, 128, 2, 40, -1);
}

// ---- Pooling against its definition -----------------------------------------
// g (T, D) by the formula of the header, quadratic in T, in double.
static void pool_plainly(double *g, const real *x, const double *weight, const uint8_t *mask,
                         size_t T, size_t D, size_t window, double scale, double sink, bool raw) {
    double *normal = allocate(T * D, sizeof(double), "test"),
           *e = allocate(T, sizeof(double), "test");
    for (size_t i = 0; i < T; i++) {
        double mean = 0, square = 0, score = 0;
        for (size_t d = 0; d < D; d++) mean += (double)x[i * D + d] / (double)D;
        for (size_t d = 0; d < D; d++)
            square += ((double)x[i * D + d] - mean) * ((double)x[i * D + d] - mean);
        for (size_t d = 0; d < D; d++) {
            normal[i * D + d] =
                ((double)x[i * D + d] - mean) / (sqrt(square / (double)(D - 1)) + 1e-5);
            score += scale * normal[i * D + d] * weight[d];
        }
        e[i] = mask && !mask[i] ? 0 : exp(score);
    }
    for (size_t i = 0; i < T; i++) {
        double total = sink;
        for (size_t d = 0; d < D; d++) g[i * D + d] = 0;
        for (size_t j = window && i + 1 > window ? i + 1 - window : 0; j <= i; j++) {
            total += e[j];
            for (size_t d = 0; d < D; d++)
                g[i * D + d] += e[j] * (raw ? (double)x[j * D + d] : normal[j * D + d]);
        }
        for (size_t d = 0; d < D; d++) g[i * D + d] = total > 0 ? g[i * D + d] / total : 0;
    }
    free(normal);
    free(e);
}

static void check_pool(size_t T, size_t D, size_t window, double rescale, double sink, bool raw,
                       double padding) {
    Random r = random_stream(12, RANDOM_TEST, (uint32_t)T, (uint32_t)window);
    real *x = allocate(T * D, sizeof(real), "test"), *w = allocate(D, sizeof(real), "test"),
         deviation;
    real *weight = allocate(D, sizeof(real), "test");
    double *wide = allocate(D, sizeof(double), "test"),
           *expected = allocate(T * D, sizeof(double), "test");
    real *g = allocate(T * D, sizeof(real), "test"),
         *denominators = allocate(T, sizeof(real), "test");
    uint8_t *mask = allocate(T, 1, "test");
    for (size_t i = 0; i < T * D; i++) x[i] = (real)random_normal(&r);
    for (size_t d = 0; d < D; d++) w[d] = (real)random_normal(&r);
    for (size_t i = 0; i < T; i++) mask[i] = random_uniform(&r) >= padding;
    normalise(weight, &deviation, w, 1, D);
    for (size_t d = 0; d < D; d++) wide[d] = (double)weight[d];

    Arena *arena = arena_create();
    Scratch s = {0};
    ARENA_CARVE(arena, scratch_carve(&s, arena, window, D));
    s.query.weight = weight;
    s.query.scale = (real)rescale / (real)D;
    s.query.sink = (real)sink;
    s.query.raw = raw;
    window_sum_reset(&s.query.sum, window, D);
    for (size_t t = 0; t < T; t += TILE)
        pool_forward(&s.query, &s, g + t * D, denominators + t,
                     (PoolRows){x + t * D, D, mask + t, T - t < TILE ? T - t : TILE}, D);
    pool_plainly(expected, x, wide, mask, T, D, window, (double)s.query.scale, (double)s.query.sink,
                 raw);
    for (size_t i = 0; i < T * D; i++) CHECK_CLOSE(g[i], expected[i], IS_DOUBLE ? 1e-11 : 2e-5);
    arena_free(arena);
    free(x);
    free(w);
    free(weight);
    free(wide);
    free(expected);
    free(g);
    free(denominators);
    free(mask);
}

static void test_pool(void) {
    const size_t windows[] = {0, 1, 2, 5, 31, 32, 33, 99, 100, 130};
    for (size_t i = 0; i < sizeof(windows) / sizeof(windows[0]); i++) {
        check_pool(100, 8, windows[i], 10, 1e-5, false, 0);
        check_pool(100, 8, windows[i], 40, 1e-5, false, 0.3);
        check_pool(100, 7, windows[i], 10, 1, true, 0.3);
        check_pool(100, 8, windows[i], 10, 0, false, 0.9);
    }
    check_pool(1, 32, 4, 10, 1e-5, false, 0);
}

// Nothing leaves float32's range at the largest rescale, however long the sequence.
static void test_extreme_scores(void) {
    ModelTest t = model_test_create(&fastformer, "layers=2 channels=16 heads=2 rescale=40 sink=0",
                                    1, 4096, 20);
    Batch batch = model_test_batch(&t, 0, 1);
    CHECK(isfinite(transformer_train(t.model, &batch, 1e-3)));
    CHECK(isfinite(cpu_model_gradient_norm(t.model)));
    model_test_batch_free(&batch);
    model_test_free(&t);
}

// ---- The whole model --------------------------------------------------------

#define SMALL "layers=3 channels=24 heads=3 "

static void check_gradients(const char *options, int64_t length, double padding) {
    if (!IS_DOUBLE) return; // central differences need double
    ModelTest t = model_test_create(&fastformer, options, 2, length, 29);
    Batch batch = model_test_batch(&t, padding, 1);
    model_check_gradients(&t, &batch);
    model_test_batch_free(&batch);
    model_test_free(&t);
}

static void test_gradients_windows(void) {
    check_gradients(SMALL "windows=1,2,3", 21, 0);
    check_gradients(SMALL "windows=20,21,22", 21, 0);     // T-1, T, beyond T
    check_gradients(SMALL "windows=5,8,global", 21, 0);   // not dividing T
    check_gradients(SMALL "windows=40,33,global", 70, 0); // longer than a tile
    check_gradients(SMALL "windows=auto", 33, 0);
    check_gradients(SMALL "windows=global", 33, 0);
    check_gradients(SMALL, 1, 0);
}

static void test_gradients_options(void) {
    check_gradients(SMALL, 21, 0.3);
    check_gradients(SMALL "pool=raw", 21, 0.3);
    check_gradients(SMALL "sink=0", 21, 0.5);
    check_gradients(SMALL "sink=1 rescale=3", 21, 0);
    check_gradients(SMALL "dropout=0.3", 40, 0);
    check_gradients("layers=2 channels=64 heads=2 dropout=0.1", 37,
                    0.1); // a head size with its own code
}

static void check_decoding(const char *options, int64_t length) {
    ModelTest t = model_test_create(&fastformer, options, 2, length, 29);
    model_check_decoding(&t, IS_DOUBLE ? 1e-11 : 2e-4);
    model_check_causality(&t);
    model_test_free(&t);
}

// Layers of several kinds; those that are no additive attention have a projection.
static void test_hybrids(void) {
    static const char *const hybrids[] = {
        "layers=4 channels=16 heads=2 windows=2,5,global,global attention=additive*3+softmax",
        "layers=4 channels=16 heads=2 attention=additive*3+softmax:9",
        "layers=4 channels=16 heads=2 attention=additive+softmax1",
        "layers=4 channels=16 heads=2 attention=additive:3+cosine:global",
        "layers=2 channels=16 heads=2 windows=global attention=softmax1,additive pool=raw"};
    for (size_t i = 0; i < sizeof(hybrids) / sizeof(hybrids[0]); i++) {
        check_gradients(hybrids[i], 21, 0.3);
        char *dropped = format_string("%s dropout=0.2", hybrids[i]);
        check_gradients(dropped, 21, 0);
        model_check_threads(&fastformer, dropped);
        model_check_accumulation(&fastformer, dropped);
        free(dropped);
        check_decoding(hybrids[i], 70);
    }
}

static void test_decoding(void) {
    check_decoding(SMALL "windows=1,2,7", 50);
    check_decoding(SMALL "windows=49,50,51", 50);
    check_decoding(SMALL "windows=auto", 100);
    check_decoding("layers=4 channels=64 heads=2", 300);
    check_decoding("layers=2 channels=128 heads=4 windows=5,global",
                   40); // large enough for threads
}

// A window reaches back layers * (k - 1) tokens twice (G, then P), and no further.
static void test_window_reach(void) {
    ModelTest t =
        model_test_create(&fastformer, "layers=1 channels=16 heads=2 windows=4", 1, 32, 20);
    Batch batch = model_test_batch(&t, 0, 2);
    real *before = allocate(32 * 20, sizeof(real), "test"),
         *after = allocate(32 * 20, sizeof(real), "test");
    transformer_logits(t.model, &batch, before);
    ((int32_t *)batch.inputs)[5] = (batch.inputs[5] + 1) % 20;
    transformer_logits(t.model, &batch, after);
    for (size_t i = 0; i < 32; i++) {
        const bool same = model_test_same(before + i * 20, after + i * 20, 20);
        CHECK(same == (i < 5 || i > 5 + 2 * 3));
    }
    free(before);
    free(after);
    model_test_batch_free(&batch);
    model_test_free(&t);
}

static void test_threads(void) {
    model_check_threads(&fastformer, SMALL "dropout=0.2");
    model_check_threads(&fastformer, SMALL "optimizer=muon");
}

static void test_accumulation(void) {
    model_check_accumulation(&fastformer, SMALL "dropout=0.2");
}

static void test_statistics(void) {
    ModelTest t =
        model_test_create(&fastformer, SMALL "windows=1,5,global sink=1 rescale=3", 2, 50, 29);
    Batch batch = model_test_batch(&t, 0.3, 9);
    Statistics s = {0}, evaluating = {0}, uniform = {0};
    transformer_statistics(t.model, &batch, &s);
    CHECK(s.count == 3 * 8 + 1);
    int64_t tokens = 0;
    for (size_t i = 0; i < 100; i++) tokens += batch.mask[i];
    for (size_t l = 0; l < 3; l++) {
        const size_t window = transformer_plan(t.model)->layers[l].attention.window;
        model_check_residual_statistics(&s, &batch, l, 24);
        model_check_weight_statistics(statistics_find(&s, l, "query_weights"), &batch, 3, window);
        model_check_weight_statistics(statistics_find(&s, l, "key_weights"), &batch, 3, window);
        const Measurement *scores = statistics_find(&s, l, "query_scores"); // of 3 heads; cosines
        CHECK(scores->scores == 3 * tokens && scores->values.largest <= 1 + 1e-9);
        CHECK_CLOSE(moments_deviation(&scores->values), 1 / sqrt(8),
                    0.1); // of x and w that do not know each other
    }

    Moments embedded = {0}; // what enters the first layer
    const EmbeddingPlan *e = &transformer_plan(t.model)->stacks[0].embedding;
    for (size_t i = 0; i < 100 * 24; i++) {
        const size_t row = i / 24, c = i % 24;
        const real x = t.values[e->token + (size_t)batch.inputs[row] * 24 + c] +
                       t.values[e->position + row % 50 * 24 + c];
        if (batch.mask[row]) moments_add_real(&embedded, &x, 1);
    }
    CHECK_CLOSE(moments_kurtosis(&s.items[0]->values), moments_kurtosis(&embedded), 1e-9);
    CHECK(s.items[0]->values.largest == embedded.largest);

    // A model that shares its buffers among layers measures the same.
    t.setup.training = false;
    void *model = transformer_create(&t.setup);
    cpu_model_write(model, MODEL_VALUES, t.values);
    transformer_statistics(model, &batch, &evaluating);
    for (size_t i = 0; i < s.count; i++)
        CHECK(s.items[i]->values.m4 == evaluating.items[i]->values.m4);
    transformer_destroy(model);

    // Scores of 0: the sink of 1 is as much as one token.
    for (size_t l = 0; l < 3; l++) ((Transformer *)t.model)->plan.layers[l].attention.rescale = 0;
    batch.length = 2;
    const uint8_t *mask = batch.mask;
    batch.mask = NULL;
    transformer_statistics(t.model, &batch, &uniform);
    CHECK_CLOSE(measurement_sink_share(statistics_find(&uniform, 0, "key_weights")), 1.0 / 2,
                1e-12);
    const Measurement *m = statistics_find(&uniform, 2, "query_weights"); // 1/2; 1/3 1/3
    CHECK_CLOSE(measurement_sink_share(m), (1.0 / 2 + 1.0 / 3) / 2, 1e-12);
    CHECK_CLOSE(moments_mean(&m->values), (1.0 / 2 + 2.0 / 3) / 3, 1e-12);
    batch.mask = mask;
    statistics_free(&s);
    statistics_free(&evaluating);
    statistics_free(&uniform);
    model_test_batch_free(&batch);
    model_test_free(&t);
}

static void create_with(void *options) {
    ModelTest t = model_test_create(&fastformer, options, 1, 16, 20);
    model_test_free(&t);
}

static void create_large(void *options) {
    model_test_create(&fastformer, options, 1 << 20, 2048, 20);
}

static void test_bad_options(void) {
    CHECK_FAILS(create_with, "channels=24 heads=5", 1, "--heads 5");
    CHECK_FAILS(create_with, "channels=8 heads=8", 1, "--heads 8");
    CHECK_FAILS(create_with, "layers=2 windows=4", 1, "1 windows for 2 layers");
    CHECK_FAILS(create_with, "layers=2 windows=4,8,16", 1, "3 windows for 2 layers");
    CHECK_FAILS(create_with, "layers=2 windows=4,x", 1, "--windows 4,x");
    CHECK_FAILS(create_with, "layers=2 windows=0,4", 1, "--windows 0,4");
    CHECK_FAILS(create_with, "layers=1 windows=99999999999999999999999", 1, "--windows 9999");
    CHECK_FAILS(create_with, "rescale=41", 1, "rescale");
    CHECK_FAILS(create_with, "layers=2 attention=cosine,additive", 2, "cosine:global");
    CHECK_FAILS(create_large, "layers=2", 1, "--batch: the model needs");
}

static void test_reference(void) {
    static const char *const files[] = {"windowed", "global", "padded", "holes", "sharp"};
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        char *path = format_string("dev/reference/fastformer_%s.safetensors", files[i]);
        CHECK(model_reference(&fastformer, path, IS_DOUBLE ? "double" : "float", 0));
        free(path);
    }
}

int main(int argc, char **argv) {
    static const TestCase cases[] = {
        {"window sum", test_window_sum},
        {"pool", test_pool},
        {"extreme scores", test_extreme_scores},
        {"gradients: windows", test_gradients_windows},
        {"gradients: options", test_gradients_options},
        {"decoding", test_decoding},
        {"hybrids", test_hybrids},
        {"window reach", test_window_reach},
        {"threads", test_threads},
        {"accumulation", test_accumulation},
        {"statistics", test_statistics},
        {"bad options", test_bad_options},
        {"reference", test_reference},
    };
    return model_test_main(argc, argv, &fastformer, 0, cases, sizeof(cases) / sizeof(cases[0]));
}
