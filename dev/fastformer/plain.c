// The Fastformer in one file: the model of train_fastformer.c as plain loops. Read this file first.
// It needs no other file of this project:
//
//     cc -O2 dev/fastformer/plain.c -o plain -lm
//     ./plain FILE [STEPS]     trains on the bytes of a text file, then generates text
//     ./plain --check          compares gradients with finite differences; exits with 1 on error
//
// A token is a byte. The model reads T tokens and predicts the next token at each position. Its
// attention costs O(T); softmax attention costs O(T^2). This file computes sums over windows by
// their definition, which is clearer but slower; dev/cpu/additive_attention.c has the fast
// algorithm. This file has no dropout.
//
// Most operations are a pair of functions. X_forward() computes outputs from inputs. X_backward()
// takes d_out, the derivative of the loss with respect to each output, and ADDS the derivative with
// respect to each input to d_in. It adds because an input that is used twice gets the sum of both
// derivatives, by the chain rule.
//
// Comments give the shapes of arrays. Rows are contiguous.
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef double real;

enum {
    V = 256,   // vocabulary size
    T = 64,    // sequence length
    C = 64,    // channels: numbers per token inside the model
    H = 4,     // heads: groups of channels that attend independently
    D = C / H, // channels per head
    L = 3,     // layers
    F = 4 * C, // hidden size of the feed-forward network
    B = 8      // sequences per step
};

static const real SCALE = 10;       // s: scores are within -s..s
static const real SINK = 1e-5;      // c: added to the sum of attention weights
static const real NORM_EPS = 1e-5;  // of LayerNorm and normal()
static const real DEVIATION = 0.02; // standard deviation of the initial weights
static const real RATE = 3e-3, DECAY = 0.01, BETA1 = 0.9, BETA2 = 0.999, ADAM_EPS = 1e-8;

// Returns the window of layer l in tokens: 4, 8, 16 ...; T, all earlier tokens, in the last layer.
static int window_of(int l) {
    return l + 1 < L && (4 << l) < T ? 4 << l : T;
}

// ---- Parameters --------------------------------------------------------------

typedef struct {
    real attention_gain[C], attention_bias[C]; // LayerNorm before attention
    real qkv[C][3 * C];                        // W_qkv: computes queries, keys and values
    real query[H][D], key[H][D];               // w_q, w_k: vectors that tokens are compared with
    real ffn_gain[C], ffn_bias[C];             // LayerNorm before the feed-forward network
    real up[C][F], down[F][C];
} LayerParameters;

typedef struct {
    real token[V][C];    // token embeddings, also the weights of the logits
    real position[T][C]; // position embeddings
    LayerParameters layer[L];
    real gain[C], bias[C]; // final LayerNorm
    real logit_bias[V];
} Parameters;

enum { COUNT = sizeof(Parameters) / sizeof(real) };

// The parameters as a list of tensors, for initialisation, AdamW and the gradient check.
typedef struct {
    const char *name;
    size_t offset, count; // in units of real; offset is from the start of Parameters
    enum { WEIGHT, GAIN, BIAS } kind;
} Tensor;

enum { TENSORS = 2 + 9 * L + 3 };

static int tensor_list(Tensor list[TENSORS]) {
    int count = 0;
    static Parameters p; // only the addresses of its members are used
#define ADD(member, kind)                                                                          \
    list[count++] = (Tensor){#member, (size_t)((char *)p.member - (char *)&p) / sizeof(real),      \
                             sizeof(p.member) / sizeof(real), kind}
    ADD(token, WEIGHT);
    ADD(position, WEIGHT);
    for (int l = 0; l < L; l++) {
        ADD(layer[l].attention_gain, GAIN);
        ADD(layer[l].attention_bias, BIAS);
        ADD(layer[l].qkv, WEIGHT);
        ADD(layer[l].query, WEIGHT);
        ADD(layer[l].key, WEIGHT);
        ADD(layer[l].ffn_gain, GAIN);
        ADD(layer[l].ffn_bias, BIAS);
        ADD(layer[l].up, WEIGHT);
        ADD(layer[l].down, WEIGHT);
    }
    ADD(gain, GAIN);
    ADD(bias, BIAS);
    ADD(logit_bias, BIAS);
#undef ADD
    return count;
}

