// Compares the layers of dev/cuda with those of dev/cpu, on small random shapes, including odd
// ones.
#include "adamw.cuh"
#include "chosen_rows.cuh"
#include "classifier.cuh"
#include "cuda_test.cuh"
#include "embedding.cuh"
#include "muon.cuh"
#include "query_key.cuh"
#include "residual.cuh"
#include "weight_groups.cuh"
#include <algorithm>
extern "C" {
#include "arena.h"
#include "layernorm.h"
#include "safetensors.h"
}

// Names that both the CPU and the GPU code define.
namespace cpu {
extern "C" {
#include "adamw.h"
#include "classifier.h"
#include "embedding.h"
#include "residual.h"
}
} // namespace cpu

static constexpr double EXACT = 3e-6,
                        ROUNDED = 1e-2; // of float32, and of data stored or multiplied in bf16
static constexpr uint64_t SEED = 5, STEP = 11, FIRST_ROW = 3;

static double tolerance_of(bool in_bf16) {
    return in_bf16 ? ROUNDED : EXACT;
}

// A matrix for the CPU's layers.
static Matrix host_matrix(float *values, size_t columns) {
    return {values, columns, false};
}

static StepParameters *upload_step(const Device *d, float scale) {
    const Dropout dropout = dropout_create(0.5, SEED, STEP, 0);
    const StepParameters step = {{dropout.key[0], dropout.key[1]}, FIRST_ROW, scale, 0, 0};
    return (StepParameters *)upload(d, &step, sizeof(step));
}

// A dropout site, for both GPU and CPU.
struct TestPlace {
    DropoutSite gpu;
    Dropout cpu;
};

static TestPlace dropout_place(const StepParameters *step, double rate, uint32_t site) {
    return {dropout_site(step, rate, site), dropout_create(rate, SEED, STEP, site)};
}

static PartialSums partial_sums_here(DeviceArena *arena, unsigned sums, size_t width) {
    PartialSums s = {};
    DeviceArena counting = {};
    partial_sums_carve(&s, &counting, sums, width);
    *arena = counting;
    arena_allocate(arena, "this is a test");
    partial_sums_carve(&s, arena, sums, width);
    partial_sums_start(&s);
    return s;
}

// ---- matrix products --------------------------------------------------------

static Blas blas_here(const Device *d, DeviceArena *arena, bool tf32) {
    Blas blas;
    blas_create(&blas, d, tf32);
    DeviceArena counting = {};
    blas_workspace(&blas, &counting);
    *arena = counting;
    arena_allocate(arena, "this is a test");
    blas_workspace(&blas, arena);
    return blas;
}

struct LinearSetting {
    size_t m, n, k;
    WeightLayout layout;
    bool in_bf16, out_bf16, bias;
};

// A weight, its bias and their copies on the device.
struct TestWeight {
    float *values, *bias; // (N, K) or (K, N), (N) on the host
    DeviceWeight device;
};

static TestWeight weight_create(const Device *d, Random *r, LinearSetting is) {
    TestWeight w = {random_numbers(r, is.n * is.k, 0.3), random_numbers(r, is.n, 1), {}};
    if (is.in_bf16) round_numbers(w.values, is.n * is.k);
    if (is.out_bf16) round_numbers(w.bias, is.n);
    if (!is.bias) memset(w.bias, 0, is.n * sizeof(float));
    w.device = {upload_numbers(d, w.values, is.n * is.k),
                (const bf16 *)upload_matrix(d, w.values, is.n, is.k, true).data,
                is.bias ? upload_numbers(d, w.bias, is.n) : NULL,
                is.bias ? (const bf16 *)upload_matrix(d, w.bias, 1, is.n, true).data : NULL,
                is.n,
                is.k,
                is.layout};
    return w;
}

static void weight_free(TestWeight *w) {
    device_free((void *)w->device.values);
    device_free((void *)w->device.rounded);
    device_free((void *)w->device.bias);
    device_free((void *)w->device.bias_rounded);
    free(w->values);
    free(w->bias);
}

static void add_rows(float *x, const float *row, size_t m, size_t n) {
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < n; j++) x[i * n + j] += row[j];
}

static void check_linear(const Device *d, Blas *blas, LinearSetting is) {
    Random r = random_stream(SEED, RANDOM_TEST, (uint32_t)is.m, (uint32_t)is.n);
    TestWeight w = weight_create(d, &r, is);
    float *x = random_numbers(&r, is.m * is.k, 1), *dy = random_numbers(&r, is.m * is.n, 1);
    float *dw = random_numbers(&r, is.n * is.k, 1);
    if (is.in_bf16) {
        round_numbers(x, is.m * is.k);
        round_numbers(dy, is.m * is.n);
    }
    const Matrix gpu_x = upload_matrix(d, x, is.m, is.k, is.in_bf16),
                 gpu_dy = upload_matrix(d, dy, is.m, is.n, is.in_bf16);
    const Matrix gpu_y = upload_matrix(d, NULL, is.m, is.n, is.out_bf16),
                 gpu_dx = upload_matrix(d, NULL, is.m, is.k, is.out_bf16);
    float *gpu_dw = upload_numbers(d, dw, is.n * is.k);

    Gemm *gemm = gemm_create(PRECISION_FLOAT32);
    Arena *arena = arena_create();
    GemmWeight *packed = gemm_weight_create(gemm, is.n, is.k, is.layout, "test");
    ARENA_CARVE(arena, gemm_weight_carve(packed, arena));
    gemm_weight_pack(packed, w.values);
    float *y = zero_numbers(is.m * is.n), *dx = zero_numbers(is.m * is.k);
    gemm_forward(gemm, y, host_matrix(x, is.k), packed, is.m);
    add_rows(y, w.bias, is.m, is.n);
    gemm_backward_input(gemm, dx, host_matrix(dy, is.n), packed, is.m);
    gemm_backward_weight(gemm, dw, host_matrix(dy, is.n), host_matrix(x, is.k), packed, is.m);

    const double tolerance = tolerance_of(is.out_bf16 || blas->tf32);
    gemm_forward(blas, gpu_y, gpu_x, w.device, is.m);
    compare_device(d, "y", gpu_y, y, is.m, tolerance);
    gemm_backward_input(blas, gpu_dx, gpu_dy, w.device, is.m);
    compare_device(d, "dx", gpu_dx, dx, is.m, tolerance);
    gemm_backward_weight(blas, gpu_dw, gpu_dy, gpu_x, w.device, is.m);
    compare_device(d, "dw", float_matrix(gpu_dw, is.k), dw, is.n, tolerance_of(blas->tf32));

    gemm_weight_free(packed);
    arena_free(arena);
    gemm_free(gemm);
    void *const on_device[] = {gpu_x.data, gpu_dy.data, gpu_y.data, gpu_dx.data, gpu_dw};
    for (void *p : on_device) device_free(p);
    float *const on_host[] = {x, dy, dw, y, dx};
    for (float *p : on_host) free(p);
    weight_free(&w);
}

static void test_linear(void) {
    static const size_t shapes[][3] = {{1, 1, 1}, {37, 24, 10}, {130, 72, 40}, {5, 129, 33}};
    Device d = device_create();
    for (int tf32 = 0; tf32 < 2; tf32++) {
        DeviceArena arena;
        Blas blas = blas_here(&d, &arena, tf32);
        for (const size_t *s : shapes) {
            for (WeightLayout layout : {WEIGHT_OUT_IN, WEIGHT_IN_OUT}) {
                check_linear(&d, &blas, {s[0], s[1], s[2], layout, false, false, true});
                if (tf32) continue;
                check_linear(&d, &blas, {s[0], s[1], s[2], layout, true, false, false});
                check_linear(&d, &blas, {s[0], s[1], s[2], layout, true, true, true});
            }
        }
#ifdef CUDA_ON_CPU
        blas.plain_only = true;
        for (WeightLayout layout : {WEIGHT_OUT_IN, WEIGHT_IN_OUT})
            check_linear(&d, &blas, {37, 24, 10, layout, !tf32, !tf32, true});
#endif
        blas_destroy(&blas);
        arena_free(&arena);
    }
    device_destroy(&d);
}

static constexpr size_t LAYERS = 3;

// Operands of weight gradient products of LAYERS layers, `step` elements apart, with two products
// per layer. In the second product, all layers share one x (`shared`).
struct LayerOperands {
    Matrix x, dy;
    float *dw;
    size_t step;
};

