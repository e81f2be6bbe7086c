// Measures GFLOP/s of the products of linear layers and of the whole classifier, by shape. Prints
// one JSON object per line.
//
//   gemm [repetitions]     default 20; prints the best and the median
#include "gemm.h"
#include "classifier.h"
#include "error.h"
#include "measure.h"
#include "threads.h"

enum { REPETITIONS_MAX = 1000 };

typedef struct {
    size_t m, n, k;
} Shape;

// products: how many products of this shape one repetition computes.
static void report(const char *product, int products, Shape shape, Gemm *gemm, double peak,
                   double *seconds, int repetitions) {
    const double median = bench_median(seconds, (size_t)repetitions);
    const double flops = 2.0 * products * (double)shape.m * (double)shape.n * (double)shape.k;
    JsonWriter w = {0};
    json_begin(&w, '{');
    json_add_string(&w, "product", product);
    json_add_string(&w, "library", gemm_library(gemm));
    json_add_string(&w, "precision",
                    gemm_precision(gemm) == PRECISION_BFLOAT16 ? "bfloat16" : "float32");
    json_add_integer(&w, "m", shape.m);
    json_add_integer(&w, "n", shape.n);
    json_add_integer(&w, "k", shape.k);
    json_add_number(&w, "ms", 1e3 * median);
    if (products > 0) {
        json_add_number(&w, "gflops", 1e-9 * flops / median);
        json_add_number(&w, "best_gflops", 1e-9 * flops / seconds[0]);
        json_add_number(&w, "percent_of_peak", 100 * flops / median / peak);
    }
    bench_line(&w);
}

typedef struct {
    GemmWeight *weight;
    Matrix x, dy;
    real *y, *dx, *w, *dw;
} Layer;

static void layer_carve(Layer *l, const Gemm *gemm, Arena *arena, Shape shape) {
    const char *what = "a product";
    gemm_weight_carve(l->weight, arena);
    l->x = gemm_input_carve(gemm, arena, shape.m, shape.k, what);
    l->dy = gemm_input_carve(gemm, arena, shape.m, shape.n, what);
    l->y = arena_reals(arena, shape.m, shape.n, what);
    l->dx = arena_reals(arena, shape.m, shape.k, what);
    l->w = arena_reals(arena, shape.n, shape.k, what);
    l->dw = arena_reals(arena, shape.n, shape.k, what);
}

static void measure(Shape shape, Gemm *gemm, double peak, double *seconds, int repetitions) {
    Arena *arena = arena_create();
    Layer l = {.weight = gemm_weight_create(gemm, shape.n, shape.k, WEIGHT_OUT_IN, "a weight")};
    ARENA_CARVE(arena, layer_carve(&l, gemm, arena, shape));
    gemm_weight_pack(l.weight, l.w);
    static const char *const products[] = {"forward", "backward_input", "backward_weight", "pack"};
    for (int product = 0; product < 4; product++) {
        for (int i = -2; i < repetitions; i++) { // the first ones warm up
            const double start = clock_seconds();
            if (product == 0) gemm_forward(gemm, l.y, l.x, l.weight, shape.m);
            if (product == 1) gemm_backward_input(gemm, l.dx, l.dy, l.weight, shape.m);
            if (product == 2) gemm_backward_weight(gemm, l.dw, l.dy, l.x, l.weight, shape.m);
            if (product == 3) gemm_weight_pack(l.weight, l.w);
            if (i >= 0) seconds[i] = clock_seconds() - start;
        }
        report(products[product], product < 3, shape, gemm, peak, seconds, repetitions);
    }
    gemm_weight_free(l.weight);
    arena_free(arena);
}

// Training: the classifier's three products and everything between them. Forward: one product.
static void measure_classifier(Shape shape, Gemm *gemm, double peak, double *seconds,
                               int repetitions) {
    const size_t m = shape.m, vocabulary = shape.n, channels = shape.k;
    Arena *arena = arena_create();
    Matrix h;
    real *weight = allocate(vocabulary * channels, sizeof(*weight), "a weight");
    real *dweight = allocate(vocabulary * channels, sizeof(*dweight), "a gradient");
    real *bias = allocate(vocabulary, sizeof(*bias), "a bias"),
         *dbias = allocate(vocabulary, sizeof(*dbias), "a bias");
    real *dh = allocate(m * channels, sizeof(*dh), "a gradient");
    int32_t *targets = allocate(m, sizeof(*targets), "targets");
    for (size_t i = 0; i < m; i++) targets[i] = (int32_t)(i * 7 % vocabulary);
    Classifier *classifier = classifier_create(gemm, vocabulary, channels, m, 1);
    ARENA_CARVE(arena, classifier_carve(classifier, arena);
                h = gemm_input_carve(gemm, arena, m, channels, "h"));
    static const char *const products[] = {"classifier_train", "classifier_forward",
                                           "classifier_pack"};
    for (int product = 0; product < 3; product++) {
        for (int i = -1; i < repetitions; i++) {
            const double start = clock_seconds();
            if (i < 0 || product == 2) classifier_pack(classifier, weight);
            if (product == 0)
                classifier_train(classifier, h, bias, targets, m, 1, dh, dweight, dbias);
            if (product == 1) classifier_forward(classifier, h, bias, targets, m, NULL);
            if (i >= 0) seconds[i] = clock_seconds() - start;
        }
        static const int counts[] = {3, 1, 0};
        report(products[product], counts[product], shape, gemm, peak, seconds, repetitions);
    }
    classifier_free(classifier);
    arena_free(arena);
    free(weight);
    free(dweight);
    free(bias);
    free(dbias);
    free(dh);
    free(targets);
}

int main(int argc, char **argv) {
    threads_wait_briefly(argv);
    const int repetitions = argc > 1 ? atoi(argv[1]) : 20;
    if (argc > 2 || repetitions < 1 || repetitions > REPETITIONS_MAX)
        fail_usage("usage: %s [repetitions from 1 to %d]", argv[0], REPETITIONS_MAX);
    double seconds[REPETITIONS_MAX];
    static const Shape shapes[] = {{4096, 384, 128},  {4096, 512, 128},   {4096, 128, 512},
                                   {1024, 8000, 128}, {2048, 2048, 2048}, {4096, 768, 768},
                                   {1000, 257, 129},  {1, 512, 128}};
    for (int p = PRECISION_FLOAT32; p <= PRECISION_BFLOAT16; p++) {
        if (!gemm_supports((Precision)p)) continue;
        Gemm *gemm = gemm_create((Precision)p);
        const double peak = gemm_measure_peak(gemm);
        for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++)
            measure(shapes[i], gemm, peak, seconds, repetitions);
        measure_classifier((Shape){4096, 32000, 128}, gemm, peak, seconds, repetitions);
        gemm_free(gemm);
    }
    return 0;
}
