#include "cosine_attention.h"

#include "error.h"
#include "memory.h"
#include "tile.h"
#include "vector_math.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    CHUNK = 64, // rows at a time: within a chunk attention is a masked product, before it the state
    AHEAD = 8   // rows to prefetch
};

static const double SHORTEST = 1e-12; // a shorter vector has no direction

struct CosineAttention {
    size_t heads, channels, size; // H, C, D
    size_t columns;               // D' = D rounded up to what products take
    size_t batch, padded;         // B and T, rounded up to whole chunks, that there is memory for
    real *logarithms;             // (B, T') log n
    real *scratch;                // (B H, scratch_size)
    size_t scratch_size;
    real *dbias;       // (B H, 3, D') sums over rows
    double *dexponent; // (B H)
};

// One head's memory: rows of a chunk (CHUNK, D'), q and k normalised and g = dy / n^sigmoid(m); products of
// them.
typedef struct {
    real *q, *k, *v, *g, *out;
    real *k_transposed, *v_transposed; // (D', CHUNK)
    real *qk, *gv;                     // (CHUNK, CHUNK) q k^T and g v^T, 0 above the diagonal
    real *state, *transposed;          // (D', D')
    real *q_scale, *k_scale, *y_scale; // (CHUNK) 1 / |q|, 1 / |k| (0: hidden), 1 / n^sigmoid(m)
} Scratch;

// What all heads of one pass share.
typedef struct {
    const CosineAttention *attention;
    const real *qkv, *bias, *exponent, *dy;
    const uint8_t *mask;
    size_t batch, length, padded;
} Pass;

CosineAttention *cosine_attention_create(size_t batch, size_t length, size_t channels, size_t heads) {
    const char *what = "attention";
    CosineAttention *a = allocate(1, sizeof(*a), what);
    a->heads = heads;
    a->channels = channels;
    a->size = channels / heads;
    a->columns = tile_round_up(a->size, TILE_COLUMNS);
    a->batch = batch;
    a->padded = tile_round_up(length, CHUNK);
    a->scratch_size = tile_count(7 * CHUNK + 2 * a->columns, a->columns) + 2 * CHUNK * CHUNK + 3 * CHUNK;
    const size_t units = tile_count(batch, heads);
    a->logarithms = allocate(tile_count(batch, a->padded), sizeof(real), what);
    a->scratch = allocate(units, tile_count(a->scratch_size, sizeof(real)), what);
    a->dbias = allocate(units, tile_count(3 * a->columns, sizeof(real)), what);
    a->dexponent = allocate(units, sizeof(double), what);
    return a;
}

void cosine_attention_free(CosineAttention *a) {
    if (!a) return;
    free(a->logarithms);
    free(a->scratch);
    free(a->dbias);
    free(a->dexponent);
    free(a);
}

static Pass begin(CosineAttention *a, const real *qkv, const real *bias, const real *exponent, const real *dy,
                  const uint8_t *mask, size_t batch, size_t length) {
    const size_t padded = tile_round_up(length, CHUNK);
    if (batch > a->batch || padded > a->padded)
        fail("attention: batch %zu x %zu is larger than its memory", batch, length);
    for (size_t b = 0; b < batch; b++) {
        size_t visible = 0;
        for (size_t t = 0; t < length; t++) {
            visible += !mask || mask[b * length + t];
            // A row that sees nothing has 0 above the line.
            a->logarithms[b * padded + t] = (real)log((double)(visible > 0 ? visible : 1));
        }
    }
    return (Pass){a, qkv, bias, exponent, dy, mask, batch, length, padded};
}

static Scratch scratch_of(const CosineAttention *a, size_t unit) {
    const size_t rows = CHUNK * a->columns, square = CHUNK * CHUNK, state = a->columns * a->columns;
    Scratch s;
    s.q = a->scratch + unit * a->scratch_size;
    s.k = s.q + rows;
    s.v = s.k + rows;
    s.g = s.v + rows;
    s.out = s.g + rows;
    s.k_transposed = s.out + rows;
    s.v_transposed = s.k_transposed + rows;
    s.qk = s.v_transposed + rows;
    s.gv = s.qk + square;
    s.state = s.gv + square;
    s.transposed = s.state + state;
    s.q_scale = s.transposed + state;
    s.k_scale = s.q_scale + CHUNK;
    s.y_scale = s.k_scale + CHUNK;
    return s;
}

