#include "softmax_attention.h"

#include "bf16.h"
#include "error.h"
#include "memory.h"
#include "tile.h"
#include "vector_math.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    QUERIES = 32,    // rows of a tile
    KEYS = 128,      // columns of a tile: a block of the dropout generator
    MAX_PARTS = 8,   // of a head's keys in the backward pass
    WANTED = 32,     // units of work there
    AHEAD = 8,       // rows to prefetch
    KEEP_ALL = 65536 // threshold of a dropout that drops nothing
};

// Each big array is (B, H, T', ...) with T' = T rounded up to whole tiles and D' = D rounded up to what
// products take, both filled with zeros. A left operand is (B, H, T', W), a right one (B, H, T' W / D', D'),
// W = D' words or D' / 2 words of two bf16 numbers; transposed, (B, H, T' / KEYS, W, KEYS).
struct SoftmaxAttention {
    double sink;
    size_t heads, channels, size;        // H, C, D
    size_t columns, words;               // D', W
    size_t batch, padded;                // B and T' that there is memory for
    bool pairs;                          // operands are bf16
    real *queries, *keys_transposed;     // left, transposed
    real *values;                        // right (forward)
    real *values_transposed, *keys;      // transposed, right (backward)
    real *queries_right, *doutput_right; // right (backward)
    real *doutput;                       // left (backward)
    real *output;                        // (B, H, T', D') sums; where operands are prepared, too
    real *dqueries, *dkeys, *dvalues;    // (B, H, parts, T', D'), (B, H, T', D')
    real *hidden;                        // (B, T') -Inf for padding, else 0
    real *logsumexp, *product;           // (B, H, T'); product: dy_i . y_i
};

// What all tiles of one pass share.
typedef struct {
    SoftmaxAttention *attention;
    const real *qkv, *bias;
    const Dropout *dropout;
    uint64_t first_row;
    size_t batch, length, padded, parts;
} Pass;

static size_t smaller(size_t a, size_t b) {
    return a < b ? a : b;
}

// In the backward pass a head's keys are shared out among units of work, each with its own sum of query
// gradients. Their number depends on the shape alone, so that results do not depend on the threads.
static size_t parts_of(size_t heads, size_t padded) {
    size_t parts = smaller(MAX_PARTS, padded / KEYS);
    while (parts > 1 && parts * heads > WANTED) parts--;
    return parts;
}

// Most sums of query gradients for up to so many heads (of all sequences) and rows.
static size_t sets_of(size_t heads, size_t padded) {
    const size_t sets = smaller(WANTED, tile_count(heads, smaller(MAX_PARTS, padded / KEYS)));
    return sets > heads ? sets : heads;
}

SoftmaxAttention *softmax_attention_create(Precision precision, double sink, size_t batch, size_t length,
                                           size_t channels, size_t heads, bool training) {
    const char *what = "attention";
    SoftmaxAttention *a = allocate(1, sizeof(*a), what);
    a->sink = sink;
    a->heads = heads;
    a->channels = channels;
    a->size = channels / heads;
    a->pairs = TILE_PAIRS && precision == PRECISION_BFLOAT16;
    a->columns = tile_round_up(a->size, TILE_COLUMNS);
    a->words = a->pairs ? a->columns / 2 : a->columns;
    a->batch = batch;
    a->padded = tile_round_up(length, KEYS);
    const size_t units = tile_count(batch, heads), rows = tile_count(units, a->padded);
    const size_t whole = tile_count(a->columns, sizeof(real)), operand = tile_count(a->words, sizeof(real));
    a->queries = allocate(rows, operand, what);
    a->keys_transposed = allocate(rows, operand, what);
    a->values = allocate(rows, operand, what);
    a->output = allocate(rows, whole, what);
    a->hidden = allocate(tile_count(batch, a->padded), sizeof(real), what);
    if (!training) return a;
    a->values_transposed = allocate(rows, operand, what);
    a->keys = allocate(rows, operand, what);
    a->doutput = allocate(rows, operand, what);
    a->queries_right = a->pairs ? allocate(rows, operand, what) : a->queries;
    a->doutput_right = a->pairs ? allocate(rows, operand, what) : a->doutput;
    a->dqueries = allocate(tile_count(sets_of(units, a->padded), a->padded), whole, what);
    a->dkeys = allocate(rows, whole, what);
    a->dvalues = allocate(rows, whole, what);
    a->logsumexp = allocate(rows, sizeof(real), what);
    a->product = allocate(rows, sizeof(real), what);
    return a;
}

