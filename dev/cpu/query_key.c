#include "query_key.h"

#include "attention_input.h"
#include "head_row.h"
#include "memory.h"
#include "row_blocks.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double EPSILON = 1e-5; // added to a standard deviation

QueryKeyShape query_key_shape(const AttentionPlan *plan, size_t channels, size_t heads,
                              const real *angles) {
    return (QueryKeyShape){.heads = heads,
                           .groups = plan->groups,
                           .size = channels / heads,
                           .scores = plan->scores,
                           .rescale = plan->rescale,
                           .epsilon = plan->epsilon,
                           .angles = plan->rotary.base > 0 ? angles : NULL};
}

void rotary_angles(real *angles, Rotary rotary, size_t positions, size_t size) {
    const size_t half = size / 2, rotated = (size_t)(rotary.part * (double)half);
    for (size_t t = 0; t < positions; t++) {
        real *cosines = angles + t * size, *sines = cosines + half;
        for (size_t d = 0; d < half; d++) {
            const double rate = d < rotated ? pow(rotary.base, -2 * (double)d / (double)size) : 0,
                         angle = (double)t * rate;
            cosines[d] = (real)cos(angle);
            sines[d] = (real)sin(angle);
        }
    }
}

// ---- a head's row (D) -------------------------------------------------------

static real mean_of(const real *x, size_t n) {
    real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (size_t d = 0; d < n; d++) sum += x[d];
    return sum / (real)n;
}

// Rotates x by the angles of a position, or back.
static void rotate(real *restrict x, const real *restrict angles, size_t size, bool back) {
    const size_t half = size / 2;
    const real sign = back ? -1 : 1;
    for (size_t d = 0; d < half; d++) {
        const real first = x[d], second = x[half + d], sine = sign * angles[half + d];
        x[d] = first * angles[d] - second * sine;
        x[half + d] = second * angles[d] + first * sine;
    }
}

// Statistics of a head's row, for its normalisation and for the gradient.
typedef struct {
    real inverse;   // 1 / (std + epsilon), or 1 / root mean square
    real deviation; // rescaled: std
    real scale;     // of the result
} HeadNorm;

// x = normal(x) times a scale, or gain x / root mean square
static HeadNorm head_norm(real *restrict x, const QueryKeyShape *s, AttentionPart part,
                          const real *restrict gain) {
    const size_t D = s->size;
    HeadNorm n = {.scale = part == QUERY ? (real)(s->rescale / sqrt((double)D)) : 1};
    if (s->scores == SCORES_QKNORM) {
        n.inverse = (real)(1 / sqrt((double)dot(x, x, D) / (double)D + s->epsilon));
        for (size_t d = 0; d < D; d++) x[d] *= gain[d] * n.inverse;
        return n;
    }
    const real mean = mean_of(x, D);
    for (size_t d = 0; d < D; d++) x[d] -= mean;
    n.deviation = (real)sqrt((double)dot(x, x, D) / (double)(D - 1));
    n.inverse = (real)(1 / ((double)n.deviation + EPSILON));
    for (size_t d = 0; d < D; d++) x[d] *= n.inverse * n.scale;
    return n;
}

// Turns g, the gradient of the result, into the gradient of x, in place; x is overwritten. With a
// gain, dgain +=.
static void head_norm_backward(real *restrict g, real *restrict x, const QueryKeyShape *s,
                               AttentionPart part, const real *restrict gain,
                               real *restrict dgain) {
    const size_t D = s->size;
    if (s->scores == SCORES_QKNORM) {
        const real inverse = (real)(1 / sqrt((double)dot(x, x, D) / (double)D + s->epsilon));
        for (size_t d = 0; d < D; d++) {
            x[d] *= inverse;
            dgain[d] += g[d] * x[d];
            g[d] *= gain[d];
        }
        const real along = dot(g, x, D) / (real)D;
        for (size_t d = 0; d < D; d++) g[d] = inverse * (g[d] - x[d] * along);
        return;
    }
    const HeadNorm n = head_norm(x, s, part, gain); // x is now normal(x) times the scale
    const real divisor = n.scale * (real)(D - 1) * n.deviation; // also 0 with --rescale 0
    const real along = divisor > 0 ? dot(g, x, D) / divisor : 0;
    for (size_t d = 0; d < D; d++) g[d] = n.inverse * n.scale * g[d] - x[d] * along;
    const real mean = mean_of(g, D);
    for (size_t d = 0; d < D; d++) g[d] -= mean;
}

// Loads a head of one part into x and adds the bias. Returns its first column.
static size_t load_head(real *restrict x, const real *restrict row, const real *restrict bias,
                        const QueryKeyShape *s, AttentionPart part, size_t head) {
    const size_t first = part == QUERY ? 0 : s->heads + (part == VALUE ? s->groups : 0),
                 column = (first + head) * s->size;
    for (size_t d = 0; d < s->size; d++) x[d] = row[column + d] + (bias ? bias[column + d] : 0);
    return column;
}

