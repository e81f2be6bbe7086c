// Processes queries, keys and values between their projection and any kind of attention: adds the
// bias, normalises queries and keys per head (--scores), rotates them by their position (rotary
// positions, Su et al., "RoFormer", 2021), and copies the keys and values of a group of heads to
// each of its heads (Ainslie et al., "GQA", 2023). No kind of attention needs to know about this.
//
//   plain      nothing                           s_ij = q . k / sqrt(D)
//   rescaled   q = (s / sqrt(D)) normal(q), k = normal(k)       (s / D) normal(q) . normal(k)
//   qknorm     q = gain x / sqrt(mean(x^2) + epsilon), k likewise, as in Qwen 3
//
// with normal(u) = (u - mean(u)) / (std(u) + 1e-5), where std has D - 1 in the denominator. The
// halves of a head are rotated as in Hugging Face's Llama: elements d and d + D/2 by the angle of
// pair d.
//
// M rows, in sequences of T positions; H heads, H' heads of keys and values, D channels per head.
#ifndef CPU_QUERY_KEY_H
#define CPU_QUERY_KEY_H

#include "attention_type.h"
#include "gemm.h"
#include "real.h"
#include <stddef.h>

typedef struct {
    size_t heads, groups, size; // H, H' (which divides H), D
    ScoresKind scores;
    double rescale;     // s
    double epsilon;     // of qknorm
    const real *angles; // (positions, D) from rotary_angles(); NULL: no rotation
} QueryKeyShape;

// The shape of a layer that prepares queries and keys.
QueryKeyShape query_key_shape(const AttentionPlan *plan, size_t channels, size_t heads,
                              const real *angles);

// angles (positions, D): the cosines of each position's D/2 angles, then their sines. D is even.
void rotary_angles(real *angles, Rotary rotary, size_t positions, size_t size);

// y (M, 3HD) from x (M, (H + 2H') D); a row holds queries, keys, values. bias ((H + 2H') D) or
// NULL. gains (2, D): those of qknorm for queries and for keys.
void query_key_forward(real *restrict y, const real *restrict x, const real *restrict bias,
                       const real *restrict gains, const QueryKeyShape *shape, size_t length,
                       size_t m);

// dx (M, (H + 2H') D), the input of the next products, from dy (M, 3HD); dbias and dgains +=. The
// result has the same bits for any number of threads.
void query_key_backward(Matrix dx, real *restrict dbias, real *restrict dgains,
                        const real *restrict dy, const real *restrict x, const real *restrict bias,
                        const real *restrict gains, const QueryKeyShape *shape, size_t length,
                        size_t m);

// One row at a position, for decoding: y (3HD) from x ((H + 2H') D).
void query_key_row(real *restrict y, const real *restrict x, const real *restrict bias,
                   const real *restrict gains, const QueryKeyShape *shape, size_t position);

#endif