static WeightProduct layer_product(const LayerOperands *o, DeviceWeight w, size_t m, size_t l,
                                   bool shared) {
    Matrix x = o->x, dy = o->dy;
    x.data = (char *)x.data + (shared ? 0 : l) * o->step * (x.bf16 ? sizeof(bf16) : sizeof(float));
    dy.data = (char *)dy.data + l * o->step * (dy.bf16 ? sizeof(bf16) : sizeof(float));
    return {o->dw + (shared ? LAYERS + l : l) * o->step, dy, x, w, m};
}

static void check_weight_groups(const Device *d, Blas *blas, LinearSetting is) {
    const size_t numbers[] = {is.m * is.n, is.m * is.k, is.n * is.k};
    const size_t step = (*std::max_element(numbers, numbers + 3) + 15) / 16 * 16,
                 count = 2 * LAYERS * step;
    Random r = random_stream(SEED, RANDOM_TEST, (uint32_t)is.m, (uint32_t)is.n);
    float *x = random_numbers(&r, count, 1), *dw = random_numbers(&r, count, 1);
    LayerOperands o = {upload_matrix(d, x, LAYERS * step, 1, is.in_bf16),
                       upload_matrix(d, x + LAYERS * step, LAYERS * step, 1, is.in_bf16),
                       upload_numbers(d, dw, count), step};
    o.x.columns = is.k;
    o.dy.columns = is.n;
    DeviceWeight w = {};
    w.n = is.n;
    w.k = is.k;
    w.layout = is.layout;
    WeightGroup groups[2] = {};
    for (size_t l = LAYERS; l-- > 0;)
        for (bool shared : {false, true})
            CHECK(weight_group_add(&groups[shared], "", layer_product(&o, w, is.m, l, shared)));
    for (WeightGroup &group : groups) weight_group_run(blas, &group);
    float *found = download(d, o.dw, count);
    device_free(o.dw);
    o.dw = upload_numbers(d, dw, count);
    for (size_t l = 0; l < LAYERS; l++)
        for (bool shared : {false, true}) {
            const WeightProduct p = layer_product(&o, w, is.m, l, shared);
            gemm_backward_weight(blas, p.dw, p.dy, p.x, p.w, p.m);
        }
    float *expected = download(d, o.dw, count);
    compare("gradients of weights", found, expected, count, tolerance_of(false));
    void *const on_device[] = {o.x.data, o.dy.data, o.dw};
    for (void *p : on_device) device_free(p);
    float *const on_host[] = {x, dw, found, expected};
    for (float *p : on_host) free(p);
}

// Groups reject a layer above, one of another shape, and one at another distance.
static void check_crooked_weights() {
    float numbers[6] = {};
    WeightGroup group = {};
    DeviceWeight w = {}, wide = {};
    const Matrix same = float_matrix(numbers, 1);
    w.n = w.k = wide.n = 1;
    wide.k = 2;
    CHECK(weight_group_add(&group, "", {numbers + 4, same, same, w, 1}));
    CHECK(!weight_group_add(&group, "", {numbers + 5, same, same, w, 1}));
    CHECK(!weight_group_add(&group, "", {numbers + 3, same, same, wide, 1}));
    CHECK(weight_group_add(&group, "", {numbers + 3, same, same, w, 1}));
    CHECK(!weight_group_add(&group, "", {numbers + 1, same, same, w, 1}));
}

static void test_weight_groups(void) {
    Device d = device_create();
    DeviceArena arena;
    Blas blas = blas_here(&d, &arena, false);
    for (bool in_bf16 : {false, true})
        for (WeightLayout layout : {WEIGHT_OUT_IN, WEIGHT_IN_OUT}) {
            check_weight_groups(&d, &blas, {37, 24, 10, layout, in_bf16, false, false});
            check_weight_groups(&d, &blas, {5, 129, 33, layout, in_bf16, false, false});
        }
    check_crooked_weights();
    blas_destroy(&blas);
    arena_free(&arena);
    device_destroy(&d);
}

// Compares products fused with GELU with those without.
static void check_linear_gelu(const Device *d, Blas *blas, LinearSetting is) {
    Random r = random_stream(SEED, RANDOM_TEST, (uint32_t)is.m, 1);
    TestWeight w = weight_create(d, &r, is);
    float *x = random_numbers(&r, is.m * is.k, 1), *dy = random_numbers(&r, is.m * is.n, 1);
    float *inner = random_numbers(&r, is.m * is.k, 1), *nothing = zero_numbers(is.k),
          *sums = zero_numbers(is.k);
    const Matrix gpu_x = upload_matrix(d, x, is.m, is.k, is.in_bf16),
                 gpu_dy = upload_matrix(d, dy, is.m, is.n, is.in_bf16);
    const Matrix plain = upload_matrix(d, NULL, is.m, is.n, is.in_bf16),
                 before = upload_matrix(d, NULL, is.m, is.n, is.in_bf16),
                 y = upload_matrix(d, NULL, is.m, is.n, is.in_bf16),
                 gpu_inner = upload_matrix(d, inner, is.m, is.k, is.in_bf16),
                 dx = upload_matrix(d, NULL, is.m, is.k, is.in_bf16);
    const double tolerance = tolerance_of(is.in_bf16);

    gemm_forward(blas, plain, gpu_x, w.device, is.m);
    gemm_forward_gelu(blas, y, before, gpu_x, w.device, is.m);
    float *expected = download_matrix(d, plain, is.m);
    compare_device(d, "before the GELU", before, expected, is.m, tolerance);
    activation_row(expected, GELU_TANH, is.m * is.n);
    compare_device(d, "GELU", y, expected, is.m, tolerance);
    free(expected);

    gemm_backward_input(blas, dx, gpu_dy, w.device, is.m);
    float *gradient = download_matrix(d, dx, is.m), *through = zero_numbers(is.m * is.k);
    if (is.in_bf16) round_numbers(inner, is.m * is.k);
    activation_backward(host_matrix(through, is.k), sums, gradient, inner, nothing, GELU_TANH, is.m,
                        is.k);
    gemm_backward_input_gelu(blas, dx, gpu_dy, w.device, gpu_inner, is.m);
    compare_device(d, "gradient through the GELU", dx, through, is.m, tolerance);

    void *const on_device[] = {gpu_x.data, gpu_dy.data,    plain.data, before.data,
                               y.data,     gpu_inner.data, dx.data};
    for (void *p : on_device) device_free(p);
    float *const on_host[] = {x, dy, inner, nothing, sums, gradient, through};
    for (float *p : on_host) free(p);
    weight_free(&w);
}

static void test_linear_gelu(void) {
    Device d = device_create();
    DeviceArena arena;
    Blas blas = blas_here(&d, &arena, false);
    for (bool in_bf16 : {false, true}) {
        check_linear_gelu(&d, &blas, {37, 24, 16, WEIGHT_IN_OUT, in_bf16, in_bf16, true});
        check_linear_gelu(&d, &blas, {64, 10, 33, WEIGHT_IN_OUT, in_bf16, in_bf16, true});
    }
#ifdef CUDA_ON_CPU
    blas.plain_only = true;
    check_linear_gelu(&d, &blas, {37, 24, 16, WEIGHT_IN_OUT, true, true, true});
#endif
    blas_destroy(&blas);
    arena_free(&arena);
    device_destroy(&d);
}

// ---- activations and sums over rows -----------------------------------------

