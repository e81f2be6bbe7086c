#include "softmax_attention.h"

#include "arena.h"
#include "bf16.h"
#include "error.h"
#include "memory.h"
#include "rows.h"
#include "short_attention.h"
#include "sizes.h"
#include "softmax_attention_amx.h"
#include "tile.h"
#include "vector_math.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_PARTS = 8, // of a head's keys in the backward pass
    WANTED = 16,   // units of work to aim for there
    AHEAD = 8      // rows to prefetch
};

// Each big array is (B, H, T', ...), where T' is Tq or Tk rounded up to whole tiles and D' is D
// rounded up to a size that products take. The padding of D', and of rows that products read, is 0.
// A left operand is (B, H, T', W), a right one (B, H, T' W / D', D'), where W is D' words, or D' /
// 2 words of two bf16 numbers; a transposed one is (B, H, T' / KEYS, W, KEYS). With AMX
// (softmax_attention_amx.h), transposed operands, queries_right and doutput_right only have their
// squares of 16 x 16 words transposed, and gradients of keys and values are summed as (B, H, T' /
// 16, D' / 16, 16, 16).
struct SoftmaxAttention {
    double sink;
    size_t heads, channels, size;          // H, C, D
    size_t columns, words;                 // D', W
    size_t batch, most_queries, most_keys; // the largest B, Tq and Tk
    size_t long_batch;                     // the largest B if sequences are not short
    const struct SoftmaxEngine *engine;
    real *queries, *keys_transposed;     // left, transposed
    real *values;                        // right (forward)
    real *values_transposed, *keys;      // transposed, right (backward)
    real *queries_right, *doutput_right; // right (backward)
    real *doutput;                       // left (backward)
    real *output;                        // (B, H, Tq', D') sums
    real *dqueries, *dkeys, *dvalues;    // (B, H, parts, Tq', D'), (B, H, Tk', D')
    real *hidden;                        // (B, Tk') -Inf for padding, else 0
    real *logsumexp, *product;           // (B, H, Tq'); product: dy_i . y_i
    ShortAttention *brief;               // for short sequences
};

// Shared by all tiles of one pass.
typedef struct {
    SoftmaxAttention *attention;
    const AttentionInput *in;
    size_t query_rows, key_rows; // Tq', Tk'
    size_t window;               // keys that a query sees; Tq' if it sees all up to itself
    size_t parts;
} SoftmaxPass;

// The layout of operands, and the functions that process their tiles.
typedef struct SoftmaxEngine {
    bool pairs;   // operands are bf16
    bool squares; // only squares of operands are transposed (softmax_attention_amx.h)
    size_t apart; // distance between the two tokens in a word of a right operand
    // output (QUERIES, D') += weights times values over all keys, for the queries from i0 on
    void (*forward)(const SoftmaxPass *pass, size_t unit, size_t i0, SoftmaxRows *rows,
                    real *output);
    // Computes the gradients of KEYS keys and values from j0 on, and adds to the gradients of the
    // queries that see them.
    void (*backward)(const SoftmaxPass *pass, size_t unit, size_t part, size_t j0);
} SoftmaxEngine;

// The backward pass divides the keys of a head into parts. Each part is a unit of work with its own
// sum of query gradients. The number of parts depends only on the shape, so that results do not
// depend on the number of threads.
static size_t parts_of(size_t heads, size_t key_rows) {
    size_t parts = smaller(MAX_PARTS, key_rows / KEYS);
    while (parts > 1 && parts * heads > WANTED) parts--;
    return parts;
}

// The largest number of sums of query gradients for up to `heads` heads (of all sequences) and
// `key_rows` rows of keys.
static size_t sets_of(size_t heads, size_t key_rows) {
    const size_t sets = smaller(WANTED, tile_count(heads, smaller(MAX_PARTS, key_rows / KEYS)));
    return sets > heads ? sets : heads;
}

void softmax_attention_carve(SoftmaxAttention *a, Arena *arena, bool training) {
    const char *what = "attention";
    const size_t query_rows = round_up(a->most_queries, KEYS),
                 key_rows = round_up(a->most_keys, KEYS);
    const size_t units = tile_count(a->long_batch, a->heads);
    const size_t queries = tile_count(units, query_rows), keys = tile_count(units, key_rows);
    const size_t whole = tile_count(a->columns, sizeof(real)),
                 operand = tile_count(a->words, sizeof(real));
    short_attention_carve(a->brief, arena, training);
    if (a->most_queries <= SHORT_ATTENTION && a->most_keys <= SHORT_ATTENTION) return;
    a->queries = arena_array(arena, queries, operand, what);
    a->keys_transposed = arena_array(arena, keys, operand, what);
    a->values = arena_array(arena, keys, operand, what);
    a->output = arena_array(arena, queries, whole, what);
    a->hidden = arena_reals(arena, a->long_batch, key_rows, what);
    if (!training) return;
    a->values_transposed = arena_array(arena, keys, operand, what);
    a->keys = arena_array(arena, keys, operand, what);
    a->doutput = arena_array(arena, queries, operand, what);
    a->queries_right = a->engine->pairs ? arena_array(arena, queries, operand, what) : a->queries;
    a->doutput_right = a->engine->pairs ? arena_array(arena, queries, operand, what) : a->doutput;
    a->dqueries = arena_array(arena, tile_count(sets_of(units, key_rows), query_rows), whole, what);
    a->dkeys = arena_array(arena, keys, whole, what);
    a->dvalues = arena_array(arena, keys, whole, what);
    a->logsumexp = arena_reals(arena, queries, 1, what);
    a->product = arena_reals(arena, queries, 1, what);
}

