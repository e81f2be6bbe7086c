#include "muon.h"

#include "memory.h"
#include "muon_constants.h"
#include "threads.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TILE = 16 };

#define WHAT "orthogonalisation"

// A matrix is stored here with its longer side down, (K, N) with K >= N, so that x^T x (N, N) is
// the smaller of the two products with itself.
typedef struct {
    size_t k, n;
} Shape;

// Working memory of one thread. Each thread processes whole matrices: there are many small ones.
typedef struct {
    Gemm *gemm;
    real *values;         // (K, N)
    Matrix x;             // (K, N) the same in the type of the products
    real *gram, *square;  // (N, N) x^T x and (x^T x)^2
    Matrix gram_input;    // (N, N)
    GemmWeight **weights; // (side_count) (N, N)
} Workspace;

struct Muon {
    size_t *sides; // (side_count) the distinct N
    size_t side_count;
    Shape largest;    // (K, N)
    Workspace *works; // (threads)
    int threads;
};

static Shape shape_of(const Parameter *p) {
    const size_t rows = (size_t)p->shape[0], columns = (size_t)p->shape[1];
    return rows >= columns ? (Shape){rows, columns} : (Shape){columns, rows};
}

// ---- memory -----------------------------------------------------------------

static size_t side_index(const Muon *muon, size_t n) {
    size_t i = 0;
    while (i < muon->side_count && muon->sides[i] != n) i++;
    return i;
}

static void workspace_create(Workspace *w, const Muon *muon, Gemm *gemm) {
    w->gemm = gemm_create_serial(gemm);
    w->weights = allocate(muon->side_count, sizeof(GemmWeight *), WHAT);
    for (size_t i = 0; i < muon->side_count; i++)
        w->weights[i] =
            gemm_weight_create(gemm, muon->sides[i], muon->sides[i], WEIGHT_OUT_IN, WHAT);
}

Muon *muon_create(Gemm *gemm, const ParameterTable *table) {
    Muon *muon = allocate(1, sizeof(*muon), WHAT);
    Shape *largest = &muon->largest;
    int matrices = 0;
    *largest = (Shape){1, 1};
    for (int i = 0; i < table->count; i++) {
        if (!table->items[i].hidden) continue;
        const Shape shape = shape_of(&table->items[i]);
        largest->k = shape.k > largest->k ? shape.k : largest->k;
        largest->n = shape.n > largest->n ? shape.n : largest->n;
        matrices++;
        if (side_index(muon, shape.n) < muon->side_count) continue;
        muon->sides = grow_list(muon->sides, muon->side_count, sizeof(size_t), WHAT);
        muon->sides[muon->side_count++] = shape.n;
    }
    muon->threads = matrices < thread_limit() ? matrices : thread_limit();
    muon->works = allocate((size_t)muon->threads, sizeof(Workspace), WHAT);
    for (int i = 0; i < muon->threads; i++) workspace_create(&muon->works[i], muon, gemm);
    return muon;
}

void muon_carve(Muon *muon, Arena *arena) {
    const size_t K = muon->largest.k, N = muon->largest.n;
    for (int i = 0; i < muon->threads; i++) {
        Workspace *w = &muon->works[i];
        w->values = arena_reals(arena, K, N, WHAT);
        w->x = gemm_input_carve(w->gemm, arena, K, N, WHAT);
        w->gram = arena_reals(arena, N, N, WHAT);
        w->square = arena_reals(arena, N, N, WHAT);
        w->gram_input = gemm_input_carve(w->gemm, arena, N, N, WHAT);
        for (size_t j = 0; j < muon->side_count; j++) gemm_weight_carve(w->weights[j], arena);
    }
}

void muon_free(Muon *muon) {
    if (!muon) return;
    for (int i = 0; i < muon->threads; i++) {
        Workspace *w = &muon->works[i];
        for (size_t j = 0; j < muon->side_count; j++) gemm_weight_free(w->weights[j]);
        free(w->weights);
        gemm_free(w->gemm);
    }
    free(muon->works);
    free(muon->sides);
    free(muon);
}

// ---- one matrix -------------------------------------------------------------
// out (columns, rows) = in (rows, columns) transposed
static void transpose(real *restrict out, const real *restrict in, size_t rows, size_t columns) {
    for (size_t i = 0; i < rows; i += TILE)
        for (size_t j = 0; j < columns; j += TILE)
            for (size_t r = i; r < rows && r < i + TILE; r++)
                for (size_t c = j; c < columns && c < j + TILE; c++)
                    out[c * rows + r] = in[r * columns + c];
}

