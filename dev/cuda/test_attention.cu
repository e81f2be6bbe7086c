// Compares the attention kernels with the CPU's layers and with their definition, on small random
// shapes.
#include "additive_attention.cuh"
#include "additive_global.cuh"
#include "cosine_attention.cuh"
#include "cuda_test.cuh"
#include "softmax_attention.cuh"
#include "statistics.cuh"
extern "C" {
#include "arena.h"
#include "cosine_attention.h"
#include "dropout.h"
#include "softmax_attention.h"
#include "statistics.h"
}

// Names that both the CPU and the GPU code define.
namespace cpu {
extern "C" {
#include "additive_global.h"
}
} // namespace cpu

static constexpr double FLOAT_TOLERANCE = 2e-5, BF16_TOLERANCE = 2e-2;
static constexpr uint64_t FIRST_ROW = 3, LATE_ROW = 1 << 20; // of the dropout masks
// The number of multiprocessors determines how work is split: with few of them, tiles are large.
static constexpr int FEW_SMS = 1, MANY_SMS = 132;

// ---- problems and comparison ------------------------------------------------

static double *zeros(size_t count) {
    return (double *)allocate(count, sizeof(double), "numbers");
}

// A mask with scattered padding, and with padding at the start of sequence 1.
static uint8_t *mask_with_holes(size_t batch, size_t length) {
    uint8_t *mask = (uint8_t *)allocate(batch * length, 1, "a mask");
    for (size_t b = 0; b < batch; b++) {
        for (size_t t = 0; t < length; t++)
            mask[b * length + t] = (t * 7 + b * 3) % 5 != 4 && !(b == 1 && t < 3);
    }
    return mask;
}

// Fails if the largest difference exceeds `tolerance` times the largest expected number (or
// `least`). Infinite numbers must be equal.
static void compare_within(const char *what, const char *setting, const float *x,
                           const double *expected, size_t count, double least, double tolerance) {
    double error = 0, greatest = least;
    for (size_t i = 0; i < count; i++) {
        if (isinf(expected[i]) && (double)x[i] == expected[i]) continue;
        const double difference = fabs((double)x[i] - expected[i]);
        if (!(difference <= error) && !isnan(error)) error = difference; // also if NaN
        greatest = fmax(greatest, fabs(expected[i]));
    }
    if (!(error <= tolerance * greatest))
        test_fail(__FILE__, __LINE__, "%s: %s: error %.3g", setting, what, error / greatest);
}

// ---- additive attention -----------------------------------------------------

typedef struct {
    size_t batch, length, heads, size, window; // B, T, H, D, k (0: global)
    double rescale, sink, rate;
    bool raw, holes, bf16_gradient;
    size_t longer; // excess of the planned over the actual batch and length
    bool plain;    // plain scores
    float weights; // magnitude of w_q and w_k; 0: 1
    bool gain;     // the pooled queries are part of the result
} AdditiveSetting;

// The definition, in double. Array sizes are those of the functions under test.
typedef struct {
    AdditiveSetting is;
    const float *qkv, *x, *dout, *weights[3]; // (H, D), the last one the gain
    const uint8_t *mask;
    Dropout drop[2];
    double *out, *dqkv, *dweights[3];
} Additive;

// Computes x' and returns the deviation. With plain scores, copies x and returns 0.
static double normal_of(const Additive *a, double *normal, const double *x) {
    const size_t size = a->is.size;
    if (a->is.plain) {
        memcpy(normal, x, size * sizeof(double));
        return 0;
    }
    double mean = 0, square = 0;
    for (size_t d = 0; d < size; d++) mean += x[d] / (double)size;
    for (size_t d = 0; d < size; d++) square += (x[d] - mean) * (x[d] - mean);
    const double deviation = sqrt(square / (double)(size - 1));
    for (size_t d = 0; d < size; d++) normal[d] = (x[d] - mean) / (deviation + 1e-5);
    return deviation;
}

// dx += the gradient of x from that of x'.
static void normal_backward(const Additive *a, double *dx, const double *dnormal,
                            const double *normal, double deviation) {
    const size_t size = a->is.size;
    double along = 0, sum = 0;
    for (size_t d = 0; a->is.plain && d < size; d++) dx[d] += dnormal[d];
    if (a->is.plain) return;
    for (size_t d = 0; d < size; d++) along += dnormal[d] * normal[d];
    const double slope = deviation > 0 ? along / ((double)(size - 1) * deviation) : 0;
    for (size_t d = 0; d < size; d++) sum += dnormal[d] / (deviation + 1e-5) - slope * normal[d];
    for (size_t d = 0; d < size; d++)
        dx[d] += dnormal[d] / (deviation + 1e-5) - slope * normal[d] - sum / (double)size;
}

// One pooling of a head: g (T, D) of x (T, D).
typedef struct {
    double *x, *normal, *deviation, *e, *g, *r, weight[256], weight_deviation;
} Pooling;

static Pooling pooling_create(const Additive *a, size_t h, int which) {
    const size_t T = a->is.length, D = a->is.size;
    Pooling p = {zeros(T * D), zeros(T * D), zeros(T), zeros(T), zeros(T * D), zeros(T), {}, 0};
    double w[256];
    for (size_t d = 0; d < D; d++) w[d] = (double)a->weights[which][h * D + d];
    p.weight_deviation = normal_of(a, p.weight, w);
    return p;
}

static void pooling_free(Pooling *p) {
    free(p->x);
    free(p->normal);
    free(p->deviation);
    free(p->e);
    free(p->g);
    free(p->r);
}

static double score_scale(const Additive *a) {
    const double size = (double)a->is.size;
    return a->is.plain ? 1 / sqrt(size) : a->is.rescale / size;
}

static size_t window_start(const Additive *a, size_t i) {
    return a->is.window && i + 1 > a->is.window ? i + 1 - a->is.window : 0;
}

static void pooling_forward(const Additive *a, Pooling *p, const uint8_t *mask) {
    const size_t T = a->is.length, D = a->is.size;
    const double *value = a->is.raw ? p->x : p->normal;
    for (size_t i = 0; i < T; i++) {
        double dot = 0, sum = a->is.sink;
        p->deviation[i] = normal_of(a, p->normal + i * D, p->x + i * D);
        for (size_t d = 0; d < D; d++) dot += p->normal[i * D + d] * p->weight[d];
        p->e[i] = !mask || mask[i] ? exp(score_scale(a) * dot) : 0;
        for (size_t j = window_start(a, i); j <= i; j++) {
            sum += p->e[j];
            for (size_t d = 0; d < D; d++) p->g[i * D + d] += p->e[j] * value[j * D + d];
        }
        p->r[i] = sum > 0 ? 1 / sum : 0;
        for (size_t d = 0; d < D; d++) p->g[i * D + d] *= p->r[i];
    }
}

