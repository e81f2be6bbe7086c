#include "softmax_attention_amx.h"

#include "amx_tiles.h"

#if TILE_PAIRS

// Work goes in blocks of 32 queries and 32 keys, whose scores lie in four squares of 16 x 16 (1 KiB each).
// While vectors work on a block, the products that make the next one and those that take what was made of the
// one before are issued between them in small parts: an instruction waits for the one before only where it
// needs it, but none is more than some hundred others ahead, and a tile is loaded only when all stores to it
// have left for the cache.
enum { SQUARE = 16, SIDE = 2 * SQUARE, SQUARE_WORDS = SQUARE * SQUARE };

typedef real Square[SQUARE_WORDS];

typedef struct {
    Square at[2][2]; // [half of the queries][half of the keys]
} Block;

// Squares of an operand or of sums: a square's rows are `row` apart. The other half of 32 rows (of a left
// operand, of sums) starts at `down`, that of 32 columns at `right`.
typedef struct {
    const real *data;
    size_t row, half, step; // step: along the dimension that is summed over
    size_t block;           // to the next block
} Operand;

typedef struct {
    real *data;
    size_t row, down, right, block;
} Sums;

// sums (32, 32) = or += a (32, `steps` times 16 words) b, `blocks` times
typedef struct {
    Sums sums;
    Operand a, b;
    size_t steps, blocks;
    bool add;
} Product;

// Half of a product's rows: sums in tiles C and D, the left operand in tile A. They are stored later, by
// STORE_HALF: an instruction that stores would wait for them and hold up the next product.
#define START_HALF(C, D, A)                                                                                  \
    do {                                                                                                     \
        AMX_LOAD(C, left_start, start_row);                                                                  \
        AMX_LOAD(D, right_start, start_row);                                                                 \
        for (size_t s = 0; s < p->steps; s++) {                                                              \
            AMX_LOAD(A, a + s * p->a.step, p->a.row);                                                        \
            AMX_LOAD(6, b + s * p->b.step, p->b.row);                                                        \
            AMX_MULTIPLY_ADD(C, A, 6);                                                                       \
            AMX_LOAD(7, b + s * p->b.step + p->b.half, p->b.row);                                            \
            AMX_MULTIPLY_ADD(D, A, 7);                                                                       \
        }                                                                                                    \
    } while (0)

// Sums that are still in tiles 0 and 1, or 2 and 3: where they will be stored, `row` apart.
typedef struct {
    real *left, *right; // NULL: none
    size_t row;
} Waiting;

static void store_waiting(Waiting *waiting, size_t tiles) {
    if (!waiting->left) return;
    if (tiles == 0) {
        AMX_STORE(0, waiting->left, waiting->row);
        AMX_STORE(1, waiting->right, waiting->row);
    } else {
        AMX_STORE(2, waiting->left, waiting->row);
        AMX_STORE(3, waiting->right, waiting->row);
    }
    waiting->left = NULL;
}

// The first or second half of a product's rows, in the tiles that `turn` says.
TILE_INLINE void half_product(const Product *p, size_t half, size_t turn, Waiting waiting[2]) {
    static const _Alignas(64) Square zeros = {0};
    for (size_t n = 0; n < p->blocks; n++, turn = 1 - turn) {
        const Sums c = p->sums;
        real *left = c.data + half * c.down + n * c.block, *right = left + c.right;
        const real *a = p->a.data + half * p->a.half + n * p->a.block, *b = p->b.data + n * p->b.block;
        const real *left_start = p->add ? left : zeros, *right_start = p->add ? right : zeros;
        const size_t start_row = p->add ? c.row : SQUARE;
        store_waiting(&waiting[turn], turn);
        if (turn == 0)
            START_HALF(0, 1, 4);
        else
            START_HALF(2, 3, 5);
        store_waiting(&waiting[1 - turn], 1 - turn);
        waiting[turn] = (Waiting){left, right, c.row};
    }
}

TILE_INLINE void store_all(Waiting waiting[2]) {
    store_waiting(&waiting[0], 0);
    store_waiting(&waiting[1], 1);
}