static void check_activation(const Device *d, ActivationKind kind, bool in_bf16, size_t m,
                             size_t n) {
    Random r = random_stream(SEED, RANDOM_TEST, (uint32_t)m, (uint32_t)n);
    const size_t inputs = activation_inputs(kind) * n;
    float *x = random_numbers(&r, m * inputs, 3), *dy = random_numbers(&r, m * n, 1);
    x[0] = 60; // far out, where the cube is infinite in some formulas
    if (m * n > 1) x[1] = -60;
    if (in_bf16) {
        round_numbers(x, m * inputs);
        round_numbers(dy, m * n);
    }
    float *y = zero_numbers(m * n), *dx = zero_numbers(m * inputs), *bias = zero_numbers(inputs),
          *dbias = zero_numbers(inputs);
    activation_forward(host_matrix(y, n), x, NULL, kind, m, n);
    activation_backward(host_matrix(dx, inputs), dbias, dy, x, bias, kind, m, n);
    const Matrix gpu_x = upload_matrix(d, x, m, inputs, in_bf16),
                 gpu_dy = upload_matrix(d, dy, m, n, in_bf16),
                 gpu_y = upload_matrix(d, NULL, m, n, in_bf16),
                 gpu_dx = upload_matrix(d, NULL, m, inputs, in_bf16),
                 gpu_kept = upload_matrix(d, NULL, m, inputs, true);
    activation_forward(d, gpu_y, gpu_kept, gpu_x, kind, m, n);
    compare_device(d, "what it was taken of", gpu_kept, x, m, ROUNDED);
    compare_device(d, "activation", gpu_y, y, m, tolerance_of(in_bf16));
    activation_backward(d, gpu_dx, gpu_dy, gpu_x, kind, m, n);
    compare_device(d, "activation's gradient", gpu_dx, dx, m, tolerance_of(in_bf16));

    DeviceArena arena;
    PartialSums sums = partial_sums_here(&arena, 1, n);
    float *gpu_sums = upload_numbers(d, bias, n), *expected = zero_numbers(n);
    column_sums(d, &sums, gpu_sums, gpu_dy, m, n);
    partial_sums_finish(d, &sums);
    for (size_t i = 0; i < m * n; i++) expected[i % n] += dy[i];
    compare_device(d, "sums of columns", float_matrix(gpu_sums, n), expected, 1, 1e-5);
    partial_sums_free(&sums);
    arena_free(&arena);
    void *const on_device[] = {gpu_x.data,  gpu_dy.data,   gpu_y.data,
                               gpu_dx.data, gpu_kept.data, gpu_sums};
    for (void *p : on_device) device_free(p);
    float *const on_host[] = {x, dy, y, dx, bias, dbias, expected};
    for (float *p : on_host) free(p);
}

static void test_activation(void) {
    Device d = device_create();
    for (ActivationKind kind : {GELU_ERF, GELU_TANH, RELU, SILU, RELU2, SWIGLU}) {
        for (bool in_bf16 : {false, true}) {
            check_activation(&d, kind, in_bf16, 1, 1);
            check_activation(&d, kind, in_bf16, 67, 33);
            check_activation(&d, kind, in_bf16, 200, 64);
        }
    }
    device_destroy(&d);
}

// Compares queries, keys and values as prepared for attention, and their gradients, with the CPU's.
static void check_query_key(const Device *d, QueryKeyShape shape, bool rotates, bool in_bf16) {
    enum { LENGTH = 9, BATCH = 3 };
    const size_t m = LENGTH * BATCH, D = shape.size, C = 3 * shape.heads * D,
                 columns = (shape.heads + 2 * shape.groups) * D;
    Random r = random_stream(SEED, RANDOM_TEST, (uint32_t)D, (uint32_t)shape.scores);
    float *x = random_numbers(&r, m * columns, 1), *dy = random_numbers(&r, m * C, 1),
          *gains = random_numbers(&r, 2 * D, 1), *angles = zero_numbers(LENGTH * D);
    if (in_bf16) {
        round_numbers(x, m * columns);
        round_numbers(dy, m * C);
    }
    const bool gained = shape.scores == SCORES_QKNORM;
    float *y = zero_numbers(m * C), *dx = zero_numbers(m * columns), *dgains = zero_numbers(2 * D);
    rotary_angles(angles, Rotary{10000, 0.5}, LENGTH, D);
    shape.angles = rotates ? angles : NULL;
    query_key_forward(y, x, NULL, gained ? gains : NULL, &shape, LENGTH, m);
    query_key_backward(host_matrix(dx, columns), NULL, gained ? dgains : NULL, dy, x, NULL,
                       gained ? gains : NULL, &shape, LENGTH, m);

    float *gpu_gains = upload_numbers(d, gains, 2 * D), *zero = zero_numbers(2 * D),
          *gpu_dgains = upload_numbers(d, zero, 2 * D),
          *gpu_angles = upload_numbers(d, angles, LENGTH * D);
    const Matrix gpu_x = upload_matrix(d, x, m, columns, in_bf16),
                 gpu_dy = upload_matrix(d, dy, m, C, in_bf16),
                 gpu_y = upload_matrix(d, NULL, m, C, in_bf16),
                 gpu_dx = upload_matrix(d, NULL, m, columns, in_bf16);
    DeviceArena arena;
    PartialSums sums = partial_sums_here(&arena, 1, 2 * D);
    const float *used = gained ? gpu_gains : NULL;
    if (rotates) shape.angles = gpu_angles;
    query_key_forward(d, gpu_y, gpu_x, used, &shape, LENGTH, NULL, m);
    query_key_backward(d, &sums, gpu_dx, gpu_dgains, gpu_dy, gpu_x, used, &shape, LENGTH, m);
    partial_sums_finish(d, &sums);
    compare_device(d, "queries, keys, values", gpu_y, y, m, tolerance_of(in_bf16));
    compare_device(d, "their gradients", gpu_dx, dx, m, tolerance_of(in_bf16));
    compare_device(d, "gradients of gains", float_matrix(gpu_dgains, D), dgains, 2, 1e-5);
    partial_sums_free(&sums);
    arena_free(&arena);
    void *const on_device[] = {gpu_gains,   gpu_dgains, gpu_angles, gpu_x.data,
                               gpu_dy.data, gpu_y.data, gpu_dx.data};
    for (void *p : on_device) device_free(p);
    float *const on_host[] = {x, dy, gains, angles, y, dx, dgains, zero};
    for (float *p : on_host) free(p);
}

static void test_query_key() {
    Device d = device_create();
    for (ScoresKind scores : {SCORES_PLAIN, SCORES_RESCALED, SCORES_QKNORM})
        for (size_t size : {6, 7, 32, 80, 256})
            for (size_t groups : {1, 2, 4})
                for (bool in_bf16 : {false, true}) {
                    QueryKeyShape shape = {};
                    shape.heads = 4;
                    shape.groups = groups;
                    shape.size = size;
                    shape.scores = scores;
                    shape.rescale = 10;
                    shape.epsilon = NORM_EPSILON;
                    check_query_key(&d, shape, size % 2 == 0 && groups > 1, in_bf16);
                }
    device_destroy(&d);
}

// Compares the slope of the tanh form with its definition in double, also where s or 1 - s is
// small.
static void test_gelu_slope() {
    enum { COUNT = 241 };
    Device d = device_create();
    float x[COUNT], ones[COUNT];
    for (int i = 0; i < COUNT; i++) {
        x[i] = (float)(i - COUNT / 2) / 16;
        ones[i] = 1;
    }
    const Matrix gpu_x = upload_matrix(&d, x, 1, COUNT, false),
                 dy = upload_matrix(&d, ones, 1, COUNT, false);
    activation_backward(&d, dy, dy, gpu_x, GELU_TANH, 1, COUNT);
    float *slope = download_matrix(&d, dy, 1);
    for (int i = 0; i < COUNT; i++) {
        const double a = (double)x[i], slope_of = sqrt(8 / M_PI),
                     tail = 1 / (1 + exp(slope_of * (a + 0.044715 * a * a * a)));
        CHECK_CLOSE(slope[i],
                    1 - tail + a * tail * (1 - tail) * slope_of * (1 + 3 * 0.044715 * a * a), 4e-7);
    }
    free(slope);
    device_free(gpu_x.data);
    device_free(dy.data);
    device_destroy(&d);
}

// ---- the residual stream ----------------------------------------------------
// A LayerNorm, its inputs, and the gradient of its output.
struct NormTest {
    size_t batch, length, channels;
    float *x, *gain, *bias, *dy;                 // on the host
    float *gpu_x, *gpu_gain, *gpu_bias, *gpu_dy; // and on the device
    float *norm, *mean, *rstd;                   // expected
    Matrix gpu_norm;
    float *gpu_mean, *gpu_rstd;
    double epsilon;
    bool rms; // RMSNorm: without a bias, and with a mean of 0
};

static NormTest norm_test_create(const Device *d, size_t batch, size_t length, size_t channels,
                                 bool in_bf16, bool rms) {
    Random r = random_stream(SEED, RANDOM_TEST, (uint32_t)length, (uint32_t)channels);
    const size_t m = batch * length, count = m * channels;
    NormTest t = {batch,
                  length,
                  channels,
                  random_numbers(&r, count, 2),
                  random_numbers(&r, channels, 1),
                  random_numbers(&r, channels, 1),
                  random_numbers(&r, count, 1),
                  NULL,
                  NULL,
                  NULL,
                  NULL,
                  zero_numbers(count),
                  zero_numbers(m),
                  zero_numbers(m),
                  {},
                  NULL,
                  NULL,
                  channels % 3 ? NORM_EPSILON : 1e-12,
                  rms};
    t.gpu_x = upload_numbers(d, t.x, count);
    t.gpu_gain = upload_numbers(d, t.gain, channels);
    t.gpu_bias = rms ? NULL : upload_numbers(d, t.bias, channels);
    t.gpu_dy = upload_numbers(d, t.dy, count);
    t.gpu_norm = upload_matrix(d, NULL, m, channels, in_bf16);
    t.gpu_mean = upload_numbers(d, NULL, m);
    t.gpu_rstd = upload_numbers(d, NULL, m);
    return t;
}