// Computes dx (T, D) from dg (T, D); dweight (D) +=.
static void pooling_backward(const Additive *a, const Pooling *p, double *dx, const double *dg,
                             double *dweight) {
    const size_t T = a->is.length, D = a->is.size;
    const double *value = a->is.raw ? p->x : p->normal, scale = score_scale(a);
    double dw[256] = {0};
    for (size_t j = 0; j < T; j++) {
        double da = 0, dnormal[256] = {0};
        for (size_t i = j; i < T && window_start(a, i) <= j; i++) {
            for (size_t d = 0; d < D; d++) {
                const double z = p->r[i] * dg[i * D + d];
                da += p->e[j] * z * (value[j * D + d] - p->g[i * D + d]);
                (a->is.raw ? dx[j * D + d] : dnormal[d]) += p->e[j] * z;
            }
        }
        for (size_t d = 0; d < D; d++) {
            dnormal[d] += da * scale * p->weight[d];
            dw[d] += da * scale * p->normal[j * D + d];
        }
        normal_backward(a, dx + j * D, dnormal, p->normal + j * D, p->deviation[j]);
    }
    normal_backward(a, dweight, dw, p->weight, p->weight_deviation);
}

// Dropout factors (T, D) of a head.
static float *factors_of(const Additive *a, int which, size_t b, size_t h) {
    const size_t count = a->is.length * a->is.size;
    float *factors = (float *)allocate(count, sizeof(float), "factors");
    dropout_factors(&a->drop[which], ((FIRST_ROW + b) * a->is.heads + h) * count, count, factors);
    return factors;
}

static void additive_head(const Additive *a, size_t b, size_t h) {
    const size_t T = a->is.length, D = a->is.size, C = D * a->is.heads;
    const uint8_t *mask = a->mask ? a->mask + b * T : NULL;
    float *f_query = factors_of(a, 0, b, h), *f_key = factors_of(a, 1, b, h);
    Pooling query = pooling_create(a, h, 0), key = pooling_create(a, h, 1);
    double *dg = zeros(T * D), *dx = zeros(T * D), gain[256] = {0};
    for (size_t d = 0; a->is.gain && d < D; d++) gain[d] = (double)a->weights[2][h * D + d];
#define QKV(which, t, d) ((b * T + (t)) * 3 * C + (which)*C + h * D + (d))
#define EACH                                                                                       \
    for (size_t t = 0; t < T; t++)                                                                 \
        for (size_t d = 0; d < D; d++)
#define AT (t * D + d)
    EACH query.x[AT] = (double)a->qkv[QKV(0, t, d)];
    pooling_forward(a, &query, mask);
    EACH key.x[AT] = query.g[AT] * (double)f_query[AT] * (double)a->qkv[QKV(1, t, d)];
    pooling_forward(a, &key, mask);
    EACH {
        const size_t c = (b * T + t) * C + h * D + d;
        const double v = (double)a->qkv[QKV(2, t, d)], f = (double)f_key[AT],
                     dout = (double)a->dout[c];
        const double passed = query.g[AT] * (double)f_query[AT];
        a->out[c] = (double)a->x[c] + key.g[AT] * f * v + gain[d] * passed;
        a->dweights[2][h * D + d] += a->is.gain ? dout * passed : 0;
        a->dqkv[QKV(2, t, d)] = dout * key.g[AT] * f;
        dg[AT] = dout * v * f;
    }
    pooling_backward(a, &key, dx, dg, a->dweights[1] + h * D);
    EACH {
        a->dqkv[QKV(1, t, d)] = dx[AT] * query.g[AT] * (double)f_query[AT];
        dg[AT] = (dx[AT] * (double)a->qkv[QKV(1, t, d)] +
                  gain[d] * (double)a->dout[(b * T + t) * C + h * D + d]) *
                 (double)f_query[AT];
        dx[AT] = 0;
    }
    pooling_backward(a, &query, dx, dg, a->dweights[0] + h * D);
    EACH a->dqkv[QKV(0, t, d)] = dx[AT];
    pooling_free(&query);
    pooling_free(&key);
    free(f_query);
    free(f_key);
    free(dg);
    free(dx);
}

// The kernels' results, on the host.
typedef struct {
    float *out, *dqkv, *dweights[3];
} AdditiveResult;

static void additive_result_free(AdditiveResult *r) {
    free(r->out);
    free(r->dqkv);
    for (float *dweight : r->dweights) free(dweight);
}

static AdditiveResult additive_run(const Device *d, const Additive *a) {
    const AdditiveSetting is = a->is;
    const size_t C = is.heads * is.size, M = is.batch * is.length;
    const AdditiveAttention attention = {C,
                                         is.heads,
                                         is.window,
                                         (float)is.rescale,
                                         (float)is.sink,
                                         is.raw,
                                         is.plain,
                                         is.batch + is.longer,
                                         is.length + is.longer};
    StepParameters step = {};
    memcpy(step.dropout_key, a->drop[0].key, sizeof(step.dropout_key));
    step.first_row = FIRST_ROW;
    StepParameters *at = (StepParameters *)upload(d, &step, sizeof(step));
    const DropoutSite query = dropout_site(at, is.rate, a->drop[0].site),
                      key = dropout_site(at, is.rate, a->drop[1].site);
    float *qkv = upload_numbers(d, a->qkv, M * 3 * C), *x = upload_numbers(d, a->x, M * C),
          *dout = upload_numbers(d, a->dout, M * C);
    float *w_query = upload_numbers(d, a->weights[0], C),
          *w_key = upload_numbers(d, a->weights[1], C), *gain = upload_numbers(d, a->weights[2], C);
    float *G = upload_numbers(d, NULL, M * C), *P = upload_numbers(d, NULL, M * C),
          *out = upload_numbers(d, NULL, M * C);
    float *r_query = upload_numbers(d, NULL, M * is.heads),
          *r_key = upload_numbers(d, NULL, M * is.heads);
    const Matrix dqkv = upload_matrix(d, NULL, M, 3 * C, is.bf16_gradient);
    float *zero = zero_numbers(C);
    float *dw_query = upload_numbers(d, zero, C), *dw_key = upload_numbers(d, zero, C),
          *dgain = upload_numbers(d, zero, C);
    uint8_t *mask = a->mask ? (uint8_t *)upload(d, a->mask, M) : NULL;

    float *workspace = upload_numbers(d, NULL, additive_attention_workspace(d, &attention, false));
    AdditiveInput in = {qkv,
                        {w_query, w_key},
                        is.gain ? gain : NULL,
                        mask,
                        is.rate > 0 ? query : dropout_none(),
                        is.rate > 0 ? key : dropout_none(),
                        G,
                        P,
                        r_query,
                        r_key,
                        workspace,
                        is.batch,
                        is.length};
    const Matrix out_of = float_matrix(out, C);
    additive_attention_forward(d, &attention, out_of, x, in);
    device_free(workspace);
    in.workspace = workspace =
        upload_numbers(d, NULL, additive_attention_workspace(d, &attention, true));
    additive_attention_backward(d, &attention, dqkv, {{dw_query, dw_key, dgain}},
                                float_matrix(dout, C), in);
    const AdditiveResult result = {
        download(d, out, M * C),
        download_matrix(d, dqkv, M),
        {download(d, dw_query, C), download(d, dw_key, C), download(d, dgain, C)}};
    void *const memory[] = {at,       qkv,    x,    dout,      w_query, w_key,
                            G,        P,      out,  r_query,   r_key,   dqkv.data,
                            dw_query, dw_key, mask, workspace, gain,    dgain};
    for (void *at_device : memory) device_free(at_device);
    free(zero);
    return result;
}

