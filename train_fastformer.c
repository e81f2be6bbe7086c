// Fastformer on the CPU: a causal language model with windowed additive attention, whose cost is linear in
// the sequence length. Wu et al., "Fastformer: Additive Attention Can Be All You Need" (arXiv 2108.09084),
// made causal and windowed. Parameters, forward, backward, recurrent decoding and options, top to bottom.
//
// B batch, T sequence length, M = B*T, C channels, H heads, D = C/H, V vocabulary, L layers. A layer:
//
//   n       = LayerNorm(x)
//   q, k, v = split(W_qkv n)
//   G       = dropout(pool(q, w_q))         pooled queries
//   P       = dropout(pool(G * k, w_k))     pooled keys, * is elementwise
//   x       = x + P * v
//   x       = x + dropout(W_down GELU(W_up LayerNorm(x)))

#include "barrier.h"
#include "classifier.h"
#include "cpu_model.h"
#include "decode.h"
#include "device.h"
#include "dropout.h"
#include "embedding.h"
#include "error.h"
#include "fastformer.h"
#include "gelu.h"
#include "gemm.h"
#include "layernorm.h"
#include "language.h"
#include "memory.h"
#include "model.h"
#include "residual.h"
#include "rows.h"
#include "threads.h"
#include "train.h"
#include "vector_math.h"
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tgmath.h>

// Inlined with a constant head size, so that loops over a head are straight vector code.
#define ALWAYS_INLINE inline __attribute__((always_inline))

// ---------------------------------------------------------------------------------------------------------------------
// Options and configuration

static const Option fastformer_options[] = {
    {'L', "layers", OPTION_INTEGER, OPTION_MODEL, "N", "6", 1, 256, NULL, "n_layer", "Model", "layers"},
    {'C', "channels", OPTION_INTEGER, OPTION_MODEL, "N", "128", 2, 65536, NULL, "hidden_size", "Model",
     "channels"},
    {'H', "heads", OPTION_INTEGER, OPTION_MODEL, "N", "4", 1, 1024, NULL, "n_heads", "Model", "heads"},
    {0, "windows", OPTION_TEXT, OPTION_MODEL, "LIST", "auto", 0, 0, NULL, "windows|window_sizes", "Model",
     "auto (4 8 16 .. global), global, or 4,8,16"},
    {0, "rescale", OPTION_NUMBER, OPTION_MODEL, "S", "10", 0, 40, NULL, "rescale", "Model",
     "scores lie within -S..S"},
    {0, "sink", OPTION_NUMBER, OPTION_MODEL, "X", "1e-5", 0, 1e6, NULL, "eps_denominator", "Model",
     "added to denominators: 0 softmax, 1 softmax1"},
    {0, "pool", OPTION_CHOICE, OPTION_MODEL, "WHAT", "normalised", 0, 0, "normalised|raw", NULL, "Model",
     "what is pooled"},
    {0, "dropout", OPTION_NUMBER, OPTION_TRAINING, "P", "0.1", 0, 0.99, NULL, NULL, "Model",
     "dropout probability"},
};

// One window of a list: a number or "global"; 0 means global, as does a window that spans every position.
static size_t parse_window(const char *text, size_t length, size_t positions, const char *list) {
    if (length == 6 && strncmp(text, "global", 6) == 0) return 0;
    size_t window = 0;
    for (size_t i = 0; i < length; i++) {
        if (!isdigit((unsigned char)text[i]) || window > SIZE_MAX / 100) length = 0;
        window = window * 10 + (size_t)(text[i] - '0');
    }
    if (length == 0 || window == 0)
        fail("--windows %s: expected auto, global, or a list of whole numbers from 1 such as 4,8,16,global",
             list);
    return window >= positions ? 0 : window;
}

// "auto": layer l sees 4 * 2^l tokens and the last layer all. "global": every layer all. Else one window a
// layer, separated by commas or blanks, in brackets or not (as the published checkpoints write it).
static size_t *parse_windows(const char *list, size_t layers, size_t positions) {
    size_t *windows = allocate(layers, sizeof(size_t), "windows");
    if (strcmp(list, "global") == 0) return windows;
    if (strcmp(list, "auto") == 0) {
        for (size_t l = 0; l + 1 < layers; l++)
            windows[l] = l < 40 && ((size_t)4 << l) < positions ? (size_t)4 << l : 0;
        return windows;
    }
    size_t count = 0;
    for (const char *p = list;;) {
        p += strspn(p, "[], ");
        if (!*p) break;
        const size_t length = strcspn(p, "[], ");
        const size_t window = parse_window(p, length, positions, list);
        if (count < layers) windows[count] = window;
        count++;
        p += length;
    }
    if (count != layers) fail("--windows %s: %zu windows for %zu layers", list, count, layers);
    return windows;
}

static Config config_create(const ModelSetup *setup) {
    const Options *o = setup->options;
    Config c = {
        .layers = (size_t)options_integer(o, "layers"),
        .channels = (size_t)options_integer(o, "channels"),
        .heads = (size_t)options_integer(o, "heads"),
        .vocabulary = (size_t)setup->vocabulary,
        .positions = (size_t)setup->positions,
        .rescale = (real)options_number(o, "rescale"),
        .sink = (real)options_number(o, "sink"),
        .pool_raw = strcmp(options_text(o, "pool"), "raw") == 0,
        .dropout = options_number(o, "dropout"),
        .seed = (uint64_t)options_integer(o, "seed"),
        .padding = setup->padding_token,
    };
    c.head_size = c.channels / c.heads;
    if (c.channels % c.heads != 0 || c.head_size < 2)
        fail("--heads %zu: the %zu channels must divide into heads of at least 2", c.heads, c.channels);
    c.windows = parse_windows(options_text(o, "windows"), c.layers, c.positions);
    return c;
}

// ---------------------------------------------------------------------------------------------------------------------
// Parameters, under the names of the published PyTorch class

static size_t add_matrix(ParameterTable *table, const char *name, size_t rows, size_t columns) {
    return parameter_add(table, name, 2, (int64_t[]){(int64_t)rows, (int64_t)columns}, true, 0, 0.02);
}

static size_t add_vector(ParameterTable *table, const char *name, size_t size, double value) {
    return parameter_add(table, name, 1, (int64_t[]){(int64_t)size}, false, value, 0);
}

static Offsets parameters_create(ParameterTable *table, const Config *c) {
    Offsets o = {.layers = allocate(c->layers, sizeof(LayerOffsets), "layers")};
    const size_t C = c->channels;
    o.token = add_matrix(table, "word_embedding.weight", c->vocabulary, C);
    o.position = add_matrix(table, "fastformer_model.position_embeddings.weight", c->positions, C);
    for (size_t l = 0; l < c->layers; l++) {
        LayerOffsets *layer = &o.layers[l];
        char name[PARAMETER_NAME];
#define NAME(suffix) (snprintf(name, sizeof(name), "fastformer_model.decoders.%zu." suffix, l), name)
        layer->norm1_gain = add_vector(table, NAME("attention.attn_norm.weight"), C, 1);
        layer->norm1_bias = add_vector(table, NAME("attention.attn_norm.bias"), C, 0);
        layer->qkv = add_matrix(table, NAME("attention.projections.weight"), 3 * C, C);
        layer->query_attn = add_matrix(table, NAME("attention.query_attn"), c->heads, c->head_size);
        layer->key_attn = add_matrix(table, NAME("attention.key_attn"), c->heads, c->head_size);
        layer->norm2_gain = add_vector(table, NAME("boom_norm.weight"), C, 1);
        layer->norm2_bias = add_vector(table, NAME("boom_norm.bias"), C, 0);
        layer->up = add_matrix(table, NAME("boom.weight"), 4 * C, C);
        layer->down = add_matrix(table, NAME("unboom.weight"), C, 4 * C);
#undef NAME
    }
    o.final_gain = add_vector(table, "last_norm.weight", C, 1);
    o.final_bias = add_vector(table, "last_norm.bias", C, 0);
    o.output_bias = add_vector(table, "proj_logits.bias", c->vocabulary, 0);
    return o;
}

