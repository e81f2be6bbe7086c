#include "softmax_attention_amx.h"

#include "amx_tiles.h"
#include "sizes.h"

#if TILE_PAIRS

// Work is divided into blocks of 32 queries and 32 keys, whose scores are four squares of 16 x 16
// (1 KiB each). The vector work on a block is interleaved with the products that compute the next
// block and those that use the result of the previous one. The products are issued in small parts:
// instructions execute out of order, but at most some hundred ahead, and a tile is loaded only when
// all stores to it have reached the cache.
enum { SQUARE = 16, SIDE = 2 * SQUARE, SQUARE_WORDS = SQUARE * SQUARE };

typedef real Square[SQUARE_WORDS];

typedef struct {
    Square at[2][2]; // [half of the queries][half of the keys]
} Block;

// Squares of an operand or of sums. Rows of a square are `row` apart. In an operand of 32 rows or
// columns, the second half starts at `half`; in sums, the second half of the rows starts at `down`,
// that of the columns at `right`.
typedef struct {
    const real *data;
    size_t row, half, step; // step: along the summed dimension
    size_t block;           // to the next block
} Operand;

typedef struct {
    real *data;
    size_t row, down, right, block;
} Sums;

// sums (32, 32) = or += a (32, `steps` times 16 words) b, for `blocks` blocks
typedef struct {
    Sums sums;
    Operand a, b;
    size_t steps, blocks;
    bool add;
} Product;

// Computes half of a product's rows, with sums in tiles C and D and the left operand in tile A.
// store_waiting() stores the sums later: a store here would wait for them and delay the next
// product.
#define START_HALF(C, D, A)                                                                        \
    do {                                                                                           \
        if (p->add) {                                                                              \
            AMX_LOAD(C, left, c.row);                                                              \
            AMX_LOAD(D, right, c.row);                                                             \
        } else {                                                                                   \
            AMX_ZERO(C);                                                                           \
            AMX_ZERO(D);                                                                           \
        }                                                                                          \
        for (size_t s = 0; s < p->steps; s++) {                                                    \
            AMX_LOAD(A, a + s * p->a.step, p->a.row);                                              \
            if (!held) AMX_LOAD(6, b + s * p->b.step, p->b.row);                                   \
            AMX_MULTIPLY_ADD(C, A, 6);                                                             \
            if (!held) AMX_LOAD(7, b + s * p->b.step + p->b.half, p->b.row);                       \
            AMX_MULTIPLY_ADD(D, A, 7);                                                             \
        }                                                                                          \
    } while (0)

// Where sums that are still in tiles 0 and 1, or 2 and 3, will be stored, rows `row` apart.
typedef struct {
    real *left, *right; // NULL: none
    size_t row;
} Waiting;