void softmax_attention_free(SoftmaxAttention *a) {
    if (!a) return;
    short_attention_free(a->brief);
    free(a);
}

static SoftmaxPass begin(SoftmaxAttention *a, const AttentionInput *in) {
    attention_check(in, a->long_batch, a->most_queries, a->most_keys);
    const size_t key_rows = round_up(in->keys, KEYS);
    for (size_t b = 0; b < in->batch; b++) {
        for (size_t j = 0; j < key_rows; j++)
            a->hidden[b * key_rows + j] =
                j < in->keys && (!in->mask || in->mask[b * in->keys + j]) ? 0 : -INFINITY;
    }
    const size_t query_rows = round_up(in->queries, KEYS);
    return (SoftmaxPass){a,
                         in,
                         query_rows,
                         key_rows,
                         in->window > 0 ? smaller(in->window, query_rows) : query_rows,
                         parts_of(in->batch * a->heads, key_rows)};
}

// The first key, and the end of the keys, that queries i0 to i0 + QUERIES see; rounded to multiples
// of QUERIES.
static size_t keys_begin(const SoftmaxPass *pass, size_t i0) {
    return attention_first_key(pass->in, i0) / QUERIES * QUERIES;
}

static size_t keys_end(const SoftmaxPass *pass, size_t i0) {
    return pass->in->causal ? i0 + QUERIES : round_up(pass->in->keys, QUERIES);
}

// The end of the queries that see any of the keys up to `end`. If attention is causal, these
// queries begin at the first of the keys.
static size_t queries_end(const SoftmaxPass *pass, size_t end) {
    const size_t last = round_up(pass->in->queries, QUERIES);
    return pass->in->window > 0 ? smaller(last, round_up(end + pass->window - 1, QUERIES)) : last;
}

// ---- operands ---------------------------------------------------------------
// The source of up to KEYS rows of an operand: (x + bias) * scale for `rows` rows of x, padded with
// 0 to whole tiles of queries, and to the right of `size`.
typedef struct {
    const real *x, *bias; // bias or NULL
    size_t x_row, rows, size;
    real scale;
} Source;

// A head's queries (times log2(e) / sqrt(D), so that weights are powers of 2), keys or values from
// row t0 on.
static Source source_of(const SoftmaxPass *pass, AttentionPart part, size_t unit, size_t t0) {
    const SoftmaxAttention *a = pass->attention;
    const AttentionRows *rows = &pass->in->rows[part];
    const size_t b = unit / a->heads, column = unit % a->heads * a->size;
    const size_t length = part == QUERY ? pass->in->queries : pass->in->keys;
    return (Source){rows->x + (b * length + t0) * rows->stride + column,
                    rows->bias ? rows->bias + column : NULL,
                    rows->stride,
                    smaller(KEYS, length - t0),
                    a->size,
                    part == QUERY ? (real)(LOG2_E / sqrt((double)a->size)) : 1};
}

// Rows of an operand that products read.
static size_t source_end(const Source *source) {
    return round_up(source->rows, QUERIES);
}

// Loads columns d to d + TILE_COLUMNS of a row.
static inline void source_load(TileVector out[TILE_VECTORS], const Source *s, size_t row,
                               size_t d) {
    const real *x = s->x + row * s->x_row + d;
    _Alignas(64) real part[TILE_COLUMNS] = {0};
    if (row + AHEAD < s->rows) tile_prefetch(x + AHEAD * s->x_row, TILE_COLUMNS);
    if (row < s->rows && d + TILE_COLUMNS <= s->size) {
        for (size_t v = 0; v < TILE_VECTORS; v++) {
            out[v] = tile_load_unaligned(x + v * TILE_LANES);
            if (s->bias) out[v] += tile_load_unaligned(s->bias + d + v * TILE_LANES);
            out[v] *= s->scale;
        }
        return;
    }
    for (size_t l = 0; row < s->rows && d + l < s->size; l++)
        part[l] = (s->bias ? x[l] + s->bias[d + l] : x[l]) * s->scale;
    for (size_t v = 0; v < TILE_VECTORS; v++) out[v] = tile_load(part + v * TILE_LANES);
}

static void pack_left(const SoftmaxAttention *a, real *out, Source source) {
    for (size_t i = 0; i < source_end(&source); i++) {
        for (size_t d = 0; d < a->columns; d += TILE_COLUMNS) {
            TileVector x[TILE_VECTORS];
            source_load(x, &source, i, d);
            tile_store_left(out + i * a->words + (a->engine->pairs ? d / 2 : d), x[0], x[1],
                            a->engine->pairs);
        }
    }
}

