// Shared by the benchmarks: the clock, medians, memory bandwidth, lines of JSON.
#ifndef BENCH_MEASURE_H
#define BENCH_MEASURE_H

#include "clock.h"
#include "json.h"
#include "memory.h"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static inline int bench_compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// Sorts seconds (count) and returns their median.
static inline double bench_median(double *seconds, size_t count) {
    qsort(seconds, count, sizeof(*seconds), bench_compare);
    return seconds[count / 2];
}

// Returns the bytes per second at which all threads together read a block of this size repeatedly:
// the bandwidth of the cache level that holds it, or of memory. Best of several passes.
static inline double bench_read_bandwidth(size_t bytes) {
    enum { ROW = 1024, AT_LEAST = 3 };
    const double duration = 0.2;
    const size_t rows = bytes / (ROW * sizeof(float)) + 1;
    float *block = allocate(rows * ROW, sizeof(float), "the measurement of the bandwidth");
#pragma omp parallel for schedule(static)
    for (size_t r = 0; r < rows; r++) // each thread first touches the rows it reads
        for (size_t i = 0; i < ROW; i++) block[r * ROW + i] = 1;
    double best = 0;
    float sum = 0;
    const double start = clock_seconds();
    for (int n = 0; n < AT_LEAST || clock_seconds() - start < duration; n++) {
        const double before = clock_seconds();
#pragma omp parallel for schedule(static) reduction(+ : sum)
        for (size_t r = 0; r < rows; r++) {
            const float *restrict row = block + r * ROW;
            float part[4] = {0}; // independent sums, so that no addition waits for another
            for (size_t s = 0; s < 4; s++) {
                float s_sum = 0;
#pragma omp simd reduction(+ : s_sum)
                for (size_t i = 0; i < ROW / 4; i++) s_sum += row[s * (ROW / 4) + i];
                part[s] = s_sum;
            }
            sum += part[0] + part[1] + part[2] + part[3];
        }
        const double speed = (double)(rows * ROW * sizeof(float)) / (clock_seconds() - before);
        if (speed > best) best = speed;
    }
    free(block);
    return sum > 0 ? best : 0; // uses the sum, so that it is computed
}

// Ends the object and prints it as one line to standard output. The caller begins it with
// json_begin() and adds members with json_add_...().
static inline void bench_line(JsonWriter *w) {
    json_end(w, '}');
    puts(w->text);
    fflush(stdout);
    json_writer_free(w);
}

#endif
