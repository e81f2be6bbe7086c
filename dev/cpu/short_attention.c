#include "short_attention.h"

#include "arena.h"
#include "memory.h"
#include "row_blocks.h"
#include "rows.h"
#include "sizes.h"
#include "threads.h"
#include "vector_math.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef uint32_t Kept[DROPOUT_BLOCK / 32]; // a bit per key that dropout keeps

// Working memory of a thread, for one head of one sequence. Tq' and Tk' are the largest Tq and Tk
// rounded up to TILE_ROWS and TILE_COLUMNS; D' is D rounded up to TILE_COLUMNS, padded with zeros.
typedef struct {
    real *queries, *doutput; // (Tq', D') times log2(e) / sqrt(D); times dropout's scale
    real *keys, *values;     // (Tk', D')
    real *keys_transposed, *values_transposed; // (D', Tk')
    real *hidden;            // (Tk') -Inf for padding and beyond the last key, else 0
    real *weights, *dscores; // (Tq', Tk')
    real *result;            // (Tq' or Tk', D') of the last product
} Worker;

struct ShortAttention {
    double sink;
    size_t heads, channels, size; // H, C, D
    size_t columns, most, width;  // D', Tq', Tk'
    real *zeros;                  // (D' or Tk')
    int threads;
    Worker *workers; // (threads)
};

ShortAttention *short_attention_create(double sink, size_t queries, size_t keys, size_t channels,
                                       size_t heads) {
    ShortAttention *a = allocate(1, sizeof(*a), "attention");
    const size_t size = channels / heads;
    *a = (ShortAttention){
        .sink = sink,
        .heads = heads,
        .channels = channels,
        .size = size,
        .columns = round_up(size, TILE_COLUMNS),
        .most = round_up(queries < SHORT_ATTENTION ? queries : SHORT_ATTENTION, TILE_ROWS),
        .width = round_up(keys < SHORT_ATTENTION ? keys : SHORT_ATTENTION, TILE_COLUMNS),
        .threads = thread_limit()};
    a->workers = allocate((size_t)a->threads, sizeof(Worker), "attention");
    return a;
}

void short_attention_carve(ShortAttention *a, Arena *arena, bool training) {
    const char *what = "attention";
    const size_t Q = a->most, K = a->width, D = a->columns;
    a->zeros = arena_reals(arena, 1, D > K ? D : K, what);
    for (int i = 0; i < a->threads; i++) {
        Worker *w = &a->workers[i];
        w->queries = arena_reals(arena, Q, D, what);
        w->keys = arena_reals(arena, K, D, what);
        w->values = arena_reals(arena, K, D, what);
        w->keys_transposed = arena_reals(arena, D, K, what);
        w->hidden = arena_reals(arena, 1, K, what);
        w->weights = arena_reals(arena, Q, K, what);
        w->result = arena_reals(arena, Q > K ? Q : K, D, what);
        if (!training) continue;
        w->doutput = arena_reals(arena, Q, D, what);
        w->values_transposed = arena_reals(arena, D, K, what);
        w->dscores = arena_reals(arena, Q, K, what);
    }
}

void short_attention_free(ShortAttention *a) {
    if (!a) return;
    free(a->workers);
    free(a);
}

// ---- operands ---------------------------------------------------------------
// One head of one sequence.
typedef struct {
    const ShortAttention *attention;
    const AttentionInput *in;
    const Worker *worker;
    size_t b, h;
    size_t query_rows, key_columns; // Tq' and Tk' of this sequence
} ShortHead;

// Units are numbered over the heads of the first sequence, then of the second, and so on.
static ShortHead head_of(const ShortAttention *a, const AttentionInput *in, size_t unit) {
    return (ShortHead){a,
                       in,
                       &a->workers[thread_index()],
                       unit / a->heads,
                       unit % a->heads,
                       round_up(in->queries, TILE_ROWS),
                       round_up(in->keys, TILE_COLUMNS)};
}