void softmax_attention_free(SoftmaxAttention *a) {
    if (!a) return;
    if (a->pairs) {
        free(a->queries_right);
        free(a->doutput_right);
    }
    real *const arrays[] = {a->queries, a->keys_transposed, a->values, a->values_transposed,
                            a->keys,    a->doutput,         a->output, a->dqueries,
                            a->dkeys,   a->dvalues,         a->hidden, a->logsumexp,
                            a->product};
    for (size_t i = 0; i < sizeof(arrays) / sizeof(*arrays); i++) free(arrays[i]);
    free(a);
}

static Pass begin(SoftmaxAttention *a, const real *qkv, const real *bias, const uint8_t *mask,
                  const Dropout *dropout, uint64_t first_row, size_t batch, size_t length) {
    const size_t padded = tile_round_up(length, KEYS), units = batch * a->heads;
    if (batch > a->batch || padded > a->padded)
        fail("attention: batch %zu x %zu is larger than its memory", batch, length);
    for (size_t b = 0; b < batch; b++) {
        for (size_t j = 0; j < padded; j++)
            a->hidden[b * padded + j] = j < length && (!mask || mask[b * length + j]) ? 0 : -INFINITY;
    }
    const bool drops = dropout && dropout->threshold != KEEP_ALL;
    return (Pass){a,     qkv,    bias,   drops ? dropout : NULL, first_row,
                  batch, length, padded, parts_of(units, padded)};
}

// ---- operands ----------------------------------------------------------------------------------------

// out (KEYS, columns) = (x + bias) * scale for `rows` rows of x, 0 below them and to the right of `size`.
static void prepare(real *restrict out, size_t columns, const real *restrict x, size_t x_row,
                    const real *restrict bias, real scale, size_t rows, size_t size) {
    for (size_t i = 0; i < rows; i++) {
        real *restrict row = out + i * columns;
        if (i + AHEAD < rows) tile_prefetch(x + (i + AHEAD) * x_row, size);
        for (size_t d = 0; d < size; d++)
            row[d] = (bias ? x[i * x_row + d] + bias[d] : x[i * x_row + d]) * scale;
        for (size_t d = size; d < columns; d++) row[d] = 0;
    }
    memset(out + rows * columns, 0, (KEYS - rows) * columns * sizeof(real));
}

static void pack_left(const SoftmaxAttention *a, real *out, const real *prepared) {
    for (size_t i = 0; i < KEYS; i++)
        tile_left(out + i * a->words, prepared + i * a->columns, a->columns, a->pairs);
}

static void pack_right(const SoftmaxAttention *a, real *out, const real *prepared) {
    for (size_t i = 0; i < KEYS; i += 2)
        tile_right(out + i * a->words, a->words, prepared + i * a->columns, prepared + (i + 1) * a->columns,
                   a->columns, a->pairs);
}

// Words of the left operand, transposed. The prepared rows are used up.
static void pack_transposed(const SoftmaxAttention *a, real *restrict out, real *restrict prepared) {
    for (size_t i = 0; i < KEYS; i++)
        tile_left(prepared + i * a->columns, prepared + i * a->columns, a->columns, a->pairs);
    for (size_t w = 0; w < a->words; w++) {
        for (size_t i = 0; i < KEYS; i++) out[w * KEYS + i] = prepared[i * a->columns + w];
    }
}

typedef enum { QUERY, KEY, VALUE } Which;

// KEYS rows of queries (times 1 / sqrt(D)), keys or values of a head from row t0 on, in a->output.
static real *prepare_qkv(const Pass *pass, Which which, size_t unit, size_t t0) {
    const SoftmaxAttention *a = pass->attention;
    const size_t b = unit / a->heads, column = which * a->channels + unit % a->heads * a->size;
    const size_t rows = smaller(KEYS, pass->length - t0);
    real *out = a->output + (unit * pass->padded + t0) * a->columns;
    prepare(out, a->columns, pass->qkv + (b * pass->length + t0) * 3 * a->channels + column, 3 * a->channels,
            pass->bias ? pass->bias + column : NULL, which == QUERY ? (real)(1 / sqrt((double)a->size)) : 1,
            rows, a->size);
    return out;
}

// ---- forward -----------------------------------------------------------------------------------------

// factors (KEYS) of dropout for the keys from j0 on in row i; NULL: none.
static const real *factors_of(const Pass *pass, size_t unit, size_t i, size_t j0, real *buffer) {
    if (!pass->dropout) return NULL;
    const uint64_t row = (pass->first_row * pass->attention->heads + unit) * pass->length + i;
    dropout_factors(pass->dropout, row * pass->padded + j0, KEYS, buffer);
    return buffer;
}