// With QUICK, skips six checks of seven. Seven is coprime to the length of every list of sizes
// below.
static bool is_left_out(void) {
    static int checks;
    return gpu_test_quick() && checks++ % 7 != 0;
}

static void additive_check(const Device *d, AdditiveSetting is) {
    if (is_left_out()) return;
    const size_t C = is.heads * is.size, M = is.batch * is.length;
    Random random =
        random_stream(1, RANDOM_TEST, (uint32_t)is.length, (uint32_t)(is.size * 1000 + is.window));
    float *qkv = random_numbers(&random, M * 3 * C, 1), *x = random_numbers(&random, M * C, 1),
          *dout = random_numbers(&random, M * C, 1);
    const float size = is.weights > 0 ? is.weights : 1;
    float *w_query = random_numbers(&random, C, size), *w_key = random_numbers(&random, C, size),
          *gain = random_numbers(&random, C, 1);
    uint8_t *mask = is.holes ? mask_with_holes(is.batch, is.length) : NULL;
    const Additive a = {is,
                        qkv,
                        x,
                        dout,
                        {w_query, w_key, gain},
                        mask,
                        {dropout_create(is.rate, 5, 3, 1), dropout_create(is.rate, 5, 3, 2)},
                        zeros(M * C),
                        zeros(M * 3 * C),
                        {zeros(C), zeros(C), zeros(C)}};
    for (size_t unit = 0; unit < is.batch * is.heads; unit++)
        additive_head(&a, unit / is.heads, unit % is.heads);
    char text[200];
    snprintf(text, sizeof(text), "additive B %zu T %zu H %zu D %zu k %zu s %g c %g rate %g%s%s%s%s",
             is.batch, is.length, is.heads, is.size, is.window, is.rescale, is.sink, is.rate,
             is.raw ? " raw" : "", is.plain ? " plain" : "", is.holes ? " holes" : "",
             is.gain ? " gain" : "");
    // Exponentials of large scores inherit their rounding errors.
    const double tolerance = size > 1 ? 10 * FLOAT_TOLERANCE : FLOAT_TOLERANCE;
    for (int sms : {FEW_SMS, MANY_SMS}) {
        if (is.plain && sms == FEW_SMS) continue; // it would be the same test
        Device device = *d;
        device.sms = sms;
        AdditiveResult r = additive_run(&device, &a);
        compare_within("out", text, r.out, a.out, M * C, 1e-6, tolerance);
        compare_within("dqkv", text, r.dqkv, a.dqkv, M * 3 * C, 0.1,
                       is.bf16_gradient ? BF16_TOLERANCE : tolerance);
        compare_within("dw_q", text, r.dweights[0], a.dweights[0], C, 1, 2 * tolerance);
        compare_within("dw_k", text, r.dweights[1], a.dweights[1], C, 1, 2 * tolerance);
        compare_within("dgain", text, r.dweights[2], a.dweights[2], C, 1, 2 * tolerance);
        additive_result_free(&r);
    }
    void *const memory[] = {qkv,  x,     dout,   w_query,       w_key,         gain,
                            mask, a.out, a.dqkv, a.dweights[0], a.dweights[1], a.dweights[2]};
    for (void *at_host : memory) free(at_host);
}

static const AdditiveSetting ADDITIVE = {2,     65,    2,     8, 4,     10, 1e-5, 0,
                                         false, false, false, 0, false, 0,  false};

static void test_additive_shapes(void) {
    Device d = device_create();
    const size_t lengths[] = {1, 2, 65, 130}, sizes[] = {5, 8, 10, 20, 32, 64},
                 windows[] = {0, 1, 3, 4, 64, 100};
    for (size_t length : lengths) {
        for (size_t size : sizes) {
            for (size_t window : windows) {
                AdditiveSetting is = ADDITIVE;
                is.length = length;
                is.size = size;
                is.window = window;
                is.heads = 1;
                is.rate = 0.3;
                is.holes = true;
                is.gain = size % 8 == 0;
                additive_check(&d, is);
            }
        }
    }
    device_destroy(&d);
}

static void test_additive_options(void) {
    Device d = device_create();
    for (size_t window : {(size_t)0, (size_t)4, (size_t)70}) {
        AdditiveSetting is = ADDITIVE;
        is.window = window;
        additive_check(&d, is);
        is.length = 257;
        is.size = 36;
        is.rate = 0.1;
        additive_check(&d, is);
        is.raw = true;
        is.holes = true;
        is.bf16_gradient = true;
        additive_check(&d, is);
        is.bf16_gradient = false;
        is.sink = 1;
        is.rescale = 30;
        additive_check(&d, is);
        is.sink = 0;
        is.gain = true;
        additive_check(&d, is);
        is.length = 70;
        is.size = 128;
        additive_check(&d, is);
        is.size = 256;
        additive_check(&d, is);
        is.size = 200;
        is.heads = 3;
        additive_check(&d, is);
    }
    device_destroy(&d);
}

