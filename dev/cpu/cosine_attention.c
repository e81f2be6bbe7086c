#include "cosine_attention.h"

#include "arena.h"
#include "error.h"
#include "exp_window.h"
#include "head_row.h"
#include "memory.h"
#include "sizes.h"
#include "tile.h"
#include "vector_math.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    CHUNK = 64, // rows at a time: a masked product within a chunk, the state before it
    AHEAD = 8   // rows to prefetch
};

struct CosineAttention {
    double power;                 // unless it is learned
    const TileEngine *engine;     // of products
    size_t heads, channels, size; // H, C, D
    size_t columns;               // D' = D rounded up for the products
    size_t batch, queries, keys;  // B, Tq and Tk that the memory is for
    real *logarithms;             // (B, Tq) log n
    real *scratch;                // (B H, scratch_size)
    size_t scratch_size;
    size_t window;      // the largest; 0: none
    ExpWindow *windows; // (B H, 2) sums of whole chunks' states; NULL: no window
    real *dbias;        // (B H, 3, D') sums over rows
    double *dexponent;  // (B H)
};

// Buffers of one head: rows of a chunk (CHUNK, D'), with q and k normalised and g = dy / n^p; their
// products, and packed operands.
typedef struct {
    size_t columns; // D'
    const TileEngine *engine;
    real *q, *k, *v, *g, *out;
    real *inner;              // (CHUNK, CHUNK) products of rows, 0 on one side of the diagonal
    real *state, *transposed; // (D', D')
    real *left, *right;       // operands of up to (CHUNK, CHUNK or D') and (CHUNK or D', D')
    real *q_scale, *k_scale, *y_scale; // (CHUNK) 1 / |q|, 1 / |k| (0: hidden), 1 / n^p
    ExpWindow *windows;                // (2) of state and transposed
} Scratch;

// Shared by all heads of a pass.
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

void cosine_attention_set_window(CosineAttention *a, size_t window) {
    a->window = window;
    a->windows = allocate(a->batch * a->heads * 2, sizeof(ExpWindow), "attention");
}

// Returns how many chunks directly before a chunk are inside the window of all its queries.
static size_t whole_chunks(size_t window) {
    return window / CHUNK > 0 ? window / CHUNK - 1 : 0;
}

void cosine_attention_carve(CosineAttention *a, Arena *arena) {
    const char *what = "attention";
    const size_t units = tile_count(a->batch, a->heads);
    a->logarithms = arena_reals(arena, a->batch, a->queries, what);
    a->scratch = arena_reals(arena, units, a->scratch_size, what);
    a->dbias = arena_reals(arena, units, 3 * a->columns, what);
    a->dexponent = arena_array(arena, units, sizeof(double), what);
    for (size_t i = 0; a->windows && i < 2 * units; i++)
        a->windows[i] =
            exp_window_carve(arena, whole_chunks(a->window), a->columns * a->columns, what);
}

void cosine_attention_free(CosineAttention *a) {
    free(a->windows);
    free(a);
}

// Computes the logarithms of the number of keys that each query of sequence b sees.
static void count_keys(CosineAttention *a, const AttentionInput *in, size_t b) {
    const uint8_t *mask = in->mask ? in->mask + b * in->keys : NULL;
    size_t visible = 0;
    for (size_t j = 0; !in->causal && j < in->keys; j++) visible += !mask || mask[j];
    for (size_t i = 0; i < in->queries; i++) {
        if (in->causal) visible += !mask || mask[i];
        if (in->window > 0 && i >= in->window) visible -= !mask || mask[i - in->window];
        // A row that sees nothing has a numerator of 0.
        a->logarithms[b * in->queries + i] = (real)log((double)(visible > 0 ? visible : 1));
    }
}

static CosinePass begin(CosineAttention *a, const AttentionInput *in, const real *exponent,
                        const real *dy) {
    attention_check(in, a->batch, a->queries, a->keys);
    if (in->window > a->window && a->window < in->keys)
        fail("cosine attention: a window of %zu keys is larger than its memory, %zu", in->window,
             a->window);
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
    s.windows = a->windows ? a->windows + 2 * unit : NULL;
    return s;
}

static real sigmoid(real x) {
    return (real)(1 / (1 + exp(-(double)x)));
}

// Returns p of head h.
static real power_of(const CosineAttention *a, const real *exponent, size_t h) {
    return exponent ? sigmoid(exponent[h]) : (real)a->power;
}

// A head's rows of queries, keys or values from row t0 on.
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

// Loads row r, or zeros after the last row.
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