static const real *gain_of(const real *gains, const QueryKeyShape *s, AttentionPart part) {
    return gains ? gains + (part == KEY ? s->size : 0) : NULL;
}

// ---- rows -------------------------------------------------------------------

void query_key_row(real *restrict y, const real *restrict x, const real *restrict bias,
                   const real *restrict gains, const QueryKeyShape *s, size_t position) {
    const size_t D = s->size, copies = s->heads / s->groups;
    for (AttentionPart part = QUERY; part <= VALUE; part++) {
        const size_t heads = part == QUERY ? s->heads : s->groups,
                     each = part == QUERY ? 1 : copies;
        for (size_t h = 0; h < heads; h++) {
            real *to = y + (part * s->heads + h * each) * D;
            load_head(to, x, bias, s, part, h);
            if (part != VALUE && s->scores != SCORES_PLAIN)
                head_norm(to, s, part, gain_of(gains, s, part));
            if (part != VALUE && s->angles) rotate(to, s->angles + position * D, D, false);
            for (size_t copy = 1; copy < each; copy++) memcpy(to + copy * D, to, D * sizeof(real));
        }
    }
}

void query_key_forward(real *restrict y, const real *restrict x, const real *restrict bias,
                       const real *restrict gains, const QueryKeyShape *s, size_t length,
                       size_t m) {
    const size_t from = (s->heads + 2 * s->groups) * s->size, to = 3 * s->heads * s->size;
#pragma omp parallel for schedule(static)
    for (size_t row = 0; row < m; row++)
        query_key_row(y + row * to, x + row * from, bias, gains, s, row % length);
}

// Gradient sums of a block of rows, and memory for two rows of a head.
typedef struct {
    real *bias;  // ((H + 2H') D)
    real *gains; // (2, D)
    real *row, *gradient;
} BlockSums;

static void row_backward(Matrix dx, size_t row, BlockSums sums, const real *restrict dy,
                         const real *restrict x, const real *restrict bias,
                         const real *restrict gains, const QueryKeyShape *s, size_t position) {
    const size_t D = s->size, copies = s->heads / s->groups;
    for (AttentionPart part = QUERY; part <= VALUE; part++) {
        const size_t heads = part == QUERY ? s->heads : s->groups,
                     each = part == QUERY ? 1 : copies;
        for (size_t h = 0; h < heads; h++) {
            const real *from = dy + (part * s->heads + h * each) * D;
            const size_t column = load_head(sums.row, x, bias, s, part, h);
            memcpy(sums.gradient, from, D * sizeof(real));
            for (size_t copy = 1; copy < each; copy++)
                for (size_t d = 0; d < D; d++) sums.gradient[d] += from[copy * D + d];
            if (part != VALUE && s->angles)
                rotate(sums.gradient, s->angles + position * D, D, true);
            if (part != VALUE && s->scores != SCORES_PLAIN)
                head_norm_backward(sums.gradient, sums.row, s, part, gain_of(gains, s, part),
                                   sums.gains + (part == KEY ? D : 0));
            gemm_input_store(dx, row, column, sums.gradient, D);
            for (size_t d = 0; d < D; d++) sums.bias[column + d] += sums.gradient[d];
        }
    }
}

void query_key_backward(Matrix dx, real *restrict dbias, real *restrict dgains,
                        const real *restrict dy, const real *restrict x, const real *restrict bias,
                        const real *restrict gains, const QueryKeyShape *s, size_t length,
                        size_t m) {
    const size_t D = s->size, columns = (s->heads + 2 * s->groups) * D;
    real *biases = allocate(ROW_BLOCKS * columns, sizeof(real), "bias gradients"),
         *gain_sums = allocate(ROW_BLOCKS * 2 * D, sizeof(real), "norm gradients"),
         *rows = allocate(ROW_BLOCKS * 2 * D, sizeof(real), "gradients");
#pragma omp parallel for schedule(static)
    for (size_t block = 0; block < ROW_BLOCKS; block++) {
        const BlockSums sums = {biases + block * columns, gain_sums + block * 2 * D,
                                rows + block * 2 * D, rows + block * 2 * D + D};
        const size_t end = row_block_begin(m, block + 1);
        for (size_t row = row_block_begin(m, block); row < end; row++)
            row_backward(dx, row, sums, dy + row * 3 * s->heads * D, x + row * columns, bias, gains,
                         s, row % length);
    }
    if (dbias) row_blocks_add(dbias, biases, columns);
    if (dgains) row_blocks_add(dgains, gain_sums, 2 * D);
    free(biases);
    free(gain_sums);
    free(rows);
}