// Batches smaller than planned, including windows between both lengths.
static void test_additive_smaller(void) {
    Device d = device_create();
    for (size_t window : {(size_t)0, (size_t)4, (size_t)90, (size_t)200}) {
        for (size_t longer : {(size_t)1, (size_t)40, (size_t)700}) {
            AdditiveSetting is = ADDITIVE;
            is.window = window;
            is.longer = longer;
            is.length = 77;
            is.size = 64;
            additive_check(&d, is);
        }
    }
    device_destroy(&d);
}

// Plain scores, some of which are too large for a float32 exponential.
static void test_additive_plain(void) {
    Device d = device_create();
    for (size_t window : {(size_t)0, (size_t)1, (size_t)3, (size_t)64, (size_t)100}) {
        AdditiveSetting is = ADDITIVE;
        is.plain = true;
        is.window = window;
        for (size_t length : {(size_t)1, (size_t)65, (size_t)200}) {
            for (size_t size : {(size_t)5, (size_t)20, (size_t)64}) {
                is.length = length;
                is.size = size;
                is.rate = size == 64 ? 0 : 0.3;
                is.holes = size != 64;
                is.weights = size == 20 ? 40 : 0;
                is.gain = size == 20;
                additive_check(&d, is);
            }
        }
        is.weights = 0;
        is.sink = window % 2;
        is.raw = is.bf16_gradient = true;
        is.heads = 1;
        is.longer = 40;
        additive_check(&d, is);
        is.length = 70;
        is.size = 200;
        additive_check(&d, is);
    }
    device_destroy(&d);
}

// ---- softmax and cosine attention -------------------------------------------

typedef struct {
    size_t batch, length, heads, size; // B, Tk, H, D
    double sink, rate;
    bool cosine, holes, in_bf16;
    bool fixed;         // cosine: the power is POWER
    uint64_t first_row; // the batch's first row in the update
    bool everywhere;    // queries also see later keys
    size_t queries;     // Tq of cross-attention; 0: self-attention
    float apart;   // self-attention: queries minus this, keys plus this, so that all scores are low
    size_t window; // most keys that a query sees; 0: all
} Setting;

static const Setting SETTING = {2,     65,    2,         20,    0, 0, false, false,
                                false, false, FIRST_ROW, false, 0, 0, 0};
static constexpr float POWER = 0.75f;

// Array sizes are those of the functions under test.
typedef struct {
    Setting is;
    size_t channels, queries, rows,
        numbers; // C, Tq, B Tq, elements of queries, keys and values
    float *qkv;  // (B, T, 3C); cross-attention: (B, Tq, C) and (B, Tk, 2C)
    float *dy, *exponent;
    uint8_t *mask;
    Dropout dropout;
} Problem;

typedef struct {
    float *y, *logsumexp, *dqkv, *dexponent;
} Result;

// Random numbers, rounded to bf16 if in_bf16.
static float *inputs(Random *random, size_t count, bool in_bf16) {
    float *x = random_numbers(random, count, 1);
    if (in_bf16) round_numbers(x, count);
    return x;
}

static Problem problem_create(Setting is) {
    Random random = random_stream(1, RANDOM_TEST, (uint32_t)is.length, (uint32_t)is.size);
    const size_t C = is.heads * is.size, queries = is.queries ? is.queries : is.length;
    Problem p = {is,
                 C,
                 queries,
                 is.batch * queries,
                 is.batch * (queries + 2 * is.length) * C,
                 NULL,
                 NULL,
                 NULL,
                 NULL,
                 dropout_create(is.rate, 5, 3, 2)};
    p.qkv = inputs(&random, p.numbers, is.in_bf16);
    for (size_t i = 0; is.apart > 0 && i < p.numbers; i++) {
        const size_t part = i / C % 3;
        p.qkv[i] += part == QUERY ? -is.apart : part == KEY ? is.apart : 0;
    }
    if (is.in_bf16) round_numbers(p.qkv, p.numbers);
    p.dy = inputs(&random, p.rows * p.channels, is.in_bf16);
    if (!is.fixed) p.exponent = random_numbers(&random, is.heads, 1);
    p.mask = is.holes ? mask_with_holes(is.batch, is.length) : NULL;
    return p;
}

static void problem_free(Problem *p) {
    free(p->qkv);
    free(p->dy);
    free(p->exponent);
    free(p->mask);
}

static void result_free(Result *r) {
    free(r->y);
    free(r->logsumexp);
    free(r->dqkv);
    free(r->dexponent);
}

// Runs the CPU's layer in float32.
static Result cpu_run(const Problem *p) {
    const Setting is = p->is;
    const Result r = {zero_numbers(p->rows * p->channels), zero_numbers(p->rows * is.heads),
                      zero_numbers(p->numbers), zero_numbers(is.heads)};
    const size_t C = p->channels, Tq = p->queries, Tk = is.length;
    const Matrix y = {r.y, C, false}, dqkv = {r.dqkv, 3 * C, false}, dq = {r.dqkv, C, false},
                 dkv = {r.dqkv + p->rows * C, 2 * C, false};
    AttentionInput in =
        is.queries ? attention_cross(p->qkv, NULL, p->qkv + p->rows * C, NULL, C, p->mask, is.batch,
                                     Tq, Tk)
                   : attention_self(p->qkv, NULL, C, !is.everywhere, p->mask, is.batch, Tk);
    in.window = is.window;
    if (is.rate > 0) in.dropout = &p->dropout;
    in.first_row = is.first_row;
    const AttentionGradients gradients = is.queries
                                             ? attention_cross_gradients(dq, NULL, dkv, NULL, C)
                                             : attention_self_gradients(dqkv, NULL, C);
    Arena *arena = arena_create();
    if (is.cosine) {
        CosineAttention *a = cosine_attention_create(PRECISION_FLOAT32, (double)POWER, is.batch, Tq,
                                                     Tk, C, is.heads);
        if (is.window > 0) cosine_attention_set_window(a, is.window);
        ARENA_CARVE(arena, cosine_attention_carve(a, arena));
        cosine_attention_forward(a, y, p->exponent, &in);
        cosine_attention_backward(a, &gradients, r.dexponent, p->dy, p->exponent, &in);
        cosine_attention_free(a);
        arena_free(arena);
        return r;
    }
    SoftmaxAttention *a = softmax_attention_create(PRECISION_FLOAT32, is.sink, is.batch, Tq, Tk,
                                                   is.batch * (Tq > Tk ? Tq : Tk), C, is.heads);
    ARENA_CARVE(arena, softmax_attention_carve(a, arena, true));
    softmax_attention_forward(a, y, r.logsumexp, &in);
    softmax_attention_backward(a, &gradients, p->dy, y, r.logsumexp, &in);
    softmax_attention_free(a);
    arena_free(arena);
    return r;
}