TILE_INLINE void store_waiting(Waiting *waiting, size_t tiles) {
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

// Computes the first or second half of a product's rows, in the tiles that `turn` selects.
// `follows`: this call comes right after the other half, so the right operand is still in its tiles
// if it has no more than two squares.
TILE_INLINE void half_product(const Product *p, size_t half, size_t turn, bool follows,
                              Waiting waiting[2]) {
    const bool held = follows && p->steps == 1 && p->blocks == 1;
    for (size_t n = 0; n < p->blocks; n++, turn = 1 - turn) {
        const Sums c = p->sums;
        real *left = c.data + half * c.down + n * c.block, *right = left + c.right;
        const real *a = p->a.data + half * p->a.half + n * p->a.block,
                   *b = p->b.data + n * p->b.block;
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

TILE_INLINE void whole_product(const Product *p) {
    Waiting waiting[2] = {0};
    half_product(p, 0, 0, false, waiting);
    half_product(p, 1, 1, true, waiting);
    store_all(waiting);
}

// block = left rows (32, W) times turned rows (32, W)
TILE_INLINE Product block_product(Block *block, const real *left, const real *turned,
                                  size_t words) {
    return (Product){.sums = {block->at[0][0], SQUARE, 2 * SQUARE_WORDS, SQUARE_WORDS, 0},
                     .a = {left, words, SQUARE * words, SQUARE, 0},
                     .b = {turned, words, SQUARE * words, SQUARE, 0},
                     .steps = words / SQUARE,
                     .blocks = 1};
}

// sums (32, D') += two left squares times right rows (32, D')
TILE_INLINE Product add_product(real *sums, const Square left[2], const real *right,
                                size_t columns) {
    return (Product){.sums = {sums, columns, SQUARE * columns, SQUARE, SIDE},
                     .a = {left[0], SQUARE, SQUARE_WORDS, 0, 0},
                     .b = {right, columns, SQUARE, 0, SIDE},
                     .steps = 1,
                     .blocks = columns / SIDE,
                     .add = true};
}

// sums (2, D' / 16) squares, whose rows are channels, += turned (16, D') times two right squares
TILE_INLINE Product add_turned_product(real *sums, const real *turned, const Square right[2],
                                       size_t columns) {
    return (Product){.sums = {sums, SQUARE, SQUARE_WORDS, SQUARE * columns, 2 * SQUARE_WORDS},
                     .a = {turned, columns, SQUARE, 0, SIDE},
                     .b = {right[0], SQUARE, SQUARE_WORDS, 0, 0},
                     .steps = 1,
                     .blocks = columns / SIDE,
                     .add = true};
}

// Dropout is drawn for this many queries (backward) or keys (forward) at once: for some thousand
// cycles after an AMX instruction, one of the two vector multiply units is stopped.
enum { DRAWN_QUERIES = 512, DRAWN_KEYS = 2048 };

// Draws kept (count) for the queries from i on and KEYS keys from j on.
static void head_kept(const AmxHead *head, size_t i, size_t j, size_t count, Kept *kept) {
    if (head->dropout)
        dropout_bits(head->dropout, head->block + i * head->blocks + j / KEYS, head->blocks, count,
                     &kept[0][0]);
    else
        memset(kept, 0xff, count * sizeof(*kept));
}

// A bit for each of the SIDE keys from j on, set if the key is not padding.
static uint32_t not_hidden(const AmxHead *head, size_t j) {
    const __m512 zero = _mm512_setzero_ps();
    const uint32_t low = _mm512_cmpeq_ps_mask((__m512)tile_load(head->hidden + j), zero);
    return low | (uint32_t)_mm512_cmpeq_ps_mask((__m512)tile_load(head->hidden + j + SQUARE), zero)
                     << SQUARE;
}

// Sets scores of keys from j on that queries from i0 on do not see to -Inf: those of padding, of
// later keys if the block is on the diagonal, and of keys before the window of a query.
static void hide(const AmxHead *head, size_t i0, size_t j, Block *scores) {
    const uint32_t keys = not_hidden(head, j);
    const bool diagonal = head->causal && i0 == j;
    const bool edge = head->causal && i0 + SIDE > j + head->window;
    if (keys == UINT32_MAX && !diagonal && !edge) return;
    const __m512 lowest = _mm512_set1_ps(-INFINITY);
    for (size_t row = 0; row < SIDE; row++) {
        uint32_t seen = diagonal ? keys & UINT32_MAX >> (SIDE - 1 - row) : keys;
        if (edge && i0 + row >= j + head->window) {
            const size_t before = i0 + row + 1 - j - head->window;
            seen = before < SIDE ? seen & UINT32_MAX << before : 0;
        }
        for (size_t side = 0; side < 2; side++) {
            real *at = scores->at[row / SQUARE][side] + row % SQUARE * SQUARE;
            tile_store(at, (TileVector)_mm512_mask_mov_ps(
                               lowest, (__mmask16)(seen >> side * SQUARE), (__m512)tile_load(at)));
        }
    }
}

// Rounds x to bf16, to nearest with ties away from 0; only the upper halves of the lanes are valid.
// Lanes whose bit in `kept` is not set are 0.
TILE_INLINE __m512i rounded(TileVector x, __mmask16 kept) {
    return _mm512_maskz_add_epi32(kept, (__m512i)x, _mm512_set1_epi32(0x8000));
}

// Packs two rounded vectors into words.
TILE_INLINE TileVector words_of(__m512i low, __m512i high) {
    enum { A_OR_B_AND_C = 0xF8 };
    return (TileVector)_mm512_ternarylogic_epi32(_mm512_srli_epi32(low, 16), high,
                                                 _mm512_set1_epi32((int)0xffff0000u), A_OR_B_AND_C);
}

// ---- forward ----------------------------------------------------------------
// A block in progress: its scores, and its weights as left operands [half of the queries].
typedef struct {
    Block scores;
    Square weights[2];
} Stage;

// Products computed during the work on a block: the scores of the next block, and the weights of
// the last one times values.
typedef struct {
    Stage *next; // NULL: none
    const real *queries, *keys_transposed;
    const Stage *last; // NULL: none
    const real *values;
    real *output;
} ForwardBeside;

TILE_INLINE void forward_part(const ForwardBeside *beside, size_t part, size_t words,
                              Waiting waiting[2]) {
    if (part % 2 == 0 && beside->next) {
        const Product p =
            block_product(&beside->next->scores, beside->queries, beside->keys_transposed, words);
        half_product(&p, part / 2, 0, false, waiting);
    }
    if (part % 2 == 1 && beside->last) {
        const Product p =
            add_product(beside->output, beside->last->weights, beside->values, 2 * words);
        half_product(&p, part / 2, 1, false, waiting);
    }
}

// Sets weights to 2^(s - top), or 0 if dropout drops it, and `after` to `before` plus their sums
// before dropout. Returns false if the sums are too large, as they are if a score exceeds its top
// by more than MARGIN.
TILE_INLINE bool weigh(Stage *stage, const Kept *kept, size_t group, const real *top,
                       const TileVector *before, TileVector *after, const ForwardBeside *beside,
                       size_t words) {
    enum { PARTS = 4 };
    Waiting waiting[2] = {0};
    TileVector total = {0};
    TILE_UNROLL
    for (size_t part = 0; part < PARTS; part++) {
        forward_part(beside, part, words, waiting);
        for (size_t row = part * QUERIES / PARTS; row < (part + 1) * QUERIES / PARTS; row++) {
            const size_t half = row / SQUARE, r = row % SQUARE;
            const uint32_t bits = kept[row][group];
            TileVector low = tile_load(stage->scores.at[half][0] + r * SQUARE) - top[row];
            TileVector high = tile_load(stage->scores.at[half][1] + r * SQUARE) - top[row];
            low = tile_exp2(low, true);
            high = tile_exp2(high, true);
            after[row] = before[row] + (low + high);
            total += after[row];
            tile_store(stage->weights[half] + r * SQUARE,
                       words_of(rounded(low, (__mmask16)bits),
                                rounded(high, (__mmask16)(bits >> SQUARE))));
        }
    }
    store_all(waiting);
    // No sum exceeds their total.
    const __m512 most = _mm512_set1_ps((float)(1ull << MARGIN));
    return _mm512_cmp_ps_mask((__m512)total, most, _CMP_GT_OQ) == 0;
}

// Raises `top` to the largest score of each row, and scales the sums and output (QUERIES, columns)
// down accordingly. Raises it by MARGIN / 2 at least if the sum is large without such a score, or
// to the next number if that is more, so that weigh() returns true in the end.
static void raise_tops(const Block *scores, real *top, TileVector *sum, real *output,
                       size_t columns) {
    const real large = (real)(1ull << MARGIN / 2);
    for (size_t row = 0; row < QUERIES; row++) {
        TileVector greatest = (TileVector){0} + top[row];
        for (size_t side = 0; side < 2; side++)
            greatest = tile_max(tile_load(scores->at[row / SQUARE][side] + row % SQUARE * SQUARE),
                                greatest);
        real raised = tile_greatest_lane(greatest);
        if (tile_greatest_lane(sum[row]) > large)
            raised = fmaxf(raised, nextafterf(top[row] + MARGIN / 2, INFINITY));
        const TileVector shrink = tile_exp2((TileVector){0} + (top[row] - raised), false);
        top[row] = raised;
        sum[row] *= shrink;
        for (size_t d = 0; d < columns; d += TILE_LANES)
            tile_store(output + row * columns + d, tile_load(output + row * columns + d) * shrink);
    }
}

// Draws kept (., QUERIES) for the queries from i0 on and the keys from the tile of j0 on, up to
// `end` or the next multiple of DRAWN_KEYS.
static void draw_row(const AmxHead *head, size_t i0, size_t j0, size_t end, Kept kept[][QUERIES]) {
    end = smaller(end, j0 / DRAWN_KEYS * DRAWN_KEYS + DRAWN_KEYS);
    for (size_t j = j0 / KEYS * KEYS; j < end; j += KEYS)
        head_kept(head, i0, j, QUERIES, kept[j % DRAWN_KEYS / KEYS]);
}

// Computes the scores of the first block, after raising the tops to a good guess of the largest
// scores: those of the first block, or, with a window, of the second, which more queries see.
TILE_INLINE void first_scores(const AmxHead *head, size_t i0, size_t begin, size_t end,
                              Block *scores, SoftmaxRows *rows, TileVector *sum, real *output,
                              size_t words) {
    size_t j = begin > 0 && begin + SIDE < end ? begin + SIDE : begin;
    for (bool first = true;; first = false, j = begin) {
        const Product p = block_product(scores, head->queries + i0 * words,
                                        head->keys_transposed + j * words, words);
        whole_product(&p);
        hide(head, i0, j, scores);
        if (first) raise_tops(scores, rows->top, sum, output, 2 * words);
        if (j == begin) return;
    }
}

TILE_INLINE void forward(const AmxHead *head, size_t i0, SoftmaxRows *rows, real *output,
                         size_t words) {
    const size_t columns = 2 * words, end = head->causal ? i0 + QUERIES : head->key_end;
    const size_t first = head->causal && i0 >= head->window ? i0 + 1 - head->window : 0,
                 begin = first / SIDE * SIDE;
    _Alignas(64) Stage stages[2];
    _Alignas(64) TileVector sums[2][QUERIES];
    Kept kept[DRAWN_KEYS / KEYS][QUERIES];
    ForwardBeside beside = {.queries = head->queries + i0 * words, .output = output};
    memcpy(sums[0], rows->sum, sizeof(rows->sum));
    size_t n = 0;
    draw_row(head, i0, begin, end, kept);
    first_scores(head, i0, begin, end, &stages[0].scores, rows, sums[0], output, words);
    for (size_t j = begin; j < end; j += SIDE, n = 1 - n) {
        Stage *stage = &stages[n];
        if (j > begin && j % DRAWN_KEYS == 0) draw_row(head, i0, j, end, kept);
        beside.next = j + SIDE < end ? &stages[1 - n] : NULL;
        beside.keys_transposed = head->keys_transposed + (j + SIDE) * words;
        if (j > begin) hide(head, i0, j, &stage->scores);
        const Kept *now = kept[j % DRAWN_KEYS / KEYS];
        const size_t group = j % KEYS / SIDE;
        while (!weigh(stage, now, group, rows->top, sums[n], sums[1 - n], &beside, words)) {
            raise_tops(&stage->scores, rows->top, sums[n], output, columns);
            beside.next = NULL;
            beside.last = NULL;
        }
        beside.last = stage;
        beside.values = head->values + j / 2 * columns;
    }
    const Product last = add_product(output, beside.last->weights, beside.values, columns);
    whole_product(&last);
    memcpy(rows->sum, sums[n], sizeof(rows->sum));
}

// Compiled separately for heads of up to 32 channels, the most common.
void amx_attention_forward(const AmxHead *head, size_t i0, SoftmaxRows *rows, real *output) {
    if (head->words == SQUARE)
        forward(head, i0, rows, output, SQUARE);
    else
        forward(head, i0, rows, output, head->words);
}

// ---- backward ---------------------------------------------------------------
// The scores of a block, and the gradients of its weights.
typedef struct {
    Block scores, dweights;
} Pair;

// The weights of a block after dropout, and the gradients of its scores, w_ij (dw_ij - sum_j w_ij
// dw_ij), where the sum is dy_i . y_i.
typedef struct {
    Square weights[2], dscores[2]; // right [half of the keys]
    Square left[2];                // dscores, left [half of the queries]
} Gradients;

// Inputs of the products that compute a block; they run during the work on the previous block.
typedef struct {
    Pair *pair; // NULL: none
    const real *queries, *keys_transposed, *doutput, *values_transposed;
} Next;

enum { NEXT = 2 };

TILE_INLINE Product next_product(const Next *n, size_t which, size_t words) {
    return which == 0 ? block_product(&n->pair->scores, n->queries, n->keys_transposed, words)
                      : block_product(&n->pair->dweights, n->doutput, n->values_transposed, words);
}

TILE_INLINE void next_part(const Next *next, size_t part, size_t words, Waiting waiting[2]) {
    const size_t half = part % 2;
    if (part >= 2 * NEXT || !next->pair) return;
    const Product p = next_product(next, part / 2, words);
    half_product(&p, half, half, half == 1, waiting);
}

TILE_INLINE void differentiate(const Pair *pair, const real *logsumexp, const real *product,
                               const Kept *kept, size_t group, Gradients *g, const Next *next,
                               size_t words) {
    Waiting waiting[2] = {0};
    TILE_UNROLL
    for (size_t r = 0; r < SQUARE; r++) {
        __m512i dscores[2][2], weights[2][2]; // [half of the queries][half of the keys]
        next_part(next, r, words, waiting);
        TILE_UNROLL
        for (size_t half = 0; half < 2; half++) {
            const size_t row = half * SQUARE + r;
            const uint32_t bits = kept[row][group];
            TILE_UNROLL
            for (size_t side = 0; side < 2; side++) {
                const __mmask16 mask = (__mmask16)(bits >> side * SQUARE);
                const TileVector s = tile_load(pair->scores.at[half][side] + r * SQUARE);
                const TileVector dw =
                    tile_keep(tile_load(pair->dweights.at[half][side] + r * SQUARE), mask);
                const TileVector w = tile_exp2(s - logsumexp[row], true);
                dscores[half][side] = rounded(w * (dw - product[row]), UINT16_MAX);
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

// The position of a block in a tile of keys. Blocks are processed in chunks of DRAWN_QUERIES
// queries from `chunk` on, and in these SIDE keys at a time, so that the data of these keys stays
// in the L1 cache.
typedef struct {
    size_t chunk, i, j;
} AmxPlace;

// The end of the queries of the chunk that see the SIDE keys at a place.
static size_t queries_end(const AmxHead *head, const AmxPlace *at) {
    const size_t end = smaller(at->chunk + DRAWN_QUERIES, head->query_end);
    return head->causal ? smaller(end, round_up(at->j + SIDE - 1 + head->window, SIDE)) : end;
}

// Advances to the next place of the tile of keys at j0. Returns false after the last.
static bool advance(const AmxHead *head, size_t j0, AmxPlace *at) {
    at->i += SIDE;
    while (at->i >= queries_end(head, at)) {
        at->j += SIDE;
        if (at->j == smaller(j0 + KEYS, head->key_end)) {
            at->j = j0;
            at->chunk += DRAWN_QUERIES;
        }
        if (at->chunk >= head->query_end) return false;
        at->i = head->causal && at->j > at->chunk ? at->j : at->chunk;
    }
    return true;
}

TILE_INLINE Next next_at(const AmxHead *head, AmxPlace at, Pair *pair, size_t words) {
    return (Next){pair, head->queries + at.i * words, head->keys_transposed + at.j * words,
                  head->doutput + at.i * words, head->values_transposed + at.j * words};
}

// Adds up the gradients of a block. To do so during the vector work of the next block would be
// slower: with a second set of gradients, the rest would not fit in the L1 cache.
TILE_INLINE void add_gradients(const AmxHead *head, AmxPlace at, const Gradients *g, real *dqueries,
                               real *dkeys, real *dvalues, size_t words) {
    const size_t columns = 2 * words, i = at.i * words;
    const Product products[] = {
        add_turned_product(dvalues, head->doutput_transposed + i, g->weights, columns),
        add_turned_product(dkeys, head->queries_transposed + i, g->dscores, columns),
        add_product(dqueries + at.i * columns, g->left, head->keys + at.j * words, columns)};
    Waiting waiting[2] = {0};
    TILE_UNROLL
    for (size_t n = 0; n < sizeof(products) / sizeof(*products); n++) {
        half_product(&products[n], 0, 0, false, waiting);
        half_product(&products[n], 1, 1, true, waiting);
    }
    store_all(waiting);
}

TILE_INLINE void backward(const AmxHead *head, size_t j0, real *dqueries, real *dkeys,
                          real *dvalues, size_t words) {
    const size_t columns = 2 * words, first = head->causal ? j0 : 0;
    _Alignas(64) Pair pairs[2];
    _Alignas(64) Gradients gradients;
    Kept kept[DRAWN_QUERIES];
    memset(dkeys, 0, KEYS * columns * sizeof(real));
    memset(dvalues, 0, KEYS * columns * sizeof(real));
    AmxPlace now = {first, first, j0};
    size_t drawn = SIZE_MAX; // chunk
    bool more = true;
    for (size_t n = 0; more; n = 1 - n) {
        if (now.chunk != drawn)
            head_kept(head, now.chunk, j0, smaller(DRAWN_QUERIES, head->query_end - now.chunk),
                      kept);
        if (drawn == SIZE_MAX) {
            const Next begin = next_at(head, now, &pairs[n], words);
            for (size_t which = 0; which < NEXT; which++) {
                const Product p = next_product(&begin, which, words);
                whole_product(&p);
            }
        }
        drawn = now.chunk;
        AmxPlace place = now;
        more = advance(head, j0, &place);
        const Next next = next_at(head, place, more ? &pairs[1 - n] : NULL, words);
        const size_t key = now.j - j0;
        hide(head, now.i, now.j, &pairs[n].scores);
        differentiate(&pairs[n], head->logsumexp + now.i, head->product + now.i,
                      kept + (now.i - now.chunk), key / SIDE, &gradients, &next, words);
        add_gradients(head, now, &gradients, dqueries, dkeys + key * columns,
                      dvalues + key * columns, words);
        now = place;
    }
    for (size_t at = 0; at < KEYS * columns; at += SQUARE_WORDS) {
        tile_transpose_squares(dkeys + at, SQUARE, SQUARE, SQUARE);
        tile_transpose_squares(dvalues + at, SQUARE, SQUARE, SQUARE);
    }
}

void amx_attention_backward(const AmxHead *head, size_t j0, real *dqueries, real *dkeys,
                            real *dvalues) {
    if (head->words == SQUARE)
        backward(head, j0, dqueries, dkeys, dvalues, SQUARE);
    else
        backward(head, j0, dqueries, dkeys, dvalues, head->words);
}

#endif