// Destinations of the forward pass, except `stream`.
static LayerNormOutput norm_test_output(const NormTest *t) {
    return {t->gpu_norm, NULL, t->gpu_mean, t->gpu_rstd};
}

static LayerNormWeights norm_test_weights(const NormTest *t) {
    return {t->gpu_gain, t->gpu_bias, t->epsilon};
}

static void norm_test_free(NormTest *t) {
    float *const on_host[] = {t->x, t->gain, t->bias, t->dy, t->norm, t->mean, t->rstd};
    for (float *p : on_host) free(p);
    void *const on_device[] = {t->gpu_x,         t->gpu_gain, t->gpu_bias, t->gpu_dy,
                               t->gpu_norm.data, t->gpu_mean, t->gpu_rstd};
    for (void *p : on_device) device_free(p);
}

// Computes the norm of x (M, C): the CPU's LayerNorm, or RMSNorm by its definition.
static void expect_norm(NormTest *t, const float *x) {
    const size_t m = t->batch * t->length, C = t->channels;
    if (!t->rms) {
        layernorm_forward(host_matrix(t->norm, C), t->mean, t->rstd, x, t->gain, t->bias,
                          t->epsilon, m, C);
        return;
    }
    for (size_t row = 0; row < m; row++) {
        double squares = 0;
        for (size_t c = 0; c < C; c++) squares += pow((double)x[row * C + c], 2);
        t->mean[row] = 0;
        t->rstd[row] = (float)(1 / sqrt(squares / (double)C + t->epsilon));
        for (size_t c = 0; c < C; c++)
            t->norm[row * C + c] = t->gain[c] * x[row * C + c] * t->rstd[row];
    }
}

// dx (M, C), dgain and dbias (C) += the gradients from t->dy.
static void expect_norm_gradients(const NormTest *t, float *dx, float *dgain, float *dbias,
                                  const float *x) {
    const size_t m = t->batch * t->length, C = t->channels;
    if (!t->rms) {
        layernorm_backward(dx, dgain, dbias, t->dy, x, t->gain, t->mean, t->rstd, m, C);
        return;
    }
    for (size_t row = 0; row < m; row++) {
        const size_t at = row * C;
        const double rstd = (double)t->rstd[row];
        double along = 0;
        for (size_t c = 0; c < C; c++)
            along += (double)(t->dy[at + c] * t->gain[c] * x[at + c]) * rstd / (double)C;
        for (size_t c = 0; c < C; c++) {
            const double normal = (double)x[at + c] * rstd;
            dx[at + c] += (float)(rstd * ((double)(t->dy[at + c] * t->gain[c]) - along * normal));
            dgain[c] += (float)((double)t->dy[at + c] * normal);
        }
    }
}

// Compares the forward pass's output with the norm of x (M, C), and gpu_x with x.
static void check_norm_forward(const Device *d, NormTest *t, float *x, const float *gpu_x) {
    const size_t m = t->batch * t->length;
    expect_norm(t, x);
    compare_device(d, "x", float_matrix((float *)gpu_x, t->channels), x, m, EXACT);
    compare_device(d, "norm", t->gpu_norm, t->norm, m, tolerance_of(t->gpu_norm.bf16));
    compare_device(d, "mean", float_matrix(t->gpu_mean, 1), t->mean, m, EXACT);
    compare_device(d, "rstd", float_matrix(t->gpu_rstd, 1), t->rstd, m, EXACT);
}

// Checks the backward pass of x -> norm, with its output to the sublayer below. ADD: adds to dx;
// SET: sets dx; OVER: overwrites dy.
enum NormGradient { ADD, SET, OVER };

static void check_norm_backward(const Device *d, NormTest *t, const float *x, const float *gpu_x,
                                TestPlace place, NormGradient how) {
    const size_t m = t->batch * t->length, C = t->channels, count = m * C;
    Random r = random_stream(SEED, RANDOM_TEST, 9, how != ADD);
    float *dx = random_numbers(&r, count, 1), *dgain = random_numbers(&r, C, 1),
          *dbias = random_numbers(&r, C, 1);
    float *gpu_dx = upload_numbers(d, how == OVER ? t->dy : dx, count),
          *gpu_dgain = upload_numbers(d, dgain, C), *gpu_dbias = upload_numbers(d, dbias, C),
          *below = zero_numbers(count);
    LayerNormTail tail = {upload_matrix(d, NULL, m, C, t->gpu_norm.bf16),
                          upload_matrix(d, NULL, m, C, t->gpu_norm.bf16), place.gpu, t->length};
    DeviceArena arena;
    PartialSums sums = partial_sums_here(&arena, 2, 2 * C);
    const LayerNormInput in = {
        gpu_x, {t->gpu_gain, t->gpu_bias, t->epsilon}, t->gpu_mean, t->gpu_rstd};
    layernorm_backward(d, &sums, {gpu_dx, gpu_dgain, gpu_dbias, how != ADD},
                       how == OVER ? gpu_dx : t->gpu_dy, in, tail, m, C);
    partial_sums_finish(d, &sums);

    if (how != ADD) memset(dx, 0, count * sizeof(float));
    expect_norm_gradients(t, dx, dgain, dbias, x);
    cpu::residual_backward(host_matrix(below, C), NULL, dx, &place.cpu, FIRST_ROW * t->length, m,
                           C);
    compare_device(d, "dx", float_matrix(gpu_dx, C), dx, m, EXACT);
    compare_device(d, "dgain", float_matrix(gpu_dgain, C), dgain, 1, EXACT);
    compare_device(d, "dbias", float_matrix(gpu_dbias, C), dbias, 1, EXACT);
    compare_device(d, "norm again", tail.norm, t->norm, m, tolerance_of(tail.norm.bf16));
    compare_device(d, "gradient below", tail.dbelow, below, m, tolerance_of(tail.dbelow.bf16));
    partial_sums_free(&sums);
    arena_free(&arena);
    void *const on_device[] = {gpu_dx, gpu_dgain, gpu_dbias, tail.norm.data, tail.dbelow.data};
    for (void *p : on_device) device_free(p);
    float *const on_host[] = {dx, dgain, dbias, below};
    for (float *p : on_host) free(p);
}

static void check_residual(const Device *d, size_t length, size_t channels, double rate,
                           bool in_bf16, bool rms) {
    NormTest t = norm_test_create(d, 2, length, channels, in_bf16, rms);
    const size_t m = t.batch * length, count = m * channels;
    StepParameters *step = upload_step(d, 1);
    const TestPlace place = dropout_place(step, rate, 7);
    float *out = zero_numbers(count), *gpu_out = upload_numbers(d, NULL, count);
    layernorm_forward(d, norm_test_output(&t), t.gpu_x, norm_test_weights(&t), m, channels);
    check_norm_forward(d, &t, t.x, t.gpu_x);

    cpu::residual_forward(out, t.x, t.dy, NULL, &place.cpu, FIRST_ROW * length, m, channels);
    ResidualNorm residual = {
        gpu_out, norm_test_output(&t), t.gpu_x, norm_test_weights(&t), place.gpu, length};
    residual_layernorm_forward(d, residual, t.gpu_dy, m, channels);
    check_norm_forward(d, &t, out, gpu_out);
    for (NormGradient how : {ADD, SET, OVER}) check_norm_backward(d, &t, out, gpu_out, place, how);
    // Post-norm: the output overwrites x.
    residual.to.stream = t.gpu_x;
    residual_layernorm_forward(d, residual, t.gpu_dy, m, channels);
    check_norm_forward(d, &t, out, gpu_out);
    compare_device(d, "stream", float_matrix(t.gpu_x, channels), t.norm, m, EXACT);
    // Without normalisation.
    layernorm_forward(d, residual.to, gpu_out, {NULL, NULL, 0}, m, channels);
    compare_device(d, "x as it is", t.gpu_norm, out, m, tolerance_of(in_bf16));
    compare_device(d, "stream as it is", float_matrix(t.gpu_x, channels), out, m, EXACT);
    free(out);
    device_free(gpu_out);
    device_free(step);
    norm_test_free(&t);
}