static Result gpu_run(const Device *d, const Problem *p) {
    const Setting is = p->is;
    StepParameters step = {};
    memcpy(step.dropout_key, p->dropout.key, sizeof(step.dropout_key));
    step.first_row = is.first_row;
    StepParameters *at = (StepParameters *)upload(d, &step, sizeof(step));
    const size_t C = p->channels, Tk = is.length, keys = is.batch * Tk;
    const Matrix dy = upload_matrix(d, p->dy, p->rows, C, is.in_bf16),
                 y = upload_matrix(d, NULL, p->rows, C, is.in_bf16);
    // Inputs and their gradients are one array each; with cross-attention, queries come first, then
    // keys and values.
    const Matrix qkv = upload_matrix(d, p->qkv, p->numbers / C, C, is.in_bf16),
                 dqkv = upload_matrix(d, NULL, p->numbers / C, C, is.in_bf16);
    const auto columns = [&](Matrix x, size_t first, size_t count) {
        Matrix part = matrix_part(x, first, C);
        part.columns = count * C;
        return part;
    };
    DeviceAttentionInput in = is.queries ? attention_cross(qkv, columns(qkv, p->rows, 2), is.heads,
                                                           NULL, is.batch, p->queries, Tk)
                                         : attention_self(columns(qkv, 0, 3), is.heads,
                                                          !is.everywhere, NULL, is.batch, Tk);
    const DeviceAttentionGradients gradients =
        is.queries ? attention_cross_gradients(dqkv, columns(dqkv, p->rows, 2))
                   : attention_self_gradients(columns(dqkv, 0, 3));
    float *zero = zero_numbers(p->rows * is.heads);
    float *logsumexp = upload_numbers(d, zero, p->rows * is.heads),
          *dexponent = upload_numbers(d, zero, is.heads),
          *exponent = is.fixed ? NULL : upload_numbers(d, p->exponent, is.heads);
    uint8_t *mask = p->mask ? (uint8_t *)upload(d, p->mask, keys) : NULL;
    in.mask = mask;
    in.window = is.window;
    if (is.rate > 0) in.dropout = dropout_site(at, is.rate, p->dropout.site);
    const size_t size =
        is.cosine ? cosine_attention_workspace(is.batch, Tk, C, is.heads)
                  : softmax_attention_workspace(d, is.batch, p->queries, C, is.heads, is.in_bf16);
    float *workspace = upload_numbers(d, NULL, size);
    if (is.cosine) {
        cosine_attention_forward(d, y, exponent, (double)POWER, &in, workspace);
        cosine_attention_backward(d, &gradients, dexponent, dy, exponent, (double)POWER, &in,
                                  workspace);
    } else {
        softmax_attention_forward(d, y, logsumexp, &in, is.sink);
        softmax_attention_backward(d, &gradients, dy, y, logsumexp, &in, workspace);
    }
    const Result r = {download_matrix(d, y, p->rows), download(d, logsumexp, p->rows * is.heads),
                      download_matrix(d, dqkv, p->numbers / C), download(d, dexponent, is.heads)};
    void *const memory[] = {at,        qkv.data,  dy.data,  y.data, dqkv.data,
                            logsumexp, dexponent, exponent, mask,   workspace};
    for (void *at_device : memory) device_free(at_device);
    free(zero);
    return r;
}

static void compare_results(const char *what, const char *setting, const float *x,
                            const float *expected, size_t count, double least, double tolerance) {
    double *wide = zeros(count);
    for (size_t i = 0; i < count; i++) wide[i] = (double)expected[i];
    compare_within(what, setting, x, wide, count, least, tolerance);
    free(wide);
}

// Device properties that select kernels.
typedef struct {
    const char *name;
    int sms, capability;
} Kernels;

// Lists the kernels for a problem: two blocks of 16 rows per warp with few multiprocessors, one
// with many, and warp groups if the device has them.
static int kernels_for(const Device *d, const Problem *p, Kernels *kernels) {
    int count = 0;
    const bool softmax_bf16 = !p->is.cosine && p->is.in_bf16;
    if (softmax_bf16 && p->is.size <= 64) kernels[count++] = {"two blocks of rows", FEW_SMS, 80};
    kernels[count++] = {"one block of rows", MANY_SMS, 80};
    if (softmax_bf16 && d->capability == 90 && (p->is.size == 64 || p->is.size == 128))
        kernels[count++] = {"warp groups", MANY_SMS, 90};
    return count;
}

static void check(const Device *d, Setting is) {
    if (is_left_out()) return;
    Problem p = problem_create(is);
    Result expected = cpu_run(&p);
    const double tolerance = is.in_bf16 ? BF16_TOLERANCE : FLOAT_TOLERANCE;
    Kernels kernels[3];
    const int count = kernels_for(d, &p, kernels);
    for (int i = 0; i < count; i++) {
        char text[200];
        snprintf(text, sizeof(text),
                 "%s B %zu Tq %zu Tk %zu H %zu D %zu k %zu sink %g rate %g%s%s%s, %s",
                 is.cosine ? "cosine" : "softmax", is.batch, p.queries, is.length, is.heads,
                 is.size, is.window, is.sink, is.rate, is.everywhere ? " everywhere" : "",
                 is.holes ? " holes" : "", is.in_bf16 ? " bf16" : "", kernels[i].name);
        Device device = *d;
        device.sms = kernels[i].sms;
        device.capability = kernels[i].capability;
        Result ours = gpu_run(&device, &p);
        compare_results("y", text, ours.y, expected.y, p.rows * p.channels, 1e-3, tolerance);
        compare_results("dqkv", text, ours.dqkv, expected.dqkv, p.numbers, 1e-2, tolerance);
        compare_results("logsumexp", text, ours.logsumexp, expected.logsumexp, p.rows * is.heads, 1,
                        tolerance);
        compare_results("dexponent", text, ours.dexponent, expected.dexponent, is.heads, 1,
                        2 * tolerance);
        result_free(&ours);
    }
    result_free(&expected);
    problem_free(&p);
}