// The softmax of a tile's rows so far: the largest score (the sink counts as one) and, lane by lane, the sum
// of exp(s - top).
typedef struct {
    _Alignas(64) real top[QUERIES];
    TileVector sum[QUERIES];
} Rows;

static Rows rows_create(double sink) {
    Rows rows = {0};
    for (size_t r = 0; r < QUERIES; r++) {
        // A lowest number that is not -Inf: exp(-Inf - top) is 0, also in a row that sees nothing.
        rows.top[r] = sink > 0 ? (real)log(sink) : (real)-1e30;
        rows.sum[r][0] = sink > 0 ? 1 : 0;
    }
    return rows;
}

// The largest of n scores of each row joins `top`; shrink (QUERIES): by what to multiply the sums so far.
static inline void rows_raise(Rows *rows, real *restrict shrink, const real *s, size_t n) {
    _Alignas(64) real here[QUERIES];
    for (size_t r = 0; r < QUERIES; r++) {
        TileVector greatest = tile_load(s + r * KEYS);
        for (size_t j = TILE_LANES; j < n; j += TILE_LANES)
            greatest = tile_max(greatest, tile_load(s + r * KEYS + j));
        here[r] = tile_greatest_lane(greatest);
    }
    for (size_t r = 0; r < QUERIES; r += TILE_LANES) {
        const TileVector top = tile_load(rows->top + r), raised = tile_max(top, tile_load(here + r));
        tile_store(shrink + r, tile_exp(top - raised));
        tile_store(rows->top + r, raised);
    }
}

// n scores become exp(s - top), times the factors of dropout; returns their sum (without the factors).
static inline TileVector row_exponentiate(real *s, const real *factors, size_t n, real top) {
    TileVector sum = {0};
    for (size_t j = 0; j < n; j += TILE_LANES) {
        TileVector e = tile_exp(tile_load(s + j) - top);
        sum += e;
        if (factors) e *= tile_load(factors + j);
        tile_store(s + j, e);
    }
    return sum;
}

// Keys behind the query are invisible: row r of the tile sees the first `seen` + r.
static inline void hide_later(real *s, size_t seen, size_t n) {
    for (size_t r = 0; seen + r < n; r++) {
        for (size_t j = seen + r; j < n; j++) s[r * KEYS + j] = -INFINITY;
    }
}

static void forward_tile(const Pass *pass, size_t unit, size_t i0, GemmInput y, real *logsumexp) {
    const SoftmaxAttention *a = pass->attention;
    const size_t columns = a->columns, first = unit * pass->padded, b = unit / a->heads;
    real *output = a->output + (first + i0) * columns;
    memset(output, 0, QUERIES * columns * sizeof(real));
    Rows rows = rows_create(a->sink);
    for (size_t j0 = 0; j0 < i0 + QUERIES; j0 += KEYS) {
        _Alignas(64) real s[QUERIES * KEYS], factors[KEYS], shrink[QUERIES];
        const size_t n = smaller(KEYS, i0 + QUERIES - j0);
        tile_product(s, KEYS, a->hidden + b * pass->padded + j0, 0,
                     (TileView){a->queries + (first + i0) * a->words, a->words, 1},
                     a->keys_transposed + (first + j0) * a->words, KEYS, QUERIES, n, a->words, a->pairs);
        hide_later(s, i0 - j0 + 1, n);
        rows_raise(&rows, shrink, s, n);
        for (size_t r = 0; r < QUERIES; r++) {
            real *scores = s + r * KEYS;
            rows.sum[r] =
                rows.sum[r] * shrink[r] +
                row_exponentiate(scores, factors_of(pass, unit, i0 + r, j0, factors), n, rows.top[r]);
            tile_left(scores, scores, n, a->pairs);
            for (size_t d = 0; d < columns; d += TILE_LANES)
                tile_store(output + r * columns + d, tile_load(output + r * columns + d) * shrink[r]);
        }
        tile_product(output, columns, output, columns, (TileView){s, KEYS, 1},
                     a->values + (first + j0) * a->words, columns, QUERIES, columns, a->pairs ? n / 2 : n,
                     a->pairs);
    }
    for (size_t r = 0; r < QUERIES && i0 + r < pass->length; r++) {
        const real sum = tile_sum_of_lanes(rows.sum[r]), scale = sum == 0 ? 0 : 1 / sum;
        for (size_t d = 0; d < columns; d++) output[r * columns + d] *= scale;
        gemm_input_store(y, b * pass->length + i0 + r, unit % a->heads * a->size, output + r * columns,
                         a->size);
        // +Inf where nothing is seen: exp(s - Inf) is 0.
        if (logsumexp)
            logsumexp[unit * pass->length + i0 + r] = sum == 0 ? INFINITY : rows.top[r] + (real)log(sum);
    }
}