static void test_residual(void) {
    Device d = device_create();
    // Row lengths: multiples of four or not, whole blocks of dropout or not, up to more than
    // registers hold.
    for (size_t channels : {3, 10, 24, 128, 130, 256, 384, 640, 768, 1000, 1028})
        for (bool rms : {false, true})
            check_residual(&d, channels > 300 ? 5 : 19, channels, 0.3, false, rms);
    check_residual(&d, 130, 128, 0.1, true, false);
    check_residual(&d, 9, 30, 0, true, true);
    device_destroy(&d);
}

// Compares products of a LayerNorm's output with several weight matrices, both in parts, with the
// products of the unsplit float32 numbers.
static void check_parts(const Device *d, Blas *blas, size_t channels, size_t n,
                        WeightLayout layout) {
    enum { MATRICES = 3 };
    NormTest t = norm_test_create(d, 2, 9, channels, false, false);
    const size_t m = t.batch * t.length, columns = PARTS_COLUMNS * channels,
                 step = n * channels + 5;
    Random r = random_stream(SEED, RANDOM_TEST, (uint32_t)channels, (uint32_t)n);
    float *weights = random_numbers(&r, MATRICES * step, 0.3), *y = zero_numbers(m * n);
    float *gpu_weights = upload_numbers(d, weights, MATRICES * step);
    const Matrix gpu_y = upload_matrix(d, NULL, m, n, false),
                 x = upload_matrix(d, NULL, m, columns, true);
    bf16 *parts = (bf16 *)upload(d, NULL, MATRICES * n * columns * sizeof(bf16));
    LayerNormOutput to = norm_test_output(&t);
    to.norm = x;
    layernorm_forward(d, to, t.gpu_x, norm_test_weights(&t), m, channels);
    expect_norm(&t, t.x);
    LinearShape shape = {};
    shape.outputs = n;
    shape.inputs = channels;
    shape.layout = layout;
    weight_parts(d, parts, gpu_weights, step, MATRICES, &shape);
    for (size_t i = 0; i < MATRICES; i++) {
        const DeviceWeight w = {NULL, parts + i * n * columns, NULL, NULL, n, columns, layout};
        const size_t of_row = layout == WEIGHT_OUT_IN ? channels : 1,
                     of_column = layout == WEIGHT_OUT_IN ? 1 : n;
        gemm_forward(blas, gpu_y, x, w, m);
        for (size_t j = 0; j < m * n; j++) {
            double sum = 0;
            for (size_t c = 0; c < channels; c++)
                sum += (double)t.norm[j / n * channels + c] *
                       (double)weights[i * step + j % n * of_row + c * of_column];
            y[j] = (float)sum;
        }
        compare_device(d, "product in parts", gpu_y, y, m, 3e-5);
    }
    void *const on_device[] = {gpu_weights, gpu_y.data, x.data, parts};
    for (void *p : on_device) device_free(p);
    free(weights);
    free(y);
    norm_test_free(&t);
}

static void test_parts(void) {
    Device d = device_create();
    DeviceArena arena;
    Blas blas = blas_here(&d, &arena, false);
    for (WeightLayout layout : {WEIGHT_OUT_IN, WEIGHT_IN_OUT}) {
        check_parts(&d, &blas, 8, 24, layout);
        check_parts(&d, &blas, 40, 120, layout);
        check_parts(&d, &blas, 128, 384, layout);
    }
    blas_destroy(&blas);
    arena_free(&arena);
    device_destroy(&d);
}

// Dropout alone, which embedding_layernorm_forward() and others apply as a part of their work.
static void check_dropout(const Device *d, size_t length, size_t channels, bool in_bf16) {
    Random r = random_stream(SEED, RANDOM_TEST, (uint32_t)length, 5);
    const size_t count = 2 * length * channels;
    StepParameters *step = upload_step(d, 1);
    const TestPlace place = dropout_place(step, 0.3, 4);
    float *x = random_numbers(&r, count, 1), *factors = zero_numbers(count);
    if (in_bf16) round_numbers(x, count);
    const Matrix gpu_x = upload_matrix(d, x, 2 * length, channels, in_bf16);
    dropout_apply(d, gpu_x, dropout_none(), 2, length);
    compare_device(d, "no dropout", gpu_x, x, 2 * length, 0);
    dropout_apply(d, gpu_x, place.gpu, 2, length);
    dropout_factors(&place.cpu, FIRST_ROW * length * channels, count, factors);
    for (size_t i = 0; i < count; i++) x[i] *= factors[i];
    compare_device(d, "dropout", gpu_x, x, 2 * length, tolerance_of(in_bf16));
    device_free(gpu_x.data);
    device_free(step);
    free(x);
    free(factors);
}

static void test_dropout(void) {
    Device d = device_create();
    check_dropout(&d, 1, 1, false);
    check_dropout(&d, 67, 24, false);
    check_dropout(&d, 5, 128, true);
    device_destroy(&d);
}

// ---- chosen rows ------------------------------------------------------------

static void test_chosen_rows(void) {
    enum { M = 9, K = 5, C = 33 };
    static const int32_t rows[K] = {0, 3, -1, 8, 4};
    Device d = device_create();
    Random r = random_stream(SEED, RANDOM_TEST, 8, 8);
    float *x = random_numbers(&r, M * C, 1), *chosen = zero_numbers(K * C),
          *back = zero_numbers(M * C);
    round_numbers(x, M * C);
    for (int i = 0; i < K; i++) {
        if (rows[i] < 0) continue;
        memcpy(chosen + i * C, x + rows[i] * C, C * sizeof(float));
        memcpy(back + rows[i] * C, x + rows[i] * C, C * sizeof(float));
    }
    int32_t *gpu_rows = (int32_t *)upload(&d, rows, sizeof(rows));
    for (bool in_bf16 : {false, true}) {
        const Matrix from = upload_matrix(&d, x, M, C, in_bf16),
                     to = upload_matrix(&d, NULL, K, C, in_bf16);
        rows_gather(&d, to, from, gpu_rows, K);
        compare_device(&d, "rows", to, chosen, K, 0);
        device_free(from.data);
        device_free(to.data);
    }
    float *from = upload_numbers(&d, chosen, K * C), *to = upload_numbers(&d, NULL, M * C);
    rows_scatter(&d, to, from, gpu_rows, K, M, C);
    compare_device(&d, "rows in their places", float_matrix(to, C), back, M, 0);
    device_free(from);
    device_free(to);
    device_free(gpu_rows);
    free(x);
    free(chosen);
    free(back);
    device_destroy(&d);
}

// ---- the embedding ----------------------------------------------------------

static void check_embedding(const Device *d, size_t batch, size_t length, size_t channels,
                            size_t vocabulary, double rate, bool typed, float scale) {
    NormTest t = norm_test_create(d, batch, length, channels, false, false);
    Random r = random_stream(SEED, RANDOM_TEST, (uint32_t)vocabulary, 3);
    const size_t m = batch * length;
    StepParameters *step = upload_step(d, 1);
    const TestPlace place = dropout_place(step, rate, 0);
    float *token = random_numbers(&r, vocabulary * channels, 1),
          *position = random_numbers(&r, length * channels, 1),
          *type = random_numbers(&r, channels, 1);
    int32_t *inputs = (int32_t *)allocate(m, sizeof(int32_t), "inputs"); // some tokens are frequent
    for (size_t i = 0; i < m; i++)
        inputs[i] = (int32_t)random_below(&r, i % 3 ? vocabulary : 2 % vocabulary + 1);
    float *gpu_token = upload_numbers(d, token, vocabulary * channels),
          *gpu_position = upload_numbers(d, position, length * channels),
          *gpu_type = typed ? upload_numbers(d, type, channels) : NULL;
    int32_t *gpu_inputs = (int32_t *)upload(d, inputs, m * sizeof(int32_t));
    Batch cpu_batch = {};
    cpu_batch.batch = (int64_t)batch;
    cpu_batch.length = (int64_t)length;
    cpu_batch.inputs = inputs;
    cpu_batch.first_row = (int64_t)FIRST_ROW;

    float *places = random_numbers(&r, length * channels, 1); // position and type
    for (size_t i = 0; i < length * channels; i++)
        places[i] = typed ? position[i] + type[i % channels] : position[i];
    cpu::embedding_forward(t.x, token, scale, places, &cpu_batch, &place.cpu, channels);
    embedding_layernorm_forward(
        d, t.gpu_x, norm_test_output(&t),
        {gpu_token, gpu_position, gpu_type, gpu_inputs, (unsigned)length, scale, NULL},
        norm_test_weights(&t), place.gpu, batch, channels);
    check_norm_forward(d, &t, t.x, t.gpu_x);

    DeviceArena counting = {}, arena;
    EmbeddingOrder order = {};
    embedding_order_carve(&order, &counting, m, vocabulary, channels);
    arena = counting;
    arena_allocate(&arena, "this is a test");
    embedding_order_carve(&order, &arena, m, vocabulary, channels);
    position_backward(d, gpu_position, t.gpu_dy, place.gpu, batch, length, channels);
    token_backward(d, &order, gpu_token, t.gpu_dy, inputs, (double)scale, 0, m, channels);
    cpu::embedding_backward(token, scale, position, t.dy, &cpu_batch, &place.cpu, 0, channels);
    compare_device(d, "dtoken", float_matrix(gpu_token, channels), token, vocabulary, EXACT);
    compare_device(d, "dposition", float_matrix(gpu_position, channels), position, length, EXACT);
    embedding_order_free(&order);
    arena_free(&arena);
    void *const on_device[] = {gpu_token, gpu_position, gpu_type, gpu_inputs, step};
    for (void *p : on_device) device_free(p);
    float *const on_host[] = {token, position, type, places};
    for (float *p : on_host) free(p);
    free(inputs);
    norm_test_free(&t);
}