static real sigmoid(real x) {
    return (real)(1 / (1 + exp(-(double)x)));
}

static real dot(const real *restrict a, const real *restrict b, size_t n) {
    real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (size_t d = 0; d < n; d++) sum += a[d] * b[d];
    return sum;
}

// row /= |row|; returns 1 / |row|.
static real normalise(real *row, size_t n) {
    const double length = sqrt((double)dot(row, row, n));
    const real scale = length < SHORTEST ? 0 : (real)(1 / length);
    for (size_t d = 0; d < n; d++) row[d] *= scale;
    return scale;
}

// The gradient to a row from `gradient` to the row normalised, in place; returns its part along the row.
static real differentiate_normalise(real *restrict gradient, const real *restrict row, real scale, size_t n) {
    const real along = dot(gradient, row, n);
    for (size_t d = 0; d < n; d++) gradient[d] = (gradient[d] - along * row[d]) * scale;
    return along;
}

static void add_row(real *restrict out, const real *restrict x, const real *restrict bias, size_t n) {
    for (size_t d = 0; d < n; d++) out[d] = bias ? x[d] + bias[d] : x[d];
}

// The rows of a head from t0 on; 0 behind the last one.
static void load_chunk(const Pass *pass, Scratch *s, size_t unit, size_t t0) {
    const CosineAttention *a = pass->attention;
    const size_t size = a->size, b = unit / a->heads, h = unit % a->heads;
    const size_t rows = pass->length - t0 < CHUNK ? pass->length - t0 : CHUNK;
    const real power = sigmoid(pass->exponent[h]);
    real *const parts[3] = {s->q, s->k, s->v};
    for (size_t r = 0; r < CHUNK; r++) {
        const size_t at = r * a->columns, row = b * pass->length + t0 + r;
        if (r >= rows) {
            for (size_t part = 0; part < 3; part++) memset(parts[part] + at, 0, size * sizeof(real));
            memset(s->g + at, 0, size * sizeof(real));
            continue;
        }
        for (size_t part = 0; part < 3; part++) {
            const size_t column = part * a->channels + h * size;
            if (r + AHEAD < rows) tile_prefetch(pass->qkv + (row + AHEAD) * 3 * a->channels + column, size);
            add_row(parts[part] + at, pass->qkv + row * 3 * a->channels + column,
                    pass->bias ? pass->bias + column : NULL, size);
        }
        s->q_scale[r] = normalise(s->q + at, size);
        s->k_scale[r] = normalise(s->k + at, size);
        if (pass->mask && !pass->mask[row]) {
            s->k_scale[r] = 0;
            memset(s->k + at, 0, size * sizeof(real));
        }
        s->y_scale[r] = vector_exp(-power * a->logarithms[b * pass->padded + t0 + r]);
        if (!pass->dy) continue;
        for (size_t d = 0; d < size; d++)
            s->g[at + d] = pass->dy[row * a->channels + h * size + d] * s->y_scale[r];
    }
}

// out (CHUNK, CHUNK) = left right^T where column <= row, else 0; `transposed` is memory for right^T.
static void lower_product(real *restrict out, const real *left, const real *right, real *restrict transposed,
                          size_t columns) {
    for (size_t d = 0; d < columns; d++) {
        for (size_t j = 0; j < CHUNK; j++) transposed[d * CHUNK + j] = right[j * columns + d];
    }
    memset(out, 0, CHUNK * CHUNK * sizeof(real));
    tile_product(out, CHUNK, out, CHUNK, (TileView){left, columns, 1}, transposed, CHUNK, CHUNK, CHUNK,
                 columns, false);
    for (size_t i = 0; i < CHUNK; i++) {
        for (size_t j = i + 1; j < CHUNK; j++) out[i * CHUNK + j] = 0;
    }
}

// s->out (CHUNK, D') = inner rows + outer state
static void two_products(const Scratch *s, TileView inner, const real *rows, const real *outer,
                         const real *state, size_t columns) {
    memset(s->out, 0, CHUNK * columns * sizeof(real));
    tile_product(s->out, columns, s->out, columns, inner, rows, columns, CHUNK, columns, CHUNK, false);
    tile_product(s->out, columns, s->out, columns, (TileView){outer, columns, 1}, state, columns, CHUNK,
                 columns, columns, false);
}