void softmax_attention_forward(SoftmaxAttention *a, GemmInput y, real *logsumexp, const real *qkv,
                               const real *bias, const uint8_t *mask, const Dropout *dropout,
                               uint64_t first_row, size_t batch, size_t length) {
    const Pass pass = begin(a, qkv, bias, mask, dropout, first_row, batch, length);
    const size_t units = batch * a->heads, tiles = (length + QUERIES - 1) / QUERIES;
#pragma omp parallel
    {
#pragma omp for collapse(2)
        for (size_t t0 = 0; t0 < pass.padded; t0 += KEYS) {
            for (size_t unit = 0; unit < units; unit++) {
                const size_t at = (unit * pass.padded + t0) * a->words;
                pack_left(a, a->queries + at, prepare_qkv(&pass, QUERY, unit, t0));
                pack_right(a, a->values + at, prepare_qkv(&pass, VALUE, unit, t0));
                pack_transposed(a, a->keys_transposed + at, prepare_qkv(&pass, KEY, unit, t0));
            }
        }
        // The last tiles of a head see the most keys: they go first.
#pragma omp for collapse(2) schedule(dynamic)
        for (size_t unit = 0; unit < units; unit++) {
            for (size_t tile = 0; tile < tiles; tile++)
                forward_tile(&pass, unit, (tiles - 1 - tile) * QUERIES, y, logsumexp);
        }
    }
}

// ---- backward ----------------------------------------------------------------------------------------

// Scores s of a row become the weights that were multiplied with values, and dw, the gradient to these, the
// gradient to the scores: w_ij (dw_ij - sum_j w_ij dw_ij); the sum is dy_i . y_i.
static inline void row_differentiate(real *s, real *dw, const real *factors, size_t n, real logsumexp,
                                     real product) {
    for (size_t j = 0; j < n; j += TILE_LANES) {
        const TileVector w = tile_exp(tile_load(s + j) - logsumexp);
        TileVector d = tile_load(dw + j), dropped = w;
        if (factors) {
            d *= tile_load(factors + j);
            dropped *= tile_load(factors + j);
        }
        tile_store(dw + j, w * (d - product));
        tile_store(s + j, dropped);
    }
}

static void backward_tile(const Pass *pass, size_t unit, size_t part, size_t i0, size_t j0) {
    static const _Alignas(64) real zero[KEYS];
    const SoftmaxAttention *a = pass->attention;
    const size_t columns = a->columns, words = a->words, step = a->pairs ? 2 : 1;
    const size_t i = unit * pass->padded + i0, j = unit * pass->padded + j0;
    const size_t n = smaller(KEYS, i0 + QUERIES - j0);
    _Alignas(64) real s[QUERIES * KEYS], ds[QUERIES * KEYS], buffer[KEYS], left_buffer[QUERIES * KEYS / 2];
    real *left = a->pairs ? left_buffer : ds;
    tile_product(s, KEYS, a->hidden + unit / a->heads * pass->padded + j0, 0,
                 (TileView){a->queries + i * words, words, 1}, a->keys_transposed + j * words, KEYS, QUERIES,
                 n, words, a->pairs);
    tile_product(ds, KEYS, zero, 0, (TileView){a->doutput + i * words, words, 1},
                 a->values_transposed + j * words, KEYS, QUERIES, n, words, a->pairs);
    hide_later(s, i0 - j0 + 1, n);
    for (size_t r = 0; r < QUERIES; r++) {
        row_differentiate(s + r * KEYS, ds + r * KEYS, factors_of(pass, unit, i0 + r, j0, buffer), n,
                          a->logsumexp[i + r], a->product[i + r]);
        tile_left(left + r * KEYS / step, ds + r * KEYS, n, a->pairs);
        if (r % 2 == 0) continue;
        real *even = s + (r - 1) * KEYS, *deven = ds + (r - 1) * KEYS;
        tile_right(even, KEYS, even, even + KEYS, n, a->pairs);
        tile_right(deven, KEYS, deven, deven + KEYS, n, a->pairs);
    }
    const TileView s_transposed = {s, 1, KEYS * step}, ds_transposed = {ds, 1, KEYS * step};
    real *dvalues = a->dvalues + j * columns, *dkeys = a->dkeys + j * columns;
    real *dqueries = a->dqueries + ((unit * pass->parts + part) * pass->padded + i0) * columns;
    tile_product(dvalues, columns, dvalues, columns, s_transposed, a->doutput_right + i * words, columns, n,
                 columns, QUERIES / step, a->pairs);
    tile_product(dkeys, columns, dkeys, columns, ds_transposed, a->queries_right + i * words, columns, n,
                 columns, QUERIES / step, a->pairs);
    tile_product(dqueries, columns, dqueries, columns, (TileView){left, KEYS / step, 1}, a->keys + j * words,
                 columns, QUERIES, columns, n / step, a->pairs);
}