static void whole_product(const Product *p) {
    Waiting waiting[2] = {{NULL}, {NULL}};
    half_product(p, 0, 0, waiting);
    half_product(p, 1, 1, waiting);
    store_all(waiting);
}

// block = left rows (32, W) times turned ones
TILE_INLINE Product block_product(Block *block, const real *left, const real *turned, size_t words) {
    return (Product){.sums = {block->at[0][0], SQUARE, 2 * SQUARE_WORDS, SQUARE_WORDS, 0},
                     .a = {left, words, SQUARE * words, SQUARE, 0},
                     .b = {turned, words, SQUARE * words, SQUARE, 0},
                     .steps = words / SQUARE,
                     .blocks = 1};
}

// sums (32, D') += two left squares times right rows (32, D')
TILE_INLINE Product add_product(real *sums, const Square left[2], const real *right, size_t columns) {
    return (Product){.sums = {sums, columns, SQUARE * columns, SQUARE, SIDE},
                     .a = {left[0], SQUARE, SQUARE_WORDS, 0, 0},
                     .b = {right, columns, SQUARE, 0, SIDE},
                     .steps = 1,
                     .blocks = columns / SIDE,
                     .add = true};
}

// sums (2, D' / 16) squares, their rows the channels, += turned (16, D') times two right squares
TILE_INLINE Product add_turned_product(real *sums, const real *turned, const Square right[2],
                                       size_t columns) {
    return (Product){.sums = {sums, SQUARE, SQUARE_WORDS, SQUARE * columns, 2 * SQUARE_WORDS},
                     .a = {turned, columns, SQUARE, 0, SIDE},
                     .b = {right[0], SQUARE, SQUARE_WORDS, 0, 0},
                     .steps = 1,
                     .blocks = columns / SIDE,
                     .add = true};
}

// For so many queries, and as many keys, it is drawn at once what dropout keeps: for some thousand cycles
// after an instruction of AMX one of the two units that multiply vectors stands still.
enum { DRAWN_QUERIES = 512, DRAWN_KEYS = 2048 };

// kept (QUERIES) of the queries from i on and KEYS keys from j on.
static void head_kept(const AmxHead *head, size_t i, size_t j, size_t count, Kept *kept) {
    if (head->dropout)
        dropout_bits(head->dropout, head->block + i * head->blocks + j / KEYS, head->blocks, count,
                     &kept[0][0]);
    else
        memset(kept, 0xff, count * sizeof(*kept));
}

// Bits of the SIDE keys from j on that are no padding.
static uint32_t not_hidden(const AmxHead *head, size_t j) {
    const __m512 zero = _mm512_setzero_ps();
    const uint32_t low = _mm512_cmpeq_ps_mask((__m512)tile_load(head->hidden + j), zero);
    return low | (uint32_t)_mm512_cmpeq_ps_mask((__m512)tile_load(head->hidden + j + SQUARE), zero) << SQUARE;
}

// Which keys of a block its queries see: row r those of `keys`, but, on the diagonal, only up to r.
typedef struct {
    uint32_t keys;
    bool diagonal;
} Seen;

static Seen seen_by(const AmxHead *head, size_t i0, size_t j) {
    return (Seen){not_hidden(head, j), head->causal && i0 == j};
}

TILE_INLINE bool sees_all(Seen seen) {
    return seen.keys == UINT32_MAX && !seen.diagonal;
}

TILE_INLINE uint32_t seen_from(Seen seen, size_t r) {
    return seen.diagonal ? seen.keys & UINT32_MAX >> (SIDE - 1 - r) : seen.keys;
}

// Rounded to bf16 where only the upper half is used: to nearest, ties away from 0. 0 where a bit of `kept` is
// not set.
TILE_INLINE __m512i rounded(TileVector x, __mmask16 kept) {
    return _mm512_maskz_add_epi32(kept, (__m512i)x, _mm512_set1_epi32(0x8000));
}

// Words of two rounded vectors.
TILE_INLINE TileVector words_of(__m512i low, __m512i high) {
    enum { A_OR_B_AND_C = 0xF8 };
    return (TileVector)_mm512_ternarylogic_epi32(_mm512_srli_epi32(low, 16), high,
                                                 _mm512_set1_epi32((int)0xffff0000u), A_OR_B_AND_C);
}