// state (D', D') += left^T right, of rows of a chunk.
static void state_add(real *state, const real *left, const real *right, size_t columns) {
    tile_product(state, columns, state, columns, (TileView){left, 1, columns}, right, columns, columns,
                 columns, CHUNK, false);
}

static void forward_unit(const Pass *pass, size_t unit, GemmInput y) {
    const CosineAttention *a = pass->attention;
    const size_t columns = a->columns;
    Scratch s = scratch_of(a, unit);
    memset(s.state, 0, columns * columns * sizeof(real)); // sum of k v^T
    for (size_t t0 = 0; t0 < pass->length; t0 += CHUNK) {
        load_chunk(pass, &s, unit, t0);
        lower_product(s.qk, s.q, s.k, s.k_transposed, columns);
        two_products(&s, (TileView){s.qk, CHUNK, 1}, s.v, s.q, s.state, columns);
        state_add(s.state, s.k, s.v, columns);
        for (size_t r = 0; r < CHUNK && t0 + r < pass->length; r++) {
            real *row = s.out + r * columns;
            for (size_t d = 0; d < a->size; d++) row[d] *= s.y_scale[r];
            gemm_input_store(y, unit / a->heads * pass->length + t0 + r, unit % a->heads * a->size, row,
                             a->size);
        }
    }
}

void cosine_attention_forward(CosineAttention *a, GemmInput y, const real *qkv, const real *bias,
                              const real *exponent, const uint8_t *mask, size_t batch, size_t length) {
    const Pass pass = begin(a, qkv, bias, exponent, NULL, mask, batch, length);
#pragma omp parallel for schedule(dynamic)
    for (size_t unit = 0; unit < batch * a->heads; unit++) forward_unit(&pass, unit, y);
}

typedef enum { QUERY, KEY, VALUE } Which;

// One row of s->out is the gradient of queries, keys or values: to dqkv, and to the sum over rows.
static void store_gradient(const Pass *pass, GemmInput dqkv, size_t unit, Which which, size_t t,
                           const real *row) {
    const CosineAttention *a = pass->attention;
    gemm_input_store(dqkv, unit / a->heads * pass->length + t,
                     which * a->channels + unit % a->heads * a->size, row, a->size);
    real *restrict sum = a->dbias + (unit * 3 + which) * a->columns;
    for (size_t d = 0; d < a->size; d++) sum[d] += row[d];
}

// dq_i = sum_{j<=i} k_j (v_j . g_i), forwards; and q_i . dq_i = y_i . dy_i gives the exponent's gradient.
static void backward_queries(const Pass *pass, size_t unit, GemmInput dqkv) {
    const CosineAttention *a = pass->attention;
    const size_t columns = a->columns;
    const real *logarithms = a->logarithms + unit / a->heads * pass->padded;
    Scratch s = scratch_of(a, unit);
    memset(s.transposed, 0, columns * columns * sizeof(real)); // sum of v k^T
    double sum = 0;
    for (size_t t0 = 0; t0 < pass->length; t0 += CHUNK) {
        load_chunk(pass, &s, unit, t0);
        lower_product(s.gv, s.g, s.v, s.v_transposed, columns);
        two_products(&s, (TileView){s.gv, CHUNK, 1}, s.k, s.g, s.transposed, columns);
        state_add(s.transposed, s.v, s.k, columns);
        for (size_t r = 0; r < CHUNK && t0 + r < pass->length; r++) {
            real *row = s.out + r * columns;
            const real product = differentiate_normalise(row, s.q + r * columns, s.q_scale[r], a->size);
            sum += (double)(logarithms[t0 + r] * product);
            store_gradient(pass, dqkv, unit, QUERY, t0 + r, row);
        }
    }
    const double power = (double)sigmoid(pass->exponent[unit % a->heads]);
    a->dexponent[unit] = -sum * power * (1 - power);
}