// ---- Random numbers ----------------------------------------------------------

static uint64_t random_state = 42;

// Returns a uniform random number in the open interval (0, 1). The generator is splitmix64.
static real uniform(void) {
    uint64_t z = random_state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return ((real)((z ^ z >> 31) >> 11) + 0.5) / 9007199254740992.0;
}

// Returns a normal random number with mean 0 and standard deviation 1 (Box-Muller transform).
static real gaussian(void) {
    const real radius = sqrt(-2 * log(uniform()));
    return radius * cos(6.283185307179586 * uniform());
}

// Sets weights to N(0, deviation^2), gains to N(1, spread^2) and biases to N(0, spread^2).
static void initialise(Parameters *p, real deviation, real spread) {
    Tensor list[TENSORS];
    const int count = tensor_list(list);
    for (int t = 0; t < count; t++)
        for (size_t i = 0; i < list[t].count; i++)
            ((real *)p)[list[t].offset + i] = list[t].kind == WEIGHT
                                                  ? deviation * gaussian()
                                                  : (list[t].kind == GAIN) + spread * gaussian();
}

// ---- Matrix products ---------------------------------------------------------

// out = x w, with x (rows, in), w (in, size) and out (rows, size).
static void product_forward(const real *x, const real *w, real *out, int rows, int in, int size) {
    for (int t = 0; t < rows; t++) {
        for (int j = 0; j < size; j++) out[t * size + j] = 0;
        for (int i = 0; i < in; i++)
            for (int j = 0; j < size; j++) out[t * size + j] += x[t * in + i] * w[i * size + j];
    }
}

// d_x = d_out w^T,  d_w = x^T d_out.
static void product_backward(const real *x, const real *w, const real *d_out, real *d_x, real *d_w,
                             int rows, int in, int size) {
    for (int t = 0; t < rows; t++)
        for (int i = 0; i < in; i++) {
            real sum = 0;
            for (int j = 0; j < size; j++) sum += d_out[t * size + j] * w[i * size + j];
            for (int j = 0; j < size; j++) d_w[i * size + j] += x[t * in + i] * d_out[t * size + j];
            d_x[t * in + i] += sum;
        }
}

// ---- LayerNorm ---------------------------------------------------------------

// out = (x - mean) / sqrt(variance + eps) * gain + bias, over the C channels of each token.
// x, out (T, C). NormState keeps the normalised x and 1 / sqrt(variance + eps) for backward.
typedef struct {
    real normed[T][C], inverse[T];
} NormState;

static void layernorm_forward(real x[T][C], const real *gain, const real *bias, NormState *s,
                              real out[T][C]) {
    for (int t = 0; t < T; t++) {
        real mean = 0, variance = 0;
        for (int c = 0; c < C; c++) mean += x[t][c] / C;
        for (int c = 0; c < C; c++) variance += (x[t][c] - mean) * (x[t][c] - mean) / C;
        s->inverse[t] = 1 / sqrt(variance + NORM_EPS);
        for (int c = 0; c < C; c++) {
            s->normed[t][c] = (x[t][c] - mean) * s->inverse[t];
            out[t][c] = s->normed[t][c] * gain[c] + bias[c];
        }
    }
}

// With g = d_out * gain and n the normalised x:  d_x = (g - mean(g) - n mean(g n)) * inverse.
static void layernorm_backward(const NormState *s, const real *gain, real d_out[T][C],
                               real d_x[T][C], real *d_gain, real *d_bias) {
    for (int t = 0; t < T; t++) {
        real mean = 0, mean_n = 0;
        for (int c = 0; c < C; c++) {
            mean += d_out[t][c] * gain[c] / C;
            mean_n += d_out[t][c] * gain[c] * s->normed[t][c] / C;
            d_gain[c] += d_out[t][c] * s->normed[t][c];
            d_bias[c] += d_out[t][c];
        }
        for (int c = 0; c < C; c++)
            d_x[t][c] += (d_out[t][c] * gain[c] - mean - s->normed[t][c] * mean_n) * s->inverse[t];
    }
}