// Two rows per word.
static void pack_right(const SoftmaxAttention *a, real *out, Source source) {
    const size_t apart = a->engine->apart;
    for (size_t i = 0; i < source_end(&source); i += 2) {
        const size_t row = i / (2 * apart) * 2 * apart + i / 2 % apart;
        for (size_t d = 0; d < a->columns; d += TILE_COLUMNS) {
            TileVector low[TILE_VECTORS], high[TILE_VECTORS];
            source_load(low, &source, row, d);
            source_load(high, &source, row + apart, d);
            for (size_t v = 0; v < TILE_VECTORS; v++)
                tile_store_right(out + i * a->words + d + v * TILE_LANES, a->words, low[v], high[v],
                                 a->engine->pairs);
        }
    }
}

// Packs a left operand and transposes its words, as a whole or in squares.
static void pack_transposed(const SoftmaxAttention *a, real *restrict out, Source source) {
    if (a->engine->squares) {
        pack_left(a, out, source);
        tile_transpose_squares(out, a->words, source_end(&source), a->words);
        return;
    }
    const size_t step = a->engine->pairs ? 2 : 1, width = TILE_COLUMNS / step,
                 end = source_end(&source);
    for (size_t d = 0; d < a->columns; d += TILE_COLUMNS) {
        _Alignas(64) real block[KEYS * TILE_COLUMNS]; // (KEYS, width)
        for (size_t i = 0; i < end; i++) {
            TileVector x[TILE_VECTORS];
            source_load(x, &source, i, d);
            tile_store_left(block + i * width, x[0], x[1], a->engine->pairs);
        }
        for (size_t w = 0; w < width; w++) {
            for (size_t i = 0; i < end; i++) out[(d / step + w) * KEYS + i] = block[i * width + w];
        }
    }
}

// ---- scores -----------------------------------------------------------------
// TILE_ROWS queries of a tile, and the keys of a tile.
typedef struct {
    const real *queries; // left (TILE_ROWS, W)
    const real *keys;    // transposed (W, KEYS)
    const real *hidden;  // (KEYS)
    size_t words;        // W
    size_t begin, end;   // of the keys that any query of the tile sees, multiples of QUERIES
    // The first query sees the keys from `before` to `seen` of the tile; earlier keys precede its
    // window. Both grow by 1 with each query. If `seen` is at least KEYS and `before` of the last
    // query is not above 0, all queries see all keys.
    int seen, before;
} Strip;

static const real *hidden_keys(const SoftmaxPass *pass, size_t unit, size_t j0) {
    return pass->attention->hidden + unit / pass->attention->heads * pass->key_rows + j0;
}

// The strip that starts at row r of the tile of queries i0 to i0 + QUERIES.
static inline Strip strip_create(const SoftmaxPass *pass, size_t unit, size_t i0, size_t r,
                                 size_t j0) {
    const SoftmaxAttention *a = pass->attention;
    const size_t query = unit * pass->query_rows + i0 + r, key = unit * pass->key_rows + j0;
    const size_t begin = keys_begin(pass, i0);
    const int seen = pass->in->causal ? (int)(i0 + r - j0) + 1 : KEYS;
    return (Strip){a->queries + query * a->words,
                   a->keys_transposed + key * a->words,
                   hidden_keys(pass, unit, j0),
                   a->words,
                   begin > j0 ? begin - j0 : 0,
                   smaller(KEYS, keys_end(pass, i0) - j0),
                   seen,
                   pass->in->window > 0 ? seen - (int)pass->window : -TILE_ROWS};
}

// Scores of TILE_COLUMNS keys from j on, -Inf for hidden keys.
TILE_INLINE void strip_scores(TileSums s, const Strip *strip, size_t j, bool pairs) {
    tile_get(s, strip->hidden + j, 0);
    tile_add_product(s, (TileView){strip->queries, strip->words, 1}, strip->keys + j, KEYS,
                     strip->words, pairs);
    const int seen = strip->seen - (int)j, before = strip->before - (int)j;
    if (seen >= (int)TILE_COLUMNS && before <= -(int)TILE_ROWS) return;
    TILE_UNROLL
    for (int i = 0; i < (int)TILE_ROWS; i++) {
        TILE_UNROLL
        for (int v = 0; v < (int)TILE_VECTORS; v++) {
            const int lane = v * (int)TILE_LANES;
            s[i][v] = tile_after(tile_first(s[i][v], seen + i - lane), before + i - lane);
        }
    }
}

// The first block of the dropout generator for query 0 of a head.
static uint64_t first_block(const SoftmaxPass *pass, size_t unit) {
    const AttentionInput *in = pass->in;
    return (in->first_row * pass->attention->heads + unit) * in->queries * (pass->key_rows / KEYS);
}

static void tile_kept(const SoftmaxPass *pass, size_t unit, size_t i, size_t j0, Kept *kept) {
    const AttentionInput *in = pass->in;
    if (!in->dropout) {
        memset(kept, 0xff, QUERIES * sizeof(*kept));
        return;
    }
    const uint64_t blocks = pass->key_rows / KEYS;
    dropout_bits(in->dropout, first_block(pass, unit) + i * blocks + j0 / KEYS, blocks, QUERIES,
                 &kept[0][0]);
}

