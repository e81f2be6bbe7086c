// Products for decoding against their definition, in both layouts and precisions.
#include "bf16.h"
#include "decode.h"
#include "memory.h"
#include "random.h"
#include "test.h"
#include <math.h>
#include <stdlib.h>

#ifdef REAL_IS_DOUBLE
static const double TOLERANCE = 1e-14;
#else
static const double TOLERANCE = 2e-6;
#endif

// Streams, N, K: one and more streams, partial panels and pairs, fewer panels than threads.
static const size_t sizes[][3] = {{1, 1, 1},   {1, 384, 128},  {3, 7, 130},   {8, 129, 65},
                                  {2, 300, 1}, {1, 1000, 257}, {5, 2051, 96}, {4, 64, 1024}};
enum { SIZES = sizeof(sizes) / sizeof(*sizes) };

static real *random_values(size_t count, uint32_t stream) {
    Random random = random_stream(7, RANDOM_TEST, stream, 0);
    real *values = allocate(count, sizeof(*values), "random values");
    for (size_t i = 0; i < count; i++) values[i] = (real)(2 * random_uniform(&random) - 1);
    return values;
}

// Compares y (streams, N) with the sums over x (streams, K) and w, whose element (j, l) is at j
// w_row + l w_column, plus the bias (N) or NULL.
static void check_product(const real *y, const real *x, const real *w, size_t w_row,
                          size_t w_column, const real *bias, const size_t *size) {
    const size_t streams = size[0], n = size[1], k = size[2];
    for (size_t s = 0; s < streams; s++)
        for (size_t j = 0; j < n; j++) {
            double sum = bias ? (double)bias[j] : 0, magnitude = fabs(sum);
            for (size_t l = 0; l < k; l++) {
                const double term = (double)x[s * k + l] * (double)w[j * w_row + l * w_column];
                sum += term;
                magnitude += fabs(term);
            }
            CHECK_CLOSE(y[s * n + j], sum, TOLERANCE * magnitude);
        }
}

static void product(real *y, const real *x, const DecodeWeight *w, const real *bias,
                    size_t streams) {
#pragma omp parallel
    decode_product(y, x, w, bias, streams);
}

static void check_precision(Precision precision) {
    for (size_t i = 0; i < SIZES; i++) {
        const size_t streams = sizes[i][0], n = sizes[i][1], k = sizes[i][2];
        real *x = random_values(streams * k, 1), *w = random_values(n * k, 2),
             *y = random_values(streams * n, 3), *bias = random_values(n, 4);
        DecodeWeight out_in = decode_weight_create(precision, w, n, k, WEIGHT_OUT_IN),
                     in_out = decode_weight_create(precision, w, n, k, WEIGHT_IN_OUT);
        if (precision == PRECISION_BFLOAT16) // as the product reads it
            for (size_t j = 0; j < n * k; j++)
                w[j] = (real)float_from_bf16(bf16_from_float((float)w[j]));
        product(y, x, &out_in, bias, streams);
        check_product(y, x, w, k, 1, bias, sizes[i]);
        product(y, x, &out_in, NULL, streams);
        check_product(y, x, w, k, 1, NULL, sizes[i]);
        product(y, x, &in_out, bias, streams);
        check_product(y, x, w, 1, n, bias, sizes[i]);
        product(y, x, &in_out, NULL, streams);
        check_product(y, x, w, 1, n, NULL, sizes[i]);
        decode_weight_free(&out_in);
        decode_weight_free(&in_out);
        free(x);
        free(w);
        free(y);
        free(bias);
    }
}

static void test_real(void) {
    check_precision(PRECISION_FLOAT32);
}

static void test_bf16(void) {
    check_precision(PRECISION_BFLOAT16);
}

// A stream's results have the same bits alone and among others, with one thread and with several.
static void test_streams(void) {
    enum { STREAMS = 7, N = 70, K = 53 };
    real *x = random_values((size_t)STREAMS * K, 1), *w = random_values((size_t)N * K, 2),
         *together = random_values((size_t)STREAMS * N, 3), alone[N];
    for (int i = 0; i < 2; i++) {
        DecodeWeight weight = decode_weight_create(i ? PRECISION_BFLOAT16 : PRECISION_FLOAT32, w, N,
                                                   K, WEIGHT_OUT_IN);
        product(together, x, &weight, NULL, STREAMS);
        for (size_t s = 0; s < STREAMS; s++) {
            decode_product(alone, x + s * K, &weight, NULL, 1);
            for (size_t j = 0; j < N; j++) CHECK(alone[j] == together[s * N + j]);
        }
        decode_weight_free(&weight);
    }
    free(x);
    free(w);
    free(together);
}

int main(int argc, char **argv) {
    static const TestCase cases[] = {
        {"real", test_real},
        {"bf16", test_bf16},
        {"streams", test_streams},
    };
    return test_main(argc, argv, "decode", cases, sizeof(cases) / sizeof(*cases));
}