// Every parts-th tile of keys, with all queries that see it.
static void backward_part(const Pass *pass, size_t unit, size_t part) {
    const SoftmaxAttention *a = pass->attention;
    const size_t head = pass->padded * a->columns, tile = KEYS * a->columns;
    memset(a->dqueries + (unit * pass->parts + part) * head, 0, head * sizeof(real));
    for (size_t j0 = part * KEYS; j0 < pass->padded; j0 += pass->parts * KEYS) {
        memset(a->dkeys + unit * head + j0 * a->columns, 0, tile * sizeof(real));
        memset(a->dvalues + unit * head + j0 * a->columns, 0, tile * sizeof(real));
        for (size_t i0 = j0; i0 < pass->length; i0 += QUERIES) backward_tile(pass, unit, part, i0, j0);
    }
}

// dy . y of one head in row `row`.
static real product_with(GemmInput y, size_t row, size_t column, const real *restrict dy, size_t size) {
    const size_t at = row * y.columns + column;
    real sum = 0;
    if (!y.bf16) {
        const real *restrict x = (const real *)y.data + at;
#pragma omp simd reduction(+ : sum)
        for (size_t d = 0; d < size; d++) sum += dy[d] * x[d];
        return sum;
    }
    const uint16_t *restrict x = (const uint16_t *)y.data + at;
#pragma omp simd reduction(+ : sum)
    for (size_t d = 0; d < size; d++) sum += dy[d] * (real)float_from_bf16(x[d]);
    return sum;
}

static void pack_backward(const Pass *pass, const real *dy, GemmInput y, const real *logsumexp, size_t unit,
                          size_t t0) {
    SoftmaxAttention *a = pass->attention;
    const size_t row = unit * pass->padded + t0, at = row * a->words;
    const size_t rows = smaller(KEYS, pass->length - t0);
    const size_t dy_row = unit / a->heads * pass->length + t0, column = unit % a->heads * a->size;

    real *prepared = prepare_qkv(pass, QUERY, unit, t0);
    pack_left(a, a->queries + at, prepared);
    pack_right(a, a->queries_right + at, prepared);
    prepared = prepare_qkv(pass, KEY, unit, t0);
    pack_right(a, a->keys + at, prepared);
    pack_transposed(a, a->keys_transposed + at, prepared);
    pack_transposed(a, a->values_transposed + at, prepare_qkv(pass, VALUE, unit, t0));
    prepare(prepared, a->columns, dy + dy_row * a->channels + column, a->channels, NULL, 1, rows, a->size);
    pack_left(a, a->doutput + at, prepared);
    pack_right(a, a->doutput_right + at, prepared);

    for (size_t r = 0; r < KEYS; r++) {
        const real *at_r = dy + (dy_row + r) * a->channels + column;
        a->product[row + r] = r < rows ? product_with(y, dy_row + r, column, at_r, a->size) : 0;
        a->logsumexp[row + r] = r < rows ? logsumexp[unit * pass->length + t0 + r] : INFINITY;
    }
}