// ---- forward -----------------------------------------------------------------------------------------

// weights[half of the queries] (SQUARE, SQUARE words), left: 2^(s - top), or 0 where dropout does not keep
// it. Their sums before dropout join `sum`. Returns false, with nothing added, if a score is above its top by
// more than MARGIN. Between them the products `next` and `last`, if they are not NULL.
TILE_INLINE bool weigh(const Block *scores, Seen seen, bool all, const Kept *kept, size_t group, Rows *rows,
                       Square weights[2], const Product *next, const Product *last) {
    enum { PARTS = 4 };
    Waiting waiting[2] = {{NULL}, {NULL}};
    TileVector greatest = {0};
    _Alignas(64) TileVector sums[QUERIES];
    TILE_UNROLL
    for (size_t part = 0; part < PARTS; part++) {
        const Product *product = part % 2 == 0 ? next : last;
        if (product) half_product(product, part / 2, part % 2, waiting);
        for (size_t row = part * QUERIES / PARTS; row < (part + 1) * QUERIES / PARTS; row++) {
            const size_t half = row / SQUARE, r = row % SQUARE;
            const uint32_t visible = seen_from(seen, row), bits = kept[row][group];
            TileVector low = tile_load(scores->at[half][0] + r * SQUARE) - rows->top[row];
            TileVector high = tile_load(scores->at[half][1] + r * SQUARE) - rows->top[row];
            low = tile_exp2(low, true);
            high = tile_exp2(high, true);
            if (!all) {
                low = tile_keep(low, visible);
                high = tile_keep(high, visible >> SQUARE);
            }
            sums[row] = rows->sum[row] + (low + high);
            greatest = tile_max(sums[row], greatest);
            tile_store(weights[half] + r * SQUARE,
                       words_of(rounded(low, (__mmask16)bits), rounded(high, (__mmask16)(bits >> SQUARE))));
        }
    }
    store_all(waiting);
    if (tile_greatest_lane(greatest) > (real)(1ull << MARGIN)) return false;
    memcpy(rows->sum, sums, sizeof(sums));
    return true;
}

// The largest score of each row joins `top`, and what was summed (output (QUERIES, columns), too) shrinks.
static void raise_tops(const Block *scores, Seen seen, Rows *rows, real *output, size_t columns) {
    for (size_t row = 0; row < QUERIES; row++) {
        const size_t half = row / SQUARE, r = row % SQUARE;
        const uint32_t visible = seen_from(seen, row);
        TileVector greatest = (TileVector){0} + rows->top[row];
        for (size_t side = 0; side < 2; side++) {
            const __m512 s = (__m512)tile_load(scores->at[half][side] + r * SQUARE);
            const __m512 before = (__m512)greatest; // where s is hidden, or NaN
            greatest =
                (TileVector)_mm512_mask_max_ps(before, (__mmask16)(visible >> side * SQUARE), s, before);
        }
        const real raised = tile_greatest_lane(greatest);
        const TileVector shrink = tile_exp2((TileVector){0} + (rows->top[row] - raised), false);
        rows->top[row] = raised;
        rows->sum[row] *= shrink;
        for (size_t d = 0; d < columns; d += TILE_LANES)
            tile_store(output + row * columns + d, tile_load(output + row * columns + d) * shrink);
    }
}

static bool weigh_block(const Block *scores, Seen seen, const Kept *kept, size_t group, Rows *rows,
                        Square weights[2], const Product *next, const Product *last) {
    return sees_all(seen) ? weigh(scores, seen, true, kept, group, rows, weights, next, last)
                          : weigh(scores, seen, false, kept, group, rows, weights, next, last);
}

typedef struct {
    Block scores;
    Square weights[2];
} Stage;

// kept (., QUERIES) of the queries from i0 on and the keys from j0 on, up to `end` or DRAWN_KEYS.
static void draw_row(const AmxHead *head, size_t i0, size_t j0, size_t end, Kept kept[][QUERIES]) {
    for (size_t j = j0; j < end && j < j0 + DRAWN_KEYS; j += KEYS)
        head_kept(head, i0, j, QUERIES, kept[(j - j0) / KEYS]);
}