static void check_shapes(const Device *d, Setting is) {
    for (size_t length : {(size_t)1, (size_t)33, (size_t)130}) {
        for (size_t size : {(size_t)8, (size_t)21, (size_t)64}) {
            is.length = length;
            is.size = size;
            check(d, is);
        }
    }
    is.batch = 1;
    is.heads = 1;
    is.length = 70;
    for (size_t size : {(size_t)32, (size_t)128, (size_t)250}) {
        if (size > 64 && d->shared_limit < (size_t)150 << 10)
            continue; // sm_86, sm_89, sm_120: 99 KiB
        is.size = size;
        check(d, is);
    }
}

// Both types, with and without all optional features.
static void check_kinds(Setting is) {
    Device d = device_create();
    for (int in_bf16 = 0; in_bf16 < 2; in_bf16++) {
        is.in_bf16 = in_bf16;
        is.holes = false;
        is.rate = 0;
        check(&d, is);
        is.length = 129;
        check(&d, is);
        is.holes = true;
        is.rate = is.cosine ? 0 : 0.3;
        check_shapes(&d, is);
    }
    device_destroy(&d);
}

static void test_softmax(void) {
    check_kinds(SETTING);
}

static void test_softmax_sink(void) {
    Device d = device_create();
    Setting is = SETTING;
    is.holes = true;
    for (double sink : {1.0, 1e-5, 30.0}) {
        is.sink = sink;
        check(&d, is);
    }
    device_destroy(&d);
}

// Element indices beyond 2^32.
static void test_softmax_late(void) {
    Device d = device_create();
    for (bool in_bf16 : {false, true}) {
        Setting is = SETTING;
        is.in_bf16 = in_bf16;
        is.first_row = LATE_ROW;
        is.rate = 0.3;
        check(&d, is);
        is.length = 140;
        is.size = 64;
        check(&d, is);
    }
    device_destroy(&d);
}

// Attention in both directions, also with fewer or more queries than keys.
static void test_softmax_everywhere(void) {
    Device d = device_create();
    Setting is = SETTING;
    is.everywhere = true;
    is.sink = 1;
    for (bool in_bf16 : {false, true}) {
        is.in_bf16 = in_bf16;
        for (size_t queries : {(size_t)0, (size_t)1, (size_t)33, (size_t)140}) {
            is.queries = queries;
            is.holes = false;
            is.rate = 0;
            check(&d, is);
            is.holes = true;
            is.rate = 0.3;
            is.length = 130;
            is.size = 64;
            check(&d, is);
            is.length = 65;
            is.size = 20;
        }
    }
    device_destroy(&d);
}

// Windows that end inside tiles and at their edges, as long as a tile and far longer.
static void test_softmax_windows(void) {
    Device d = device_create();
    Setting is = SETTING;
    for (bool in_bf16 : {false, true}) {
        is.in_bf16 = in_bf16;
        for (size_t size : {(size_t)16, (size_t)64, (size_t)128}) {
            is.size = size;
            for (size_t window : {(size_t)1, (size_t)7, (size_t)64, (size_t)129, (size_t)300}) {
                is.window = window;
                is.length = window < 100 ? 200 : 390;
                is.batch = window == 7 ? 2 : 1;
                is.heads = window == 64 ? 2 : 1;
                is.holes = window == 7;
                is.rate = window % 2 ? 0.3 : 0;
                is.sink = window == 300 ? 1 : 0;
                check(&d, is);
            }
        }
    }
    device_destroy(&d);
}

// Lengths of whole tiles of warp groups, and one more or fewer, with all optional features, for
// heads of 64 and 128.
static void test_softmax_tiles(void) {
    Device d = device_create();
    Setting is = SETTING;
    is.in_bf16 = true;
    is.heads = 1;
    for (size_t size : {(size_t)64, (size_t)128}) {
        is.size = size;
        for (size_t length : {(size_t)1, (size_t)63, (size_t)65, (size_t)128, (size_t)129,
                              (size_t)192, (size_t)256, (size_t)400}) {
            is.length = length;
            is.batch = length == 65 ? 3 : 1;
            is.heads = length == 129 ? 2 : 1;
            is.holes = false;
            is.rate = is.sink = 0;
            is.everywhere = false;
            check(&d, is);
            is.holes = length > 3;
            is.rate = 0.3;
            is.sink = 1;
            is.everywhere = length % 2;
            check(&d, is);
        }
    }
    device_destroy(&d);
}

// Blocks of warp groups that add to the same gradients: running one at a time and several at once
// gives the same bits, with self-attention and with cross-attention.
static void test_softmax_turns(void) {
    Device d = device_create(), one = d;
    if (d.capability != 90 || !HAVE_WARP_GROUPS) return;
    one.sms = FEW_SMS;
    d.sms = MANY_SMS;
    Setting is = SETTING;
    is.in_bf16 = true;
    is.batch = 1;
    is.length = 390;
    for (size_t size : {(size_t)64, (size_t)128}) {
        for (size_t queries : {(size_t)0, (size_t)200}) {
            is.size = size;
            is.queries = queries;
            is.rate = queries ? 0.3 : 0;
            Problem p = problem_create(is);
            Result expected = cpu_run(&p), alone = gpu_run(&one, &p), together = gpu_run(&d, &p);
            char text[100];
            snprintf(text, sizeof(text), "D %zu, Tq %zu, Tk %zu in turns", size, p.queries,
                     is.length);
            compare_results("dqkv", text, alone.dqkv, expected.dqkv, p.numbers, 1e-2,
                            BF16_TOLERANCE);
            if (memcmp(alone.dqkv, together.dqkv, p.numbers * sizeof(float)) != 0)
                test_fail(__FILE__, __LINE__, "%s: other bits", text);
            result_free(&expected);
            result_free(&alone);
            result_free(&together);
            problem_free(&p);
        }
    }
    device_destroy(&d);
}

// The workspace planned for a number of tokens is enough for every batch with as many tokens that
// warp groups accept.
static void test_softmax_workspace(void) {
    Device d = device_create();
    d.capability = 90;
    if (!softmax::group_takes_heads(&d, 64)) return;
    const size_t H = 8, tokens = 25000;
    for (size_t size : {(size_t)64, (size_t)128}) {
        const size_t planned = softmax_attention_workspace(&d, tokens, 1, H * size, H, true);
        CHECK(planned < 3 * tokens * H * size);
        for (size_t length = 1; length <= tokens; length += 1 + length / 7) {
            const size_t units = tokens / length * H,
                         needed = units * softmax::gathered_steps(length, size) *
                                      (softmax::STEP_NUMBERS + 1) +
                                  1;
            CHECK(!softmax::gathers(length, size) ||
                  softmax::gathered_place(units, length) + needed <= planned);
            CHECK(softmax_attention_workspace(&d, tokens / length, length, H * size, H, true) <=
                  planned);
        }
    }
    device_destroy(&d);
}