// m += (1 - momentum) (scale g - m); g = scale g + momentum (m - scale g), the matrix to
// orthogonalise.
static void add_momentum(real *restrict m, real *restrict g, real scale, size_t count) {
    const real momentum = (real)MUON_MOMENTUM, rest = (real)(1 - MUON_MOMENTUM);
    for (size_t i = 0; i < count; i++) {
        const real gradient = scale * g[i], mean = m[i] + rest * (gradient - m[i]);
        m[i] = mean;
        g[i] = gradient + momentum * (mean - gradient);
    }
}

// x = x / max(|x|, epsilon)
static void normalise(real *x, size_t count) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < count; i++) sum += (double)x[i] * (double)x[i];
    const real scale = (real)(1 / fmax(sqrt(sum), MUON_EPSILON));
    for (size_t i = 0; i < count; i++) x[i] *= scale;
}

// gram (N, N) = a I + b gram + c square
static void polynomial(real *restrict gram, const real *restrict square, size_t n) {
    const real a = (real)MUON_A, b = (real)MUON_B, c = (real)MUON_C;
    for (size_t i = 0; i < n * n; i++) gram[i] = b * gram[i] + c * square[i];
    for (size_t i = 0; i < n; i++) gram[i * n + i] += a;
}

// out (N, N) = x^T x for x (rows, N)
static void multiply_by_itself(const Workspace *w, const GemmWeight *shape, real *out, Matrix x,
                               size_t rows) {
    memset(out, 0, x.columns * x.columns * sizeof(real));
    gemm_backward_weight(w->gemm, out, x, x, shape, rows);
}

// Five Newton-Schulz steps on w->values (K, N): x = x (a + b x^T x + c (x^T x)^2).
static void orthogonalise(const Workspace *w, GemmWeight *weight, Shape shape) {
    const size_t k = shape.k, n = shape.n;
    Matrix x = w->x, gram = w->gram_input;
    x.columns = gram.columns = n;
    normalise(w->values, k * n);
    for (int step = 0; step < MUON_STEPS; step++) {
        gemm_input_store_rows(x, 0, 0, w->values, k, n);
        multiply_by_itself(w, weight, w->gram, x, k);
        gemm_input_store_rows(gram, 0, 0, w->gram, n, n);
        multiply_by_itself(w, weight, w->square, gram, n);
        polynomial(w->gram, w->square, n);
        gemm_weight_pack(weight, w->gram); // it is symmetric
        gemm_forward(w->gemm, w->values, x, weight, k);
    }
}

// p (R, K) -= rate o + decay p
static void step_along(real *restrict p, const real *restrict o, real rate, real decay,
                       size_t count) {
    for (size_t i = 0; i < count; i++) p[i] -= rate * o[i] + decay * p[i];
}

static void update_matrix(const Workspace *w, GemmWeight *weight, const Parameter *p,
                          ParameterState *state, const UpdateSettings *s) {
    const size_t rows = (size_t)p->shape[0], columns = (size_t)p->shape[1];
    const Shape shape = shape_of(p);
    real *g = state->gradients + p->offset;
    add_momentum(state->first_moment + p->offset, g, (real)s->gradient_scale, p->size);
    if (rows < columns)
        transpose(w->values, g, rows, columns);
    else
        memcpy(w->values, g, p->size * sizeof(real));
    orthogonalise(w, weight, shape);
    const real *result = w->values;
    if (rows < columns) {
        transpose(g, result, columns, rows);
        result = g;
    }
    step_along(state->values + p->offset, result,
               (real)(s->learning_rate * MUON_REACH * sqrt((double)shape.k)),
               p->decay ? (real)(s->learning_rate * s->weight_decay) : 0, p->size);
    memset(g, 0, p->size * sizeof(real));
}

void muon_update(Muon *muon, ParameterState *state, const UpdateSettings *settings) {
#pragma omp parallel for schedule(dynamic) num_threads(muon->threads)
    for (int i = 0; i < state->table.count; i++) {
        const Parameter *p = &state->table.items[i];
        if (!p->hidden) continue;
        const Workspace *w = &muon->works[thread_index()];
        update_matrix(w, w->weights[side_index(muon, shape_of(p).n)], p, state, settings);
    }
}