TILE_INLINE TileVector keep(TileVector x, const Kept kept, size_t j) {
    return tile_keep(x, kept[j / 32] >> j % 32);
}

// ---- forward ----------------------------------------------------------------

static SoftmaxRows rows_create(double sink) {
    SoftmaxRows rows = {0};
    for (size_t r = 0; r < QUERIES; r++) {
        // A very low number, but not -Inf: 2^(-Inf - top) is 0, even in a row that sees nothing.
        rows.top[r] = sink > 0 ? (real)log2(sink) : (real)-1e30;
        rows.sum[r][0] = sink > 0 ? 1 : 0;
    }
    return rows;
}

// Raises `top` to the largest score of each row, and scales the sums and output (TILE_ROWS,
// columns) down accordingly.
TILE_INLINE void strip_raise(const Strip *strip, size_t begin, size_t end, real *top,
                             TileVector *sum, real *output, size_t columns, bool pairs) {
    TileVector greatest[TILE_ROWS];
    for (size_t i = 0; i < TILE_ROWS; i++) greatest[i] = (TileVector){0} + top[i];
    for (size_t j = begin; j < end; j += TILE_COLUMNS) {
        TileSums s;
        strip_scores(s, strip, j, pairs);
        TILE_UNROLL
        for (size_t i = 0; i < TILE_ROWS; i++) {
            TILE_UNROLL
            for (size_t v = 0; v < TILE_VECTORS; v++) greatest[i] = tile_max(s[i][v], greatest[i]);
        }
    }
    for (size_t i = 0; i < TILE_ROWS; i++) {
        const real raised = tile_greatest_lane(greatest[i]);
        const TileVector shrink = tile_exp2((TileVector){0} + (top[i] - raised), false);
        top[i] = raised;
        sum[i] *= shrink;
        for (size_t d = 0; d < columns; d += TILE_LANES)
            tile_store(output + i * columns + d, tile_load(output + i * columns + d) * shrink);
    }
}

// Sets weights (TILE_ROWS, KEYS words), a left operand, to 2^(s - top), or 0 if dropout drops it.
// Adds their sums before dropout to `sum`. Returns false, without adding, if a score exceeds its
// top by more than MARGIN.
TILE_INLINE bool strip_weights(const Strip *strip, const Kept *kept, const real *top,
                               TileVector *sum, real *weights, bool pairs) {
    TileVector greatest = {0}, more[TILE_ROWS] = {0};
    for (size_t j = strip->begin; j < strip->end; j += TILE_COLUMNS) {
        TileSums s;
        strip_scores(s, strip, j, pairs);
        TILE_UNROLL
        for (size_t i = 0; i < TILE_ROWS; i++) {
            TILE_UNROLL
            for (size_t v = 0; v < TILE_VECTORS; v++) {
                s[i][v] -= top[i];
                greatest = tile_max(s[i][v], greatest);
                s[i][v] = tile_exp2(s[i][v], pairs);
                more[i] += s[i][v];
                s[i][v] = keep(s[i][v], kept[i], j + v * TILE_LANES);
            }
            tile_store_left(weights + i * KEYS + (pairs ? j / 2 : j), s[i][0], s[i][1], pairs);
        }
    }
    if (tile_greatest_lane(greatest) > MARGIN) return false;
    for (size_t i = 0; i < TILE_ROWS; i++) sum[i] += more[i];
    return true;
}

// output (QUERIES, D') += weights times values of a tile of keys, strip by strip
TILE_INLINE void forward_strips(const SoftmaxPass *pass, size_t unit, size_t i0, size_t j0,
                                const Kept *kept, SoftmaxRows *rows, real *output, bool pairs) {
    const SoftmaxAttention *a = pass->attention;
    const size_t columns = a->columns, step = pairs ? 2 : 1;
    const bool first = j0 <= keys_begin(pass, i0);
    const real *values = a->values + (unit * pass->key_rows + j0) * a->words;
    _Alignas(64) real weights[TILE_ROWS * KEYS];
    for (size_t r = 0; r < QUERIES; r += TILE_ROWS) {
        const Strip strip = strip_create(pass, unit, i0, r, j0);
        real *top = rows->top + r, *strip_output = output + r * columns;
        // The first scores are a good guess of the largest; with a window, the first that more
        // queries see.
        if (first) {
            const size_t cut = strip.begin + QUERIES;
            const size_t guess = strip.before > 0 && cut < strip.end ? cut : strip.begin;
            strip_raise(&strip, guess, guess + TILE_COLUMNS, top, rows->sum + r, strip_output,
                        columns, pairs);
        }
        if (!strip_weights(&strip, kept + r, top, rows->sum + r, weights, pairs)) {
            strip_raise(&strip, strip.begin, strip.end, top, rows->sum + r, strip_output, columns,
                        pairs);
            strip_weights(&strip, kept + r, top, rows->sum + r, weights, pairs);
        }
        tile_product(strip_output, columns, strip_output, columns,
                     (TileView){weights + strip.begin / step, KEYS, 1},
                     values + strip.begin * a->words, columns, TILE_ROWS, columns,
                     (strip.end - strip.begin) / step, pairs);
    }
}