// ---- Additive attention ------------------------------------------------------

// normal(x) = (x - mean) / (deviation + eps), over the D numbers of a head. The divisor of the
// variance is D - 1. Returns the deviation.
static real normal_forward(const real *x, real *out) {
    real mean = 0, variance = 0;
    for (int d = 0; d < D; d++) mean += x[d] / D;
    for (int d = 0; d < D; d++) variance += (x[d] - mean) * (x[d] - mean) / (D - 1);
    const real deviation = sqrt(variance);
    for (int d = 0; d < D; d++) out[d] = (x[d] - mean) / (deviation + NORM_EPS);
    return deviation;
}

// With y = normal(x):
//   d_x = (d_y - mean(d_y)) / (deviation + eps) - y sum(d_y y) / ((D - 1) deviation)
static void normal_backward(const real *y, real deviation, const real *d_y, real *d_x) {
    real mean = 0, sum = 0;
    for (int d = 0; d < D; d++) mean += d_y[d] / D;
    for (int d = 0; d < D; d++) sum += d_y[d] * y[d];
    const real part = deviation > 0 ? sum / ((D - 1) * deviation) : 0;
    for (int d = 0; d < D; d++) d_x[d] += (d_y[d] - mean) / (deviation + NORM_EPS) - y[d] * part;
}

// pool(x, w): the weighted mean of the last k tokens; tokens that resemble w weigh most. For each
// head, with x' = normal(x), w' = normal(w) and the window W(i) = {i-k+1 .. i}, cut off at 0:
//
//   a_i = s / D  x'_i . w'                                score of token i, within -s..s
//   e_i = exp(a_i)                                        weight of token i
//   g_i = sum_{j in W(i)} e_j x'_j / (sum_{j in W(i)} e_j + c)
//
// x, g (T, C): head h has channels hD .. hD+D-1. w (H, D). A token is compared with w, not with
// every other token. This is why the cost is linear in T.
typedef struct {
    real normed[T][C], deviation[T][H]; // x' and the deviation of x
    real w_normed[H][D], w_deviation[H];
    real e[T][H], denominator[T][H];
    real g[T][C];
} PoolState;

static void pool_forward(real x[T][C], real w[H][D], int k, PoolState *s) {
    for (int h = 0; h < H; h++) {
        s->w_deviation[h] = normal_forward(w[h], s->w_normed[h]);
        for (int i = 0; i < T; i++) {
            real dot = 0;
            s->deviation[i][h] = normal_forward(x[i] + h * D, s->normed[i] + h * D);
            for (int d = 0; d < D; d++) dot += s->normed[i][h * D + d] * s->w_normed[h][d];
            s->e[i][h] = exp(SCALE / D * dot);
        }
        for (int i = 0; i < T; i++) {
            real sum[D] = {0};
            s->denominator[i][h] = SINK;
            for (int j = i - k + 1 > 0 ? i - k + 1 : 0; j <= i; j++) {
                s->denominator[i][h] += s->e[j][h];
                for (int d = 0; d < D; d++) sum[d] += s->e[j][h] * s->normed[j][h * D + d];
            }
            for (int d = 0; d < D; d++) s->g[i][h * D + d] = sum[d] / s->denominator[i][h];
        }
    }
}