// Scores so low that an absent key, whose score would be 0, would have an infinite weight.
static void test_softmax_low(void) {
    Device d = device_create();
    Setting is = SETTING;
    is.in_bf16 = true;
    is.batch = 1;
    is.apart = 5;
    for (size_t size : {(size_t)64, (size_t)128}) {
        is.size = size;
        for (bool everywhere : {false, true}) {
            is.everywhere = everywhere;
            check(&d, is);
        }
    }
    device_destroy(&d);
}

// Other head sizes, with self-attention and with cross-attention.
static void test_softmax_sizes(void) {
    Device d = device_create();
    Setting is = SETTING;
    is.in_bf16 = true;
    for (size_t size : {(size_t)8, (size_t)24, (size_t)64, (size_t)128}) {
        for (size_t queries : {(size_t)0, (size_t)1, (size_t)33, (size_t)140}) {
            is.size = size;
            is.queries = queries;
            is.everywhere = size == 24;
            check(&d, is);
        }
    }
    device_destroy(&d);
}

// Results of additive attention in both directions.
typedef struct {
    float *y, *dqkv, *dweights;
} GlobalResult;

static void global_result_free(GlobalResult *r) {
    free(r->y);
    free(r->dqkv);
    free(r->dweights);
}

static GlobalResult global_cpu_run(const Problem *p, const float *weights) {
    const Setting is = p->is;
    const size_t C = p->channels;
    const GlobalResult r = {zero_numbers(p->rows * C), zero_numbers(p->numbers),
                            zero_numbers(2 * C)};
    const AttentionInput in = attention_self(p->qkv, NULL, C, false, p->mask, is.batch, is.length);
    const AttentionGradients gradients = attention_self_gradients({r.dqkv, 3 * C, false}, NULL, C);
    Arena *arena = arena_create();
    cpu::AdditiveGlobal *a = cpu::additive_global_create(is.batch, is.length, C, is.heads);
    ARENA_CARVE(arena, cpu::additive_global_carve(a, arena));
    cpu::additive_global_forward(a, {r.y, C, false}, weights, &in);
    cpu::additive_global_backward(a, &gradients, r.dweights, p->dy, weights, &in);
    free(a);
    arena_free(arena);
    return r;
}

// Working memory is planned for a larger batch.
static GlobalResult global_gpu_run(const Device *d, const Problem *p, const float *weights) {
    const Setting is = p->is;
    const size_t C = p->channels, B = is.batch + 1, T = is.length + 200;
    const Matrix dy = upload_matrix(d, p->dy, p->rows, C, is.in_bf16),
                 y = upload_matrix(d, NULL, p->rows, C, is.in_bf16),
                 qkv = upload_matrix(d, p->qkv, p->rows, 3 * C, is.in_bf16),
                 dqkv = upload_matrix(d, NULL, p->rows, 3 * C, is.in_bf16);
    uint8_t *mask = p->mask ? (uint8_t *)upload(d, p->mask, p->rows) : NULL;
    float *zero = zero_numbers(2 * C), *at = upload_numbers(d, weights, 2 * C),
          *dweights = upload_numbers(d, zero, 2 * C),
          *kept = upload_numbers(d, NULL, additive_global_kept(B, C, is.heads)),
          *workspace = upload_numbers(d, NULL, additive_global_workspace(B, T, C, is.heads));
    const DeviceAttentionInput in = attention_self(qkv, is.heads, false, mask, is.batch, is.length);
    const DeviceAttentionGradients gradients = attention_self_gradients(dqkv);
    additive_global_forward(d, y, kept, at, &in, workspace);
    additive_global_backward(d, &gradients, dweights, dy, kept, at, &in, workspace);
    const GlobalResult r = {download_matrix(d, y, p->rows), download_matrix(d, dqkv, p->rows),
                            download(d, dweights, 2 * C)};
    void *const memory[] = {dy.data, y.data,   qkv.data, dqkv.data, mask,
                            at,      dweights, kept,     workspace};
    for (void *at_device : memory) device_free(at_device);
    free(zero);
    return r;
}

static void check_global(const Device *d, Setting is) {
    Problem p = problem_create(is);
    for (size_t t = 0; is.holes && t < is.length; t++)
        p.mask[is.length + t] = 0; // all of sequence 1
    Random random = random_stream(2, RANDOM_TEST, (uint32_t)is.length, (uint32_t)is.size);
    float *weights = random_numbers(&random, 2 * p.channels, 1);
    GlobalResult expected = global_cpu_run(&p, weights), ours = global_gpu_run(d, &p, weights);
    const double tolerance = is.in_bf16 ? BF16_TOLERANCE : FLOAT_TOLERANCE;
    char text[200];
    snprintf(text, sizeof(text), "additive B %zu T %zu H %zu D %zu in both directions%s%s",
             is.batch, is.length, is.heads, is.size, is.holes ? " holes" : "",
             is.in_bf16 ? " bf16" : "");
    compare_results("y", text, ours.y, expected.y, p.rows * p.channels, 1e-3, tolerance);
    compare_results("dqkv", text, ours.dqkv, expected.dqkv, p.numbers, 1e-2, tolerance);
    compare_results("dweights", text, ours.dweights, expected.dweights, 2 * p.channels, 0.1,
                    tolerance);
    global_result_free(&expected);
    global_result_free(&ours);
    free(weights);
    problem_free(&p);
}

static void test_additive_everywhere(void) {
    Device d = device_create();
    Setting is = SETTING;
    for (bool in_bf16 : {false, true}) {
        is.in_bf16 = in_bf16;
        for (size_t length : {(size_t)1, (size_t)33, (size_t)128, (size_t)129, (size_t)300}) {
            is.length = length;
            is.holes = length % 2;
            for (size_t size : {(size_t)1, (size_t)21, (size_t)64}) {
                is.size = size;
                check_global(&d, is);
            }
        }
        is.length = 140;
        is.holes = true;
        for (size_t size : {(size_t)32, (size_t)100, (size_t)250}) {
            is.size = size;
            check_global(&d, is);
        }
    }
    device_destroy(&d);
}