static void forward_keys(const SoftmaxPass *pass, size_t unit, size_t i0, SoftmaxRows *rows,
                         real *output) {
    const SoftmaxAttention *a = pass->attention;
    const size_t end = keys_end(pass, i0);
    for (size_t j0 = keys_begin(pass, i0) / KEYS * KEYS; j0 < end; j0 += KEYS) {
        Kept kept[QUERIES];
        tile_kept(pass, unit, i0, j0, kept);
        if (a->engine->pairs)
            forward_strips(pass, unit, i0, j0, kept, rows, output, true);
        else
            forward_strips(pass, unit, i0, j0, kept, rows, output, false);
    }
}

static void forward_tile(const SoftmaxPass *pass, size_t unit, size_t i0, Matrix y,
                         real *logsumexp) {
    const SoftmaxAttention *a = pass->attention;
    const AttentionInput *in = pass->in;
    const size_t columns = a->columns, b = unit / a->heads;
    real *output = a->output + (unit * pass->query_rows + i0) * columns;
    memset(output, 0, QUERIES * columns * sizeof(real));
    SoftmaxRows rows = rows_create(a->sink);
    a->engine->forward(pass, unit, i0, &rows, output);
    const real kept = in->dropout ? in->dropout->scale : 1;
    for (size_t r = 0; r < QUERIES && i0 + r < in->queries; r++) {
        const real sum = tile_sum_of_lanes(rows.sum[r]), scale = sum == 0 ? 0 : kept / sum;
        for (size_t d = 0; d < columns; d++) output[r * columns + d] *= scale;
        gemm_input_store(y, b * in->queries + i0 + r, unit % a->heads * a->size,
                         output + r * columns, a->size);
        // +Inf if the row sees nothing: 2^(s - Inf) is 0.
        if (logsumexp)
            logsumexp[unit * in->queries + i0 + r] =
                sum == 0 ? INFINITY : (real)LN2 * (rows.top[r] + (real)log2(sum));
    }
}

static void pack_forward(const SoftmaxPass *pass, size_t unit, size_t t0) {
    SoftmaxAttention *a = pass->attention;
    if (t0 < pass->query_rows)
        pack_left(a, a->queries + (unit * pass->query_rows + t0) * a->words,
                  source_of(pass, QUERY, unit, t0));
    if (t0 >= pass->key_rows) return;
    const size_t at = (unit * pass->key_rows + t0) * a->words;
    pack_right(a, a->values + at, source_of(pass, VALUE, unit, t0));
    pack_transposed(a, a->keys_transposed + at, source_of(pass, KEY, unit, t0));
}

void softmax_attention_forward(SoftmaxAttention *a, Matrix y, real *logsumexp,
                               const AttentionInput *in) {
    attention_check(in, a->batch, a->most_queries, a->most_keys);
    if (attention_is_short(in)) {
        short_attention_forward(a->brief, y, logsumexp, in);
        return;
    }
    const SoftmaxPass pass = begin(a, in);
    const size_t units = in->batch * a->heads, tiles = (in->queries + QUERIES - 1) / QUERIES;
    const size_t rows = pass.query_rows > pass.key_rows ? pass.query_rows : pass.key_rows;
#pragma omp parallel
    {
#pragma omp for collapse(2)
        for (size_t t0 = 0; t0 < rows; t0 += KEYS) {
            for (size_t unit = 0; unit < units; unit++) pack_forward(&pass, unit, t0);
        }
        // Start with the last tiles of a head, which see the most keys.
#pragma omp for collapse(2) schedule(dynamic)
        for (size_t unit = 0; unit < units; unit++) {
            for (size_t tile = 0; tile < tiles; tile++)
                forward_tile(&pass, unit, (tiles - 1 - tile) * QUERIES, y, logsumexp);
        }
    }
}

// ---- backward ---------------------------------------------------------------
// The weights of a tile after dropout, and the gradients of its scores, w_ij (dw_ij - sum_j w_ij
// dw_ij), where the sum is dy_i . y_i.
typedef struct {
    real weights[QUERIES * KEYS], dscores[QUERIES * KEYS]; // right (QUERIES / 2 or QUERIES, KEYS)
    real left[QUERIES * KEYS / 2]; // dscores as a left operand, if that differs
} Gradients;

