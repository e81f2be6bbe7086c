// Tests of the Fastformer: gradients, reference vectors, the windowed sum, recurrence, invariants.
//
//   ./test_fastformer [NAME]                              runs tests whose names contain NAME
//   ./test_fastformer -r FILE... [-p double|float|bf16]   checks reference vectors (dev/reference)

#define TESTING
#include "additive_attention.c"
#include "train_fastformer.c"

#include "model_test.h"
#include "plain_model.h"
#include "random.h"
#include <math.h>

enum { IS_DOUBLE = sizeof(real) == sizeof(double) };

// ---- The windowed sum compared with its O(T k) definition -------------------

// The weights e range from exp(-s) to exp(s), s = rescale, as for scores within -s..s. This is the
// hard case for a difference of running sums.
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

// ---- Pooling of x itself (--pool raw) compared with its definition ----------
// test_plain_model() tests the pooling of normalised vectors, against dev/fastformer/plain.c.

// normal (D) = (x - mean) / (deviation + 1e-5)
static void normalise_plainly(double *normal, const real *x, size_t D) {
    double mean = 0, square = 0;
    for (size_t d = 0; d < D; d++) mean += (double)x[d] / (double)D;
    for (size_t d = 0; d < D; d++) square += ((double)x[d] - mean) * ((double)x[d] - mean);
    for (size_t d = 0; d < D; d++)
        normal[d] = ((double)x[d] - mean) / (sqrt(square / (double)(D - 1)) + 1e-5);
}

static double score_plainly(const real *x, const real *weight, size_t D, bool plain,
                            double rescale) {
    double normal[64], normal_weight[64], plain_score = 0, rescaled = 0;
    normalise_plainly(normal, x, D);
    normalise_plainly(normal_weight, weight, D);
    for (size_t d = 0; d < D; d++) {
        plain_score += (double)x[d] * (double)weight[d] / sqrt((double)D);
        rescaled += rescale / (double)D * normal[d] * normal_weight[d];
    }
    return plain ? plain_score : rescaled;
}

// Checks g (D), row i of the pooling of x (T, D) with these scores (T).
static void check_row(const real *g, const real *x, const double *scores, const uint8_t *mask,
                      size_t i, size_t first, size_t D, double sink) {
    double top = log(sink), total = 0, sum[64] = {0}, largest = 0;
    for (size_t j = first; j <= i; j++) top = mask[j] ? fmax(top, scores[j]) : top;
    for (size_t j = first; j <= i; j++) {
        const double e = mask[j] ? exp(scores[j] - top) : 0;
        total += e;
        for (size_t d = 0; d < D; d++) {
            sum[d] += e * (double)x[j * D + d];
            largest = fmax(largest, fabs((double)x[j * D + d]));
        }
    }
    if (sink > 0) total += exp(log(sink) - top);
    for (size_t d = 0; d < D; d++)
        CHECK_CLOSE(g[d], total > 0 ? sum[d] / total : 0, (IS_DOUBLE ? 1e-12 : 2e-5) * largest);
}

static void check_pool(size_t T, size_t D, size_t window, bool plain, double spread, double sink,
                       double padding) {
    Random r = random_stream(12, RANDOM_TEST, (uint32_t)T, (uint32_t)window);
    const AttentionPlan plan = {.rescale = 10,
                                .sink = sink,
                                .pool_raw = true,
                                .scores = plain ? SCORES_PLAIN : SCORES_RESCALED,
                                .window = window};
    real *x = allocate(T * D, sizeof(real), "test"), *w = allocate(D, sizeof(real), "test"),
         *weight = allocate(D, sizeof(real), "test"), deviation;
    real *g = allocate(T * D, sizeof(real), "test"), *kept = allocate(T, sizeof(real), "test");
    double *scores = allocate(T, sizeof(double), "test");
    uint8_t *mask = allocate(T, 1, "test");
    for (size_t i = 0; i < T * D; i++) x[i] = (real)(spread * random_normal(&r));
    for (size_t d = 0; d < D; d++) w[d] = (real)random_normal(&r);
    for (size_t i = 0; i < T; i++) mask[i] = random_uniform(&r) >= padding;
    for (size_t i = 0; i < T; i++) scores[i] = score_plainly(x + i * D, w, D, plain, plan.rescale);
    normalise(weight, &deviation, w, 1, D);

    Arena *arena = arena_create();
    Scratch s = {0};
    ARENA_CARVE(arena, scratch_carve(&s, arena, plain, window, D));
    pooling_start(&s.query, &plan, plain ? w : weight, D);
    for (size_t t = 0; t < T; t += TILE)
        pool_forward(&s.query, &s, g + t * D, kept + t,
                     (PoolRows){x + t * D, D, mask + t, T - t < TILE ? T - t : TILE}, D);
    for (size_t i = 0; i < T; i++)
        check_row(g + i * D, x, scores, mask, i, window && i + 1 > window ? i + 1 - window : 0, D,
                  sink);
    arena_free(arena);
    free(x);
    free(w);
    free(weight);
    free(g);
    free(kept);
    free(scores);
    free(mask);
}

