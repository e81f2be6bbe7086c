// The classifier against the definition of cross entropy.
#include "classifier.h"
#include "gemm.h"
#include "memory.h"
#include "random.h"
#include "test.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

// Relative errors of gradients; the second for logits so large that their rounding dominates.
#ifdef REAL_IS_DOUBLE
static const double REAL_TOLERANCE = 1e-12, LARGE_TOLERANCE = 1e-10;
#else
static const double REAL_TOLERANCE = 2e-5, LARGE_TOLERANCE = 1e-2;
#endif

// A problem and its expected results.
typedef struct {
    size_t m, vocabulary, channels;
    Arena *arena;            // holds the input
    Matrix input;            // h as the products read it
    real *h, *weight, *bias; // h, weight rounded likewise; bias NULL: none
    int32_t *targets;
    double scale, start;                // `start`: initial value of the gradients
    double smoothing;                   // of labels
    double unsmoothed;                  // expected
    double loss, *dh, *dweight, *dbias; // expected
} Problem;

static real *random_values(size_t count, double deviation, uint32_t stream) {
    Random random = random_stream(11, RANDOM_TEST, stream, 0);
    real *values = allocate(count, sizeof(*values), "random values");
    for (size_t i = 0; i < count; i++) values[i] = (real)(deviation * random_normal(&random));
    return values;
}

static void round_as_input(const Gemm *gemm, real *values, size_t count) {
    Arena *arena = arena_create();
    Matrix input;
    ARENA_CARVE(arena, input = gemm_input_carve(gemm, arena, 1, count, "a test"));
    gemm_input_store(input, 0, 0, values, count);
    gemm_input_load(input, 0, 0, values, count);
    arena_free(arena);
}

// Logits are about N(0, deviation^2); every seventh target is ignored.
static Problem problem_create(const Gemm *gemm, size_t m, size_t vocabulary, size_t channels,
                              double deviation) {
    Problem p = {
        .m = m, .vocabulary = vocabulary, .channels = channels, .scale = 0.125, .start = 3};
    p.h = random_values(m * channels, 1, 1);
    p.weight = random_values(vocabulary * channels, deviation / sqrt((double)channels), 2);
    p.bias = random_values(vocabulary, deviation, 3);
    round_as_input(gemm, p.h, m * channels);
    round_as_input(gemm, p.weight, vocabulary * channels);
    p.arena = arena_create();
    ARENA_CARVE(p.arena, p.input = gemm_input_carve(gemm, p.arena, m, channels, "a test"));
    gemm_input_store(p.input, 0, 0, p.h, m * channels);
    p.targets = allocate(m, sizeof(*p.targets), "targets");
    Random random = random_stream(11, RANDOM_TEST, 4, 0);
    for (size_t i = 0; i < m; i++)
        p.targets[i] = i % 7 == 3 ? -1 : (int32_t)random_below(&random, vocabulary);
    return p;
}

static void problem_free(Problem *p) {
    arena_free(p->arena);
    free(p->h);
    free(p->weight);
    free(p->bias);
    free(p->targets);
    free(p->dh);
    free(p->dweight);
    free(p->dbias);
}

// Returns a classifier with the weight packed; its arrays are in the arena.
static Classifier *packed_classifier(Gemm *gemm, Arena *arena, const Problem *p, size_t rows,
                                     int training) {
    Classifier *c = classifier_create(gemm, p->vocabulary, p->channels, rows, training);
    ARENA_CARVE(arena, classifier_carve(c, arena));
    classifier_pack(c, p->weight);
    return c;
}

static double *fresh(size_t count, double value) {
    double *values = allocate(count, sizeof(*values), "expected values");
    for (size_t i = 0; i < count; i++) values[i] = value;
    return values;
}

static double logit(const Problem *p, size_t i, size_t j) {
    double sum = p->bias ? (double)p->bias[j] : 0;
    for (size_t k = 0; k < p->channels; k++)
        sum += (double)p->h[i * p->channels + k] * (double)p->weight[j * p->channels + k];
    return sum;
}