// With r_i = 1 / (sum_{W(i)} e + c) and sums over the positions i whose window contains j:
//
//   u_j = sum r_i d_g_i          t_j = sum r_i (d_g_i . g_i)
//   d_x'_j = e_j u_j + s / D  d_a_j w'                        d_a_j = e_j (x'_j . u_j - t_j)
//   d_w'   = sum_j s / D  d_a_j x'_j
static void pool_backward(const PoolState *s, int k, real d_g[T][C], real d_x[T][C],
                          real d_w[H][D]) {
    for (int h = 0; h < H; h++) {
        real d_w_normed[D] = {0};
        for (int j = 0; j < T; j++) {
            real u[D] = {0}, t = 0, dot = 0, d_normed[D];
            for (int i = j; i < j + k && i < T; i++)
                for (int d = 0; d < D; d++) {
                    u[d] += d_g[i][h * D + d] / s->denominator[i][h];
                    t += d_g[i][h * D + d] * s->g[i][h * D + d] / s->denominator[i][h];
                }
            for (int d = 0; d < D; d++) dot += s->normed[j][h * D + d] * u[d];
            const real d_dot = SCALE / D * s->e[j][h] * (dot - t);
            for (int d = 0; d < D; d++) {
                d_normed[d] = s->e[j][h] * u[d] + d_dot * s->w_normed[h][d];
                d_w_normed[d] += d_dot * s->normed[j][h * D + d];
            }
            normal_backward(s->normed[j] + h * D, s->deviation[j][h], d_normed, d_x[j] + h * D);
        }
        normal_backward(s->w_normed[h], s->w_deviation[h], d_w_normed, d_w[h]);
    }
}

// ---- A layer -----------------------------------------------------------------

//   n       = LayerNorm(x)
//   q, k, v = n W_qkv
//   G       = pool(q, w_q)          pooled queries: a summary of recent ones
//   P       = pool(G * k, w_k)      pooled keys; * is elementwise
//   x       = x + P * v
//   x       = x + GELU(LayerNorm(x) W_up) W_down
//
// GELU(z) = z Phi(z), where Phi is the cumulative distribution function of N(0, 1).
typedef struct {
    NormState norm, ffn_norm;
    real n[T][C], qkv[T][3][C];
    PoolState queries, keys;
    real product[T][C]; // G * k
    real middle[T][C];  // x after attention
    real ffn_n[T][C], hidden[T][F], active[T][F];
} LayerState;

static real phi(real z) {
    return 0.5 * (1 + erf(z / sqrt(2.0)));
}

static void layer_forward(real x[T][C], LayerParameters *p, int k, LayerState *s, real out[T][C]) {
    real queries[T][C], ffn[T][C];
    layernorm_forward(x, p->attention_gain, p->attention_bias, &s->norm, s->n);
    product_forward(s->n[0], p->qkv[0], s->qkv[0][0], T, C, 3 * C);
    for (int t = 0; t < T; t++) memcpy(queries[t], s->qkv[t][0], sizeof(queries[t]));
    pool_forward(queries, p->query, k, &s->queries);
    for (int t = 0; t < T; t++)
        for (int c = 0; c < C; c++) s->product[t][c] = s->queries.g[t][c] * s->qkv[t][1][c];
    pool_forward(s->product, p->key, k, &s->keys);
    for (int t = 0; t < T; t++)
        for (int c = 0; c < C; c++) s->middle[t][c] = x[t][c] + s->keys.g[t][c] * s->qkv[t][2][c];
    layernorm_forward(s->middle, p->ffn_gain, p->ffn_bias, &s->ffn_norm, s->ffn_n);
    product_forward(s->ffn_n[0], p->up[0], s->hidden[0], T, C, F);
    for (int t = 0; t < T; t++)
        for (int f = 0; f < F; f++) s->active[t][f] = s->hidden[t][f] * phi(s->hidden[t][f]);
    product_forward(s->active[0], p->down[0], ffn[0], T, F, C);
    for (int t = 0; t < T; t++)
        for (int c = 0; c < C; c++) out[t][c] = s->middle[t][c] + ffn[t][c];
}