static void test_embedding(void) {
    Device d = device_create();
    check_embedding(&d, 1, 1, 8, 1, 0, false, 1);
    check_embedding(&d, 3, 67, 24, 29, 0.2, true, 1);
    check_embedding(&d, 2, 130, 128, 5, 0.1, false, 3);
    check_embedding(&d, 2, 40, 33, 300, 0.5, true, 0.5f);
    check_embedding(&d, 9, 5, 260, 7, 0.1, false, 1); // eight warps per position
    device_destroy(&d);
}

// ---- the classifier ---------------------------------------------------------

struct ClassifierSetting {
    size_t m, vocabulary, channels, chunk; // chunk: most rows of float32 logits at once; 0: all
    double spread;                         // of the weights
    bool in_bf16, bias;
    double smoothing;
    bool fused;
};

// Inputs and outputs of the CPU's and the GPU's layers.
struct ClassifierTest {
    ClassifierSetting is;
    TestWeight weight;
    float *h, *logits, *dh, *dweight, *dbias; // (M, C), (M, V), (M, C), (V, C), (V); the CPU's
    int32_t *targets;                         // (M)
    double loss, unsmoothed, correct;
    Matrix gpu_h, gpu_dh;
    float *gpu_dweight, *gpu_dbias;
    int32_t *gpu_targets;
    ClassifierResult *gpu_result;
    StepParameters *step;
};

static constexpr float SCALE = 0.37f;

// Computes the CPU's results.
static void classifier_expected(ClassifierTest *t) {
    const ClassifierSetting is = t->is;
    const float *bias = is.bias ? t->weight.bias : NULL;
    Gemm *gemm = gemm_create(PRECISION_FLOAT32);
    Arena *arena = arena_create();
    cpu::Classifier *c = cpu::classifier_create(gemm, is.vocabulary, is.channels, is.m, true);
    ARENA_CARVE(arena, cpu::classifier_carve(c, arena));
    cpu::classifier_pack(c, t->weight.values);
    cpu::classifier_smooth(c, is.smoothing);
    const Matrix h = host_matrix(t->h, is.channels);
    t->loss = cpu::classifier_train(c, h, bias, t->targets, is.m, (double)SCALE, t->dh, t->dweight,
                                    is.bias ? t->dbias : NULL);
    t->unsmoothed = cpu::classifier_unsmoothed(c);
    cpu::classifier_logits(c, h, bias, is.m, t->logits);
    for (size_t i = 0; i < is.m; i++) {
        bool best = t->targets[i] >= 0;
        for (size_t v = 0; best && v < is.vocabulary; v++)
            best = t->logits[i * is.vocabulary + v] <=
                   t->logits[i * is.vocabulary + (size_t)t->targets[i]];
        t->correct += best;
    }
    cpu::classifier_free(c);
    arena_free(arena);
    gemm_free(gemm);
}

static ClassifierTest classifier_test_create(const Device *d, ClassifierSetting is) {
    Random r = random_stream(SEED, RANDOM_TEST, (uint32_t)is.m, (uint32_t)is.vocabulary);
    const size_t V = is.vocabulary, C = is.channels;
    ClassifierTest t = {};
    t.is = is;
    t.weight = weight_create(d, &r, {is.m, V, C, WEIGHT_OUT_IN, is.in_bf16, is.in_bf16, is.bias});
    for (size_t i = 0; i < V * C; i++) t.weight.values[i] *= (float)is.spread;
    device_free((void *)t.weight.device.values);
    device_free((void *)t.weight.device.rounded);
    if (is.in_bf16) round_numbers(t.weight.values, V * C);
    t.weight.device.values = upload_numbers(d, t.weight.values, V * C);
    t.weight.device.rounded = (const bf16 *)upload_matrix(d, t.weight.values, V, C, true).data;
    t.h = random_numbers(&r, is.m * C, 1);
    if (is.in_bf16) round_numbers(t.h, is.m * C);
    t.logits = zero_numbers(is.m * V);
    t.dh = zero_numbers(is.m * C);
    t.dweight = random_numbers(&r, V * C, 0.01);
    t.dbias = random_numbers(&r, V, 0.01);
    t.targets = (int32_t *)allocate(is.m, sizeof(int32_t), "targets");
    for (size_t i = 0; i < is.m; i++) t.targets[i] = i % 5 == 3 ? -1 : (int32_t)random_below(&r, V);
    t.gpu_h = upload_matrix(d, t.h, is.m, C, is.in_bf16);
    t.gpu_dh = upload_matrix(d, NULL, is.m, C, false);
    t.gpu_dweight = upload_numbers(d, t.dweight, V * C);
    t.gpu_dbias = upload_numbers(d, t.dbias, V);
    t.gpu_targets = (int32_t *)upload(d, t.targets, is.m * sizeof(int32_t));
    t.gpu_result = (ClassifierResult *)upload(d, NULL, sizeof(ClassifierResult));
    t.step = upload_step(d, SCALE);
    return t;
}

static void classifier_test_free(ClassifierTest *t) {
    float *const on_host[] = {t->h, t->logits, t->dh, t->dweight, t->dbias};
    for (float *p : on_host) free(p);
    free(t->targets);
    void *const on_device[] = {t->gpu_h.data,  t->gpu_dh.data, t->gpu_dweight, t->gpu_dbias,
                               t->gpu_targets, t->gpu_result,  t->step};
    for (void *p : on_device) device_free(p);
    weight_free(&t->weight);
}

static double device_double(const Device *d, const double *p) {
    double x;
    CUDA_CHECK(cudaMemcpyAsync(&x, p, sizeof(x), cudaMemcpyDeviceToHost, d->stream));
    device_synchronize(d);
    return x;
}

static Classifier classifier_here(DeviceArena *arena, const ClassifierSetting *is) {
    Classifier c;
    DeviceArena counting = {};
    classifier_carve(&c, &counting, is->vocabulary, is->channels, is->m, is->smoothing, is->fused);
    *arena = counting;
    arena_allocate(arena, "this is a test");
    classifier_carve(&c, arena, is->vocabulary, is->channels, is->m, is->smoothing, is->fused);
    if (is->chunk) c.bytes = is->chunk * c.stride * sizeof(float);
    return c;
}