// out (count, D') = (x + bias) * scale for rows of D numbers, `stride` apart. Prefetches the rows
// of the next head, `ahead` numbers on: they are too short and too far apart for the hardware
// prefetcher.
static void load_rows(const ShortAttention *a, real *out, const real *x, size_t stride,
                      size_t ahead, const real *bias, real scale, size_t count) {
    for (size_t t = 0; t < count; t++) {
        for (size_t d = 0; d < a->size; d += TILE_LANES) {
            __builtin_prefetch(x + t * stride + ahead + d);
            TileVector v = row_get(x + t * stride, d, a->size);
            if (bias) v += row_get(bias, d, a->size);
            row_put(out + t * a->columns, d, a->size, v * scale);
        }
    }
}

// Distance to the next head of the sequence, or to the first one of the next sequence, which is
// `sequence` numbers on.
static size_t next_head(const ShortHead *head, size_t sequence) {
    const ShortAttention *a = head->attention;
    const size_t column = head->h * a->size;
    return column + a->size < a->channels ? a->size : sequence - column;
}

static void load_part(const ShortHead *head, real *out, AttentionPart part, real scale) {
    const ShortAttention *a = head->attention;
    const AttentionRows *rows = &head->in->rows[part];
    const size_t count = part == QUERY ? head->in->queries : head->in->keys,
                 column = head->h * a->size;
    load_rows(a, out, rows->x + head->b * count * rows->stride + column, rows->stride,
              next_head(head, count * rows->stride), rows->bias ? rows->bias + column : NULL, scale,
              count);
    if (part == QUERY) return;
    // Clear the rows of a longer sentence beyond the last key. They would get weights of 0, except
    // if they are infinite.
    memset(out + count * a->columns, 0, (head->key_columns - count) * a->columns * sizeof(real));
}

// out (D', Tk') = the transpose of rows (Tk', D').
static void transpose(const ShortHead *head, real *out, const real *rows) {
    const ShortAttention *a = head->attention;
    for (size_t t = 0; t < head->key_columns; t += TILE_LANES) {
        for (size_t d = 0; d < a->columns; d += TILE_LANES) {
            TileVector square[TILE_LANES];
            TILE_UNROLL
            for (size_t i = 0; i < TILE_LANES; i++)
                square[i] = tile_load(rows + (t + i) * a->columns + d);
            tile_transpose(square);
            TILE_UNROLL
            for (size_t i = 0; i < TILE_LANES; i++)
                tile_store(out + (d + i) * a->width + t, square[i]);
        }
    }
}

static void load_head(const ShortHead *head) {
    const Worker *w = head->worker;
    const AttentionInput *in = head->in;
    const uint8_t *mask = in->mask ? in->mask + head->b * in->keys : NULL;
    load_part(head, w->queries, QUERY, (real)(LOG2_E / sqrt((double)head->attention->size)));
    load_part(head, w->keys, KEY, 1);
    load_part(head, w->values, VALUE, 1);
    transpose(head, w->keys_transposed, w->keys);
    for (size_t j = 0; j < head->key_columns; j++)
        w->hidden[j] = j < in->keys && (!mask || mask[j]) ? 0 : -INFINITY;
}

// weights = scores in base 2, -Inf for padding.
static void scores(const ShortHead *head) {
    const ShortAttention *a = head->attention;
    const Worker *w = head->worker;
    tile_product(w->weights, a->width, w->hidden, 0, (TileView){w->queries, a->columns, 1},
                 w->keys_transposed, a->width, head->query_rows, head->key_columns, a->size, false);
}

// The scores of query i for keys j to j + TILE_LANES, -Inf for keys that it does not see.
TILE_INLINE TileVector seen_scores(const ShortHead *head, size_t i, size_t j) {
    const AttentionInput *in = head->in;
    const TileVector s = tile_load(head->worker->weights + i * head->attention->width + j);
    if (!in->causal) return s;
    const TileVector seen = tile_first(s, (int)(i + 1) - (int)j);
    return in->window > 0 ? tile_after(seen, (int)attention_first_key(in, i) - (int)j) : seen;
}

static void head_kept(const ShortHead *head, Kept *kept) {
    const AttentionInput *in = head->in;
    const uint64_t unit = (in->first_row + head->b) * head->attention->heads + head->h;
    if (in->dropout)
        dropout_bits(in->dropout, unit * in->queries, 1, in->queries, &kept[0][0]);
    else
        memset(kept, 0xff, in->queries * sizeof(*kept));
}

TILE_INLINE TileVector keep(TileVector x, const Kept kept, size_t j) {
    return tile_keep(x, kept[j / 32] >> j % 32);
}