// Returns one row's loss and replaces the logits by their gradient.
static double row_gradient(Problem *p, double *logits, int32_t target) {
    double max = logits[0], others = 0;
    for (size_t j = 1; j < p->vocabulary; j++) max = fmax(max, logits[j]);
    for (size_t j = 0; j < p->vocabulary; j++)
        if (j != (size_t)target) others += exp(logits[j] - max);
    const double sum = others + exp(logits[target] - max), loss = max + log(sum) - logits[target];
    double mean = 0;
    for (size_t j = 0; j < p->vocabulary; j++) mean += logits[j] / (double)p->vocabulary;
    const double of_mean = max + log(sum) - mean;
    for (size_t j = 0; j < p->vocabulary; j++) {
        const double gradient =
            j == (size_t)target ? -others / sum + p->smoothing : exp(logits[j] - max) / sum;
        logits[j] = p->scale * (gradient - p->smoothing / (double)p->vocabulary);
    }
    p->unsmoothed += loss;
    return p->smoothing > 0 ? (1 - p->smoothing) * loss + p->smoothing * of_mean : loss;
}

static void problem_solve(Problem *p) {
    const size_t channels = p->channels;
    p->loss = p->unsmoothed = 0;
    p->dh = fresh(p->m * channels, 0);
    p->dweight = fresh(p->vocabulary * channels, p->start);
    p->dbias = fresh(p->vocabulary, p->start);
    double *logits = fresh(p->vocabulary, 0);
    for (size_t i = 0; i < p->m; i++) {
        if (p->targets[i] < 0) continue;
        for (size_t j = 0; j < p->vocabulary; j++) logits[j] = logit(p, i, j);
        p->loss += row_gradient(p, logits, p->targets[i]);
        for (size_t j = 0; j < p->vocabulary; j++) {
            p->dbias[j] += logits[j];
            for (size_t k = 0; k < channels; k++) {
                p->dh[i * channels + k] += logits[j] * (double)p->weight[j * channels + k];
                p->dweight[j * channels + k] += logits[j] * (double)p->h[i * channels + k];
            }
        }
    }
    free(logits);
}

// Returns |values - expected| / |expected - start| (Euclidean norms).
static double relative_error(const real *values, const double *expected, double start,
                             size_t count) {
    double difference = 0, norm = 1e-300;
    for (size_t i = 0; i < count; i++) {
        difference += ((double)values[i] - expected[i]) * ((double)values[i] - expected[i]);
        norm += (expected[i] - start) * (expected[i] - start);
    }
    return sqrt(difference / norm);
}

static real *started(size_t count, double start) {
    real *values = allocate(count, sizeof(*values), "gradients");
    for (size_t i = 0; i < count; i++) values[i] = (real)start;
    return values;
}

static double tolerance_of(const Gemm *gemm) {
    if (gemm_precision(gemm) == PRECISION_BFLOAT16)
        return 4e-3; // half a unit in the last of 8 bits
    return REAL_TOLERANCE;
}