// Loads a head's rows from t0 on: queries and, in the backward pass, the gradients to their sums;
// keys, 0 if they are masked, and values.
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

// Packs pairs of rows of x (rows, columns) into words.
static void pack_rows(real *out, const real *x, size_t rows, size_t columns) {
    for (size_t i = 0; i < rows; i += 2)
        tile_right(out + i / 2 * columns, columns, x + i * columns, x + (i + 1) * columns, columns,
                   true);
}

// Returns x (CHUNK, columns) as a left operand.
static TileView left_rows(const Scratch *s, const real *x, size_t columns) {
    if (s->engine->step == 1) return (TileView){x, columns, 1};
    for (size_t i = 0; i < CHUNK * columns; i += TILE_COLUMNS)
        tile_store_left(s->left + i / 2, tile_load(x + i), tile_load(x + i + TILE_LANES), true);
    return (TileView){s->left, columns / 2, 1};
}

// Returns x (CHUNK, D'), transposed, as a left operand.
static TileView left_transposed(const Scratch *s, const real *x) {
    if (s->engine->step == 1) return (TileView){x, 1, s->columns};
    pack_rows(s->left, x, CHUNK, s->columns);
    if (s->engine->squares) tile_transpose_squares(s->left, s->columns, CHUNK / 2, s->columns);
    return (TileView){s->left, 1, s->columns};
}

// Returns x (rows, D') as a right operand.
static const real *right_rows(const Scratch *s, const real *x, size_t rows) {
    if (s->engine->step == 1) return x;
    pack_rows(s->right, x, rows, s->columns);
    return s->right;
}

// Returns x (CHUNK, D'), transposed, as a right operand. May overwrite s->left.
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

// The elements (row, column) of a square with first <= row - column <= last.
typedef struct {
    ptrdiff_t first, last;
} Band;

// s->inner (CHUNK, CHUNK) = left right^T, of rows of a chunk, inside a band; 0 outside of it
static void inner_product(const Scratch *s, const real *left, const real *right, Band band) {
    real *out = s->inner;
    const real *transposed = right_transposed(s, right);
    memset(out, 0, CHUNK * CHUNK * sizeof(real));
    s->engine->product(out, CHUNK, out, CHUNK, left_rows(s, left, s->columns), transposed, CHUNK,
                       CHUNK, CHUNK, s->columns / s->engine->step);
    for (ptrdiff_t i = 0; i < CHUNK; i++) {
        for (ptrdiff_t j = 0; j < i - band.last; j++) out[i * CHUNK + j] = 0;
        for (ptrdiff_t j = i - band.first < 0 ? 0 : i - band.first + 1; j < CHUNK; j++)
            out[i * CHUNK + j] = 0;
    }
}

// s->out (CHUNK, D') += left (CHUNK, n) right (n, D')
static void out_add(const Scratch *s, const real *left, const real *right, size_t n) {
    s->engine->product(s->out, s->columns, s->out, s->columns, left_rows(s, left, n),
                       right_rows(s, right, n), s->columns, CHUNK, s->columns, n / s->engine->step);
}

// state (D', D') += left^T right, of rows of a chunk
static void state_add(const Scratch *s, real *state, const real *left, const real *right) {
    s->engine->product(state, s->columns, state, s->columns, left_transposed(s, left),
                       right_rows(s, right, CHUNK), s->columns, s->columns, s->columns,
                       CHUNK / s->engine->step);
}

// ---- a chunk and what it sees -----------------------------------------------
// Causal: the state is the sum of the previous chunks, and the chunk itself is a masked product.
// With a window, the chunks at its far end are masked products, too, and the state is the sum of
// the whole chunks in between. Not causal: the state is the sum of all keys. The gradients to keys
// and values do the same over queries, in reverse order.

// One of the two states of a pass: the sum of left^T right over the previous chunks.
typedef struct {
    real *sum;         // (D', D') of all chunks; with a window, a buffer for one chunk
    ExpWindow *window; // sum over the window; NULL: no window
} ChunkState;

static ChunkState state_start(const CosinePass *pass, const Scratch *s, real *sum, size_t which) {
    const size_t window = pass->in->window;
    memset(sum, 0, s->columns * s->columns * sizeof(real));
    if (window == 0) return (ChunkState){sum, NULL};
    exp_window_reset(&s->windows[which], whole_chunks(window));
    return (ChunkState){sum, &s->windows[which]};
}