// ---- forward ----------------------------------------------------------------
// Replaces row i of scores by 2^(s - top), or 0 if dropout drops it. Returns their sum before
// dropout, with the sink.
static real softmax_row(const ShortHead *head, size_t i, const Kept kept, real *top) {
    const ShortAttention *a = head->attention;
    real *weights = head->worker->weights + i * a->width;
    const real sink =
        a->sink > 0 ? (real)log2(a->sink) : (real)-1e30; // or a very low number, but not -Inf
    TileVector greatest = (TileVector){0} + sink, sum = {0};
    for (size_t j = 0; j < head->key_columns; j += TILE_LANES)
        greatest = tile_max(seen_scores(head, i, j), greatest);
    *top = tile_greatest_lane(greatest);
    for (size_t j = 0; j < head->key_columns; j += TILE_LANES) {
        const TileVector e = tile_exp2(seen_scores(head, i, j) - *top, false);
        sum += e;
        tile_store(weights + j, keep(e, kept, j));
    }
    return tile_sum_of_lanes(sum) + (a->sink > 0 ? (real)exp2((double)(sink - *top)) : 0);
}

static void forward_head(const ShortHead *head, Matrix y, real *logsumexp) {
    const ShortAttention *a = head->attention;
    const AttentionInput *in = head->in;
    const Worker *w = head->worker;
    const size_t first = head->b * in->queries;
    Kept kept[SHORT_ATTENTION];
    real scale[SHORT_ATTENTION];
    load_head(head);
    scores(head);
    head_kept(head, kept);
    for (size_t i = 0; i < in->queries; i++) {
        real top;
        const real sum = softmax_row(head, i, kept[i], &top);
        scale[i] = sum == 0 ? 0 : (in->dropout ? in->dropout->scale : 1) / sum;
        // +Inf if the row sees nothing: 2^(s - Inf) is 0.
        if (logsumexp)
            logsumexp[(head->b * a->heads + head->h) * in->queries + i] =
                sum == 0 ? INFINITY : (real)LN2 * (top + (real)log2((double)sum));
    }
    tile_product(w->result, a->columns, a->zeros, 0, (TileView){w->weights, a->width, 1}, w->values,
                 a->columns, head->query_rows, a->columns, in->keys, false);
    for (size_t i = 0; i < in->queries; i++) {
        real *row = w->result + i * a->columns;
        row_scale(row, scale[i], row, a->columns);
        gemm_input_store(y, first + i, head->h * a->size, row, a->size);
    }
}

void short_attention_forward(const ShortAttention *a, Matrix y, real *logsumexp,
                             const AttentionInput *in) {
    // A thread takes all heads of a sequence: they are adjacent, so after the first the others are
    // in cache.
#pragma omp parallel for schedule(dynamic, a->heads) num_threads(a->threads)
    for (size_t unit = 0; unit < in->batch * a->heads; unit++) {
        const ShortHead head = head_of(a, in, unit);
        forward_head(&head, y, logsumexp);
    }
}

// ---- backward ---------------------------------------------------------------
// Inputs and outputs shared by all heads, and the sums over rows of one block of units.
typedef struct {
    const AttentionGradients *gradients;
    const real *dy;
    Matrix y;
    const real *logsumexp;
    real *sums[3]; // (C) of queries', keys' and values' gradients
} Backward;

// dy . y of one head at row `row`.
static real dot_output(const ShortHead *head, const Backward *g, size_t row) {
    const ShortAttention *a = head->attention;
    real output[TILE_COLUMNS], sum = 0;
    const real *dy = g->dy + row * a->channels + head->h * a->size;
    for (size_t d = 0; d < a->size; d += TILE_COLUMNS) {
        const size_t count = a->size - d < TILE_COLUMNS ? a->size - d : TILE_COLUMNS;
        gemm_input_load(g->y, row, head->h * a->size + d, output, count);
        sum += row_dot(dy + d, output, count);
    }
    return sum;
}