// Computes the rows of these from r on, for keys j to j + TILE_COLUMNS.
TILE_INLINE void backward_block(const SoftmaxPass *pass, const Strip *strip, const Kept *kept,
                                size_t row, size_t key, size_t r, size_t j, Gradients *g,
                                bool pairs) {
    const SoftmaxAttention *a = pass->attention;
    const size_t words = a->words, step = pairs ? 2 : 1;
    TileSums w, dw = {0};
    _Alignas(64) real buffer[TILE_ROWS * TILE_COLUMNS];
    strip_scores(w, strip, j, pairs);
    TILE_UNROLL
    for (size_t i = 0; i < TILE_ROWS; i++) {
        TILE_UNROLL
        for (size_t v = 0; v < TILE_VECTORS; v++)
            tile_store(buffer + i * TILE_COLUMNS + v * TILE_LANES,
                       tile_exp2(w[i][v] - a->logsumexp[row + i], pairs));
    }
    tile_add_product(dw, (TileView){a->doutput + row * words, words, 1},
                     a->values_transposed + key * words + j, KEYS, words, pairs);
    TILE_UNROLL
    for (size_t i = 0; i < TILE_ROWS; i++) {
        TILE_UNROLL
        for (size_t v = 0; v < TILE_VECTORS; v++) {
            const size_t at = v * TILE_LANES;
            w[i][v] = tile_load(buffer + i * TILE_COLUMNS + at);
            dw[i][v] = w[i][v] * (keep(dw[i][v], kept[i], j + at) - a->product[row + i]);
            w[i][v] = keep(w[i][v], kept[i], j + at);
        }
        if (pairs) tile_store_left(g->left + (r + i) * KEYS / 2 + j / 2, dw[i][0], dw[i][1], true);
        if (i % 2 == 0) continue;
        TILE_UNROLL
        for (size_t v = 0; v < TILE_VECTORS; v++) {
            const size_t at = (r + i - 1) / step * KEYS + j + v * TILE_LANES;
            tile_store_right(g->weights + at, KEYS, w[i - 1][v], w[i][v], pairs);
            tile_store_right(g->dscores + at, KEYS, dw[i - 1][v], dw[i][v], pairs);
        }
    }
}

TILE_INLINE void backward_strips(const SoftmaxPass *pass, size_t unit, size_t i0, size_t j0,
                                 Gradients *g, bool pairs) {
    const size_t query = unit * pass->query_rows + i0, key = unit * pass->key_rows + j0;
    Kept kept[QUERIES];
    tile_kept(pass, unit, i0, j0, kept);
    for (size_t r = 0; r < QUERIES; r += TILE_ROWS) {
        const Strip strip = strip_create(pass, unit, i0, r, j0);
        for (size_t j = strip.begin; j < strip.end; j += TILE_COLUMNS)
            backward_block(pass, &strip, kept + r, query + r, key, r, j, g, pairs);
    }
}

TILE_INLINE void backward_tile(const SoftmaxPass *pass, size_t unit, size_t part, size_t i0,
                               size_t j0, bool pairs) {
    const SoftmaxAttention *a = pass->attention;
    const size_t columns = a->columns, words = a->words, step = pairs ? 2 : 1;
    const size_t begin = keys_begin(pass, i0), skip = begin > j0 ? begin - j0 : 0;
    const size_t i = unit * pass->query_rows + i0, j = unit * pass->key_rows + j0 + skip;
    const size_t n = smaller(KEYS, keys_end(pass, i0) - j0) - skip;
    _Alignas(64) Gradients g;
    backward_strips(pass, unit, i0, j0, &g, pairs);
    real *dvalues = a->dvalues + j * columns, *dkeys = a->dkeys + j * columns;
    real *dqueries = a->dqueries + ((unit * pass->parts + part) * pass->query_rows + i0) * columns;
    // This is the first of the part's tiles that these queries see.
    if (j0 / KEYS < begin / KEYS + pass->parts)
        memset(dqueries, 0, QUERIES * columns * sizeof(real));
    tile_product(dvalues, columns, dvalues, columns, (TileView){g.weights + skip, 1, KEYS},
                 a->doutput_right + i * words, columns, n, columns, QUERIES / step, pairs);
    tile_product(dkeys, columns, dkeys, columns, (TileView){g.dscores + skip, 1, KEYS},
                 a->queries_right + i * words, columns, n, columns, QUERIES / step, pairs);
    tile_product(dqueries, columns, dqueries, columns,
                 (TileView){(pairs ? g.left : g.dscores) + skip / step, KEYS / step, 1},
                 a->keys + j * words, columns, QUERIES, columns, n / step, pairs);
}

static void backward_keys(const SoftmaxPass *pass, size_t unit, size_t part, size_t j0) {
    const SoftmaxAttention *a = pass->attention;
    const size_t at = (unit * pass->key_rows + j0) * a->columns,
                 size = KEYS * a->columns * sizeof(real);
    memset(a->dkeys + at, 0, size);
    memset(a->dvalues + at, 0, size);
    const size_t end = queries_end(pass, j0 + KEYS);
    for (size_t i0 = pass->in->causal ? j0 : 0; i0 < end; i0 += QUERIES) {
        if (a->engine->pairs)
            backward_tile(pass, unit, part, i0, j0, true);
        else
            backward_tile(pass, unit, part, i0, j0, false);
    }
}