// The same steps from last to first. d_out (T, C) is the gradient of the layer's output. Sets d_x
// (T, C) to the gradient of its input and adds the gradients of its parameters to d_p.
static void layer_backward(LayerParameters *p, int k, LayerState *s, real d_out[T][C],
                           real d_x[T][C], LayerParameters *d_p) {
    static real d_active[T][F], d_n[T][C], d_middle[T][C];
    static real d_g[T][C], d_product[T][C], d_q[T][C], d_qkv[T][3][C];
    memset(d_active, 0, sizeof(d_active));
    memset(d_n, 0, sizeof(d_n));
    memset(d_product, 0, sizeof(d_product));
    memset(d_q, 0, sizeof(d_q));
    memcpy(d_middle, d_out, sizeof(d_middle)); // through the x of x + ...
    product_backward(s->active[0], p->down[0], d_out[0], d_active[0], d_p->down[0], T, F, C);
    for (int t = 0; t < T; t++)
        for (int f = 0; f < F; f++) { // GELU'(z) = Phi(z) + z exp(-z^2 / 2) / sqrt(2 pi)
            const real z = s->hidden[t][f];
            d_active[t][f] *= phi(z) + z * exp(-z * z / 2) * 0.3989422804014327;
        }
    product_backward(s->ffn_n[0], p->up[0], d_active[0], d_n[0], d_p->up[0], T, C, F);
    layernorm_backward(&s->ffn_norm, p->ffn_gain, d_n, d_middle, d_p->ffn_gain, d_p->ffn_bias);

    memcpy(d_x, d_middle, sizeof(d_middle));
    for (int t = 0; t < T; t++)
        for (int c = 0; c < C; c++) {
            d_qkv[t][2][c] = d_middle[t][c] * s->keys.g[t][c];
            d_g[t][c] = d_middle[t][c] * s->qkv[t][2][c];
        }
    pool_backward(&s->keys, k, d_g, d_product, d_p->key);
    for (int t = 0; t < T; t++)
        for (int c = 0; c < C; c++) {
            d_qkv[t][1][c] = d_product[t][c] * s->queries.g[t][c];
            d_g[t][c] = d_product[t][c] * s->qkv[t][1][c];
        }
    pool_backward(&s->queries, k, d_g, d_q, d_p->query);
    for (int t = 0; t < T; t++) memcpy(d_qkv[t][0], d_q[t], sizeof(d_q[t]));
    memset(d_n, 0, sizeof(d_n));
    product_backward(s->n[0], p->qkv[0], d_qkv[0][0], d_n[0], d_p->qkv[0], T, C, 3 * C);
    layernorm_backward(&s->norm, p->attention_gain, d_n, d_x, d_p->attention_gain,
                       d_p->attention_bias);
}

// ---- The model ---------------------------------------------------------------

typedef struct {
    real x[L + 1][T][C]; // input of each layer, then the output of the last
    LayerState layer[L];
    NormState norm;
    real h[T][C];      // LayerNorm(x[L])
    real logits[T][V]; // h . token[v] + logit_bias[v]
} State;

static void model_forward(Parameters *p, const unsigned char *tokens, State *s) {
    for (int t = 0; t < T; t++)
        for (int c = 0; c < C; c++) s->x[0][t][c] = p->token[tokens[t]][c] + p->position[t][c];
    for (int l = 0; l < L; l++)
        layer_forward(s->x[l], &p->layer[l], window_of(l), &s->layer[l], s->x[l + 1]);
    layernorm_forward(s->x[L], p->gain, p->bias, &s->norm, s->h);
    for (int t = 0; t < T; t++)
        for (int v = 0; v < V; v++) {
            s->logits[t][v] = p->logit_bias[v];
            for (int c = 0; c < C; c++) s->logits[t][v] += s->h[t][c] * p->token[v][c];
        }
}

// p_v = exp(logit_v) / sum exp(logit). Subtracts the largest logit first so that exp() cannot
// overflow.
static void softmax(const real logits[V], real p[V]) {
    real largest = logits[0], sum = 0;
    for (int v = 1; v < V; v++) largest = logits[v] > largest ? logits[v] : largest;
    for (int v = 0; v < V; v++) sum += p[v] = exp(logits[v] - largest);
    for (int v = 0; v < V; v++) p[v] /= sum;
}