// Computes row i of the weights after dropout, from the scores, and the gradients of the scores,
// from those of the weights, both in dscores: w_ij (dw_ij - sum_j w_ij dw_ij). The sum is dy_i .
// y_i, passed as `product`.
static void gradient_row(const ShortHead *head, size_t i, const Kept kept, real logsumexp,
                         real product) {
    const size_t at = i * head->attention->width;
    for (size_t j = 0; j < head->key_columns; j += TILE_LANES) {
        real *weights = head->worker->weights + at + j, *dscores = head->worker->dscores + at + j;
        const TileVector w = tile_exp2(seen_scores(head, i, j) - logsumexp, false);
        tile_store(dscores, w * (keep(tile_load(dscores), kept, j) - product));
        tile_store(weights, keep(w, kept, j));
    }
}

// Stores result (rows, D') times `scale` as the gradient of queries, keys or values, and adds it to
// the sums.
static void store_gradient(const ShortHead *head, const Backward *g, AttentionPart part,
                           real scale) {
    const ShortAttention *a = head->attention;
    const AttentionGradient *to = &g->gradients->parts[part];
    const size_t count = part == QUERY ? head->in->queries : head->in->keys,
                 column = head->h * a->size;
    real *sum = g->sums[part] + column;
    for (size_t t = 0; t < count; t++) {
        real *row = head->worker->result + t * a->columns;
        row_scale(row, scale, row, a->columns);
        row_add(sum, sum, row, a->size);
        gemm_input_store(to->to, head->b * count + t, to->column + column, row, a->size);
    }
}

static void backward_head(const ShortHead *head, const Backward *g) {
    const ShortAttention *a = head->attention;
    const AttentionInput *in = head->in;
    const Worker *w = head->worker;
    const size_t first = head->b * in->queries, D = a->columns, K = a->width;
    const size_t key_rows = round_up(in->keys, TILE_ROWS);
    Kept kept[SHORT_ATTENTION];
    load_head(head);
    load_rows(a, w->doutput, g->dy + first * a->channels + head->h * a->size, a->channels,
              next_head(head, in->queries * a->channels), NULL,
              in->dropout ? in->dropout->scale : 1, in->queries);
    transpose(head, w->values_transposed, w->values);
    scores(head);
    tile_product(w->dscores, K, a->zeros, 0, (TileView){w->doutput, D, 1}, w->values_transposed, K,
                 head->query_rows, head->key_columns, a->size, false);
    head_kept(head, kept);
    for (size_t i = 0; i < in->queries; i++)
        gradient_row(head, i, kept[i],
                     g->logsumexp[(head->b * a->heads + head->h) * in->queries + i] * (real)LOG2_E,
                     dot_output(head, g, first + i));
    tile_product(w->result, D, a->zeros, 0, (TileView){w->weights, 1, K}, w->doutput, D, key_rows,
                 D, in->queries, false);
    store_gradient(head, g, VALUE, 1);
    tile_product(w->result, D, a->zeros, 0, (TileView){w->dscores, 1, K}, w->queries, D, key_rows,
                 D, in->queries, false);
    store_gradient(head, g, KEY, (real)LN2); // queries were multiplied with log2(e) / sqrt(D)
    tile_product(w->result, D, a->zeros, 0, (TileView){w->dscores, K, 1}, w->keys, D,
                 head->query_rows, D, in->keys, false);
    store_gradient(head, g, QUERY, (real)(1 / sqrt((double)a->size)));
}

void short_attention_backward(const ShortAttention *a, const AttentionGradients *gradients,
                              const real *dy, Matrix y, const real *logsumexp,
                              const AttentionInput *in) {
    const size_t C = a->channels, units = in->batch * a->heads;
    real *partial =
        allocate(3 * ROW_BLOCKS * C, sizeof(real), "bias gradients"); // (3, ROW_BLOCKS, C)
#pragma omp parallel for schedule(dynamic) num_threads(a->threads)
    for (size_t block = 0; block < ROW_BLOCKS; block++) {
        const size_t end = row_block_begin(units, block + 1);
        Backward g = {gradients, dy, y, logsumexp, {0}};
        for (size_t part = 0; part < 3; part++)
            g.sums[part] = partial + (part * ROW_BLOCKS + block) * C;
        for (size_t unit = row_block_begin(units, block); unit < end; unit++) {
            const ShortHead head = head_of(a, in, unit);
            backward_head(&head, &g);
        }
    }
    for (size_t part = 0; part < 3; part++) {
        real *bias = gradients->parts[part].bias;
        if (bias) row_blocks_add(bias, partial + part * ROW_BLOCKS * C, C);
    }
    free(partial);
}