// ---------------------------------------------------------------------------------------------------------------------
// The windowed sum, exactly
//
// cumsum(i) - cumsum(i-k) cancels in float32. Instead the sequence is cut into blocks of k rows: the window
// that ends at row r of a block is the suffix r+1 .. k-1 of the block before plus the prefix 0 .. r of its
// own (van Herk 1992; Gil and Werman 1993). Nothing is ever subtracted. Rows are taken one after the other
// and all that is remembered is here, so the same code computes a sequence, the same sequence backwards, and
// one token at a time.

enum { GLOBAL_BLOCK = 64 }; // a global sum adds whole blocks, which keeps its rounding error small at any T

typedef struct {
    size_t window; // k; 0: global
    size_t place;  // rows of the current block so far
    // Slot r holds row r of the current block once it has come, and until then the sum of rows r .. k-1 of
    // the block before; slot k stays 0.
    real *rows, *weights; // (k+1, D), (k+1)
    real *prefix;         // (D) sum of the current block's rows
    real *carry;          // (D) global: sum of all blocks before
    real prefix_weight, carry_weight;
} WindowSum;

// The next `count` numbers of a block of memory.
static real *carve(real **memory, size_t count) {
    real *start = *memory;
    *memory += count;
    return start;
}

static size_t window_sum_size(size_t largest_window, size_t D) {
    return (largest_window + 1) * (D + 1) + 2 * D;
}

// Takes window_sum_size() numbers of memory.
static WindowSum window_sum_create(real **memory, size_t largest_window, size_t D) {
    return (WindowSum){.rows = carve(memory, (largest_window + 1) * D),
                       .weights = carve(memory, largest_window + 1),
                       .prefix = carve(memory, D),
                       .carry = carve(memory, D)};
}

// Starts a sequence.
static void window_sum_reset(WindowSum *w, size_t window, size_t D) {
    w->window = window;
    w->place = 0;
    w->prefix_weight = w->carry_weight = 0;
    memset(w->rows, 0, (window + 1) * D * sizeof(real));
    memset(w->weights, 0, (window + 1) * sizeof(real));
    memset(w->prefix, 0, D * sizeof(real));
    memset(w->carry, 0, D * sizeof(real));
}

static size_t window_sum_block(const WindowSum *w) {
    return w->window ? w->window : GLOBAL_BLOCK;
}

// total (n) = the sums of weights e (n) over their windows, for n rows that window_sum_rows() then takes.
// `step` is 1, or -1 to take the last row first.
static ALWAYS_INLINE void window_sum_weights(WindowSum *w, ptrdiff_t step, const real *restrict e,
                                             real *restrict total, size_t n) {
    const size_t block = window_sum_block(w);
    real *weights = w->weights, prefix = w->prefix_weight;
    for (size_t i = 0, place = w->place; i < n; i++) {
        const size_t at = step > 0 ? i : n - 1 - i;
        prefix += e[at];
        total[at] = prefix + (w->window ? weights[place + 1] : w->carry_weight);
        if (w->window) weights[place] = e[at];
        if (++place < block) continue;
        if (!w->window) w->carry_weight += prefix;
        for (size_t r = w->window; r-- > 1;) weights[r - 1] += weights[r];
        prefix = 0;
        place = 0;
    }
    w->prefix_weight = prefix;
}

// The current block is complete: its rows become suffix sums, or join the carry.
static ALWAYS_INLINE void window_sum_end_block(WindowSum *w, size_t D) {
    for (size_t d = 0; d < D; d += TILE_LANES) {
        if (!w->window) {
            row_put(w->carry, d, D, row_get(w->carry, d, D) + row_get(w->prefix, d, D));
        } else {
            TileVector suffix = {0};
            for (size_t r = w->window; r-- > 0;) {
                suffix += row_get(w->rows + r * D, d, D);
                row_put(w->rows + r * D, d, D, suffix);
            }
        }
        row_put(w->prefix, d, D, (TileVector){0});
    }
    w->place = 0;
}