static void check_classifier(Device d, ClassifierSetting is) {
    ClassifierTest t = classifier_test_create(&d, is);
    classifier_expected(&t);
    DeviceArena arena, blas_arena;
    Classifier c = classifier_here(&arena, &is);
    Blas blas = blas_here(&d, &blas_arena, false);
    DeviceArena sums_arena;
    PartialSums sums = partial_sums_here(&sums_arena, 1, 1);
    // With bf16, the CPU computes in float32 from the same rounded numbers.
    const double tolerance = is.in_bf16 ? 2e-2 : 2e-5;

    const ClassifierInput in = {t.gpu_h, t.weight.device, t.gpu_targets, is.m};
    classifier_train(&d, &blas, &sums, &c, in, t.step,
                     {t.gpu_dh, t.gpu_dweight, is.bias ? t.gpu_dbias : NULL}, t.gpu_result);
    partial_sums_finish(&d, &sums);
    CHECK_CLOSE(device_double(&d, &t.gpu_result->loss), t.loss,
                (is.in_bf16 ? 3e-3 : 2e-6) * t.loss);
    CHECK_CLOSE(device_double(&d, &t.gpu_result->unsmoothed), t.unsmoothed,
                (is.in_bf16 ? 3e-3 : 2e-6) * t.unsmoothed);
    compare_device(&d, "dh", t.gpu_dh, t.dh, is.m, tolerance);
    compare_device(&d, "dweight", float_matrix(t.gpu_dweight, is.channels), t.dweight,
                   is.vocabulary, tolerance);
    compare_device(&d, "dbias", float_matrix(t.gpu_dbias, is.vocabulary), t.dbias, 1, tolerance);
    classifier_forward(&d, &blas, &c, in, t.gpu_result);
    CHECK_CLOSE(device_double(&d, &t.gpu_result->loss), t.unsmoothed, 2e-6 * t.unsmoothed);
    CHECK(device_double(&d, &t.gpu_result->correct) == t.correct);
    float *logits = zero_numbers(is.m * is.vocabulary);
    classifier_logits(&d, &blas, &c, t.gpu_h, t.weight.device, is.m, logits);
    compare("logits", logits, t.logits, is.m * is.vocabulary, EXACT);
    free(logits);
    partial_sums_free(&sums);
    arena_free(&sums_arena);
    blas_destroy(&blas);
    arena_free(&arena);
    arena_free(&blas_arena);
    classifier_test_free(&t);
}

static void test_classifier(void) {
    Device d = device_create(), no_room = d; // shared memory too small for a row of logits
    no_room.shared_limit = 4096;
    check_classifier(d, {20, 64, 64, 0, 5, true, true, 0, false}); // nearly certain
    for (bool in_bf16 : {false, true}) {
        check_classifier(d, {1, 1, 4, 0, 1, in_bf16, true, 0, false});
        check_classifier(d, {5, 29, 24, 0, 1, in_bf16, false, 0, false});
        check_classifier(d, {37, 300, 40, 0, 1, in_bf16, true, 0, false});
        check_classifier(d, {300, 131, 8, 128, 1, in_bf16, true, 0,
                             false}); // several chunks, the last one short
        check_classifier(d, {37, 300, 40, 0, 1, in_bf16, true, 0.1, false});
        check_classifier(d, {300, 131, 8, 128, 1, in_bf16, false, 0.3, false});
        check_classifier(no_room, {37, 900, 40, 0, 1, in_bf16, true, 0.1, false});
        check_classifier(
            d, {9, 4200, 16, 0, 1, in_bf16, true, 0, false}); // more than one round per thread
        check_classifier(d, {20, 64, 16, 0, 30, in_bf16, false, 0, false}); // nearly certain
    }
    device_destroy(&d);
}

// The fused classifier, without logits in memory: several tiles of rows and of tokens, the last
// ones short.
static void test_fused_classifier(void) {
    static const ClassifierSetting settings[] = {
        {1, 1, 64, 0, 1, true, false, 0, true},
        {5, 29, 64, 0, 1, true, true, 0, true},
        {300, 131, 128, 0, 1, true, false, 0, true},
        {130, 777, 64, 0, 1, true, true, 0, true},
        {700, 140, 64, 0, 1, true, true, 0, true},
        {20, 64, 64, 0, 5, true, false, 0, true}, // nearly certain
        {300, 20, 64, 0, 1, true, true, 0.9, true},
        {300, 131, 128, 0, 1, true, false, 0.3, true},
        {130, 150, 40, 0, 1, true, true, 0.1, true},
        {140, 131, 192, 0, 1, true, true, 0, true},
        {130, 200, 200, 0, 1, true, false, 0.3, true},
        {300, 140, 256, 0, 1, true, true, 0, true},
    };
    Device d = device_create();
    if (classifier_fuses(&d, 64, true))
        for (const ClassifierSetting &is : settings) check_classifier(d, is);
    device_destroy(&d);
}

// Logits of any size give finite losses and gradients; a NaN shows in the loss.
static void test_classifier_extremes(void) {
    Device d = device_create();
    const ClassifierSetting is = {6, 40, 8, 0, 1e18, false, false, 0, false};
    ClassifierTest t = classifier_test_create(&d, is);
    DeviceArena arena, blas_arena;
    const Classifier c = classifier_here(&arena, &is);
    Blas blas = blas_here(&d, &blas_arena, false);
    ClassifierInput in = {t.gpu_h, t.weight.device, t.gpu_targets, is.m};
    classifier_train(&d, &blas, NULL, &c, in, t.step, {t.gpu_dh, t.gpu_dweight, NULL},
                     t.gpu_result);
    CHECK(isfinite(device_double(&d, &t.gpu_result->loss)));
    float *dh = download(&d, (const float *)t.gpu_dh.data, is.m * is.channels);
    for (size_t i = 0; i < is.m * is.channels; i++) CHECK(isfinite(dh[i]));
    free(dh);
    t.h[9] = NAN;
    device_free(t.gpu_h.data);
    in.h = t.gpu_h = upload_matrix(&d, t.h, is.m, is.channels, false);
    classifier_forward(&d, &blas, &c, in, t.gpu_result);
    CHECK(isnan(device_double(&d, &t.gpu_result->loss)));
    blas_destroy(&blas);
    arena_free(&arena);
    arena_free(&blas_arena);
    classifier_test_free(&t);
    device_destroy(&d);
}

// ---- the update -------------------------------------------------------------
// Parameters with and without weight decay, one longer than a piece, and sizes that do not fill
// cache lines.
static ParameterTable test_table(void) {
    ParameterTable table = {};
    const int64_t sizes[] = {1, 5000, 33, 7, 16, 4096, 3};
    for (int i = 0; i < 7; i++) {
        char name[16];
        snprintf(name, sizeof(name), "p%d", i);
        parameter_add(&table, name, 1, &sizes[i], i == 1 || i == 2 || i == 5, 0, 0);
    }
    return table;
}

// Random numbers for the parameters, zeros between them. squares: squared, for second moments.
static float *parameter_numbers(const ParameterTable *table, Random *r, bool squares) {
    float *x = zero_numbers(table->total);
    for (int i = 0; i < table->count; i++)
        for (size_t j = 0; j < table->items[i].size; j++) {
            const float value = (float)random_normal(r);
            x[table->items[i].offset + j] = squares ? value * value : value;
        }
    return x;
}

static void check_state(const Device *d, const ParameterState *gpu,
                        const cpu::ParameterState *host) {
    const size_t total = host->table.total;
    float *found = zero_numbers(total);
    for (ModelArray which :
         {MODEL_VALUES, MODEL_GRADIENTS, MODEL_FIRST_MOMENT, MODEL_SECOND_MOMENT}) {
        parameter_state_read(d, gpu, which, found);
        compare("parameters", found, cpu::parameter_state_array(host, which), total, 1e-6);
    }
    parameter_state_read(d, gpu, MODEL_VALUES, found);
    if (gpu->rounded) {
        round_numbers(found, total);
        compare_device(d, "parameters in bf16", {gpu->rounded, total, true}, found, 1, 0);
    }
    free(found);
}