static void test_pool(void) {
    const size_t windows[] = {0, 1, 2, 5, 31, 32, 33, 99, 100, 130};
    const double spreads[] = {1, 30}; // with 30, some scores are above 88 or below -88
    for (size_t i = 0; i < sizeof(windows) / sizeof(windows[0]); i++) {
        check_pool(100, 7, windows[i], false, 1, 1, 0.3);
        for (size_t n = 0; n < 2; n++) {
            check_pool(100, 8, windows[i], true, spreads[n], 1e-5, 0.3);
            check_pool(100, 7, windows[i], true, spreads[n], 1, 0);
            check_pool(100, 8, windows[i], true, spreads[n], 0, 0.9);
        }
    }
}

// --query-gain adds the pooled queries times the gains.
static void test_query_gain(void) {
    enum { T = TILE + 8, D = 6 };
    Random r = random_stream(13, RANDOM_TEST, 0, 0);
    const AttentionPlan plan = {.rescale = 5, .sink = 1e-5, .window = 3};
    real qkv[T * 3 * D], weight[D], gain[D], G[T * D], P[T * D], kept[2][T], x[T * D],
        out[2][T * D];
    for (size_t i = 0; i < (size_t)T * 3 * D; i++) qkv[i] = (real)random_normal(&r);
    for (size_t i = 0; i < (size_t)T * D; i++) x[i] = (real)random_normal(&r);
    for (size_t d = 0; d < D; d++) gain[d] = (real)random_normal(&r);
    for (size_t d = 0; d < D; d++) weight[d] = (real)random_normal(&r);
    Arena *arena = arena_create();
    Scratch s = {0};
    ARENA_CARVE(arena, scratch_carve(&s, arena, false, plan.window, D));
    for (size_t i = 0; i < 2; i++) {
        pooling_start(&s.query, &plan, weight, D);
        pooling_start(&s.key, &plan, weight, D);
        const AttentionHead head = {.q = qkv,
                                    .k = qkv + D,
                                    .v = qkv + 2 * (size_t)D,
                                    .stride = 3 * (size_t)D,
                                    .gain = i ? gain : NULL,
                                    .pooled_query = G,
                                    .r_query = kept[0],
                                    .pooled_key = P,
                                    .r_key = kept[1]};
        const HeadResult to = {.out = out[i], .x = x, .channels = D};
        one_head_forward(&head, &s, &s.query, &s.key, &to, T, D);
    }
    for (size_t i = 0; i < (size_t)T * D; i++)
        CHECK_CLOSE(out[1][i] - out[0][i], gain[i % D] * G[i], IS_DOUBLE ? 1e-14 : 1e-6);
    arena_free(arena);
}

// Loss and gradients stay finite with scores far beyond the range of exp(), above and below.
static void test_extreme_scores(void) {
    static const char *const all[] = {"rescale=40 sink=0", "scores=plain", "scores=plain sink=0"};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        char *options = format_string("layers=2 channels=16 heads=2 %s", all[i]);
        ModelTest t = model_test_create(&fastformer, options, 1, 4096, 20);
        for (size_t l = 0; i > 0 && l < 2; l++) {
            const AttentionPlan *a = &transformer_plan(t.model)->layers[l].attention;
            for (size_t n = 0; n < 16; n++) t.values[a->learned[0] + n] = n % 2 ? 900 : -900;
        }
        cpu_model_write(t.model, MODEL_VALUES, t.values);
        Batch batch = model_test_batch(&t, 0, 1);
        CHECK(isfinite(transformer_train(t.model, &batch, 1e-3)));
        CHECK(isfinite(cpu_model_gradient_norm(t.model)));
        model_test_batch_free(&batch);
        model_test_free(&t);
        free(options);
    }
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

// Copies values to plain (count), in the order of plain.c, which stores matrices as (in, out); with
// `back`, copies plain to values.
static void copy_plain(const ParameterTable *table, real *values, double *plain, bool back) {
    for (int n = 0; n < table->count; n++) {
        const Parameter *p = &table->items[n];
        const bool linear = strstr(p->name, "projections") || strstr(p->name, "boom.weight");
        const size_t columns = p->rank == 2 ? (size_t)p->shape[1] : 1, rows = p->size / columns;
        for (size_t i = 0; i < p->size; i++) {
            const size_t at = linear ? i % columns * rows + i / columns : i;
            if (back)
                values[p->offset + i] = (real)plain[at];
            else
                plain[at] = (double)values[p->offset + i];
        }
        plain += p->size;
    }
}