// Adds a chunk to the state. If the window contains no whole chunk, there is no state.
static void state_take(const CosinePass *pass, const Scratch *s, const ChunkState *state,
                       const real *left, const real *right) {
    if (state->window && whole_chunks(pass->in->window) == 0) return;
    if (state->window) memset(state->sum, 0, s->columns * s->columns * sizeof(real));
    state_add(s, state->sum, left, right);
    if (state->window) exp_window_add(state->window, 0, state->sum);
}

// Returns what the queries of a chunk see of the chunk of keys that begins `distance` tokens before
// it. Rows of the band are queries, or keys.
static Band band_of(const AttentionInput *in, size_t distance, bool rows_are_keys) {
    const ptrdiff_t window = (ptrdiff_t)(in->window ? in->window : in->keys + CHUNK),
                    apart = (ptrdiff_t)distance;
    return rows_are_keys ? (Band){apart + 1 - window, apart} : (Band){-apart, window - 1 - apart};
}

// s->out (CHUNK, D') of the chunk from t0 on = left times the state, plus left right^T values over
// the chunks that are seen in part, including its own. `load` selects the rows to load of these;
// its own chunk is loaded last.
static void attend(const CosinePass *pass, Scratch *s, size_t unit, size_t t0, Load load,
                   const real *left, const real *right, const real *values,
                   const ChunkState *state) {
    const AttentionInput *in = pass->in;
    const bool keys = load == LOAD_QUERIES; // rows of the chunk itself are keys
    const size_t chunks = in->window ? (in->window + CHUNK - 2) / CHUNK + 1 : 1;
    memset(s->out, 0, CHUNK * s->columns * sizeof(real));
    for (size_t n = chunks; in->causal && n-- > 0;) {
        const size_t apart = n * CHUNK, t = keys ? t0 + apart : t0 - apart;
        if (n > 0 && n <= whole_chunks(in->window)) continue;
        if (keys ? t >= in->queries : apart > t0) continue;
        if (in->window) load_chunk(pass, s, unit, t, load);
        inner_product(s, left, right, band_of(in, apart, keys));
        out_add(s, s->inner, values, CHUNK);
    }
    if (!state->window)
        out_add(s, left, state->sum, s->columns);
    else if (whole_chunks(in->window) > 0)
        out_add(s, left, state->window->sum.row, s->columns);
}