static void test_cosine_everywhere(void) {
    Device d = device_create();
    Setting is = SETTING;
    is.cosine = is.everywhere = true;
    for (bool in_bf16 : {false, true}) {
        is.in_bf16 = in_bf16;
        is.holes = false;
        check(&d, is);
        is.holes = true;
        check_shapes(&d, is);
    }
    device_destroy(&d);
}

static void test_cosine(void) {
    Setting is = SETTING;
    is.cosine = true;
    check_kinds(is);
    Device d = device_create();
    is.fixed = is.holes = true;
    check(&d, is);
    device_destroy(&d);
}

// Windows that end inside chunks and at their edges, shorter than a chunk and longer than the
// sequence.
static void test_cosine_windows(void) {
    Device d = device_create();
    Setting is = SETTING;
    is.cosine = true;
    for (bool in_bf16 : {false, true}) {
        is.in_bf16 = in_bf16;
        is.size = in_bf16 ? 64 : 5;
        for (size_t window :
             {(size_t)1, (size_t)7, (size_t)64, (size_t)65, (size_t)130, (size_t)300}) {
            is.window = window;
            is.length = window < 100 ? 150 : 201;
            is.batch = window % 2 ? 2 : 1;
            is.heads = window == 64 ? 2 : 1;
            is.holes = window % 2;
            is.fixed = window == 130;
            check(&d, is);
        }
    }
    is.in_bf16 = false;
    is.size = 250; // chunks of 32 rows
    is.window = 40;
    if (d.shared_limit >= (size_t)150 << 10) check(&d, is);
    device_destroy(&d);
}

// ---- statistics -------------------------------------------------------------

static void compare_measurements(const char *what, const Measurement *found,
                                 const Measurement *expected) {
    const Moments *m = &found->values, *n = &expected->values;
    const double pairs[][2] = {{(double)m->count, (double)n->count},
                               {(double)found->rows, (double)expected->rows},
                               {(double)found->queries, (double)expected->queries},
                               {(double)found->saturated, (double)expected->saturated},
                               {m->largest, n->largest},
                               {moments_deviation(m), moments_deviation(n)},
                               {moments_kurtosis(m), moments_kurtosis(n)},
                               {m->mean / moments_deviation(n), n->mean / moments_deviation(n)},
                               {found->entropy, expected->entropy},
                               {found->sink_share, expected->sink_share}};
    for (const auto &pair : pairs)
        if (!(fabs(pair[0] - pair[1]) <= 1e-6 * (1 + fabs(pair[1]))))
            test_fail(__FILE__, __LINE__, "%s: number %td is %.9g, expected %.9g", what,
                      &pair - pairs, pair[0], pair[1]);
}

// Scores of many tokens, and weights of all windows of them, so that warps take several rows.
static void test_statistics(void) {
    enum { LENGTH = 10000, WINDOW = 70, COLUMNS = 8 };
    Device d = device_create();
    Random random = random_stream(5, RANDOM_TEST, 0, 0);
    float *scores = random_numbers(&random, LENGTH, 0.5), *exponentials = zero_numbers(LENGTH);
    uint8_t *mask = mask_with_holes(1, LENGTH);
    for (size_t i = 0; i < LENGTH; i++) scores[i] += 3; // far from 0
    scores[0] = 90;                                     // the first score is an outlier
    for (size_t i = 0; i < LENGTH; i++) exponentials[i] = expf(scores[i] - 9);
    Measurement expected[2] = {}, found[2] = {}; // of numbers, of weights
    measurement_add_scores(&expected[0], scores, 1, NULL, LENGTH);
    for (size_t i = 0; i < LENGTH; i++) {
        const size_t first = i >= WINDOW ? i + 1 - WINDOW : 0;
        if (mask[i])
            measurement_add_weights(&expected[1], exponentials + first, mask + first, i + 1 - first,
                                    exp(-9));
    }
    float *at = upload_numbers(&d, scores, LENGTH);
    uint8_t *mask_at = (uint8_t *)upload(&d, mask, LENGTH);
    const DeviceStatistics s = {
        NULL, (Measurement *)upload(&d, NULL, MEASURED_PARTS * sizeof(Measurement)), NULL};
    MeasuredRows rows = {{}, mask_at, false, EXPONENTIALS, 1, 0, NULL, 0};
    rows.in.batch = rows.in.heads = 1;
    rows.in.queries = rows.in.keys = LENGTH;
    rows.in.causal = true;
    rows.in.window = WINDOW;
    rows.in.mask = mask_at;
    statistics_rows(&d, &s, rows, Values<float>{{at, 0, 0, 0}, {}}, NULL, &found[1]);
    rows = {{}, NULL, true, NO_WEIGHTS, 1, 0, NULL, 0};
    rows.in.batch = rows.in.heads = 1;
    rows.in.queries = LENGTH / COLUMNS;
    rows.in.keys = COLUMNS;
    statistics_rows(&d, &s, rows, Values<float>{{at, 0, 0, COLUMNS}, {}}, &found[0], NULL);
    compare_measurements("numbers", &found[0], &expected[0]);
    compare_measurements("weights", &found[1], &expected[1]);
    device_free(s.parts);
    device_free(at);
    device_free(mask_at);
    free(scores);
    free(exponentials);
    free(mask);
    device_destroy(&d);
}

int main(int argc, char **argv) {
    static const TestCase cases[] = {
        {"additive_shapes", test_additive_shapes},
        {"additive_options", test_additive_options},
        {"additive_smaller", test_additive_smaller},
        {"additive_plain", test_additive_plain},
        {"softmax", test_softmax},
        {"softmax_sink", test_softmax_sink},
        {"softmax_late", test_softmax_late},
        {"softmax_tiles", test_softmax_tiles},
        {"softmax_windows", test_softmax_windows},
        {"softmax_turns", test_softmax_turns},
        {"softmax_workspace", test_softmax_workspace},
        {"softmax_low", test_softmax_low},
        {"cosine", test_cosine},
        {"softmax_everywhere", test_softmax_everywhere},
        {"softmax_sizes", test_softmax_sizes},
        {"cosine_everywhere", test_cosine_everywhere},
        {"cosine_windows", test_cosine_windows},
        {"additive_everywhere", test_additive_everywhere},
        {"statistics", test_statistics},
    };
    return gpu_test_main(argc, argv, "test_attention", cases, sizeof(cases) / sizeof(*cases));
}