static void check_adamw(const Device *d, bool rounded, bool adam) {
    cpu::ParameterState host = {};
    Arena *host_arena = arena_create();
    host.table = test_table();
    ARENA_CARVE(host_arena, cpu::parameter_state_carve(&host, host_arena, true));
    ParameterState gpu;
    DeviceArena counting = {}, arena;
    parameter_state_carve(&gpu, &counting, &host.table, true, false, rounded);
    arena = counting;
    arena_allocate(&arena, "this is a test");
    parameter_state_carve(&gpu, &arena, &host.table, true, false, rounded);
    parameter_state_start(d, &gpu, &host.table);
    check_state(d, &gpu, &host);
    Random r = random_stream(SEED, RANDOM_TEST, 4, 4);
    double *norm = (double *)upload(d, NULL, sizeof(double));
    for (int64_t step = 1; step <= 3; step++) {
        for (ModelArray which :
             {MODEL_VALUES, MODEL_GRADIENTS, MODEL_FIRST_MOMENT, MODEL_SECOND_MOMENT}) {
            if (step > 1 && which != MODEL_GRADIENTS) continue; // continues from the last update
            float *x = parameter_numbers(&host.table, &r, which == MODEL_SECOND_MOMENT);
            memcpy(cpu::parameter_state_array(&host, which), x, host.table.total * sizeof(float));
            parameter_state_write(d, &gpu, which, x);
            free(x);
        }
        check_state(d, &gpu, &host);
        const double expected = cpu::gradient_norm(&host);
        gradient_norm(d, &gpu, norm);
        CHECK_CLOSE(device_double(d, norm), expected, 1e-12 * expected);
        const UpdateSettings settings = {1e-2, 0.9, 0.99, 1e-8, 0.1, 0.5, step, adam};
        cpu::adamw_update(&host, &settings);
        adamw_update(d, &gpu, &settings);
        check_state(d, &gpu, &host);
    }
    float *x = parameter_numbers(&host.table, &r, false);
    parameter_state_write(d, &gpu, MODEL_GRADIENTS, x);
    gradients_clear(d, &gpu);
    gradient_norm(d, &gpu, norm);
    CHECK(device_double(d, norm) == 0);
    free(x);
    device_free(norm);
    arena_free(&arena);
    cpu::parameter_state_free(&host);
    arena_free(host_arena);
}

static void test_adamw(void) {
    Device d = device_create();
    check_adamw(&d, false, false);
    check_adamw(&d, true, true);
    device_destroy(&d);
}

static const Tensor *muon_tensor(const Safetensors *file, const char *name, const char *suffix) {
    char *full = format_string("%s%s", name, suffix);
    const Tensor *tensor = safetensors_find(file, full);
    if (!tensor) fail("%s is not in the file", full);
    free(full);
    return tensor;
}

static const char *const muon_names[] = {"wide", "tall", "square", "row", "low_rank"};

// Three copies of each matrix in the file, the last one directly after the second, and a vector
// that Muon does not update.
static ParameterTable muon_table(const Safetensors *file) {
    ParameterTable table = {};
    const int64_t size = 21;
    for (const char *name : muon_names)
        for (const char *number : {"0", "1", "2"}) {
            const Tensor *tensor = muon_tensor(file, name, "");
            char *full = format_string("%s%s", name, number);
            (*number == '2' ? parameter_add_adjacent : parameter_add)(&table, full, 2,
                                                                      tensor->shape, true, 0, 0);
            parameter_mark_hidden(&table);
            free(full);
        }
    parameter_add(&table, "vector", 1, &size, true, 0, 0);
    return table;
}

static constexpr int MUON_COPIES = 3;

// The gradients of a step, and 1 for the vector's first element.
static void muon_gradients(const Safetensors *file, const ParameterTable *table, int64_t steps,
                           int64_t step, float *gradients) {
    for (int i = 0; i < table->count - 1; i++) {
        const Parameter *p = &table->items[i];
        float *all = zero_numbers((size_t)steps * p->size);
        tensor_read_real(file, muon_tensor(file, muon_names[i / MUON_COPIES], ".grad"), all);
        memcpy(gradients + p->offset, all + (size_t)step * p->size, p->size * sizeof(float));
        free(all);
    }
    gradients[table->items[table->count - 1].offset] = 1;
}

// Compares the matrices after the last step with the expected ones.
static void compare_muon(const Safetensors *file, const ParameterTable *table, const float *values,
                         double tolerance) {
    for (int i = 0; i < table->count - 1; i++) {
        const Parameter *p = &table->items[i];
        double *expected = (double *)allocate(p->size, sizeof(double), "expected"), error = 0,
               norm = 0;
        tensor_read_double(file, muon_tensor(file, muon_names[i / MUON_COPIES], ".final"),
                           expected);
        for (size_t j = 0; j < p->size; j++) {
            error += pow((double)values[p->offset + j] - expected[j], 2);
            norm += expected[j] * expected[j];
        }
        if (!(sqrt(error / norm) <= tolerance))
            test_fail(__FILE__, __LINE__, "%s is off by %.1e", p->name, sqrt(error / norm));
        free(expected);
    }
}

// Runs the file's steps with AdamW and Muon, and compares the result with torch.optim.Muon in
// float64, like the CPU's test (dev/test/test_muon.c).
static void check_muon(const Device *d, bool in_bf16, double tolerance) {
    Safetensors *file = safetensors_open("dev/reference/muon.safetensors");
    ParameterTable table = muon_table(file);
    const size_t vector = table.items[table.count - 1].offset;
    ParameterState state;
    Muon muon;
    Blas blas;
    DeviceArena arena = {};
    blas_create(&blas, d, false);
    for (int pass = 0; pass < 2; pass++) {
        parameter_state_carve(&state, &arena, &table, true, true, in_bf16);
        blas_workspace(&blas, &arena);
        muon_carve(&muon, &arena, &table, in_bf16);
        if (pass == 0) arena_allocate(&arena, "this is a test");
    }
    parameter_state_start(d, &state, &table);
    muon_start(d, &muon, &table);
    const int64_t steps = safetensors_integer(file, "steps", 1, 100);
    float *values = zero_numbers(table.total), *gradients = zero_numbers(table.total),
          *scales = zero_numbers((size_t)steps);
    tensor_read_real(file, muon_tensor(file, "scale", ""), scales);
    for (int i = 0; i < table.count - 1; i++)
        tensor_read_real(file, muon_tensor(file, muon_names[i / MUON_COPIES], ""),
                         values + table.items[i].offset);
    parameter_state_write(d, &state, MODEL_VALUES, values);
    for (int64_t step = 0; step < steps; step++) {
        muon_gradients(file, &table, steps, step, gradients);
        parameter_state_write(d, &state, MODEL_GRADIENTS, gradients);
        const UpdateSettings settings = {safetensors_number(file, "lr"),
                                         0.9,
                                         0.9,
                                         1e-8,
                                         safetensors_number(file, "weight_decay"),
                                         (double)scales[step],
                                         step + 1,
                                         false};
        adamw_update(d, &state, &settings);
        muon_update(d, &blas, &muon, &state, &settings);
    }
    parameter_state_read(d, &state, MODEL_VALUES, values);
    compare_muon(file, &table, values, tolerance);
    CHECK(values[vector] < 0 && values[vector + 1] == 0);
    if (in_bf16) {
        round_numbers(values, table.total);
        compare_device(d, "parameters in bf16", {state.rounded, table.total, true}, values, 1, 0);
    }
    parameter_state_read(d, &state, MODEL_GRADIENTS, gradients);
    for (size_t i = 0; i < table.total; i++) CHECK(gradients[i] == 0);
    parameter_state_read(d, &state, MODEL_SECOND_MOMENT, values);
    for (size_t i = 0; i < table.total; i++) CHECK((values[i] != 0) == (i == vector));
    muon_free(&muon);
    blas_destroy(&blas);
    arena_free(&arena);
    parameter_table_free(&table);
    safetensors_close(file);
    free(values);
    free(gradients);
    free(scales);
}

static void test_muon(void) {
    Device d = device_create();
    check_muon(&d, false, 1e-5);
    check_muon(&d, true, 5e-3);
    device_destroy(&d);
}

// A sequence of 4,194,304 tokens has more tiles of 64 queries than a grid may have blocks along y.
static void launch_tiles(void *) {
    Device d = device_create();
    launch(&d, device_probe_kernel, dim3(1, blocks_of((size_t)1 << 22, 64)), dim3(1), 0);
}

static void test_launch(void) {
    CHECK_FAILS(launch_tiles, NULL, 1, "a grid of 1 x 65536 x 1 blocks is too large");
}

int main(int argc, char **argv) {
    static const TestCase cases[] = {
        {"launch", test_launch},
        {"linear", test_linear},
        {"gradients of weights of all layers", test_weight_groups},
        {"linear with GELU", test_linear_gelu},
        {"activation", test_activation},
        {"queries and keys", test_query_key},
        {"gelu's slope", test_gelu_slope},
        {"residual and layernorm", test_residual},
        {"products in parts", test_parts},
        {"dropout", test_dropout},
        {"chosen rows", test_chosen_rows},
        {"embedding", test_embedding},
        {"classifier", test_classifier},
        {"classifier: extremes", test_classifier_extremes},
        {"classifier: fused", test_fused_classifier},
        {"adamw", test_adamw},
        {"muon", test_muon},
    };
    return gpu_test_main(argc, argv, "test_layerscu", cases, sizeof(cases) / sizeof(cases[0]));
}