// Takes n rows, factor (n) times x (n, D), whose rows stand `stride` apart: sum (n, D) = scale (n) times the
// sums over their windows.
static ALWAYS_INLINE void window_sum_rows(WindowSum *w, ptrdiff_t step, real *restrict sum,
                                          const real *restrict scale, const real *restrict x, size_t stride,
                                          const real *restrict factor, size_t n, size_t D) {
    const size_t block = window_sum_block(w), rest_stride = w->window ? D : 0;
    for (size_t i = 0; i < n;) {
        const size_t left = block - w->place, rows = n - i < left ? n - i : left;
        real *block_rows = w->rows + w->place * D;
        const real *rest = w->window ? block_rows + D : w->carry;
        for (size_t d = 0; d < D; d += TILE_LANES) {
            TileVector prefix = row_get(w->prefix, d, D);
            for (size_t r = 0; r < rows; r++) {
                const size_t at = step > 0 ? i + r : n - 1 - i - r;
                const TileVector row = factor[at] * row_get(x + at * stride, d, D);
                prefix += row;
                row_put(sum + at * D, d, D, scale[at] * (prefix + row_get(rest + r * rest_stride, d, D)));
                if (w->window) row_put(block_rows + r * D, d, D, row);
            }
            row_put(w->prefix, d, D, prefix);
        }
        i += rows;
        w->place += rows;
        if (w->place == block) window_sum_end_block(w, D);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Normalisation over a head: x' = (x - mean) / (deviation + 1e-5), the deviation with D-1 in the denominator

static const real NORMAL_EPSILON = (real)1e-5;

// centred (n, D) = x - mean and deviation (n) of x (n, D), whose rows stand `stride` apart.
static ALWAYS_INLINE void centre(real *restrict centred, real *restrict deviation, const real *restrict x,
                                 size_t stride, size_t n, size_t D) {
    rows_sum(deviation, x, stride, n, D);
    for (size_t i = 0; i < n; i++) {
        const real mean = deviation[i] / (real)D;
        for (size_t d = 0; d < D; d += TILE_LANES)
            row_put(centred + i * D, d, D, row_get(x + i * stride, d, D) - mean);
    }
    rows_dot(deviation, centred, D, centred, D, n, D);
    for (size_t i = 0; i < n; i++) deviation[i] = sqrt(deviation[i] / (real)(D - 1));
}

// normal (n, D), deviation (n) from x (n, D).
static void normalise(real *restrict normal, real *restrict deviation, const real *restrict x, size_t n,
                      size_t D) {
    centre(normal, deviation, x, D, n, D);
    for (size_t i = 0; i < n; i++)
        row_scale(normal + i * D, 1 / (deviation[i] + NORMAL_EPSILON), normal + i * D, D);
}

// One row: dx (D) from dnormal (D). A row without deviation takes the gradient of the mean alone.
static void normalise_backward(real *restrict dx, const real *restrict dnormal, const real *restrict normal,
                               real deviation, size_t D) {
    const real along = row_dot(dnormal, normal, D);
    const real inverse = 1 / (deviation + NORMAL_EPSILON);
    const real slope = deviation > 0 ? along / ((real)(D - 1) * deviation) : 0;
    for (size_t d = 0; d < D; d += TILE_LANES)
        row_put(dx, d, D, inverse * row_get(dnormal, d, D) - slope * row_get(normal, d, D));
    const real mean = row_sum(dx, D) / (real)D;
    for (size_t d = 0; d < D; d += TILE_LANES) row_put(dx, d, D, row_get(dx, d, D) - mean);
}

// ---------------------------------------------------------------------------------------------------------------------
// pool(x, w): g_i = sum over the window of e_j x'_j / (sum of e_j + c), e_j = exp(s/D x'_j . w'), 0 where j
// is padding

enum {
    TILE = 32,    // tokens taken at a time, so that their rows stay in L1
    TILE_GAP = 80 // numbers between two tiles: at a distance of 4 KiB a load waits for a store to the other
};

typedef struct {
    const real *weight; // (D) w'
    real scale, sink;   // s/D, c
    bool raw;           // pool x, not x'
    WindowSum sum;
} Pooling;

// What a thread needs for a tile.
typedef struct {
    real *memory;                                          // holds all that follows
    real *centred, *sums;                                  // (TILE, D) inside a pooling
    real *product, *dproduct, *dpooled, *dquery, *factors; // (TILE, D) around it
    real *ones;                                            // (TILE, D) factors without dropout
    real *row;                                             // (D)
    // (TILE), of each row: of x, 1 / (deviation + 1e-5), x' . w', exp of the score, and more inside a pooling
    real *deviation, *inverse, *along, *e, *factor, *weight, *total, *dot, *mean;
    Pooling query, key;
} Scratch;

// x - mean (n, D), and what s has of each row up to e. x' is never stored: it is inverse (x - mean).
static ALWAYS_INLINE void pool_scores(const Pooling *p, Scratch *s, const real *restrict x, size_t stride,
                                      const uint8_t *restrict mask, size_t n, size_t D) {
    centre(s->centred, s->deviation, x, stride, n, D);
    rows_dot(s->along, s->centred, D, p->weight, 0, n, D);
#pragma omp simd
    for (size_t i = 0; i < n; i++) {
        s->inverse[i] = 1 / (s->deviation[i] + NORMAL_EPSILON);
        s->along[i] *= s->inverse[i];
        s->e[i] = vector_exp(p->scale * s->along[i]);
    }
    if (mask)
        for (size_t i = 0; i < n; i++) s->e[i] = mask[i] ? s->e[i] : 0;
}

// pooled g (n, D) and r (n) = 1 / (sum of e + c) for n rows of x, `stride` apart.
static ALWAYS_INLINE void pool_forward(Pooling *p, Scratch *s, real *restrict pooled, real *restrict r,
                                       const real *restrict x, size_t stride, const uint8_t *restrict mask,
                                       size_t n, size_t D) {
    pool_scores(p, s, x, stride, mask, n, D);
    window_sum_weights(&p->sum, 1, s->e, s->total, n);
#pragma omp simd
    for (size_t i = 0; i < n; i++) {
        const real denominator = s->total[i] + p->sink;
        r[i] =
            denominator > 0 ? 1 / denominator : 0; // c = 0 and only padding in the window: nothing is pooled
        s->factor[i] = p->raw ? s->e[i] : s->e[i] * s->inverse[i];
    }
    window_sum_rows(&p->sum, 1, pooled, r, p->raw ? x : s->centred, p->raw ? stride : D, s->factor, n, D);
}

// dx (n, D) from dpooled, pooled, r as pool_forward gave them; dweight (D) +=. Tiles come last to first: the
// sums run backwards,
//   u_j = sum of r_i d_i, t_j = sum of r_i (d_i . g_i) over the i whose window holds j,
//   dx'_j = e_j u_j + da_j (s/D) w',  da_j = e_j (x'_j . u_j - t_j),  dw' += da_j (s/D) x'_j,
// and through the normalisation, as the elements of x' and w' add up to 0,
//   dx_j = (dx'_j - mean(e_j u_j)) / (deviation + 1e-5) - x'_j (x'_j . dx'_j) / ((D-1) deviation).
static ALWAYS_INLINE void pool_backward(Pooling *p, Scratch *s, real *restrict dx, real *restrict dweight,
                                        const real *restrict dpooled, const real *restrict pooled,
                                        const real *restrict r, const real *restrict x, size_t stride,
                                        const uint8_t *restrict mask, size_t n, size_t D) {
    const real *value = p->raw ? x : s->centred;
    pool_scores(p, s, x, stride, mask, n, D);
    rows_dot(s->weight, dpooled, D, pooled, D, n, D);
#pragma omp simd
    for (size_t i = 0; i < n; i++) s->weight[i] *= r[i];
    window_sum_weights(&p->sum, -1, s->weight, s->total, n);
    window_sum_rows(&p->sum, -1, s->sums, s->ones, dpooled, D, r, n, D);
    rows_dot(s->dot, value, p->raw ? stride : D, s->sums, D, n, D);
    rows_sum(s->mean, s->sums, D, n, D);
    // dx = factor u + weight w' - mean - dot (x - mean of x)
#pragma omp simd
    for (size_t j = 0; j < n; j++) {
        const real inverse = s->inverse[j], deviation = s->deviation[j], path = p->raw ? 0 : s->e[j];
        const real along_u = p->raw ? s->dot[j] : s->dot[j] * inverse;
        const real da = s->e[j] * (along_u - s->total[j]) * p->scale;
        const real slope = deviation > 0 ? (path * along_u + da * s->along[j]) / deviation : 0;
        s->factor[j] = p->raw ? s->e[j] : s->e[j] * inverse;
        s->weight[j] = da * inverse;
        s->mean[j] *= path * inverse / (real)D;
        s->dot[j] = slope * inverse / (real)(D - 1);
    }
    for (size_t d = 0; d < D; d += TILE_LANES) {
        const TileVector w = row_get(p->weight, d, D);
        TileVector dw = row_get(dweight, d, D);
        for (size_t j = 0; j < n; j++) {
            const TileVector centred = row_get(s->centred + j * D, d, D);
            dw += s->weight[j] * centred;
            row_put(dx + j * D, d, D,
                    s->factor[j] * row_get(s->sums + j * D, d, D) + s->weight[j] * w - s->mean[j] -
                        s->dot[j] * centred);
        }
        row_put(dweight, d, D, dw);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Additive attention of one head over T rows; q, k, v and x are slices of wider rows

typedef struct {
    const real *q, *k, *v;        // (T, D), rows `stride` apart
    size_t stride;                // 3C
    const uint8_t *mask;          // (T) or NULL
    const Dropout *drop_query;    // of G and
    const Dropout *drop_key;      // of P; NULL: none
    uint64_t first;               // element that dropout calls (0, 0)
    real *pooled_query, *r_query; // (T, D) G before dropout, (T)
    real *pooled_key, *r_key;     // (T, D) P before dropout, (T)
} Head;

static ALWAYS_INLINE const real *dropout_rows(const Dropout *dropout, uint64_t first, size_t count,
                                              Scratch *s) {
    if (!dropout) return s->ones;
    dropout_factors(dropout, first, count, s->factors);
    return s->factors;
}

// out (T, D) = x + P * v, rows `channels` apart; out may be x. The poolings go on where they were.
static ALWAYS_INLINE void attention_forward(const Head *h, Scratch *s, Pooling *query, Pooling *key,
                                            real *out, const real *x, size_t channels, size_t T, size_t D) {
    for (size_t t = 0; t < T; t += TILE) {
        const size_t n = T - t < TILE ? T - t : TILE;
        const uint8_t *mask = h->mask ? h->mask + t : NULL;
        real *G = h->pooled_query + t * D, *P = h->pooled_key + t * D;
        const real *k = h->k + t * h->stride, *v = h->v + t * h->stride;

        pool_forward(query, s, G, h->r_query + t, h->q + t * h->stride, h->stride, mask, n, D);
        const real *factors = dropout_rows(h->drop_query, h->first + t * D, n * D, s);
        for (size_t i = 0; i < n; i++)
            row_multiply(s->product + i * D, G + i * D, factors + i * D, k + i * h->stride, D);

        pool_forward(key, s, P, h->r_key + t, s->product, D, mask, n, D);
        factors = dropout_rows(h->drop_key, h->first + t * D, n * D, s);
        for (size_t i = 0; i < n; i++) {
            const real *p = P + i * D, *f = factors + i * D, *v_row = v + i * h->stride;
            const size_t at = (t + i) * channels;
            for (size_t d = 0; d < D; d += TILE_LANES)
                row_put(out + at, d, D,
                        row_get(x + at, d, D) + row_get(p, d, D) * row_get(f, d, D) * row_get(v_row, d, D));
        }
    }
}

// dqkv: this head's columns q_column, + C, + 2C from row `row` on, set. dout (T, D), rows C apart.
// dquery_weight, dkey_weight (D) += the gradients to w_q', w_k'.
static ALWAYS_INLINE void attention_backward(const Head *h, Scratch *s, Pooling *query, Pooling *key,
                                             GemmInput dqkv, size_t row, size_t q_column, real *dquery_weight,
                                             real *dkey_weight, const real *dout, size_t channels, size_t T,
                                             size_t D) {
    const size_t tiles = (T + TILE - 1) / TILE;
    for (size_t tile = tiles; tile-- > 0;) {
        const size_t t = tile * TILE, n = T - t < TILE ? T - t : TILE;
        const uint8_t *mask = h->mask ? h->mask + t : NULL;
        const real *G = h->pooled_query + t * D, *P = h->pooled_key + t * D;
        const real *k = h->k + t * h->stride, *v = h->v + t * h->stride;

        // x + (P * factor) * v
        const real *factors = dropout_rows(h->drop_key, h->first + t * D, n * D, s);
        for (size_t i = 0; i < n; i++) {
            const real *d_row = dout + (t + i) * channels, *f = factors + i * D;
            row_multiply(s->dpooled + i * D, d_row, f, v + i * h->stride, D);
            row_multiply(s->product + i * D, d_row, f, P + i * D, D);
        }
        gemm_input_store_rows(dqkv, row + t, q_column + 2 * channels, s->product, n, D); // dv

        // P = pool((G * factor) * k)
        factors = dropout_rows(h->drop_query, h->first + t * D, n * D, s);
        for (size_t i = 0; i < n; i++)
            row_multiply(s->product + i * D, G + i * D, factors + i * D, k + i * h->stride, D);
        pool_backward(key, s, s->dproduct, dkey_weight, s->dpooled, P, h->r_key + t, s->product, D, mask, n,
                      D);
        for (size_t i = 0; i < n; i++) {
            const real *dp = s->dproduct + i * D, *f = factors + i * D;
            row_multiply(s->dpooled + i * D, dp, f, k + i * h->stride, D);
            row_multiply(s->product + i * D, dp, f, G + i * D, D);
        }
        gemm_input_store_rows(dqkv, row + t, q_column + channels, s->product, n, D); // dk

        // G = pool(q)
        pool_backward(query, s, s->dquery, dquery_weight, s->dpooled, G, h->r_query + t, h->q + t * h->stride,
                      h->stride, mask, n, D);
        gemm_input_store_rows(dqkv, row + t, q_column, s->dquery, n, D);
    }
}

// Calls f(..., D) with the common head sizes as constants, which compilers unroll.
#define WITH_HEAD_SIZE(D, f, ...)                                                                            \
    ((D) == 16    ? f(__VA_ARGS__, 16)                                                                       \
     : (D) == 32  ? f(__VA_ARGS__, 32)                                                                       \
     : (D) == 64  ? f(__VA_ARGS__, 64)                                                                       \
     : (D) == 128 ? f(__VA_ARGS__, 128)                                                                      \
                  : f(__VA_ARGS__, (D)))

static Scratch scratch_create(size_t largest_window, size_t D) {
    const size_t rows = TILE * D + TILE_GAP;
    Scratch s = {.memory = allocate(8 * rows + D + 9 * TILE + 2 * window_sum_size(largest_window, D),
                                    sizeof(real), "attention scratch")};
    real *next = s.memory;
    s.centred = carve(&next, rows);
    s.sums = carve(&next, rows);
    s.product = carve(&next, rows);
    s.dproduct = carve(&next, rows);
    s.dpooled = carve(&next, rows);
    s.dquery = carve(&next, rows);
    s.factors = carve(&next, rows);
    s.ones = carve(&next, rows);
    s.row = carve(&next, D);
    real **const numbers[] = {&s.deviation, &s.inverse, &s.along, &s.e,   &s.factor,
                              &s.weight,    &s.total,   &s.dot,   &s.mean};
    for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers); i++) *numbers[i] = carve(&next, TILE);
    s.query.sum = window_sum_create(&next, largest_window, D);
    s.key.sum = window_sum_create(&next, largest_window, D);
    for (size_t i = 0; i < rows; i++) s.ones[i] = 1;
    return s;
}

// ---------------------------------------------------------------------------------------------------------------------
// The model

// What a layer's forward pass leaves for its backward pass.
typedef struct {
    real *x_in, *x_middle;               // (M, C) the residual stream before attention and before the FFN
    GemmInput norm2;                     // (M, C)
    real *mean1, *rstd1, *mean2, *rstd2; // (M)
    real *qkv;                           // (M, 3C)
    real *pooled_query, *pooled_key, *r_query, *r_key; // (B, H, T, D), (B, H, T)
    real *hidden;                                      // (M, 4C) before the GELU
    GemmInput activated;                               // (M, 4C)
} Activations;

typedef struct {
    GemmWeight *qkv_exact, *qkv, *up, *down; // qkv twice: for the forward and for the backward pass
} LayerWeights;

typedef struct {
    CpuModel base;
    Config config;
    Offsets offsets;
    size_t rows; // largest M
    bool training;
    Profile *profile;
    // Always float32: q and k go through an exponential of scores up to the rescale, which magnifies their
    // rounding; in bf16 gradients of w_q and w_k are off by up to 0.3.
    Gemm *exact;
    LayerWeights *weights; // (L) packed
    Classifier *classifier;

    Activations *layers;                // (L); without training all share one set of buffers
    real *x_out;                        // (M, C) the residual stream after the last layer
    GemmInput norm_exact;               // (M, C) what the QKV product of a layer reads
    GemmInput final_norm;               // (M, C)
    real *final_mean, *final_rstd;      // (M)
    real *ffn_out;                      // (M, C)
    real *attn_normal, *attn_deviation; // (L, 2, H, D) w_q', w_k', and (L, 2, H)

    real *dx, *dnorm;                  // (M, C)
    real *dactivated;                  // (M, 4C)
    GemmInput dffn_out, dhidden, dqkv; // (M, C), (M, 4C), (M, 3C)
    GemmInput norm1;                   // (M, C) of a layer, again
    real *dattn_normal;                // (B, 2, H, D) a batch row's gradients to w_q', w_k'
    size_t threads;
    Scratch *scratch; // (threads)
} Fastformer;

static real *buffer(size_t rows, size_t columns, const char *what) {
    if (columns && rows > SIZE_MAX / columns)
        fail("%s: %zu rows of %zu numbers do not fit in memory", what, rows, columns);
    return allocate(rows * columns, sizeof(real), what);
}

static void activations_create(Fastformer *f, Activations *a) {
    const size_t M = f->rows, C = f->config.channels, H = f->config.heads;
    a->x_in = buffer(M, C, "activations");
    a->x_middle = f->training ? buffer(M, C, "activations") : a->x_in;
    a->norm2 = gemm_input_create(f->base.gemm, M, C, "activations");
    a->mean1 = buffer(M, 1, "activations");
    a->rstd1 = buffer(M, 1, "activations");
    a->mean2 = buffer(M, 1, "activations");
    a->rstd2 = buffer(M, 1, "activations");
    a->qkv = buffer(M, 3 * C, "activations");
    a->pooled_query = buffer(M, C, "activations");
    a->pooled_key = buffer(M, C, "activations");
    a->r_query = buffer(M, H, "activations");
    a->r_key = buffer(M, H, "activations");
    a->hidden = buffer(M, 4 * C, "activations");
    a->activated = gemm_input_create(f->base.gemm, M, 4 * C, "activations");
}

static void activations_free(Activations *a, bool training) {
    free(a->x_in);
    if (training) free(a->x_middle);
    gemm_input_free(&a->norm2);
    free(a->mean1);
    free(a->rstd1);
    free(a->mean2);
    free(a->rstd2);
    free(a->qkv);
    free(a->pooled_query);
    free(a->pooled_key);
    free(a->r_query);
    free(a->r_key);
    free(a->hidden);
    gemm_input_free(&a->activated);
}

static void forward_buffers_create(Fastformer *f) {
    const size_t M = f->rows, L = f->config.layers, C = f->config.channels;
    f->layers = allocate(L, sizeof(Activations), "layers");
    for (size_t l = 0; l < L; l++) {
        if (l == 0 || f->training)
            activations_create(f, &f->layers[l]);
        else
            f->layers[l] = f->layers[0];
    }
    f->x_out = f->training ? buffer(M, C, "activations") : f->layers[0].x_in;
    f->norm_exact = gemm_input_create(f->exact, M, C, "activations");
    f->final_norm = gemm_input_create(f->base.gemm, M, C, "activations");
    f->final_mean = buffer(M, 1, "activations");
    f->final_rstd = buffer(M, 1, "activations");
    f->ffn_out = buffer(M, C, "activations");
}

static void backward_buffers_create(Fastformer *f, size_t batch) {
    const size_t M = f->rows, C = f->config.channels;
    f->dx = buffer(M, C, "gradients");
    f->dnorm = buffer(M, C, "gradients");
    f->dactivated = buffer(M, 4 * C, "gradients");
    f->dffn_out = gemm_input_create(f->base.gemm, M, C, "gradients");
    f->dhidden = gemm_input_create(f->base.gemm, M, 4 * C, "gradients");
    f->dqkv = gemm_input_create(f->base.gemm, M, 3 * C, "gradients");
    f->norm1 = gemm_input_create(f->base.gemm, M, C, "gradients");
    f->dattn_normal = buffer(batch, 2 * C, "gradients");
}

static void packed_weights_create(Fastformer *f) {
    const Config *c = &f->config;
    const size_t C = c->channels;
    f->weights = allocate(c->layers, sizeof(LayerWeights), "layers");
    for (size_t l = 0; l < c->layers; l++)
        f->weights[l] = (LayerWeights){
            .qkv_exact = gemm_weight_create(f->exact, 3 * C, C, WEIGHT_OUT_IN, "packed weights"),
            .qkv = gemm_weight_create(f->base.gemm, 3 * C, C, WEIGHT_OUT_IN, "packed weights"),
            .up = gemm_weight_create(f->base.gemm, 4 * C, C, WEIGHT_OUT_IN, "packed weights"),
            .down = gemm_weight_create(f->base.gemm, C, 4 * C, WEIGHT_OUT_IN, "packed weights"),
        };
    f->classifier = classifier_create(f->base.gemm, c->vocabulary, C, f->rows, f->training);
}

static size_t largest_window(const Config *c) {
    size_t largest = 0;
    for (size_t l = 0; l < c->layers; l++) largest = c->windows[l] > largest ? c->windows[l] : largest;
    return largest;
}

static void *fastformer_create(const ModelSetup *setup) {
    Fastformer *f = allocate(1, sizeof(Fastformer), "model");
    f->config = config_create(setup);
    f->training = setup->training;
    f->profile = setup->profile;
    const Config *c = &f->config;
    ParameterTable table = {0};
    f->offsets = parameters_create(&table, c);
    parameter_state_create(&f->base.state, table, f->training);
    f->base.decoding = cpu_decode_precision(options_text(setup->options, "precision"));
    f->attn_normal = buffer(2 * c->layers, c->channels, "attention weights");
    f->attn_deviation = buffer(2 * c->layers, c->heads, "attention weights");
    f->rows = (size_t)setup->batch * (size_t)setup->length;
    if (f->rows == 0) return f;

    f->base.gemm = gemm_create(cpu_precision(setup));
    f->exact = gemm_create(PRECISION_FLOAT32);
    packed_weights_create(f);
    forward_buffers_create(f);
    if (f->training) backward_buffers_create(f, (size_t)setup->batch);
    f->threads = (size_t)thread_limit();
    f->scratch = allocate(f->threads, sizeof(Scratch), "attention scratch");
    for (size_t i = 0; i < f->threads; i++) f->scratch[i] = scratch_create(largest_window(c), c->head_size);
    return f;
}

static void fastformer_destroy(void *model) {
    Fastformer *f = model;
    for (size_t i = 0; i < f->threads; i++) free(f->scratch[i].memory);
    free(f->scratch);
    for (size_t l = 0; f->rows && l < f->config.layers; l++) {
        if (l == 0 || f->training) activations_free(&f->layers[l], f->training);
        gemm_weight_free(f->weights[l].qkv_exact);
        gemm_weight_free(f->weights[l].qkv);
        gemm_weight_free(f->weights[l].up);
        gemm_weight_free(f->weights[l].down);
    }
    if (f->rows) {
        classifier_free(f->classifier);
        if (f->training) free(f->x_out);
        gemm_input_free(&f->norm_exact);
        gemm_input_free(&f->final_norm);
    }
    if (f->rows && f->training) {
        gemm_input_free(&f->dffn_out);
        gemm_input_free(&f->dhidden);
        gemm_input_free(&f->dqkv);
        gemm_input_free(&f->norm1);
    }
    real *buffers[] = {f->final_mean, f->final_rstd,   f->ffn_out,        f->dx,         f->dnorm,
                       f->dactivated, f->dattn_normal, f->attn_deviation, f->attn_normal};
    for (size_t i = 0; i < sizeof(buffers) / sizeof(buffers[0]); i++) free(buffers[i]);
    free(f->layers);
    free(f->weights);
    gemm_free(f->base.gemm);
    gemm_free(f->exact);
    parameter_state_free(&f->base.state);
    free(f->offsets.layers);
    free(f->config.windows);
    free(f);
}

// Values as products read them, once after each change: packed weights, and w_q', w_k' of every layer.
static void pack_weights(Fastformer *f) {
    if (f->base.packed) return;
    const Config *c = &f->config;
    const real *values = f->base.state.values;
    for (size_t l = 0; l < c->layers; l++) {
        const LayerOffsets *o = &f->offsets.layers[l];
        const size_t D = c->head_size, C = c->channels, H = c->heads;
        normalise(f->attn_normal + 2 * l * C, f->attn_deviation + 2 * l * H, values + o->query_attn, H, D);
        normalise(f->attn_normal + (2 * l + 1) * C, f->attn_deviation + (2 * l + 1) * H, values + o->key_attn,
                  H, D);
    }
    // Small matrices: each by one thread, several at a time.
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < (f->rows ? 4 * c->layers : 0); i++) {
        const LayerOffsets *o = &f->offsets.layers[i / 4];
        const LayerWeights *w = &f->weights[i / 4];
        GemmWeight *const weights[] = {w->qkv_exact, w->qkv, w->up, w->down};
        const size_t offsets[] = {o->qkv, o->qkv, o->up, o->down};
        gemm_weight_pack(weights[i % 4], values + offsets[i % 4]);
    }
    if (f->rows) classifier_pack(f->classifier, values + f->offsets.token);
    f->base.packed = true;
}

// ---------------------------------------------------------------------------------------------------------------------
// Forward and backward

static Dropout site_dropout(const Fastformer *f, const Batch *batch, size_t layer, uint32_t site) {
    return dropout_create(f->config.dropout, f->config.seed, batch->step, dropout_site(layer, site));
}

static bool drops(const Fastformer *f, bool train) {
    return train && f->config.dropout > 0;
}

static void pooling_start(Pooling *p, const Config *c, const real *weight, size_t window) {
    p->weight = weight;
    p->scale = c->rescale / (real)c->head_size;
    p->sink = c->sink;
    p->raw = c->pool_raw;
    window_sum_reset(&p->sum, window, c->head_size);
}

// Head h of batch row b in a layer, and the thread's poolings at the start of its sequence.
static Head head_start(const Fastformer *f, const Batch *batch, size_t l, size_t b, size_t h, Scratch *s) {
    const Config *c = &f->config;
    const Activations *a = &f->layers[l];
    const size_t T = (size_t)batch->length, C = c->channels, D = c->head_size, H = c->heads;
    const real *q = a->qkv + b * T * 3 * C + h * D;
    pooling_start(&s->query, c, f->attn_normal + 2 * l * C + h * D, c->windows[l]);
    pooling_start(&s->key, c, f->attn_normal + (2 * l + 1) * C + h * D, c->windows[l]);
    return (Head){.q = q,
                  .k = q + C,
                  .v = q + 2 * C,
                  .stride = 3 * C,
                  .mask = batch->mask ? batch->mask + b * T : NULL,
                  .first = (((uint64_t)batch->first_row + b) * H + h) * T * D,
                  .pooled_query = a->pooled_query + (b * H + h) * T * D,
                  .r_query = a->r_query + (b * H + h) * T,
                  .pooled_key = a->pooled_key + (b * H + h) * T * D,
                  .r_key = a->r_key + (b * H + h) * T};
}

// x_middle = x_in + P * v in layer l, from qkv.
static void layer_attention_forward(Fastformer *f, const Batch *batch, size_t l, bool train) {
    const size_t B = (size_t)batch->batch, T = (size_t)batch->length;
    const size_t C = f->config.channels, H = f->config.heads, D = f->config.head_size;
    const Activations *a = &f->layers[l];
    const Dropout query = site_dropout(f, batch, l, SITE_QUERY), key = site_dropout(f, batch, l, SITE_KEY);
#pragma omp parallel for collapse(2) schedule(static)
    for (size_t b = 0; b < B; b++) {
        for (size_t h = 0; h < H; h++) {
            Scratch *s = &f->scratch[thread_index()];
            Head head = head_start(f, batch, l, b, h, s);
            if (drops(f, train)) {
                head.drop_query = &query;
                head.drop_key = &key;
            }
            const size_t at = b * T * C + h * D;
            WITH_HEAD_SIZE(D, attention_forward, &head, s, &s->query, &s->key, a->x_middle + at, a->x_in + at,
                           C, T);
        }
    }
}

// dqkv from f->dx, the gradient to x_middle; gradients to w_q, w_k.
static void layer_attention_backward(Fastformer *f, const Batch *batch, size_t l) {
    const size_t B = (size_t)batch->batch, T = (size_t)batch->length;
    const size_t C = f->config.channels, H = f->config.heads, D = f->config.head_size;
    const Dropout query = site_dropout(f, batch, l, SITE_QUERY), key = site_dropout(f, batch, l, SITE_KEY);
    memset(f->dattn_normal, 0, B * 2 * C * sizeof(real));
#pragma omp parallel for collapse(2) schedule(static)
    for (size_t b = 0; b < B; b++) {
        for (size_t h = 0; h < H; h++) {
            Scratch *s = &f->scratch[thread_index()];
            Head head = head_start(f, batch, l, b, h, s);
            if (drops(f, true)) {
                head.drop_query = &query;
                head.drop_key = &key;
            }
            real *dweight = f->dattn_normal + b * 2 * C + h * D;
            WITH_HEAD_SIZE(D, attention_backward, &head, s, &s->query, &s->key, f->dqkv, b * T, h * D,
                           dweight, dweight + C, f->dx + b * T * C + h * D, C, T);
        }
    }
    for (size_t b = 1; b < B; b++)
        for (size_t i = 0; i < 2 * C; i++) f->dattn_normal[i] += f->dattn_normal[b * 2 * C + i];
    const LayerOffsets *o = &f->offsets.layers[l];
    real *targets[] = {f->base.state.gradients + o->query_attn, f->base.state.gradients + o->key_attn};
    real *row = f->scratch[0].row;
    for (size_t i = 0; i < 2 * H; i++) {
        normalise_backward(row, f->dattn_normal + i * D, f->attn_normal + 2 * l * C + i * D,
                           f->attn_deviation[2 * l * H + i], D);
        real *target = targets[i / H] + i % H * D;
        for (size_t d = 0; d < D; d++) target[d] += row[d];
    }
}

// The weights of one pooling over its windows, from what it pools, x (T, D), rows `stride` apart.
static void measure_pooling(Measurement *m, const Pooling *p, Scratch *s, real *e, const real *x,
                            size_t stride, const uint8_t *mask, size_t T, size_t D) {
    for (size_t t = 0; t < T; t += TILE) {
        const size_t n = T - t < TILE ? T - t : TILE;
        pool_scores(p, s, x + t * stride, stride, mask ? mask + t : NULL, n, D);
        memcpy(e + t, s->e, n * sizeof(real));
    }
    for (size_t i = 0; i < T; i++) {
        const size_t window = p->sum.window, j = window && i + 1 > window ? i + 1 - window : 0;
        if (!mask || mask[i])
            measurement_add_weights(m, e + j, mask ? mask + j : NULL, i + 1 - j, (double)p->sink);
    }
}

// Weights and output of the attention of layer l, of which the forward pass left qkv and the pooled rows.
static void measure_attention(Fastformer *f, const Batch *batch, size_t l, Statistics *statistics) {
    const size_t T = (size_t)batch->length, D = f->config.head_size;
    Measurement *query = statistics_find(statistics, l, "query_weights");
    Measurement *key = statistics_find(statistics, l, "key_weights");
    real *e = buffer(T, 1, "statistics"), *product = buffer(T, D, "statistics");
    for (size_t i = 0; i < (size_t)batch->batch * f->config.heads; i++) {
        Scratch *s = &f->scratch[0];
        const Head head = head_start(f, batch, l, i / f->config.heads, i % f->config.heads, s);
        measure_pooling(query, &s->query, s, e, head.q, head.stride, head.mask, T, D);
        for (size_t t = 0; t < T; t++)
            for (size_t d = 0; d < D; d++)
                product[t * D + d] = head.pooled_query[t * D + d] * head.k[t * head.stride + d];
        measure_pooling(key, &s->key, s, e, product, D, head.mask, T, D);
        for (size_t t = 0; t < T; t++)
            for (size_t d = 0; d < D; d++)
                product[t * D + d] = head.pooled_key[t * D + d] * head.v[t * head.stride + d];
        statistics_add(statistics, l, "attention", product, head.mask, T, D);
    }
    free(e);
    free(product);
}

// Leaves the final LayerNorm's output in f->final_norm. statistics: NULL, or what is measured (train is
// false).
static void layers_forward(Fastformer *f, const Batch *batch, bool train, Statistics *statistics) {
    Profile *profile = train ? f->profile : NULL;
    pack_weights(f);
    profile_lap(profile, "pack weights", PROFILE_FORWARD, 0);
    const Config *c = &f->config;
    const real *values = f->base.state.values;
    const size_t M = (size_t)(batch->batch * batch->length), C = c->channels;
    const uint64_t first = (uint64_t)(batch->first_row * batch->length);
    const double square = 2.0 * (double)M * (double)C * (double)C; // FLOP of a product with a (C, C) weight

    const Dropout embedding = site_dropout(f, batch, 0, SITE_EMBEDDING);
    embedding_forward(f->layers[0].x_in, values + f->offsets.token, values + f->offsets.position, batch,
                      drops(f, train) ? &embedding : NULL, C);
    statistics_add(statistics, 0, "residual", f->layers[0].x_in, batch->mask, M, C);
    profile_lap(profile, "embedding", PROFILE_FORWARD, 0);
    for (size_t l = 0; l < c->layers; l++) {
        Activations *a = &f->layers[l];
        const LayerOffsets *o = &f->offsets.layers[l];
        const LayerWeights *w = &f->weights[l];
        layernorm_forward(f->norm_exact, a->mean1, a->rstd1, a->x_in, values + o->norm1_gain,
                          values + o->norm1_bias, M, C);
        profile_lap(profile, "norm", PROFILE_FORWARD, 0);
        gemm_forward(f->exact, a->qkv, f->norm_exact, w->qkv_exact, M);
        profile_lap(profile, "qkv", PROFILE_FORWARD, 3 * square);
        layer_attention_forward(f, batch, l, train);
        profile_lap(profile, "attention", PROFILE_FORWARD, 0);
        if (statistics) measure_attention(f, batch, l, statistics);
        statistics_add(statistics, l, "residual_middle", a->x_middle, batch->mask, M, C);

        layernorm_forward(a->norm2, a->mean2, a->rstd2, a->x_middle, values + o->norm2_gain,
                          values + o->norm2_bias, M, C);
        profile_lap(profile, "norm", PROFILE_FORWARD, 0);
        gemm_forward(f->base.gemm, a->hidden, a->norm2, w->up, M);
        profile_lap(profile, "ffn up", PROFILE_FORWARD, 4 * square);
        gelu_forward(a->activated, a->hidden, NULL, GELU_ERF, M, 4 * C);
        profile_lap(profile, "gelu", PROFILE_FORWARD, 0);
        gemm_forward(f->base.gemm, f->ffn_out, a->activated, w->down, M);
        profile_lap(profile, "ffn down", PROFILE_FORWARD, 4 * square);
        statistics_add(statistics, l, "ffn", f->ffn_out, batch->mask, M, C);
        const Dropout ffn = site_dropout(f, batch, l, SITE_FFN);
        real *x_out = l + 1 < c->layers ? f->layers[l + 1].x_in : f->x_out;
        residual_forward(x_out, a->x_middle, f->ffn_out, NULL, drops(f, train) ? &ffn : NULL, first, M, C);
        profile_lap(profile, "residual", PROFILE_FORWARD, 0);
        statistics_add(statistics, l + 1, "residual", x_out, batch->mask, M, C);
    }
    layernorm_forward(f->final_norm, f->final_mean, f->final_rstd, f->x_out, values + f->offsets.final_gain,
                      values + f->offsets.final_bias, M, C);
    profile_lap(profile, "norm", PROFILE_FORWARD, 0);
}

// From f->dnorm, the gradient to the final LayerNorm's output.
static void layers_backward(Fastformer *f, const Batch *batch) {
    const Config *c = &f->config;
    const real *values = f->base.state.values;
    real *gradients = f->base.state.gradients;
    const size_t M = (size_t)(batch->batch * batch->length), C = c->channels;
    const uint64_t first = (uint64_t)(batch->first_row * batch->length);
    const double square = 2.0 * (double)M * (double)C * (double)C; // FLOP of a product with a (C, C) weight
    Profile *profile = f->profile;

    memset(f->dx, 0, M * C * sizeof(real));
    layernorm_backward(f->dx, gradients + f->offsets.final_gain, gradients + f->offsets.final_bias, f->dnorm,
                       f->x_out, values + f->offsets.final_gain, f->final_mean, f->final_rstd, M, C);
    profile_lap(profile, "norm", PROFILE_BACKWARD, 0);
    for (size_t l = c->layers; l-- > 0;) {
        const Activations *a = &f->layers[l];
        const LayerOffsets *o = &f->offsets.layers[l];
        const LayerWeights *w = &f->weights[l];
        const Dropout ffn = site_dropout(f, batch, l, SITE_FFN);
        residual_backward(f->dffn_out, NULL, f->dx, drops(f, true) ? &ffn : NULL, first, M, C);
        profile_lap(profile, "residual", PROFILE_BACKWARD, 0);
        gemm_backward_input(f->base.gemm, f->dactivated, f->dffn_out, w->down, M);
        gemm_backward_weight(f->base.gemm, gradients + o->down, f->dffn_out, a->activated, w->down, M);
        profile_lap(profile, "ffn down", PROFILE_BACKWARD, 8 * square);
        gelu_backward(f->dhidden, NULL, f->dactivated, a->hidden, NULL, GELU_ERF, M, 4 * C);
        profile_lap(profile, "gelu", PROFILE_BACKWARD, 0);
        gemm_backward_input(f->base.gemm, f->dnorm, f->dhidden, w->up, M);
        gemm_backward_weight(f->base.gemm, gradients + o->up, f->dhidden, a->norm2, w->up, M);
        profile_lap(profile, "ffn up", PROFILE_BACKWARD, 8 * square);
        layernorm_backward(f->dx, gradients + o->norm2_gain, gradients + o->norm2_bias, f->dnorm, a->x_middle,
                           values + o->norm2_gain, a->mean2, a->rstd2, M, C);
        profile_lap(profile, "norm", PROFILE_BACKWARD, 0);

        layer_attention_backward(f, batch, l);
        profile_lap(profile, "attention", PROFILE_BACKWARD, 0);
        gemm_backward_input(f->base.gemm, f->dnorm, f->dqkv, w->qkv, M);
        profile_lap(profile, "qkv", PROFILE_BACKWARD, 3 * square);
        layernorm_forward(f->norm1, a->mean1, a->rstd1, a->x_in, values + o->norm1_gain,
                          values + o->norm1_bias, M, C);
        profile_lap(profile, "norm", PROFILE_BACKWARD, 0);
        gemm_backward_weight(f->base.gemm, gradients + o->qkv, f->dqkv, f->norm1, w->qkv, M);
        profile_lap(profile, "qkv", PROFILE_BACKWARD, 3 * square);
        layernorm_backward(f->dx, gradients + o->norm1_gain, gradients + o->norm1_bias, f->dnorm, a->x_in,
                           values + o->norm1_gain, a->mean1, a->rstd1, M, C);
        profile_lap(profile, "norm", PROFILE_BACKWARD, 0);
    }
    const Dropout embedding = site_dropout(f, batch, 0, SITE_EMBEDDING);
    embedding_backward(gradients + f->offsets.token, gradients + f->offsets.position, f->dx, batch,
                       drops(f, true) ? &embedding : NULL, c->padding, C);
    profile_lap(profile, "embedding", PROFILE_BACKWARD, 0);
}

static double fastformer_forward(void *model, const Batch *batch) {
    Fastformer *f = model;
    layers_forward(f, batch, false, NULL);
    return classifier_forward(f->classifier, f->final_norm, f->base.state.values + f->offsets.output_bias,
                              batch->targets, (size_t)(batch->batch * batch->length));
}

static double fastformer_train(void *model, const Batch *batch, double scale) {
    Fastformer *f = model;
    layers_forward(f, batch, true, NULL);
    const double loss = classifier_train(
        f->classifier, f->final_norm, f->base.state.values + f->offsets.output_bias, batch->targets,
        (size_t)(batch->batch * batch->length), scale, f->dnorm, f->base.state.gradients + f->offsets.token,
        f->base.state.gradients + f->offsets.output_bias);
    const double products = 6.0 * (double)(batch->batch * batch->length);
    profile_lap(f->profile, "classifier", PROFILE_STEP,
                products * (double)f->config.vocabulary * (double)f->config.channels);
    layers_backward(f, batch);
    return loss;
}

static void fastformer_logits(void *model, const Batch *batch, real *logits) {
    Fastformer *f = model;
    layers_forward(f, batch, false, NULL);
    classifier_logits(f->classifier, f->final_norm, f->base.state.values + f->offsets.output_bias,
                      (size_t)(batch->batch * batch->length), logits);
}

static void fastformer_statistics(void *model, const Batch *batch, Statistics *statistics) {
    layers_forward(model, batch, false, statistics);
}

// ---------------------------------------------------------------------------------------------------------------------
// Recurrent decoding: a layer remembers what its windows hold, so a token costs the same at any position

typedef struct {
    DecodeWeight qkv, up, down;
} DecoderLayer;

// What a thread needs for itself.
typedef struct {
    Scratch scratch;
    real *norm; // (S, C) each thread makes all of it, which takes less than waiting for another
    real *pooled_query, *pooled_key; // (D)
} DecoderThread;

typedef struct {
    Fastformer *model;
    size_t streams, position;
    DecoderLayer *layers; // (L)
    DecodeWeight classifier;
    real *memory;                     // of the poolings
    Pooling *poolings;                // (L, S, H, 2) query and key
    real *x, *qkv, *hidden, *ffn_out; // (S, C), (S, 3C), (S, 4C), (S, C)
    int threads;
    DecoderThread *thread; // (threads)
    Barrier barrier;       // between the threads
} Decoder;

static void *fastformer_decoder_create(void *model, int streams) {
    Fastformer *f = model;
    const Config *c = &f->config;
    const size_t S = (size_t)streams, C = c->channels, D = c->head_size, sums = S * c->heads * 2;
    Decoder *d = allocate(1, sizeof(Decoder), "decoder");
    pack_weights(f);
    const real *values = f->base.state.values;
    size_t size = 0;
    for (size_t l = 0; l < c->layers; l++) size += sums * window_sum_size(c->windows[l], D);
    *d = (Decoder){.model = f,
                   .streams = S,
                   .layers = allocate(c->layers, sizeof(DecoderLayer), "decoder"),
                   .classifier = decode_weight_create(f->base.decoding, values + f->offsets.token,
                                                      c->vocabulary, C, WEIGHT_OUT_IN),
                   .memory = buffer(size, 1, "decoder"),
                   .poolings = allocate(c->layers * sums, sizeof(Pooling), "decoder"),
                   .x = buffer(S, C, "decoder"),
                   .qkv = buffer(S, 3 * C, "decoder"),
                   .hidden = buffer(S, 4 * C, "decoder"),
                   .ffn_out = buffer(S, C, "decoder"),
                   .threads = decode_threads(c->layers * 11 * C * C + c->vocabulary * C)};
    for (size_t l = 0; l < c->layers; l++) {
        const LayerOffsets *o = &f->offsets.layers[l];
        const Precision precision = f->base.decoding;
        // Queries, keys and values are float32 in training, too.
        d->layers[l] = (DecoderLayer){
            .qkv = decode_weight_create(PRECISION_FLOAT32, values + o->qkv, 3 * C, C, WEIGHT_OUT_IN),
            .up = decode_weight_create(precision, values + o->up, 4 * C, C, WEIGHT_OUT_IN),
            .down = decode_weight_create(precision, values + o->down, C, 4 * C, WEIGHT_OUT_IN)};
    }
    real *next = d->memory;
    for (size_t i = 0; i < c->layers * sums; i++) {
        const size_t l = i / sums, h = i / 2 % c->heads, part = i % 2;
        d->poolings[i].sum = window_sum_create(&next, c->windows[l], D);
        pooling_start(&d->poolings[i], c, f->attn_normal + (2 * l + part) * C + h * D, c->windows[l]);
    }
    d->thread = allocate((size_t)d->threads, sizeof(DecoderThread), "decoder");
    for (int i = 0; i < d->threads; i++)
        d->thread[i] = (DecoderThread){.scratch = scratch_create(0, D),
                                       .norm = buffer(S, C, "decoder"),
                                       .pooled_query = buffer(1, D, "decoder"),
                                       .pooled_key = buffer(1, D, "decoder")};
    return d;
}

static void fastformer_decoder_destroy(void *decoder) {
    Decoder *d = decoder;
    for (int i = 0; i < d->threads; i++) {
        free(d->thread[i].scratch.memory);
        free(d->thread[i].norm);
        free(d->thread[i].pooled_query);
        free(d->thread[i].pooled_key);
    }
    free(d->thread);
    for (size_t l = 0; l < d->model->config.layers; l++) {
        decode_weight_free(&d->layers[l].qkv);
        decode_weight_free(&d->layers[l].up);
        decode_weight_free(&d->layers[l].down);
    }
    free(d->layers);
    decode_weight_free(&d->classifier);
    free(d->memory);
    free(d->poolings);
    free(d->x);
    free(d->qkv);
    free(d->hidden);
    free(d->ffn_out);
    free(d);
}

// x += P * v for one token of each stream in layer l, streams and heads divided among the threads.
static void decode_attention(Decoder *d, DecoderThread *thread, size_t l) {
    const Config *c = &d->model->config;
    const size_t C = c->channels, D = c->head_size, H = c->heads;
#pragma omp for collapse(2) schedule(static) nowait
    for (size_t s = 0; s < d->streams; s++) {
        for (size_t h = 0; h < H; h++) {
            const real *q = d->qkv + s * 3 * C + h * D;
            real r_query, r_key, *x = d->x + s * C + h * D;
            const Head head = {.q = q,
                               .k = q + C,
                               .v = q + 2 * C,
                               .stride = 3 * C,
                               .pooled_query = thread->pooled_query,
                               .r_query = &r_query,
                               .pooled_key = thread->pooled_key,
                               .r_key = &r_key};
            Pooling *p = d->poolings + ((l * d->streams + s) * H + h) * 2;
            WITH_HEAD_SIZE(D, attention_forward, &head, &thread->scratch, p, p + 1, x, x, C, 1);
        }
    }
}

// Of all streams, for the calling thread.
static void norm_rows(const Decoder *d, real *norm, size_t gain, size_t bias) {
    const size_t C = d->model->config.channels;
    const real *values = d->model->base.state.values;
    for (size_t s = 0; s < d->streams; s++)
        layernorm_row(norm + s * C, d->x + s * C, values + gain, values + bias, C);
}

// x through layer l, by all threads.
static void decode_layer(Decoder *d, DecoderThread *thread, size_t l) {
    const LayerOffsets *o = &d->model->offsets.layers[l];
    const DecoderLayer *layer = &d->layers[l];
    const size_t S = d->streams, C = d->model->config.channels;
    const DecodeShare inner = decode_share(4 * C), outer = decode_share(C);
    norm_rows(d, thread->norm, o->norm1_gain, o->norm1_bias);
    decode_product(d->qkv, thread->norm, &layer->qkv, NULL, S);
    barrier_wait(&d->barrier);
    decode_attention(d, thread, l);
    barrier_wait(&d->barrier);
    norm_rows(d, thread->norm, o->norm2_gain, o->norm2_bias);
    decode_product(d->hidden, thread->norm, &layer->up, NULL, S);
    for (size_t s = 0; s < S; s++) gelu_row(d->hidden + s * 4 * C + inner.begin, GELU_ERF, inner.count);
    barrier_wait(&d->barrier);
    decode_product(d->ffn_out, d->hidden, &layer->down, NULL, S);
    for (size_t s = 0; s < S; s++) {
        real *x = d->x + s * C + outer.begin;
        row_add(x, x, d->ffn_out + s * C + outer.begin, outer.count);
    }
    barrier_wait(&d->barrier);
}

static void fastformer_decode(void *decoder, const int32_t *tokens, real *logits) {
    Decoder *d = decoder;
    const Fastformer *f = d->model;
    const Config *c = &f->config;
    const real *values = f->base.state.values;
    const size_t S = d->streams, C = c->channels;
    if (d->position == c->positions)
        fail("decoding: the model has %zu positions, no token can follow", c->positions);
    for (size_t s = 0; s < S; s++) {
        const real *token = values + f->offsets.token + (size_t)tokens[s] * C;
        const real *position = values + f->offsets.position + d->position * C;
        row_add(d->x + s * C, token, position, C);
    }
#pragma omp parallel num_threads(d->threads)
    {
        DecoderThread *thread = &d->thread[thread_index()];
        for (size_t l = 0; l < c->layers; l++) decode_layer(d, thread, l);
        if (logits) {
            norm_rows(d, thread->norm, f->offsets.final_gain, f->offsets.final_bias);
            decode_product(logits, thread->norm, &d->classifier, values + f->offsets.output_bias, S);
        }
    }
    d->position++;
}

// ---------------------------------------------------------------------------------------------------------------------
// What the training loop calls

// The windows as the published checkpoints write them: "[4, 8, 2048]".
static char *windows_text(const Config *c) {
    char *text = copy_string("[");
    for (size_t l = 0; l < c->layers; l++) {
        const size_t window = c->windows[l] ? c->windows[l] : c->positions;
        char *longer = format_string("%s%zu%s", text, window, l + 1 < c->layers ? ", " : "]");
        free(text);
        text = longer;
    }
    return text;
}

static void fastformer_describe(const void *model, Metadata **rows, int *count) {
    const Config *c = &((const Fastformer *)model)->config;
    metadata_add(rows, count, "window_sizes", windows_text(c));
    metadata_add(rows, count, "activation", copy_string("gelu"));
    metadata_add(rows, count, "layernorm_eps", copy_string("1e-05"));
}

// 2 FLOP a multiply-add, forward once and backward twice, over every weight matrix.
static double fastformer_flops_per_token(const void *model, int64_t length) {
    (void)length; // attention is linear: nothing grows with the context
    const Config *c = &((const Fastformer *)model)->config;
    const double C = (double)c->channels;
    return 6 * ((double)c->layers * 11 * C * C + (double)c->vocabulary * C);
}

const Config *fastformer_config(const void *model) {
    return &((const Fastformer *)model)->config;
}

const Offsets *fastformer_offsets(const void *model) {
    return &((const Fastformer *)model)->offsets;
}

const ModelType fastformer = {
    .name = "fastformer",
    .program = "train_fastformer",
    .task = &task_language,
    .options = fastformer_options,
    .option_count = sizeof(fastformer_options) / sizeof(fastformer_options[0]),
    .create = fastformer_create,
    .destroy = fastformer_destroy,
    .device = cpu_model_device,
    .describe = fastformer_describe,
    .flops_per_token = fastformer_flops_per_token,
    .parameters = cpu_model_parameters,
    .read = cpu_model_read,
    .write = cpu_model_write,
    .forward = fastformer_forward,
    .logits = fastformer_logits,
    .statistics = fastformer_statistics,
    .train = fastformer_train,
    .gradient_norm = cpu_model_gradient_norm,
    .update = cpu_model_update,
    .clear_gradients = cpu_model_clear_gradients,
    .decoder_create = fastformer_decoder_create,
    .decode = fastformer_decode,
    .decoder_destroy = fastformer_decoder_destroy,
};

#ifndef TESTING
int main(int argc, char **argv) {
    return train_main(argc, argv, &fastformer);
}
#endif