// Returns the mean of -log p(next token) over T positions; tokens (T + 1). If d_p is not NULL, adds
// `part` times the gradient to it. For one position, d_logit_v = p_v - (1 if v is the next token).
static real model_loss(Parameters *p, const unsigned char *tokens, State *s, Parameters *d_p,
                       real part) {
    static real d_h[T][C], d_x[T][C], d_in[T][C];
    real loss = 0, probability[V];
    model_forward(p, tokens, s);
    memset(d_h, 0, sizeof(d_h));
    for (int t = 0; t < T; t++) {
        softmax(s->logits[t], probability);
        loss -= log(probability[tokens[t + 1]]) / T;
        for (int v = 0; v < V && d_p; v++) {
            const real d_logit = part / T * (probability[v] - (v == tokens[t + 1]));
            d_p->logit_bias[v] += d_logit;
            for (int c = 0; c < C; c++) {
                d_h[t][c] += d_logit * p->token[v][c];
                d_p->token[v][c] += d_logit * s->h[t][c];
            }
        }
    }
    if (!d_p) return loss;
    memset(d_x, 0, sizeof(d_x));
    layernorm_backward(&s->norm, p->gain, d_h, d_x, d_p->gain, d_p->bias);
    for (int l = L - 1; l >= 0; l--) {
        memset(d_in, 0, sizeof(d_in));
        layer_backward(&p->layer[l], window_of(l), &s->layer[l], d_x, d_in, &d_p->layer[l]);
        memcpy(d_x, d_in, sizeof(d_x));
    }
    for (int t = 0; t < T; t++)
        for (int c = 0; c < C; c++) {
            d_p->token[tokens[t]][c] += d_x[t][c];
            d_p->position[t][c] += d_x[t][c];
        }
    return loss;
}

// ---- Training ----------------------------------------------------------------

// AdamW. g is the gradient, clipped to norm 1; m and v are running means of g and g^2:
//   m = b1 m + (1 - b1) g        v = b2 v + (1 - b2) g^2
//   p = p - rate (m / (1 - b1^step) / (sqrt(v / (1 - b2^step)) + eps) + decay p)
// Gains and biases do not decay. Returns the norm of the gradient before clipping.
static real update(Parameters *p, const Parameters *d_p, Parameters *m, Parameters *v, int step,
                   real rate) {
    const real *gradient = (const real *)d_p;
    real *value = (real *)p, *mean = (real *)m, *square = (real *)v, norm = 0;
    Tensor list[TENSORS];
    const int count = tensor_list(list);
    for (size_t i = 0; i < COUNT; i++) norm += gradient[i] * gradient[i];
    norm = sqrt(norm);
    for (int t = 0; t < count; t++)
        for (size_t i = list[t].offset; i < list[t].offset + list[t].count; i++) {
            const real g = norm > 1 ? gradient[i] / norm : gradient[i];
            mean[i] = BETA1 * mean[i] + (1 - BETA1) * g;
            square[i] = BETA2 * square[i] + (1 - BETA2) * g * g;
            const real m_hat = mean[i] / (1 - pow(BETA1, step));
            const real v_hat = square[i] / (1 - pow(BETA2, step));
            const real decay = list[t].kind == WEIGHT ? DECAY * value[i] : 0;
            value[i] -= rate * (m_hat / (sqrt(v_hat) + ADAM_EPS) + decay);
        }
    return norm;
}

// Runs `steps` updates of B sequences each, from random places. The learning rate falls linearly
// to 0.
static void train(Parameters *p, State *s, const unsigned char *text, size_t size, int steps) {
    Parameters *d_p = calloc(1, sizeof(*d_p)), *m = calloc(1, sizeof(*m)),
               *v = calloc(1, sizeof(*v));
    if (!d_p || !m || !v) exit(1);
    for (int step = 1; step <= steps; step++) {
        real loss = 0;
        memset(d_p, 0, sizeof(*d_p));
        for (int b = 0; b < B; b++) {
            const size_t place = (size_t)(uniform() * (real)(size - T));
            loss += model_loss(p, text + place, s, d_p, 1.0 / B) / B;
        }
        const real rate = RATE * (1 - (real)(step - 1) / steps);
        const real norm = update(p, d_p, m, v, step, rate);
        if (step % 10 == 0 || step == 1)
            printf("step %d/%d  loss %.4f  |g| %.2f\n", step, steps, loss, norm);
        fflush(stdout);
    }
    free(d_p);
    free(m);
    free(v);
}

