// What the tests of CUDA code share: random numbers, arrays on the device, comparisons.
#ifndef TEST_CUDA_TEST_CUH
#define TEST_CUDA_TEST_CUH

#include "gpu_test.h"
extern "C" {
#include "random.h"
}
#include <math.h>
#include <stdlib.h>

// ---- on the host ------------------------------------------------------------
// With QUICK, which slow builds say, the longest tests take one of several variants (Makefile).
static inline bool gpu_test_quick() {
    const char *quick = getenv("QUICK");
    return quick && *quick;
}

// Normal, of that deviation.
static inline float *random_numbers(Random *random, size_t count, double deviation) {
    float *x = (float *)allocate(count, sizeof(float), "numbers");
    for (size_t i = 0; i < count; i++) x[i] = (float)(deviation * random_normal(random));
    return x;
}

static inline float *zero_numbers(size_t count) {
    return (float *)allocate(count, sizeof(float), "numbers");
}

// Rounded to bf16 and back.
static inline void round_numbers(float *x, size_t count) {
    for (size_t i = 0; i < count; i++) x[i] = (float)(bf16)x[i];
}

// ---- on the device ----------------------------------------------------------
// Device memory, filled from the host (NULL: left as it is).
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

// A matrix (rows, columns) as products read it.
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
// Largest difference over the largest number expected.
static inline void compare(const char *what, const float *x, const float *expected, size_t count,
                           double tolerance) {
    double error = 0, greatest = 1e-30;
    for (size_t i = 0; i < count; i++) {
        const double difference = fabs((double)x[i] - (double)expected[i]);
        if (!(difference <= error) && !isnan(error)) error = difference; // NaN, too
        greatest = fmax(greatest, fabs((double)expected[i]));
    }
    if (!(error <= tolerance * greatest))
        test_fail(__FILE__, __LINE__, "%s: error %.3g of the largest number", what,
                  error / greatest);
}

// The same of data on the device; frees nothing.
static inline void compare_device(const Device *d, const char *what, Matrix x,
                                  const float *expected, size_t rows, double tolerance) {
    float *found = download_matrix(d, x, rows);
    compare(what, found, expected, rows * x.columns, tolerance);
    free(found);
}

#endif