void amx_attention_forward(const AmxHead *head, size_t i0, Rows *rows, real *output) {
    const size_t words = head->words, columns = head->columns;
    const size_t end = head->causal ? i0 + QUERIES : head->key_end;
    const real *queries = head->queries + i0 * words;
    _Alignas(4096) Stage stages[2];
    Kept kept[DRAWN_KEYS / KEYS][QUERIES];
    Product next = block_product(&stages[0].scores, queries, head->keys_turned, words), last;
    for (size_t j = 0; j < end; j += SIDE) {
        const size_t at = j / SIDE % 2;
        if (j % DRAWN_KEYS == 0) draw_row(head, i0, j, end, kept);
        if (j == 0) whole_product(&next);
        const Kept *now = kept[j % DRAWN_KEYS / KEYS];
        next = block_product(&stages[1 - at].scores, queries, head->keys_turned + (j + SIDE) * words, words);
        const Seen seen = seen_by(head, i0, j);
        // The first scores are a good guess of the largest.
        if (j == 0) raise_tops(&stages[at].scores, seen, rows, output, columns);
        if (!weigh_block(&stages[at].scores, seen, now, j % KEYS / SIDE, rows, stages[at].weights,
                         j + SIDE < end ? &next : NULL, j > 0 ? &last : NULL)) {
            raise_tops(&stages[at].scores, seen, rows, output, columns);
            weigh_block(&stages[at].scores, seen, now, j % KEYS / SIDE, rows, stages[at].weights, NULL, NULL);
        }
        last =
            add_product(output, (const Square *)stages[at].weights, head->values + j / 2 * columns, columns);
    }
    whole_product(&last);
}

// ---- backward ----------------------------------------------------------------------------------------

// What a block's products read.
typedef struct {
    Block scores, dweights;
} Pair;

// Its weights that were multiplied with values, and the gradient to its scores, w_ij (dw_ij - sum_j w_ij
// dw_ij), where the sum is dy_i . y_i.
typedef struct {
    Square weights[2], dscores[2]; // right [half of the keys]
    Square left[2];                // dscores, left [half of the queries]
} Gradients;

enum { NEXT = 2, LAST = 3 };
typedef struct {
    Product next[NEXT], last[LAST];
    bool has_next, has_last;
} Beside;

TILE_INLINE void beside_part(const Beside *beside, size_t part, Waiting waiting[2]) {
    if (part < 2 * NEXT) {
        if (beside->has_next) half_product(&beside->next[part / 2], part % 2, part % 2, waiting);
    } else if (part < 2 * (NEXT + LAST)) {
        if (beside->has_last) half_product(&beside->last[part / 2 - NEXT], part % 2, part % 2, waiting);
    }
}

TILE_INLINE void differentiate(const AmxHead *head, size_t i0, const Pair *pair, Seen seen, bool all,
                               const Kept *kept, size_t group, Gradients *g, const Beside *beside) {
    Waiting waiting[2] = {{NULL}, {NULL}};
    for (size_t r = 0; r < SQUARE; r++) {
        __m512i dscores[2][2]; // [half of the queries][half of the keys]
        __m512i weights[2][2];
        beside_part(beside, r, waiting);
        TILE_UNROLL
        for (size_t half = 0; half < 2; half++) {
            const size_t row = half * SQUARE + r;
            const uint32_t visible = seen_from(seen, row), bits = kept[row][group];
            const TileVector product = (TileVector){0} + head->product[i0 + row];
            TILE_UNROLL
            for (size_t side = 0; side < 2; side++) {
                const __mmask16 mask = (__mmask16)(bits >> side * SQUARE);
                const TileVector s = tile_load(pair->scores.at[half][side] + r * SQUARE);
                const __m512 dw = (__m512)tile_load(pair->dweights.at[half][side] + r * SQUARE);
                TileVector w = tile_exp2(s - head->logsumexp[i0 + row], true);
                if (!all) w = tile_keep(w, visible >> side * SQUARE);
                const TileVector kept_dw = (TileVector)_mm512_maskz_mov_ps(mask, dw);
                dscores[half][side] = rounded(w * (kept_dw - product), UINT16_MAX);
                weights[half][side] = rounded(w, mask);
            }
            tile_store(g->left[half] + r * SQUARE, words_of(dscores[half][0], dscores[half][1]));
        }
        TILE_UNROLL
        for (size_t side = 0; side < 2; side++) {
            tile_store(g->weights[side] + r * SQUARE, words_of(weights[0][side], weights[1][side]));
            tile_store(g->dscores[side] + r * SQUARE, words_of(dscores[0][side], dscores[1][side]));
        }
    }
    store_all(waiting);
}