// dk_j = sum_{i>=j} q_i (g_i . v_j) and dv_j = sum_{i>=j} g_i (q_i . k_j), backwards.
static void backward_keys_values(const Pass *pass, size_t unit, GemmInput dqkv) {
    const CosineAttention *a = pass->attention;
    const size_t columns = a->columns;
    Scratch s = scratch_of(a, unit);
    memset(s.state, 0, columns * columns * sizeof(real));      // sum of q g^T
    memset(s.transposed, 0, columns * columns * sizeof(real)); // sum of g q^T
    for (size_t end = tile_round_up(pass->length, CHUNK); end > 0; end -= CHUNK) {
        const size_t t0 = end - CHUNK;
        load_chunk(pass, &s, unit, t0);
        lower_product(s.gv, s.g, s.v, s.v_transposed, columns);
        two_products(&s, (TileView){s.gv, 1, CHUNK}, s.q, s.v, s.transposed, columns);
        for (size_t r = 0; r < CHUNK && t0 + r < pass->length; r++) {
            differentiate_normalise(s.out + r * columns, s.k + r * columns, s.k_scale[r], a->size);
            store_gradient(pass, dqkv, unit, KEY, t0 + r, s.out + r * columns);
        }
        lower_product(s.qk, s.q, s.k, s.k_transposed, columns);
        two_products(&s, (TileView){s.qk, 1, CHUNK}, s.g, s.k, s.state, columns);
        for (size_t r = 0; r < CHUNK && t0 + r < pass->length; r++)
            store_gradient(pass, dqkv, unit, VALUE, t0 + r, s.out + r * columns);
        state_add(s.state, s.q, s.g, columns);
        state_add(s.transposed, s.g, s.q, columns);
    }
}

void cosine_attention_backward(CosineAttention *a, GemmInput dqkv, real *dbias, real *dexponent,
                               const real *dy, const real *qkv, const real *bias, const real *exponent,
                               const uint8_t *mask, size_t batch, size_t length) {
    const Pass pass = begin(a, qkv, bias, exponent, dy, mask, batch, length);
    const size_t units = batch * a->heads;
    memset(a->dbias, 0, units * 3 * a->columns * sizeof(real));
#pragma omp parallel for schedule(dynamic)
    for (size_t unit = 0; unit < units; unit++) {
        backward_queries(&pass, unit, dqkv);
        backward_keys_values(&pass, unit, dqkv);
    }
    for (size_t unit = 0; unit < units; unit++) {
        const size_t h = unit % a->heads;
        dexponent[h] += (real)a->dexponent[unit];
        for (size_t which = 0; dbias && which < 3; which++) {
            for (size_t d = 0; d < a->size; d++)
                dbias[which * a->channels + h * a->size + d] += a->dbias[(unit * 3 + which) * a->columns + d];
        }
    }
}

static void decode_unit(real *restrict y, real *restrict state, real *restrict q, real *restrict k,
                        const real *restrict v, real scale, size_t size) {
    normalise(q, size);
    normalise(k, size);
    for (size_t e = 0; e < size; e++) y[e] = 0;
    for (size_t d = 0; d < size; d++) {
        real *restrict row = state + d * size;
        for (size_t e = 0; e < size; e++) {
            row[e] += k[d] * v[e];
            y[e] += q[d] * row[e];
        }
    }
    for (size_t e = 0; e < size; e++) y[e] *= scale;
}

void cosine_attention_decode(real *restrict y, real *restrict state, real *restrict qkv,
                             const real *restrict bias, const real *restrict exponent, size_t position,
                             size_t streams, size_t channels, size_t heads) {
    const size_t size = channels / heads;
    const double logarithm = log((double)(position + 1));
#pragma omp for schedule(static) nowait
    for (size_t unit = 0; unit < streams * heads; unit++) {
        const size_t stream = unit / heads, at = unit % heads * size;
        real *q = qkv + stream * 3 * channels + at, *k = q + channels, *v = k + channels;
        for (size_t d = 0; bias && d < size; d++) {
            q[d] += bias[at + d];
            k[d] += bias[channels + at + d];
            v[d] += bias[2 * channels + at + d];
        }
        decode_unit(y + stream * channels + at, state + unit * size * size, q, k, v,
                    (real)exp(-(double)sigmoid(exponent[unit % heads]) * logarithm), size);
    }
}