// Writes the prompt and `length` more bytes. Each byte is drawn from the distribution that the
// model predicts from the last T bytes.
static void write_text(Parameters *p, State *s, const char *prompt, int length) {
    unsigned char tokens[T + 1] = {0};
    int count = 0;
    for (; prompt[count] && count < T; count++) tokens[count] = (unsigned char)prompt[count];
    printf("%s", prompt);
    for (int i = 0; i < length; i++) {
        real probability[V];
        model_forward(p, tokens, s); // causal: tokens from `count` on have no effect
        softmax(s->logits[count - 1], probability);
        real left = uniform();
        int next = 0;
        while (next + 1 < V && (left -= probability[next]) > 0) next++;
        putchar(next);
        if (count == T)
            memmove(tokens, tokens + 1, T - 1);
        else
            count++;
        tokens[count - 1] = (unsigned char)next;
    }
    putchar('\n');
}

// ---- The gradient check ------------------------------------------------------

// Compares 12 gradients of each tensor with (loss(p + d) - loss(p - d)) / 2d, at parameters far
// from their initial values. Returns whether all agree.
static int check(Parameters *p, State *s) {
    const real d = 1e-5, tolerance = 1e-6;
    unsigned char tokens[T + 1];
    Parameters *d_p = calloc(1, sizeof(*d_p));
    if (!d_p) exit(1);
    Tensor list[TENSORS];
    const int count = tensor_list(list);
    int right = 1;
    initialise(p, 0.2, 0.2);
    for (int t = 0; t <= T; t++) tokens[t] = (unsigned char)(uniform() * V);
    model_loss(p, tokens, s, d_p, 1);
    for (int t = 0; t < count; t++) {
        real worst = 0, largest = 0;
        for (int n = 0; n < 12; n++) {
            size_t i = list[t].offset + (size_t)(uniform() * (real)list[t].count);
            if (t == 0) i = (size_t)tokens[n] * C + (size_t)n; // a token that occurs in the text
            real *value = (real *)p + i;
            const real before = *value, gradient = ((const real *)d_p)[i];
            *value = before + d;
            const real above = model_loss(p, tokens, s, NULL, 0);
            *value = before - d;
            const real below = model_loss(p, tokens, s, NULL, 0);
            *value = before;
            worst = fmax(worst, fabs((above - below) / (2 * d) - gradient));
            largest = fmax(largest, fabs(gradient));
        }
        const int ok = worst <= tolerance * largest && largest > 0;
        printf("%s %-24s off by %.1e of %.1e\n", ok ? "ok  " : "FAIL", list[t].name, worst,
               largest);
        right = right && ok;
    }
    free(d_p);
    return right;
}

// Returns the bytes of a file, to be freed by the caller; NULL if it cannot be read.
static unsigned char *read_text(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    if (!file) return NULL;
    fseek(file, 0, SEEK_END);
    const long end = ftell(file);
    rewind(file);
    *size = end > 0 ? (size_t)end : 0;
    unsigned char *text = malloc(*size + 1);
    if (text) *size = fread(text, 1, *size, file);
    fclose(file);
    return text;
}

// Trains on a text file and generates text. Returns the exit status.
static int learn(Parameters *p, State *s, const char *path, int steps) {
    size_t size = 0;
    unsigned char *text = read_text(path, &size);
    const int usable = text && size > T;
    if (usable) {
        initialise(p, DEVIATION, 0);
        printf("%d parameters, %zu bytes of text\n", COUNT, size);
        train(p, s, text, size, steps);
        write_text(p, s, "\n", 500);
    } else {
        fprintf(stderr, "%s: %zu bytes, expected more than %d\n", path, size, T);
    }
    free(text);
    return usable ? 0 : 1;
}

int main(int argc, char **argv) {
    Parameters *p = calloc(1, sizeof(*p));
    State *s = calloc(1, sizeof(*s));
    const int steps = argc == 3 ? atoi(argv[2]) : 300;
    int status = 1;
    if (p && s && argc == 2 && strcmp(argv[1], "--check") == 0)
        status = check(p, s) ? 0 : 1;
    else if (p && s && (argc == 2 || argc == 3) && steps >= 1)
        status = learn(p, s, argv[1], steps);
    else
        fprintf(stderr, "usage: plain FILE [STEPS], FILE being a text; or plain --check\n");
    free(p);
    free(s);
    return status;
}
