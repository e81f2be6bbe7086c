#include "cosine_attention.h"

#include "arena.h"
#include "error.h"
#include "memory.h"
#include "sizes.h"
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
    double power;                 // where none is learned
    const TileEngine *engine;     // of products
    size_t heads, channels, size; // H, C, D
    size_t columns;               // D' = D rounded up to what products take
    size_t batch, queries, keys;  // B, Tq and Tk that there is memory for
    real *logarithms;             // (B, Tq) log n
    real *scratch;                // (B H, scratch_size)
    size_t scratch_size;
    real *dbias;       // (B H, 3, D') sums over rows
    double *dexponent; // (B H)
};

// One head's memory: rows of a chunk (CHUNK, D'), q and k normalised and g = dy / n^p; products of
// them, and what their operands are packed in.
typedef struct {
    size_t columns; // D'
    const TileEngine *engine;
    real *q, *k, *v, *g, *out;
    real *inner;              // (CHUNK, CHUNK) products of rows, 0 on one side of the diagonal
    real *state, *transposed; // (D', D')
    real *left, *right;       // operands of up to (CHUNK, CHUNK or D') and (CHUNK or D', D')
    real *q_scale, *k_scale, *y_scale; // (CHUNK) 1 / |q|, 1 / |k| (0: hidden), 1 / n^p
} Scratch;

// What all heads of one pass share.
typedef struct {
    const CosineAttention *attention;
    const AttentionInput *in;
    const real *exponent, *dy;
} CosinePass;

CosineAttention *cosine_attention_create(Precision precision, double power, size_t batch,
                                         size_t queries, size_t keys, size_t channels,
                                         size_t heads) {
    CosineAttention *a = allocate(1, sizeof(*a), "attention");
    a->power = power;
    a->engine = &tile_engines[tile_multiplier(precision == PRECISION_BFLOAT16)];
    a->heads = heads;
    a->channels = channels;
    a->size = channels / heads;
    a->columns = round_up(a->size, TILE_COLUMNS);
    a->batch = batch;
    a->queries = queries;
    a->keys = keys;
    const size_t most = larger(CHUNK, a->columns);
    a->scratch_size = tile_count(5 * CHUNK + 2 * a->columns + most, a->columns) +
                      CHUNK * (CHUNK + most) + 3 * CHUNK;
    return a;
}

void cosine_attention_carve(CosineAttention *a, Arena *arena) {
    const char *what = "attention";
    const size_t units = tile_count(a->batch, a->heads);
    a->logarithms = arena_reals(arena, a->batch, a->queries, what);
    a->scratch = arena_reals(arena, units, a->scratch_size, what);
    a->dbias = arena_reals(arena, units, 3 * a->columns, what);
    a->dexponent = arena_array(arena, units, sizeof(double), what);
}

void cosine_attention_free(CosineAttention *a) {
    free(a);
}

// The logarithms of how many keys each query of sequence b sees.
static void count_keys(CosineAttention *a, const AttentionInput *in, size_t b) {
    const uint8_t *mask = in->mask ? in->mask + b * in->keys : NULL;
    size_t visible = 0;
    for (size_t j = 0; !in->causal && j < in->keys; j++) visible += !mask || mask[j];
    for (size_t i = 0; i < in->queries; i++) {
        if (in->causal) visible += !mask || mask[i];
        // A row that sees nothing has 0 above the line.
        a->logarithms[b * in->queries + i] = (real)log((double)(visible > 0 ? visible : 1));
    }
}

static CosinePass begin(CosineAttention *a, const AttentionInput *in, const real *exponent,
                        const real *dy) {
    attention_check(in, a->batch, a->queries, a->keys);
    if (in->window > 0) fail("cosine attention has no windows");
    for (size_t b = 0; b < in->batch; b++) count_keys(a, in, b);
    return (CosinePass){a, in, exponent, dy};
}

