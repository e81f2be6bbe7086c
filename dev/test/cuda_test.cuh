// Helpers for tests of CUDA code: random numbers, arrays on the device, comparisons.
#ifndef TEST_CUDA_TEST_CUH
#define TEST_CUDA_TEST_CUH

#include "gpu_test.h"
extern "C" {
#include "random.h"
}
#include <math.h>
#include <stdlib.h>

// ---- on the host ------------------------------------------------------------
// Returns whether QUICK is set, as for slow builds: the longest tests then run one variant.
static inline bool gpu_test_quick() {
    const char *quick = getenv("QUICK");
    return quick && *quick;
}

// Returns normal random numbers with this standard deviation.
static inline float *random_numbers(Random *random, size_t count, double deviation) {
    float *x = (float *)allocate(count, sizeof(float), "numbers");
    for (size_t i = 0; i < count; i++) x[i] = (float)(deviation * random_normal(random));
    return x;
}

static inline float *zero_numbers(size_t count) {
    return (float *)allocate(count, sizeof(float), "numbers");
}

// Rounds to bf16 and back.
static inline void round_numbers(float *x, size_t count) {
    for (size_t i = 0; i < count; i++) x[i] = (float)(bf16)x[i];
}

// ---- on the device ----------------------------------------------------------
// Allocates device memory and copies `from` into it; NULL leaves it uninitialised.
static inline void *upload(const Device *d, const void *from, size_t bytes) {
    void *p = NULL;
    CUDA_CHECK(cudaMalloc(&p, bytes ? bytes : 1));
    if (from) CUDA_CHECK(cudaMemcpyAsync(p, from, bytes, cudaMemcpyHostToDevice, d->stream));
    device_synchronize(d);
    return p;
}

static inline float *upload_numbers(const Device *d, const float *from, size_t count) {
    return (float *)upload(d, from, count * sizeof(float));
}

// Uploads a matrix (rows, columns) in the form that the products read.
static inline Matrix upload_matrix(const Device *d, const float *from, size_t rows, size_t columns,
                                   bool in_bf16) {
    const size_t count = rows * columns;
    Matrix matrix = {NULL, columns, in_bf16};
    bf16 *rounded = (bf16 *)allocate(count, sizeof(bf16), "numbers");
    for (size_t i = 0; from && i < count; i++) rounded[i] = (bf16)from[i];
    matrix.data = in_bf16 ? upload(d, from ? rounded : NULL, count * sizeof(bf16))
                          : upload_numbers(d, from, count);
    free(rounded);
    return matrix;
}

static inline float *download(const Device *d, const float *from, size_t count) {
    float *x = zero_numbers(count);
    CUDA_CHECK(cudaMemcpyAsync(x, from, count * sizeof(float), cudaMemcpyDeviceToHost, d->stream));
    device_synchronize(d);
    return x;
}

static inline float *download_matrix(const Device *d, Matrix from, size_t rows) {
    const size_t count = rows * from.columns;
    if (!from.bf16) return download(d, (const float *)from.data, count);
    bf16 *rounded = (bf16 *)allocate(count, sizeof(bf16), "numbers");
    CUDA_CHECK(cudaMemcpyAsync(rounded, from.data, count * sizeof(bf16), cudaMemcpyDeviceToHost,
                               d->stream));
    device_synchronize(d);
    float *x = zero_numbers(count);
    for (size_t i = 0; i < count; i++) x[i] = (float)rounded[i];
    free(rounded);
    return x;
}

static inline void device_free(void *p) {
    CUDA_CHECK(cudaFree(p));
}

// ---- comparisons ------------------------------------------------------------
// Fails if the largest difference exceeds `tolerance` times the largest expected magnitude.
static inline void compare(const char *what, const float *x, const float *expected, size_t count,
                           double tolerance) {
    double error = 0, greatest = 1e-30;
    for (size_t i = 0; i < count; i++) {
        const double difference = fabs((double)x[i] - (double)expected[i]);
        if (!(difference <= error) && !isnan(error)) error = difference; // also NaN
        greatest = fmax(greatest, fabs((double)expected[i]));
    }
    if (!(error <= tolerance * greatest))
        test_fail(__FILE__, __LINE__, "%s: error %.3g of the largest number", what,
                  error / greatest);
}

// Like compare(), for x on the device; does not free x.
static inline void compare_device(const Device *d, const char *what, Matrix x,
                                  const float *expected, size_t rows, double tolerance) {
    float *found = download_matrix(d, x, rows);
    compare(what, found, expected, rows * x.columns, tolerance);
    free(found);
}

#endif