// Solves the problem with a classifier that processes `rows` rows per chunk, and compares.
static void check_problem(Gemm *gemm, Problem *p, size_t rows, double tolerance) {
    Arena *arena = arena_create();
    Classifier *classifier = packed_classifier(gemm, arena, p, rows, 1);
    classifier_smooth(classifier, p->smoothing);
    problem_solve(p);
    real *dh = started(p->m * p->channels, p->start),
         *dweight = started(p->vocabulary * p->channels, p->start);
    real *dbias = started(p->vocabulary, p->start);
    const double loss = classifier_train(classifier, p->input, p->bias, p->targets, p->m, p->scale,
                                         dh, dweight, p->bias ? dbias : NULL);
    CHECK_CLOSE(loss, p->loss, fmin(tolerance, 1e-5) * (fabs(p->loss) + 1));
    CHECK_CLOSE(relative_error(dh, p->dh, 0, p->m * p->channels), 0, tolerance);
    CHECK_CLOSE(relative_error(dweight, p->dweight, p->start, p->vocabulary * p->channels), 0,
                tolerance);
    if (p->bias)
        CHECK_CLOSE(relative_error(dbias, p->dbias, p->start, p->vocabulary), 0, tolerance);
    CHECK_CLOSE(classifier_unsmoothed(classifier), p->unsmoothed,
                fmin(tolerance, 1e-5) * (fabs(p->loss) + 1));
    real *losses = started(p->m, 1);
    CHECK(classifier_forward(classifier, p->input, p->bias, p->targets, p->m, losses) ==
          classifier_unsmoothed(classifier));
    if (p->smoothing == 0) CHECK(classifier_unsmoothed(classifier) == loss);
    double sum = 0;
    for (size_t i = 0; i < p->m; i++) {
        CHECK(p->targets[i] < 0 ? losses[i] == 0 : losses[i] >= 0);
        sum += (double)losses[i];
    }
    CHECK_CLOSE(sum, p->unsmoothed, fmin(tolerance, 1e-5) * (fabs(p->loss) + 1));
    free(losses);

    real *again = started(p->vocabulary * p->channels, p->start);
    classifier_train(classifier, p->input, p->bias, p->targets, p->m, p->scale, dh, again,
                     p->bias ? dbias : NULL);
    CHECK(memcmp(again, dweight, p->vocabulary * p->channels * sizeof(real)) == 0);
    free(again);
    free(dh);
    free(dweight);
    free(dbias);
    classifier_free(classifier);
    arena_free(arena);
}

static void for_each_precision(void (*check)(Gemm *gemm)) {
    for (int p = PRECISION_FLOAT32; p <= PRECISION_BFLOAT16; p++) {
        if (!gemm_supports((Precision)p)) continue;
        Gemm *gemm = gemm_create((Precision)p);
        check(gemm);
        gemm_free(gemm);
    }
}

static void check_sizes(Gemm *gemm) {
    // m, V, C, rows per chunk: smaller and larger than a slice of the vocabulary; chunks and blocks
    // that do not divide m.
    static const size_t sizes[][4] = {{1, 1, 1, 1},       {1, 2, 3, 1},       {40, 256, 32, 40},
                                      {131, 641, 24, 48}, {70, 1500, 33, 64}, {301, 640, 16, 300},
                                      {16, 3001, 130, 5}};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        Problem p = problem_create(gemm, sizes[i][0], sizes[i][1], sizes[i][2], 2);
        check_problem(gemm, &p, sizes[i][3], tolerance_of(gemm));
        problem_free(&p);
    }
}

static void test_sizes(void) {
    for_each_precision(check_sizes);
}

static void check_no_bias(Gemm *gemm) {
    Problem p = problem_create(gemm, 37, 900, 20, 1);
    free(p.bias);
    p.bias = NULL;
    check_problem(gemm, &p, 37, tolerance_of(gemm));
    problem_free(&p);
}

static void test_no_bias(void) {
    for_each_precision(check_no_bias);
}

// With and without a bias; ignored rows, in chunks.
static void check_smoothing(Gemm *gemm) {
    Problem p = problem_create(gemm, 131, 900, 140, 2);
    p.smoothing = 0.1;
    check_problem(gemm, &p, 48, tolerance_of(gemm));
    problem_free(&p);
    Problem bare = problem_create(gemm, 60, 400, 24, 1);
    free(bare.bias);
    bare.bias = NULL;
    bare.smoothing = 0.6;
    check_problem(gemm, &bare, 60, tolerance_of(gemm));
    problem_free(&bare);
}

static void test_smoothing(void) {
    for_each_precision(check_smoothing);
}