// ---- forward ----------------------------------------------------------------
static void forward_unit(const CosinePass *pass, size_t unit, Matrix y) {
    const CosineAttention *a = pass->attention;
    const AttentionInput *in = pass->in;
    Scratch s = scratch_of(a, unit);
    a->engine->begin();
    const ChunkState state = state_start(pass, &s, s.state, 0); // sum of k v^T
    for (size_t t0 = 0; !in->causal && t0 < in->keys; t0 += CHUNK) {
        load_chunk(pass, &s, unit, t0, LOAD_KEYS);
        state_add(&s, s.state, s.k, s.v);
    }
    for (size_t t0 = 0; t0 < in->queries; t0 += CHUNK) {
        load_chunk(pass, &s, unit, t0, in->causal ? LOAD_BOTH : LOAD_QUERIES);
        attend(pass, &s, unit, t0, LOAD_KEYS, s.q, s.k, s.v, &state);
        if (in->causal) state_take(pass, &s, &state, s.k, s.v);
        for (size_t r = 0; r < CHUNK && t0 + r < in->queries; r++) {
            real *row = s.out + r * s.columns;
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
// Stores one row of s->out, the gradient to a query, key or value, and adds it to the sum over
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

// dq_i = sum_j k_j (v_j . g_i), forwards. q_i . dq_i = y_i . dy_i gives the exponent's gradient.
static void backward_queries(const CosinePass *pass, size_t unit,
                             const AttentionGradients *gradients) {
    const CosineAttention *a = pass->attention;
    const AttentionInput *in = pass->in;
    const size_t columns = a->columns;
    const real *logarithms = a->logarithms + unit / a->heads * in->queries;
    Scratch s = scratch_of(a, unit);
    a->engine->begin();
    const ChunkState state = state_start(pass, &s, s.transposed, 0); // sum of v k^T
    double sum = 0;
    for (size_t t0 = 0; !in->causal && t0 < in->keys; t0 += CHUNK) {
        load_chunk(pass, &s, unit, t0, LOAD_KEYS);
        state_add(&s, s.transposed, s.v, s.k);
    }
    for (size_t t0 = 0; t0 < in->queries; t0 += CHUNK) {
        load_chunk(pass, &s, unit, t0, in->causal ? LOAD_BOTH : LOAD_QUERIES);
        attend(pass, &s, unit, t0, LOAD_KEYS, s.g, s.v, s.k, &state);
        if (in->causal) state_take(pass, &s, &state, s.v, s.k);
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

// Computes the gradients to the keys and values of a chunk.
static void backward_chunk(const CosinePass *pass, Scratch *s, size_t unit,
                           const AttentionGradients *gradients, size_t t0,
                           const ChunkState states[2]) {
    const CosineAttention *a = pass->attention;
    const AttentionInput *in = pass->in;
    const size_t columns = a->columns;
    attend(pass, s, unit, t0, LOAD_QUERIES, s->v, s->g, s->q, &states[1]);
    for (size_t r = 0; r < CHUNK && t0 + r < in->keys; r++) {
        differentiate_normalise(s->out + r * columns, s->k + r * columns, s->k_scale[r], a->size);
        store_gradient(pass, gradients, unit, KEY, t0 + r, s->out + r * columns);
    }
    attend(pass, s, unit, t0, LOAD_QUERIES, s->k, s->q, s->g, &states[0]);
    for (size_t r = 0; r < CHUNK && t0 + r < in->keys; r++)
        store_gradient(pass, gradients, unit, VALUE, t0 + r, s->out + r * columns);
}

// dk_j = sum_i q_i (g_i . v_j) and dv_j = sum_i g_i (q_i . k_j), backwards.
static void backward_keys_values(const CosinePass *pass, size_t unit,
                                 const AttentionGradients *gradients) {
    const CosineAttention *a = pass->attention;
    const AttentionInput *in = pass->in;
    Scratch s = scratch_of(a, unit);
    a->engine->begin();
    // Sums of q g^T and of g q^T.
    const ChunkState states[2] = {state_start(pass, &s, s.state, 0),
                                  state_start(pass, &s, s.transposed, 1)};
    for (size_t t0 = 0; !in->causal && t0 < in->queries; t0 += CHUNK) {
        load_chunk(pass, &s, unit, t0, LOAD_QUERIES);
        state_add(&s, s.state, s.q, s.g);
        state_add(&s, s.transposed, s.g, s.q);
    }
    for (size_t end = round_up(in->keys, CHUNK); end > 0; end -= CHUNK) {
        const size_t t0 = end - CHUNK;
        load_chunk(pass, &s, unit, t0, in->causal ? LOAD_BOTH : LOAD_KEYS);
        backward_chunk(pass, &s, unit, gradients, t0, states);
        if (!in->causal) continue;
        state_take(pass, &s, &states[0], s.q, s.g);
        state_take(pass, &s, &states[1], s.g, s.q);
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

// The same with the keys and values (count, D) of a window, stored in a ring.
static void decode_window(real *restrict y, real *restrict q, const real *restrict keys,
                          const real *restrict values, size_t count, real scale, size_t size) {
    normalise(q, size);
    for (size_t e = 0; e < size; e++) y[e] = 0;
    for (size_t j = 0; j < count; j++) {
        const real weight = scale * dot(q, keys + j * size, size);
        for (size_t e = 0; e < size; e++) y[e] += weight * values[j * size + e];
    }
}

void cosine_attention_decode(real *restrict y, const CosineMemory *memory, real *restrict qkv,
                             const real *restrict bias, const real *restrict exponent, double power,
                             size_t position, size_t streams, size_t channels, size_t heads) {
    const size_t size = channels / heads, window = memory->window,
                 seen = window > 0 && position >= window ? window : position + 1;
    const double logarithm = log((double)seen);
#pragma omp for schedule(static) nowait
    for (size_t unit = 0; unit < streams * heads; unit++) {
        const double p = exponent ? (double)sigmoid(exponent[unit % heads]) : power;
        const real scale = (real)exp(-p * logarithm);
        const size_t stream = unit / heads, at = unit % heads * size;
        real *q = qkv + stream * 3 * channels + at, *k = q + channels, *v = k + channels,
             *to = y + stream * channels + at;
        for (size_t d = 0; bias && d < size; d++) {
            q[d] += bias[at + d];
            k[d] += bias[channels + at + d];
            v[d] += bias[2 * channels + at + d];
        }
        if (window == 0) {
            decode_unit(to, memory->sums + unit * size * size, q, k, v, scale, size);
            continue;
        }
        const size_t first = unit * memory->room * size, row = first + position % window * size;
        normalise(k, size);
        memcpy(memory->keys + row, k, size * sizeof(real));
        memcpy(memory->values + row, v, size * sizeof(real));
        decode_window(to, q, memory->keys + first, memory->values + first, seen, scale, size);
    }
}