static double largest_of(const real *x, size_t count) {
    double largest = 0;
    for (size_t i = 0; i < count; i++) {
        const double size = fabs((double)x[i]); // gcc 12 on arm64 fails with fmax()
        largest = size > largest ? size : largest;
    }
    return largest;
}

// Loss and all gradients equal those of dev/fastformer/plain.c.
static void test_plain_model(void) {
    ModelTest t = model_test_create(&fastformer, PLAIN_OPTIONS, 2, PLAIN_LENGTH, PLAIN_VOCABULARY);
    Batch batch = model_test_batch(&t, 0, 1);
    const size_t total = t.table->total, count = t.table->parameters;
    real *gradients = allocate(total, sizeof(real), "test"),
         *expected = allocate(total, sizeof(real), "test");
    double *plain = allocate(count, sizeof(double), "test"),
           *plain_gradients = allocate(count, sizeof(double), "test"), loss = 0;
    Random r = random_stream(5, RANDOM_TEST, 0, 0);
    for (int n = 0; n < t.table->count; n++)
        for (size_t i = 0; i < t.table->items[n].size; i++)
            t.values[t.table->items[n].offset + i] =
                (real)(t.table->items[n].mean + 0.2 * random_normal(&r));
    cpu_model_write(t.model, MODEL_VALUES, t.values);
    copy_plain(t.table, t.values, plain, false);
    for (size_t b = 0; b < 2; b++) {
        unsigned char tokens[PLAIN_LENGTH + 1] = {0};
        int32_t *targets = (int32_t *)batch.targets + b * PLAIN_LENGTH;
        for (size_t i = 0; i < PLAIN_LENGTH; i++) {
            int32_t *input = (int32_t *)batch.inputs + b * PLAIN_LENGTH + i;
            if (*input == t.setup.padding_token) *input = 1; // its embedding gets no gradient
            tokens[i] = (unsigned char)*input;
        }
        for (size_t i = 0; i < PLAIN_LENGTH; i++) targets[i] = tokens[i + 1];
        loss += plain_model_loss(plain, tokens, 1, plain_gradients) * PLAIN_LENGTH;
    }
    cpu_model_clear_gradients(t.model);
    CHECK_CLOSE(transformer_train(t.model, &batch, 1.0 / PLAIN_LENGTH), loss,
                (IS_DOUBLE ? 1e-12 : 1e-6) * loss);
    cpu_model_read(t.model, MODEL_GRADIENTS, gradients);
    copy_plain(t.table, expected, plain_gradients, true);
    for (int n = 0; n < t.table->count; n++) {
        const Parameter *p = &t.table->items[n];
        const real *right = expected + p->offset;
        const double tolerance = (IS_DOUBLE ? 1e-11 : 2e-4) * largest_of(right, p->size);
        for (size_t i = 0; i < p->size; i++)
            CHECK_CLOSE(gradients[p->offset + i], right[i], tolerance);
    }
    free(gradients);
    free(expected);
    free(plain);
    free(plain_gradients);
    model_test_batch_free(&batch);
    model_test_free(&t);
}

static void test_gradients_windows(void) {
    check_gradients(SMALL "windows=1,2,3", 21, 0);
    check_gradients(SMALL "windows=20,21,22", 21, 0);     // T-1, T, beyond T
    check_gradients(SMALL "windows=5,8,global", 21, 0);   // do not divide T
    check_gradients(SMALL "windows=40,33,global", 70, 0); // longer than a tile
    check_gradients(SMALL "windows=auto", 33, 0);
    check_gradients(SMALL "windows=global", 33, 0);
    check_gradients(SMALL, 1, 0);
}

static void test_gradients_options(void) {
    check_gradients(SMALL, 21, 0.3);
    check_gradients(SMALL "pool=raw", 21, 0.3);
    check_gradients(SMALL "scores=plain windows=3,8,global", 40, 0.3);
    check_gradients(SMALL "scores=plain sink=0 dropout=0.3", 21, 0);
    check_gradients(SMALL "query-gain=0.7 dropout=0.3", 40, 0);
    check_gradients(SMALL "query-gain=2 scores=plain pool=raw", 21, 0.3);
    check_gradients(SMALL "sink=0", 21, 0.5);
    check_gradients(SMALL "sink=1 rescale=3", 21, 0);
    check_gradients(SMALL "dropout=0.3", 40, 0);
    check_gradients("layers=2 channels=64 heads=2 dropout=0.1", 37,
                    0.1); // a head size with code of its own
}