// dy . y of one head at row `row`.
static real product_with(Matrix y, size_t row, size_t column, const real *restrict dy,
                         size_t size) {
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

static void pack_queries_backward(const SoftmaxPass *pass, const real *dy, Matrix y,
                                  const real *logsumexp, size_t unit, size_t t0) {
    SoftmaxAttention *a = pass->attention;
    const AttentionInput *in = pass->in;
    const size_t row = unit * pass->query_rows + t0, at = row * a->words;
    const size_t rows = smaller(KEYS, in->queries - t0);
    const size_t dy_row = unit / a->heads * in->queries + t0, column = unit % a->heads * a->size;
    const Source queries = source_of(pass, QUERY, unit, t0);
    const Source doutput = {dy + dy_row * a->channels + column,  NULL, a->channels, rows, a->size,
                            in->dropout ? in->dropout->scale : 1};
    pack_left(a, a->queries + at, queries);
    if (a->engine->pairs) pack_right(a, a->queries_right + at, queries);
    pack_left(a, a->doutput + at, doutput);
    if (a->engine->pairs) pack_right(a, a->doutput_right + at, doutput);
    if (a->engine->squares) {
        tile_transpose_squares(a->queries_right + at, a->columns, source_end(&queries) / 2,
                               a->columns);
        tile_transpose_squares(a->doutput_right + at, a->columns, source_end(&doutput) / 2,
                               a->columns);
    }
    for (size_t r = 0; r < KEYS; r++) {
        const real *at_r = dy + (dy_row + r) * a->channels + column;
        a->product[row + r] = r < rows ? product_with(y, dy_row + r, column, at_r, a->size) : 0;
        a->logsumexp[row + r] =
            r < rows ? logsumexp[unit * in->queries + t0 + r] * (real)LOG2_E : INFINITY;
    }
}

static void pack_keys_backward(const SoftmaxPass *pass, size_t unit, size_t t0) {
    SoftmaxAttention *a = pass->attention;
    const size_t at = (unit * pass->key_rows + t0) * a->words;
    const Source keys = source_of(pass, KEY, unit, t0);
    pack_right(a, a->keys + at, keys);
    pack_transposed(a, a->keys_transposed + at, keys);
    pack_transposed(a, a->values_transposed + at, source_of(pass, VALUE, unit, t0));
}

// Offset of the TILE_LANES numbers from column d on of row t in the gradient sums of a head.
static size_t place_of(const SoftmaxAttention *a, AttentionPart which, size_t t, size_t d) {
    if (!a->engine->squares || which == QUERY) return t * a->columns + d;
    return t / TILE_LANES * TILE_LANES * a->columns + d * TILE_LANES + t % TILE_LANES * TILE_LANES;
}

// Stores the gradients of queries, keys or values of one head, with rows in order, and adds their
// sum to that of the bias.
static void gather(const SoftmaxPass *pass, const AttentionGradient *to, AttentionPart which,
                   size_t h) {
    const SoftmaxAttention *a = pass->attention;
    const AttentionInput *in = pass->in;
    const size_t size = a->size, column = h * size;
    const size_t length = which == QUERY ? in->queries : in->keys;
    const size_t stride = (which == QUERY ? pass->query_rows : pass->key_rows) * a->columns;
    const size_t parts = which == QUERY ? pass->parts : 1;
    // Queries were multiplied with log2(e) / sqrt(D). The factor ln 2 cancels log2(e).
    const real scale = which == QUERY ? (real)(1 / sqrt((double)size))
                       : which == KEY ? (real)LN2
                                      : 1;
    const real *from = which == QUERY ? a->dqueries : which == KEY ? a->dkeys : a->dvalues;
    for (size_t d = 0; d < size; d += TILE_COLUMNS) {
        _Alignas(64) real row[TILE_COLUMNS];
        TileVector total[TILE_VECTORS] = {0};
        const size_t count = smaller(TILE_COLUMNS, size - d);
        for (size_t b = 0; b < in->batch; b++) {
            const real *head = from + (b * a->heads + h) * parts * stride;
            for (size_t t = 0; t < length; t++) {
                // Only the parts whose tiles of keys the query sees.
                const size_t tile = attention_first_key(in, t) / KEYS;
                const size_t seen = in->causal ? smaller(parts, t / KEYS + 1 - tile) : parts;
                TileVector sum[TILE_VECTORS] = {0};
                for (size_t n = 0; n < seen; n++) {
                    const real *sums = head + (tile + n) % parts * stride;
                    tile_prefetch(sums + place_of(a, which, t + AHEAD, d), TILE_COLUMNS);
                    for (size_t v = 0; v < TILE_VECTORS; v++)
                        sum[v] += tile_load(sums + place_of(a, which, t, d + v * TILE_LANES));
                }
                for (size_t v = 0; v < TILE_VECTORS; v++) {
                    total[v] += sum[v] * scale;
                    tile_store(row + v * TILE_LANES, sum[v] * scale);
                }
                gemm_input_store(to->to, b * length + t, to->column + column + d, row, count);
            }
        }
        for (size_t v = 0; v < TILE_VECTORS; v++) tile_store(row + v * TILE_LANES, total[v]);
        for (size_t l = 0; to->bias && l < count; l++) to->bias[column + d + l] += row[l];
    }
}

void softmax_attention_backward(SoftmaxAttention *a, const AttentionGradients *gradients,
                                const real *dy, Matrix y, const real *logsumexp,
                                const AttentionInput *in) {
    attention_check(in, a->batch, a->most_queries, a->most_keys);
    if (attention_is_short(in)) {
        short_attention_backward(a->brief, gradients, dy, y, logsumexp, in);
        return;
    }
    const SoftmaxPass pass = begin(a, in);
    const size_t units = in->batch * a->heads;
    const size_t rows = pass.query_rows > pass.key_rows ? pass.query_rows : pass.key_rows;
#pragma omp parallel
    {
#pragma omp for collapse(2)
        for (size_t t0 = 0; t0 < rows; t0 += KEYS) {
            for (size_t unit = 0; unit < units; unit++) {
                if (t0 < pass.query_rows) pack_queries_backward(&pass, dy, y, logsumexp, unit, t0);
                if (t0 < pass.key_rows) pack_keys_backward(&pass, unit, t0);
            }
        }
        // Part p has the key tiles p, p + parts, ... Start with the first part, which has the tiles
        // that the most queries see.
#pragma omp for collapse(2) schedule(dynamic)
        for (size_t part = 0; part < pass.parts; part++) {
            for (size_t unit = 0; unit < units; unit++) {
                for (size_t j0 = part * KEYS; j0 < pass.key_rows; j0 += pass.parts * KEYS)
                    a->engine->backward(&pass, unit, part, j0);
            }
        }
#pragma omp for collapse(2) schedule(dynamic)
        for (size_t which = QUERY; which <= VALUE; which++) {
            for (size_t h = 0; h < a->heads; h++)
                gather(&pass, &gradients->parts[which], (AttentionPart)which, h);
        }
    }
}

// ---- engines ----------------------------------------------------------------
#if TILE_PAIRS

// The data of a head that AMX reads.
static AmxHead amx_head(const SoftmaxPass *pass, size_t unit) {
    const SoftmaxAttention *a = pass->attention;
    const AttentionInput *in = pass->in;
    const size_t query = unit * pass->query_rows, key = unit * pass->key_rows, words = a->words;
    AmxHead head = {.words = words,
                    .queries = a->queries + query * words,
                    .keys_transposed = a->keys_transposed + key * words,
                    .values = a->values + key * words,
                    .hidden = hidden_keys(pass, unit, 0),
                    .dropout = in->dropout,
                    .block = first_block(pass, unit),
                    .blocks = pass->key_rows / KEYS,
                    .query_end = round_up(in->queries, QUERIES),
                    .key_end = round_up(in->keys, QUERIES),
                    .causal = in->causal,
                    .window = pass->window};
    return head;
}

static void forward_amx(const SoftmaxPass *pass, size_t unit, size_t i0, SoftmaxRows *rows,
                        real *output) {
    const AmxHead head = amx_head(pass, unit);
    amx_begin();
    amx_attention_forward(&head, i0, rows, output);
    amx_end();
}

static void backward_amx(const SoftmaxPass *pass, size_t unit, size_t part, size_t j0) {
    const SoftmaxAttention *a = pass->attention;
    const size_t query = unit * pass->query_rows, key = unit * pass->key_rows, columns = a->columns;
    real *dqueries = a->dqueries + (unit * pass->parts + part) * pass->query_rows * columns;
    AmxHead head = amx_head(pass, unit);
    head.keys = a->keys + key * a->words;
    head.values_transposed = a->values_transposed + key * a->words;
    head.doutput = a->doutput + query * a->words;
    head.queries_transposed = a->queries_right + query * a->words;
    head.doutput_transposed = a->doutput_right + query * a->words;
    head.logsumexp = a->logsumexp + query;
    head.product = a->product + query;
    head.query_end = queries_end(pass, j0 + KEYS);
    if (j0 == part * KEYS) memset(dqueries, 0, pass->query_rows * columns * sizeof(real));
    amx_begin();
    amx_attention_backward(&head, j0, dqueries, a->dkeys + (key + j0) * columns,
                           a->dvalues + (key + j0) * columns);
    amx_end();
}

#endif

static const SoftmaxEngine engines[] = {
    [MULTIPLY_REALS] = {false, false, 1, forward_keys, backward_keys},
#if TILE_PAIRS
    [MULTIPLY_PAIRS] = {true, false, 1, forward_keys, backward_keys},
    [MULTIPLY_AMX] = {true, true, PAIR_APART, forward_amx, backward_amx},
#endif
};

SoftmaxAttention *softmax_attention_create(Precision precision, double sink, size_t batch,
                                           size_t queries, size_t keys, size_t rows,
                                           size_t channels, size_t heads) {
    SoftmaxAttention *a = allocate(1, sizeof(*a), "attention");
    const size_t columns = round_up(channels / heads, TILE_COLUMNS);
    const SoftmaxEngine *engine = &engines[tile_multiplier(precision == PRECISION_BFLOAT16)];
    *a = (SoftmaxAttention){.sink = sink,
                            .heads = heads,
                            .channels = channels,
                            .size = channels / heads,
                            .columns = columns,
                            .words = engine->pairs ? columns / 2 : columns,
                            .batch = batch,
                            .most_queries = queries,
                            .most_keys = keys,
                            .long_batch = smaller(batch, rows / (SHORT_ATTENTION + 1)),
                            .engine = engine,
                            .brief = short_attention_create(sink, queries, keys, channels, heads)};
    return a;
}