// Logits of 1e4 and -1e4, whose rounding alone is 1e-3 in float. Then logits that rise by 2,000
// over the vocabulary, so that every slice exceeds the range of the one before.
static void check_extreme(Gemm *gemm) {
    Problem large = problem_create(gemm, 50, 1400, 16, 3000);
    check_problem(gemm, &large, 50, LARGE_TOLERANCE);
    problem_free(&large);
    for (int direction = -1; direction <= 1; direction += 2) {
        Problem rising = problem_create(gemm, 33, 2000, 16, 1);
        for (size_t j = 0; j < 2000; j++) rising.bias[j] += (real)((double)direction * (double)j);
        check_problem(gemm, &rising, 33, gemm_precision(gemm) == PRECISION_BFLOAT16 ? 4e-3 : 1e-4);
        problem_free(&rising);
    }
    // Within the range of float but beyond that of the sums: 30 and 45 above the first logit.
    Problem steps = problem_create(gemm, 33, 2000, 16, 1);
    for (size_t j = 650; j < 2000; j++) steps.bias[j] += j < 1300 ? 30 : 45;
    check_problem(gemm, &steps, 33, tolerance_of(gemm));
    problem_free(&steps);
}

static void test_extreme(void) {
    for_each_precision(check_extreme);
}

// The target's probability p is about 1 - 1e-6: the gradient is the remainder, 1 - p.
static void check_confident(Gemm *gemm) {
    Problem p = problem_create(gemm, 30, 700, 16, 0.1);
    for (size_t i = 0; i < p.m; i++) p.targets[i] = 650;
    p.bias[650] = 20;
    p.start = 0; // else the gradients would be lost in its rounding
    check_problem(gemm, &p, p.m, tolerance_of(gemm));
    problem_free(&p);
}

static void test_confident(void) {
    for_each_precision(check_confident);
}

// A token whose bias is -infinity never occurs and has no gradient.
static void check_impossible(Gemm *gemm) {
    Problem p = problem_create(gemm, 40, 700, 16, 1);
    for (size_t j = 0; j < 700; j += 3) p.bias[j] = -INFINITY;
    for (size_t i = 0; i < p.m; i++)
        p.targets[i] = p.targets[i] < 0 ? -1 : p.targets[i] / 3 * 3 + 1;
    check_problem(gemm, &p, p.m, tolerance_of(gemm));
    problem_free(&p);

    Problem late =
        problem_create(gemm, 20, 1400, 16, 1); // the first 1,000 tokens, more than a slice
    for (size_t j = 0; j < 1000; j++) late.bias[j] = -INFINITY;
    for (size_t i = 0; i < late.m; i++) late.targets[i] = 1000 + (int32_t)i;
    check_problem(gemm, &late, late.m, tolerance_of(gemm));
    problem_free(&late);
}

static void test_impossible(void) {
    for_each_precision(check_impossible);
}

// No targets: no loss and no gradient. No rows: nothing happens.
static void check_ignored(Gemm *gemm) {
    enum { M = 20, V = 300, C = 16 };
    Problem p = problem_create(gemm, M, V, C, 1);
    for (size_t i = 0; i < M; i++) p.targets[i] = -1;
    Arena *arena = arena_create();
    Classifier *classifier = packed_classifier(gemm, arena, &p, M, 1);
    real *dh = started(M * C, p.start), *dweight = started(V * C, p.start),
         *dbias = started(V, p.start);
    CHECK(classifier_train(classifier, p.input, p.bias, p.targets, 0, 1, dh, dweight, dbias) == 0);
    CHECK_CLOSE(dh[0], p.start, 0);
    CHECK(classifier_train(classifier, p.input, p.bias, p.targets, M, 1, dh, dweight, dbias) == 0);
    for (size_t i = 0; i < M * C; i++) CHECK_CLOSE(dh[i], 0, 0);
    for (size_t i = 0; i < V * C; i++) CHECK_CLOSE(dweight[i], p.start, 0);
    for (size_t i = 0; i < V; i++) CHECK_CLOSE(dbias[i], p.start, 0);
    classifier_free(classifier);
    arena_free(arena);
    free(dh);
    free(dweight);
    free(dbias);
    problem_free(&p);
}