static void check_decoding(const char *options, int64_t length) {
    ModelTest t = model_test_create(&fastformer, options, 2, length, 29);
    model_check_decoding(&t, IS_DOUBLE ? 1e-11 : 2e-4);
    model_check_causality(&t);
    model_test_free(&t);
}

// Layers of several kinds of attention. All kinds but additive attention have a projection.
static void test_hybrids(void) {
    static const char *const hybrids[] = {
        "layers=4 channels=16 heads=2 windows=2,5,global,global attention=additive*3+softmax",
        "layers=4 channels=16 heads=2 attention=additive*3+softmax:9",
        "layers=2 channels=16 heads=2 attention=additive+softmax positions=rotary rotary-part=0.5",
        "layers=4 channels=16 heads=2 attention=additive:4+softmax1 scores=plain",
        "layers=4 channels=16 heads=2 attention=softmax:2+additive*2+softmax token-shift=0.5",
        "layers=4 channels=16 heads=2 attention=additive:3+cosine:global",
        "layers=2 channels=16 heads=2 attention=cosine:5,cosine:70",
        "layers=2 channels=16 heads=2 attention=softmax1:5,additive pool=raw query-gain=0.7"};
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
    check_decoding(SMALL "windows=1,7,global scores=plain", 100);
    check_decoding(SMALL "windows=auto", 100);
    check_decoding("layers=4 channels=64 heads=2", 300);
    check_decoding("layers=2 channels=128 heads=4 windows=5,global",
                   40); // large enough for several threads
}

// A token depends on the 2 * layers * (k - 1) tokens before it, as each layer pools twice (G, P),
// and on no earlier ones.
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

// With plain scores, the weights and the share of the sink add up to 1.
static void test_plain_statistics(void) {
    ModelTest t =
        model_test_create(&fastformer, SMALL "windows=1,5,global sink=1 scores=plain", 2, 50, 29);
    Batch batch = model_test_batch(&t, 0.3, 9);
    Statistics s = {0};
    transformer_statistics(t.model, &batch, &s);
    for (size_t l = 0; l < 3; l++) {
        const size_t window = transformer_plan(t.model)->layers[l].attention.window;
        model_check_weight_statistics(statistics_find(&s, l, "query_weights"), &batch, 3, window);
        model_check_weight_statistics(statistics_find(&s, l, "key_weights"), &batch, 3, window);
    }
    statistics_free(&s);
    model_test_batch_free(&batch);
    model_test_free(&t);
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
        const Measurement *scores = statistics_find(&s, l, "query_scores"); // 3 heads; cosines
        CHECK(scores->scores == 3 * tokens && scores->values.largest <= 1 + 1e-9);
        CHECK_CLOSE(moments_deviation(&scores->values), 1 / sqrt(8),
                    0.1); // x and w are independent
    }

    Moments embedded = {0}; // the input of the first layer
    const EmbeddingPlan *e = &transformer_plan(t.model)->stacks[0].embedding;
    for (size_t i = 0; i < 100 * 24; i++) {
        const size_t row = i / 24, c = i % 24;
        const real x = t.values[e->token + (size_t)batch.inputs[row] * 24 + c] +
                       t.values[e->position + row % 50 * 24 + c];
        if (batch.mask[row]) moments_add_real(&embedded, &x, 1);
    }
    CHECK_CLOSE(moments_kurtosis(&s.items[0]->values), moments_kurtosis(&embedded), 1e-9);
    CHECK(s.items[0]->values.largest == embedded.largest);

    // A model that shares its buffers among layers measures the same values.
    t.setup.training = false;
    void *model = transformer_create(&t.setup);
    cpu_model_write(model, MODEL_VALUES, t.values);
    transformer_statistics(model, &batch, &evaluating);
    for (size_t i = 0; i < s.count; i++)
        CHECK(s.items[i]->values.m4 == evaluating.items[i]->values.m4);
    transformer_destroy(model);

    // With scores of 0, the sink of 1 weighs as much as one token.
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
    CHECK_FAILS(create_with, "scores=qknorm", 2, "no layer has qknorm scores");
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
        {"query gain", test_query_gain},
        {"extreme scores", test_extreme_scores},
        {"the model in one file", test_plain_model},
        {"gradients: windows", test_gradients_windows},
        {"gradients: options", test_gradients_options},
        {"decoding", test_decoding},
        {"hybrids", test_hybrids},
        {"window reach", test_window_reach},
        {"threads", test_threads},
        {"accumulation", test_accumulation},
        {"statistics", test_statistics},
        {"statistics of plain scores", test_plain_statistics},
        {"bad options", test_bad_options},
        {"reference", test_reference},
    };
    return model_test_main(argc, argv, &fastformer, 0, cases, sizeof(cases) / sizeof(cases[0]));
}