static Scratch scratch_of(const CosineAttention *a, size_t unit) {
    const size_t rows = CHUNK * a->columns, state = a->columns * a->columns;
    const size_t most = larger(CHUNK, a->columns);
    Scratch s = {.columns = a->columns, .engine = a->engine};
    s.q = a->scratch + unit * a->scratch_size;
    s.k = s.q + rows;
    s.v = s.k + rows;
    s.g = s.v + rows;
    s.out = s.g + rows;
    s.inner = s.out + rows;
    s.state = s.inner + CHUNK * CHUNK;
    s.transposed = s.state + state;
    s.left = s.transposed + state;
    s.right = s.left + CHUNK * most;
    s.q_scale = s.right + most * a->columns;
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

// The gradient to a row from `gradient` to the row normalised, in place; returns its part along the
// row.
static real differentiate_normalise(real *restrict gradient, const real *restrict row, real scale,
                                    size_t n) {
    const real along = dot(gradient, row, n);
    for (size_t d = 0; d < n; d++) gradient[d] = (gradient[d] - along * row[d]) * scale;
    return along;
}

// p of head h.
static real power_of(const CosineAttention *a, const real *exponent, size_t h) {
    return exponent ? sigmoid(exponent[h]) : (real)a->power;
}

// A head's rows of queries, keys or values from one on.
typedef struct {
    const real *x, *bias; // bias (D) or NULL
    size_t stride, count;
} CosineRows;

static CosineRows rows_of(const CosinePass *pass, AttentionPart part, size_t unit, size_t t0) {
    const CosineAttention *a = pass->attention;
    const AttentionRows *from = &pass->in->rows[part];
    const size_t length = part == QUERY ? pass->in->queries : pass->in->keys,
                 column = unit % a->heads * a->size;
    return (CosineRows){from->x + (unit / a->heads * length + t0) * from->stride + column,
                        from->bias ? from->bias + column : NULL, from->stride,
                        length - t0 < CHUNK ? length - t0 : CHUNK};
}

// Row r of those; 0 beyond the last one.
static void load_row(real *restrict out, const CosineRows *rows, size_t r, size_t size) {
    if (r >= rows->count) {
        memset(out, 0, size * sizeof(real));
        return;
    }
    const real *restrict x = rows->x + r * rows->stride, *restrict bias = rows->bias;
    if (r + AHEAD < rows->count) tile_prefetch(x + AHEAD * rows->stride, size);
    for (size_t d = 0; d < size; d++) out[d] = bias ? x[d] + bias[d] : x[d];
}

typedef enum { LOAD_QUERIES = 1, LOAD_KEYS = 2, LOAD_BOTH = 3 } Load;

// A head's rows from t0 on: queries and, in the backward pass, the gradients to their sums; keys, 0
// where they are hidden, and values.
static void load_chunk(const CosinePass *pass, Scratch *s, size_t unit, size_t t0, Load load) {
    const CosineAttention *a = pass->attention;
    const AttentionInput *in = pass->in;
    const size_t size = a->size, b = unit / a->heads, h = unit % a->heads,
                 first = b * in->queries + t0;
    const CosineRows none = {0};
    const CosineRows queries = load & LOAD_QUERIES ? rows_of(pass, QUERY, unit, t0) : none;
    const CosineRows keys = load & LOAD_KEYS ? rows_of(pass, KEY, unit, t0) : none;
    const CosineRows values = load & LOAD_KEYS ? rows_of(pass, VALUE, unit, t0) : none;
    const CosineRows gradients = {pass->dy ? pass->dy + first * a->channels + h * size : NULL, NULL,
                                  a->channels, pass->dy ? queries.count : 0};
    const uint8_t *mask = in->mask ? in->mask + b * in->keys + t0 : NULL;
    const real power = power_of(a, pass->exponent, h);
    for (size_t r = 0; r < CHUNK; r++) {
        const size_t at = r * a->columns;
        if (load & LOAD_QUERIES) {
            load_row(s->q + at, &queries, r, size);
            if (pass->dy) load_row(s->g + at, &gradients, r, size);
        }
        if (load & LOAD_KEYS) {
            load_row(s->k + at, &keys, r, size);
            load_row(s->v + at, &values, r, size);
        }
        if (r < queries.count) {
            s->q_scale[r] = normalise(s->q + at, size);
            s->y_scale[r] = vector_exp(-power * a->logarithms[first + r]);
            for (size_t d = 0; pass->dy && d < size; d++) s->g[at + d] *= s->y_scale[r];
        }
        if (r < keys.count) {
            s->k_scale[r] = normalise(s->k + at, size);
            if (!mask || mask[r]) continue;
            s->k_scale[r] = 0;
            memset(s->k + at, 0, size * sizeof(real));
        }
    }
}

// ---- products: of float32 numbers in place, or of operands packed as words of two bf16 ----

// Pairs of rows of x (rows, columns) become words.
static void pack_rows(real *out, const real *x, size_t rows, size_t columns) {
    for (size_t i = 0; i < rows; i += 2)
        tile_right(out + i / 2 * columns, columns, x + i * columns, x + (i + 1) * columns, columns,
                   true);
}

// x (CHUNK, columns) as a left operand
static TileView left_rows(const Scratch *s, const real *x, size_t columns) {
    if (s->engine->step == 1) return (TileView){x, columns, 1};
    for (size_t i = 0; i < CHUNK * columns; i += TILE_COLUMNS)
        tile_store_left(s->left + i / 2, tile_load(x + i), tile_load(x + i + TILE_LANES), true);
    return (TileView){s->left, columns / 2, 1};
}

// x (CHUNK, D'), transposed, as a left operand
static TileView left_transposed(const Scratch *s, const real *x) {
    if (s->engine->step == 1) return (TileView){x, 1, s->columns};
    pack_rows(s->left, x, CHUNK, s->columns);
    if (s->engine->squares) tile_transpose_squares(s->left, s->columns, CHUNK / 2, s->columns);
    return (TileView){s->left, 1, s->columns};
}

// x (rows, D') as a right operand
static const real *right_rows(const Scratch *s, const real *x, size_t rows) {
    if (s->engine->step == 1) return x;
    pack_rows(s->right, x, rows, s->columns);
    return s->right;
}

// x (CHUNK, D'), transposed, as a right operand; packs a left one on the way.
static const real *right_transposed(const Scratch *s, const real *x) {
    const TileView rows = left_rows(s, x, s->columns);
    const size_t words = s->columns / s->engine->step;
    for (size_t i = 0; i < CHUNK; i += TILE_LANES) {
        for (size_t w = 0; w < words; w += TILE_LANES) {
            TileVector square[TILE_LANES];
            TILE_UNROLL
            for (size_t r = 0; r < TILE_LANES; r++)
                square[r] = tile_load(rows.data + (i + r) * rows.row + w);
            tile_transpose(square);
            TILE_UNROLL
            for (size_t r = 0; r < TILE_LANES; r++)
                tile_store(s->right + (w + r) * CHUNK + i, square[r]);
        }
    }
    return s->right;
}

// Which elements (row, column) of a square are kept.
typedef enum { LOWER, UPPER } Triangle; // column <= row, column >= row

// s->inner (CHUNK, CHUNK) = left right^T, of rows of a chunk, in a triangle, else 0
static void inner_product(const Scratch *s, const real *left, const real *right,
                          Triangle triangle) {
    real *out = s->inner;
    const real *transposed = right_transposed(s, right);
    memset(out, 0, CHUNK * CHUNK * sizeof(real));
    s->engine->product(out, CHUNK, out, CHUNK, left_rows(s, left, s->columns), transposed, CHUNK,
                       CHUNK, CHUNK, s->columns / s->engine->step);
    for (size_t i = 0; i < CHUNK; i++) {
        const size_t from = triangle == LOWER ? i + 1 : 0, end = triangle == LOWER ? CHUNK : i;
        for (size_t j = from; j < end; j++) out[i * CHUNK + j] = 0;
    }
}

// s->out (CHUNK, D') += left (CHUNK, n) right (n, D')
static void out_add(const Scratch *s, const real *left, const real *right, size_t n) {
    s->engine->product(s->out, s->columns, s->out, s->columns, left_rows(s, left, n),
                       right_rows(s, right, n), s->columns, CHUNK, s->columns, n / s->engine->step);
}

// s->out (CHUNK, D') = s->inner rows, where attention is causal, + outer state
static void two_products(const Scratch *s, bool causal, const real *rows, const real *outer,
                         const real *state) {
    memset(s->out, 0, CHUNK * s->columns * sizeof(real));
    if (causal) out_add(s, s->inner, rows, CHUNK);
    out_add(s, outer, state, s->columns);
}

// state (D', D') += left^T right, of rows of a chunk
static void state_add(const Scratch *s, real *state, const real *left, const real *right) {
    s->engine->product(state, s->columns, state, s->columns, left_transposed(s, left),
                       right_rows(s, right, CHUNK), s->columns, s->columns, s->columns,
                       CHUNK / s->engine->step);
}

// ---- forward ----------------------------------------------------------------
// Causal: the state is the sum of the chunks before, and the chunk itself a masked product.
// Otherwise it is the sum of all keys.
static void forward_unit(const CosinePass *pass, size_t unit, Matrix y) {
    const CosineAttention *a = pass->attention;
    const AttentionInput *in = pass->in;
    const size_t columns = a->columns;
    Scratch s = scratch_of(a, unit);
    a->engine->begin();
    memset(s.state, 0, columns * columns * sizeof(real)); // sum of k v^T
    for (size_t t0 = 0; !in->causal && t0 < in->keys; t0 += CHUNK) {
        load_chunk(pass, &s, unit, t0, LOAD_KEYS);
        state_add(&s, s.state, s.k, s.v);
    }
    for (size_t t0 = 0; t0 < in->queries; t0 += CHUNK) {
        load_chunk(pass, &s, unit, t0, in->causal ? LOAD_BOTH : LOAD_QUERIES);
        if (in->causal) inner_product(&s, s.q, s.k, LOWER);
        two_products(&s, in->causal, s.v, s.q, s.state);
        if (in->causal) state_add(&s, s.state, s.k, s.v);
        for (size_t r = 0; r < CHUNK && t0 + r < in->queries; r++) {
            real *row = s.out + r * columns;
            for (size_t d = 0; d < a->size; d++) row[d] *= s.y_scale[r];
            gemm_input_store(y, unit / a->heads * in->queries + t0 + r, unit % a->heads * a->size,
                             row, a->size);
        }
    }
    a->engine->end();
}

void cosine_attention_forward(CosineAttention *a, Matrix y, const real *exponent,
                              const AttentionInput *in) {
    const CosinePass pass = begin(a, in, exponent, NULL);
#pragma omp parallel for schedule(dynamic)
    for (size_t unit = 0; unit < in->batch * a->heads; unit++) forward_unit(&pass, unit, y);
}

// ---- backward ---------------------------------------------------------------
// One row of s->out is the gradient of a query, key or value: to where it goes, and to the sum over
// rows.
static void store_gradient(const CosinePass *pass, const AttentionGradients *gradients, size_t unit,
                           AttentionPart which, size_t t, const real *row) {
    const CosineAttention *a = pass->attention;
    const AttentionGradient *to = &gradients->parts[which];
    const size_t length = which == QUERY ? pass->in->queries : pass->in->keys;
    gemm_input_store(to->to, unit / a->heads * length + t, to->column + unit % a->heads * a->size,
                     row, a->size);
    real *restrict sum = a->dbias + (unit * 3 + which) * a->columns;
    for (size_t d = 0; d < a->size; d++) sum[d] += row[d];
}

// dq_i = sum_j k_j (v_j . g_i), forwards; and q_i . dq_i = y_i . dy_i gives the exponent's
// gradient.
static void backward_queries(const CosinePass *pass, size_t unit,
                             const AttentionGradients *gradients) {
    const CosineAttention *a = pass->attention;
    const AttentionInput *in = pass->in;
    const size_t columns = a->columns;
    const real *logarithms = a->logarithms + unit / a->heads * in->queries;
    Scratch s = scratch_of(a, unit);
    a->engine->begin();
    memset(s.transposed, 0, columns * columns * sizeof(real)); // sum of v k^T
    double sum = 0;
    for (size_t t0 = 0; !in->causal && t0 < in->keys; t0 += CHUNK) {
        load_chunk(pass, &s, unit, t0, LOAD_KEYS);
        state_add(&s, s.transposed, s.v, s.k);
    }
    for (size_t t0 = 0; t0 < in->queries; t0 += CHUNK) {
        load_chunk(pass, &s, unit, t0, in->causal ? LOAD_BOTH : LOAD_QUERIES);
        if (in->causal) inner_product(&s, s.g, s.v, LOWER);
        two_products(&s, in->causal, s.k, s.g, s.transposed);
        if (in->causal) state_add(&s, s.transposed, s.v, s.k);
        for (size_t r = 0; r < CHUNK && t0 + r < in->queries; r++) {
            real *row = s.out + r * columns;
            const real product =
                differentiate_normalise(row, s.q + r * columns, s.q_scale[r], a->size);
            sum += (double)(logarithms[t0 + r] * product);
            store_gradient(pass, gradients, unit, QUERY, t0 + r, row);
        }
    }
    a->engine->end();
    const double power = (double)power_of(a, pass->exponent, unit % a->heads);
    a->dexponent[unit] = -sum * power * (1 - power);
}

// The gradients of the keys and values of a chunk, from the state and, where attention is causal,
// from the queries of the chunk.
static void backward_chunk(const CosinePass *pass, Scratch *s, size_t unit,
                           const AttentionGradients *gradients, size_t t0) {
    const CosineAttention *a = pass->attention;
    const AttentionInput *in = pass->in;
    const size_t columns = a->columns;
    if (in->causal) inner_product(s, s->v, s->g, UPPER);
    two_products(s, in->causal, s->q, s->v, s->transposed);
    for (size_t r = 0; r < CHUNK && t0 + r < in->keys; r++) {
        differentiate_normalise(s->out + r * columns, s->k + r * columns, s->k_scale[r], a->size);
        store_gradient(pass, gradients, unit, KEY, t0 + r, s->out + r * columns);
    }
    if (in->causal) inner_product(s, s->k, s->q, UPPER);
    two_products(s, in->causal, s->g, s->k, s->state);
    for (size_t r = 0; r < CHUNK && t0 + r < in->keys; r++)
        store_gradient(pass, gradients, unit, VALUE, t0 + r, s->out + r * columns);
}

// dk_j = sum_i q_i (g_i . v_j) and dv_j = sum_i g_i (q_i . k_j), backwards.
static void backward_keys_values(const CosinePass *pass, size_t unit,
                                 const AttentionGradients *gradients) {
    const CosineAttention *a = pass->attention;
    const AttentionInput *in = pass->in;
    const size_t columns = a->columns;
    Scratch s = scratch_of(a, unit);
    a->engine->begin();
    memset(s.state, 0, columns * columns * sizeof(real));      // sum of q g^T
    memset(s.transposed, 0, columns * columns * sizeof(real)); // sum of g q^T
    for (size_t t0 = 0; !in->causal && t0 < in->queries; t0 += CHUNK) {
        load_chunk(pass, &s, unit, t0, LOAD_QUERIES);
        state_add(&s, s.state, s.q, s.g);
        state_add(&s, s.transposed, s.g, s.q);
    }
    for (size_t end = round_up(in->keys, CHUNK); end > 0; end -= CHUNK) {
        const size_t t0 = end - CHUNK;
        load_chunk(pass, &s, unit, t0, in->causal ? LOAD_BOTH : LOAD_KEYS);
        backward_chunk(pass, &s, unit, gradients, t0);
        if (!in->causal) continue;
        state_add(&s, s.state, s.q, s.g);
        state_add(&s, s.transposed, s.g, s.q);
    }
    a->engine->end();
}

void cosine_attention_backward(CosineAttention *a, const AttentionGradients *gradients,
                               real *dexponent, const real *dy, const real *exponent,
                               const AttentionInput *in) {
    const CosinePass pass = begin(a, in, exponent, dy);
    const size_t units = in->batch * a->heads;
    memset(a->dbias, 0, units * 3 * a->columns * sizeof(real));
#pragma omp parallel for schedule(dynamic)
    for (size_t unit = 0; unit < units; unit++) {
        backward_queries(&pass, unit, gradients);
        backward_keys_values(&pass, unit, gradients);
    }
    for (size_t unit = 0; unit < units; unit++) {
        const size_t h = unit % a->heads;
        if (exponent) dexponent[h] += (real)a->dexponent[unit];
        for (size_t which = QUERY; which <= VALUE; which++) {
            real *bias = gradients->parts[which].bias;
            for (size_t d = 0; bias && d < a->size; d++)
                bias[h * a->size + d] += a->dbias[(unit * 3 + which) * a->columns + d];
        }
    }
}

// ---- decoding ---------------------------------------------------------------

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
                             const real *restrict bias, const real *restrict exponent, double power,
                             size_t position, size_t streams, size_t channels, size_t heads) {
    const size_t size = channels / heads;
    const double logarithm = log((double)(position + 1));
#pragma omp for schedule(static) nowait
    for (size_t unit = 0; unit < streams * heads; unit++) {
        const double p = exponent ? (double)sigmoid(exponent[unit % heads]) : power;
        const size_t stream = unit / heads, at = unit % heads * size;
        real *q = qkv + stream * 3 * channels + at, *k = q + channels, *v = k + channels;
        for (size_t d = 0; bias && d < size; d++) {
            q[d] += bias[at + d];
            k[d] += bias[channels + at + d];
            v[d] += bias[2 * channels + at + d];
        }
        decode_unit(y + stream * channels + at, state + unit * size * size, q, k, v,
                    (real)exp(-p * logarithm), size);
    }
}