// One head's gradients of queries, keys or values, rows in order, to dqkv and dbias.
static void gather(const Pass *pass, GemmInput dqkv, real *dbias, Which which, size_t h) {
    const SoftmaxAttention *a = pass->attention;
    const size_t size = a->size, column = which * a->channels + h * size, stride = pass->padded * a->columns;
    const size_t parts = which == QUERY ? pass->parts : 1;
    const real scale = which == QUERY ? (real)(1 / sqrt((double)size)) : 1;
    real *from = which == QUERY ? a->dqueries : which == KEY ? a->dkeys : a->dvalues;
    real *restrict bias = dbias ? dbias + column : NULL;
    for (size_t b = 0; b < pass->batch; b++) {
        for (size_t t = 0; t < pass->length; t++) {
            real *restrict row = from + (b * a->heads + h) * parts * stride + t * a->columns;
            for (size_t part = 1; part < parts; part++) {
                const real *restrict other = row + part * stride;
                for (size_t d = 0; d < size; d++) row[d] += other[d];
            }
            for (size_t d = 0; d < size; d++) row[d] *= scale;
            gemm_input_store(dqkv, b * pass->length + t, column, row, size);
            if (!bias) continue;
            for (size_t d = 0; d < size; d++) bias[d] += row[d];
        }
    }
}

void softmax_attention_backward(SoftmaxAttention *a, GemmInput dqkv, real *dbias, const real *dy, GemmInput y,
                                const real *logsumexp, const real *qkv, const real *bias, const uint8_t *mask,
                                const Dropout *dropout, uint64_t first_row, size_t batch, size_t length) {
    const Pass pass = begin(a, qkv, bias, mask, dropout, first_row, batch, length);
    const size_t units = batch * a->heads;
#pragma omp parallel
    {
#pragma omp for collapse(2)
        for (size_t t0 = 0; t0 < pass.padded; t0 += KEYS) {
            for (size_t unit = 0; unit < units; unit++) pack_backward(&pass, dy, y, logsumexp, unit, t0);
        }
#pragma omp for collapse(2) schedule(dynamic)
        for (size_t unit = 0; unit < units; unit++) {
            for (size_t part = 0; part < pass.parts; part++) backward_part(&pass, unit, part);
        }
#pragma omp for collapse(2)
        for (size_t which = QUERY; which <= VALUE; which++) {
            for (size_t h = 0; h < a->heads; h++) gather(&pass, dqkv, dbias, (Which)which, h);
        }
    }
}

// ---- decoding ----------------------------------------------------------------------------------------

// y (D) of one query over `count` keys.
static void decode_unit(real *restrict y, const real *restrict q, const real *restrict keys,
                        const real *restrict values, double sink, size_t count, size_t size) {
    const real scale = (real)(1 / sqrt((double)size));
    real top = sink > 0 ? (real)log(sink) : (real)-1e30, sum = sink > 0 ? 1 : 0;
    for (size_t d = 0; d < size; d++) y[d] = 0;
    for (size_t j0 = 0; j0 < count; j0 += KEYS) {
        const size_t n = smaller(KEYS, count - j0);
        real s[KEYS];
        real raised = top;
        for (size_t j = 0; j < n; j++) {
            const real *restrict key = keys + (j0 + j) * size;
            real score = 0;
#pragma omp simd reduction(+ : score)
            for (size_t d = 0; d < size; d++) score += q[d] * key[d];
            s[j] = score * scale;
            raised = s[j] > raised ? s[j] : raised;
        }
        const real shrink = vector_exp(top - raised);
        top = raised;
        sum *= shrink;
        for (size_t d = 0; d < size; d++) y[d] *= shrink;
        for (size_t j = 0; j < n; j++) {
            const real *restrict value = values + (j0 + j) * size;
            const real e = vector_exp(s[j] - top);
            sum += e;
            for (size_t d = 0; d < size; d++) y[d] += e * value[d];
        }
    }
    for (size_t d = 0; d < size; d++) y[d] /= sum;
}

void softmax_attention_decode(real *restrict y, real *restrict keys, real *restrict values,
                              real *restrict qkv, const real *restrict bias, double sink, size_t position,
                              size_t positions, size_t streams, size_t channels, size_t heads) {
    const size_t size = channels / heads;
#pragma omp parallel for schedule(static) if (streams * channels * position > 65536)
    for (size_t unit = 0; unit < streams * heads; unit++) {
        const size_t stream = unit / heads, at = unit % heads * size, cache = unit * positions * size;
        real *q = qkv + stream * 3 * channels + at, *k = q + channels, *v = k + channels;
        real *key = keys + cache + position * size, *value = values + cache + position * size;
        for (size_t d = 0; d < size; d++) {
            q[d] += bias ? bias[at + d] : 0;
            key[d] = k[d] + (bias ? bias[channels + at + d] : 0);
            value[d] = v[d] + (bias ? bias[2 * channels + at + d] : 0);
        }
        decode_unit(y + stream * channels + at, q, keys + cache, values + cache, sink, position + 1, size);
    }
}
