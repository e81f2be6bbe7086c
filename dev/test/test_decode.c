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

// Streams, N, K: one, several and many streams, rests of rows, columns and vectors, and sizes that start
// threads.
static const size_t sizes[][3] = {{1, 1, 1},   {1, 384, 128},  {3, 7, 130},   {8, 129, 65},
                                  {2, 300, 1}, {1, 1000, 257}, {5, 2051, 96}, {4, 64, 1024}};
enum { SIZES = sizeof(sizes) / sizeof(*sizes), OFFSET = 48 };

static real *random_values(size_t count, uint32_t stream) {
    Random random = random_stream(7, RANDOM_TEST, stream, 0);
    real *values = allocate(count, sizeof(*values), "random values");
    for (size_t i = 0; i < count; i++) values[i] = (real)(2 * random_uniform(&random) - 1);
    return values;
}

// y (streams, N) beside the sums over x (streams, K) and w, element (j, l) at j w_row + l w_column, and the
// bias (N) or NULL.
static void check_product(const real *y, const real *x, const real *w, size_t w_row, size_t w_column,
                          const real *bias, const size_t *size) {
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

static void check_precision(Precision precision) {
    for (size_t i = 0; i < SIZES; i++) {
        const size_t streams = sizes[i][0], n = sizes[i][1], k = sizes[i][2];
        real *x = random_values(streams * k, 1), *w = random_values(OFFSET + n * k, 2),
             *y = random_values(streams * n, 3), *bias = random_values(n, 4);
        DecodeWeights weights = decode_weights_create(precision, w, OFFSET + n * k);
        if (precision == PRECISION_BFLOAT16) // what the product reads
            for (size_t j = 0; j < OFFSET + n * k; j++)
                w[j] = (real)float_from_bf16(bf16_from_float((float)w[j]));
        decode_product(y, x, weights, OFFSET, bias, streams, n, k, WEIGHT_OUT_IN);
        check_product(y, x, w + OFFSET, k, 1, bias, sizes[i]);
        decode_product(y, x, weights, OFFSET, NULL, streams, n, k, WEIGHT_OUT_IN);
        check_product(y, x, w + OFFSET, k, 1, NULL, sizes[i]);
        decode_product(y, x, weights, OFFSET, bias, streams, n, k, WEIGHT_IN_OUT);
        check_product(y, x, w + OFFSET, 1, n, bias, sizes[i]);
        decode_product(y, x, weights, OFFSET, NULL, streams, n, k, WEIGHT_IN_OUT);
        check_product(y, x, w + OFFSET, 1, n, NULL, sizes[i]);
        decode_weights_free(&weights);
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

// A stream's results are the same bits, alone and among others.
static void test_streams(void) {
    enum { STREAMS = 7, N = 70, K = 53 };
    real *x = random_values((size_t)STREAMS * K, 1), *w = random_values((size_t)N * K, 2),
         *together = random_values((size_t)STREAMS * N, 3), alone[N];
    for (int i = 0; i < 4; i++) {
        const WeightLayout layout = i % 2 ? WEIGHT_OUT_IN : WEIGHT_IN_OUT;
        DecodeWeights weights =
            decode_weights_create(i < 2 ? PRECISION_FLOAT32 : PRECISION_BFLOAT16, w, (size_t)N * K);
        decode_product(together, x, weights, 0, NULL, STREAMS, N, K, layout);
        for (size_t s = 0; s < STREAMS; s++) {
            decode_product(alone, x + s * K, weights, 0, NULL, 1, N, K, layout);
            for (size_t j = 0; j < N; j++) CHECK(alone[j] == together[s * N + j]);
        }
        decode_weights_free(&weights);
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