void amx_attention_backward(const AmxHead *head, size_t j0, real *dqueries, real *dkeys, real *dvalues) {
    const size_t words = head->words, columns = head->columns, first = head->causal ? j0 : 0;
    _Alignas(64) Pair pairs[2];
    _Alignas(64) Gradients gradients[2];
    Kept kept[DRAWN_QUERIES];
    memset(dkeys, 0, KEYS * columns * sizeof(real));
    memset(dvalues, 0, KEYS * columns * sizeof(real));
    size_t at = 0;
    Beside beside = {.has_last = false};
    beside.next[0] = block_product(&pairs[at].scores, head->queries + first * words,
                                   head->keys_turned + j0 * words, words);
    beside.next[1] = block_product(&pairs[at].dweights, head->doutput + first * words,
                                   head->values_turned + j0 * words, words);
    whole_product(&beside.next[0]);
    whole_product(&beside.next[1]);
    for (size_t i0 = first; i0 < head->query_end; i0 += QUERIES) {
        const size_t last = head->causal ? i0 + QUERIES : head->key_end;
        const size_t end = last < j0 + KEYS ? last : j0 + KEYS;
        const size_t drawn = (i0 - first) % DRAWN_QUERIES, left = head->query_end - i0;
        if (drawn == 0) head_kept(head, i0, j0, left < DRAWN_QUERIES ? left : DRAWN_QUERIES, kept);
        for (size_t j = j0; j < end; j += SIDE) {
            const bool row_ends = j + SIDE == end;
            const size_t next_i = row_ends ? i0 + QUERIES : i0, next_j = row_ends ? j0 : j + SIDE;
            beside.has_next = next_i < head->query_end;
            beside.next[0] = block_product(&pairs[1 - at].scores, head->queries + next_i * words,
                                           head->keys_turned + next_j * words, words);
            beside.next[1] = block_product(&pairs[1 - at].dweights, head->doutput + next_i * words,
                                           head->values_turned + next_j * words, words);
            const Seen seen = seen_by(head, i0, j);
            Gradients *g = &gradients[at];
            if (sees_all(seen))
                differentiate(head, i0, &pairs[at], seen, true, kept + drawn, (j - j0) / SIDE, g, &beside);
            else
                differentiate(head, i0, &pairs[at], seen, false, kept + drawn, (j - j0) / SIDE, g, &beside);
            beside.has_last = true;
            beside.last[0] =
                add_turned_product(dvalues + (j - j0) * columns, head->doutput_turned + i0 / 2 * columns,
                                   (const Square *)g->weights, columns);
            beside.last[1] =
                add_turned_product(dkeys + (j - j0) * columns, head->queries_turned + i0 / 2 * columns,
                                   (const Square *)g->dscores, columns);
            beside.last[2] = add_product(dqueries + i0 * columns, (const Square *)g->left,
                                         head->keys + j / 2 * columns, columns);
            at = 1 - at;
        }
    }
    for (size_t n = 0; n < LAST; n++) whole_product(&beside.last[n]);
    for (size_t j = 0; j < KEYS; j += SQUARE) {
        for (size_t d = 0; d < columns; d += SQUARE) {
            tile_turn(dkeys + j * columns + d * SQUARE, SQUARE, SQUARE, SQUARE);
            tile_turn(dvalues + j * columns + d * SQUARE, SQUARE, SQUARE, SQUARE);
        }
    }
}

#endif