static void test_ignored(void) {
    for_each_precision(check_ignored);
}

// A NaN logit at any position makes the loss NaN.
static void check_nan(Gemm *gemm) {
    enum { M = 20, V = 1300, C = 16 };
    Problem p = problem_create(gemm, M, V, C, 1);
    Arena *arena = arena_create();
    Classifier *classifier = packed_classifier(gemm, arena, &p, M, 0);
    for (size_t j = 0; j < V; j += V - 1) {
        const real bias = p.bias[j];
        p.bias[j] = NAN;
        CHECK(isnan(classifier_forward(classifier, p.input, p.bias, p.targets, M, NULL)));
        p.bias[j] = bias;
    }
    CHECK(isfinite(classifier_forward(classifier, p.input, p.bias, p.targets, M, NULL)));
    classifier_free(classifier);
    arena_free(arena);
    problem_free(&p);
}

static void test_nan(void) {
    for_each_precision(check_nan);
}

static void check_logits(Gemm *gemm) {
    enum { M = 270, V = 700, C = 24 };
    Problem p = problem_create(gemm, M, V, C, 1);
    Arena *arena = arena_create();
    Classifier *classifier = packed_classifier(gemm, arena, &p, 16, 0);
    real *logits = allocate((size_t)M * V, sizeof(*logits), "logits");
    size_t wrong = 0;
    for (int with_bias = 1; with_bias >= 0; with_bias--) {
        classifier_logits(classifier, p.input, with_bias ? p.bias : NULL, M, logits);
        for (size_t i = 0; i < M; i++)
            for (size_t j = 0; j < V; j++) {
                const double expected = logit(&p, i, j) - (with_bias ? 0 : (double)p.bias[j]);
                wrong += !(fabs((double)logits[i * V + j] - expected) < 1e-5);
            }
    }
    CHECK(wrong == 0);
    classifier_logits(classifier, p.input, NULL, 0, logits);
    free(logits);
    classifier_free(classifier);
    arena_free(arena);
    problem_free(&p);
}

static void test_logits(void) {
    for_each_precision(check_logits);
}

static void forward_beyond(void *argument) {
    const Problem *p = argument;
    Gemm *gemm = gemm_create(PRECISION_FLOAT32);
    Arena *arena = arena_create();
    Classifier *classifier = packed_classifier(gemm, arena, p, p->m, 0);
    classifier_forward(classifier, p->input, p->bias, p->targets, p->m, NULL);
}

static void create_without_vocabulary(void *argument) {
    classifier_create(argument, 0, 8, 8, 1);
}

static void test_errors(void) {
    Gemm *gemm = gemm_create(PRECISION_FLOAT32);
    Problem p = problem_create(gemm, 8, 100, 8, 1);
    p.targets[5] = 100;
    CHECK_FAILS(forward_beyond, &p, 1, "target 5 is 100, expected a token below 100, or -1");
    p.targets[5] = -2;
    CHECK_FAILS(forward_beyond, &p, 1, "target 5 is -2, expected a token below 100, or -1");
    CHECK_FAILS(create_without_vocabulary, gemm, 1, "classifier: vocabulary 0");
    problem_free(&p);
    gemm_free(gemm);
}

int main(int argc, char **argv) {
    static const TestCase cases[] = {
        {"sizes", test_sizes},
        {"no bias", test_no_bias},
        {"label smoothing", test_smoothing},
        {"extreme logits", test_extreme},
        {"confident", test_confident},
        {"impossible", test_impossible},
        {"ignored targets", test_ignored},
        {"not a number", test_nan},
        {"logits", test_logits},
        {"errors", test_errors},
    };
    return test_main(argc, argv, "classifier", cases, sizeof(cases) / sizeof(*cases));
}
