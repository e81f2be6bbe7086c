// Products through oneDNN's matmul primitive.
#ifdef USE_ONEDNN

#include "arena.h"
#include "gemm.h"
#include "onednn.h"
#include "threads.h"
#include "weight_gradient.h"
#include <stdio.h>
#include <string.h>

typedef enum { PRODUCT_FORWARD, PRODUCT_INPUT, PRODUCT_INPUT_ADD, PRODUCT_WEIGHT } ProductKind;

// A product of one kind and shape, compiled by oneDNN: c = a b or c += a b. `b` is NULL if the
// weight has its own memory object.
typedef struct {
    ProductKind kind;
    WeightLayout layout; // for PRODUCT_WEIGHT
    size_t m, n, k;
    uint64_t last_use;
    dnnl_primitive_t primitive;
    dnnl_memory_t a, b, c, scratch;
    size_t scratch_size;
} Plan;

// There are few shapes: those of the layers, and those of a short last batch. If there are more
// than PLAN_MAX, a new plan replaces the least recently used one.
enum { PLAN_MAX = 64 };

struct Gemm {
    Precision precision;
    bool own_gradient;  // weight_gradient() computes dw, if it suits
    const Gemm *parent; // of a serial handle, which uses its engine; else NULL
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    Plan plans[PLAN_MAX];
    int plan_count;
    uint64_t uses;
    void *scratch;
    size_t scratch_size;
    char library[32];
};

// A weight packed as the right-hand matrix of one kind of product.
typedef struct {
    MatrixLayout layout;
    void *data;
    dnnl_memory_t from, to;
    dnnl_primitive_t reorder;
} Packing;

struct GemmWeight {
    const Gemm *gemm;
    size_t n, k;
    WeightLayout layout;
    Packing forward, backward; // (K, N) for y = x w^T, (N, K) for dx = dy w
    const char *what;          // the arena's name for them
};

// The packing is chosen for a product with this many rows and used for any other number, too.
enum { TYPICAL_ROWS = 1024 };

static dnnl_data_type_t input_type(const Gemm *gemm) {
    return gemm->precision == PRECISION_BFLOAT16 ? dnnl_bf16 : dnnl_f32;
}

static MatrixLayout row_major(size_t rows, size_t columns, dnnl_data_type_t type) {
    return layout_strided((dnnl_dims_t){(dnnl_dim_t)rows, (dnnl_dim_t)columns}, type,
                          (dnnl_dims_t){(dnnl_dim_t)columns, 1});
}

// A row-major (columns, rows) matrix read as its transpose (rows, columns).
static MatrixLayout column_major(size_t rows, size_t columns, dnnl_data_type_t type) {
    return layout_strided((dnnl_dims_t){(dnnl_dim_t)rows, (dnnl_dim_t)columns}, type,
                          (dnnl_dims_t){1, (dnnl_dim_t)rows});
}

// Describes c = a b or c += a b. The caller provides scratch memory, so that threads can share a
// primitive.
static dnnl_status_t describe(dnnl_primitive_desc_t *description, dnnl_engine_t engine,
                              ConstMatrixLayout a, ConstMatrixLayout b, ConstMatrixLayout c,
                              bool add) {
    dnnl_primitive_attr_t attributes;
    onednn_check(dnnl_primitive_attr_create(&attributes), "create attributes");
    onednn_check(dnnl_primitive_attr_set_scratchpad_mode(attributes, dnnl_scratchpad_mode_user),
                 "set the scratchpad mode");
    if (add) {
        dnnl_post_ops_t operations;
        onednn_check(dnnl_post_ops_create(&operations), "create post-operations");
        onednn_check(append_sum(operations), "append a sum");
        onednn_check(dnnl_primitive_attr_set_post_ops(attributes, operations),
                     "set post-operations");
        onednn_check(dnnl_post_ops_destroy(operations), "free post-operations");
    }
    const dnnl_status_t status = describe_product(description, engine, a, b, c, attributes);
    onednn_check(dnnl_primitive_attr_destroy(attributes), "free attributes");
    return status;
}

static dnnl_memory_t memory_of(ConstMatrixLayout layout, dnnl_engine_t engine, void *data) {
    dnnl_memory_t memory;
    onednn_check(dnnl_memory_create(&memory, layout, engine, data), "create a memory object");
    return memory;
}

// ---- handles ----------------------------------------------------------------

bool gemm_supports(Precision precision) {
    if (precision == PRECISION_FLOAT32) return true;
#if defined(__x86_64__)
    const unsigned have = (unsigned)dnnl_get_effective_cpu_isa(),
                   need = (unsigned)dnnl_cpu_isa_avx512_core_bf16;
    return (have & need) == need;
#else
    // On other processors, bf16 counts as unsupported if oneDNN falls back to its reference code.
    dnnl_engine_t engine;
    onednn_check(dnnl_engine_create(&engine, dnnl_cpu, 0), "create an engine");
    MatrixLayout a = row_major(TYPICAL_ROWS, 256, dnnl_bf16),
                 c = row_major(TYPICAL_ROWS, 256, dnnl_f32);
    MatrixLayout b = layout_any((dnnl_dims_t){256, 256}, dnnl_bf16);
    dnnl_primitive_desc_t description;
    bool fast = false;
    if (describe(&description, engine, a, b, c, false) == dnnl_success) {
        const char *name = "";
        onednn_check(dnnl_primitive_desc_query(description, dnnl_query_impl_info_str, 0, &name),
                     "name a product");
        fast = !strstr(name, "ref");
        onednn_check(dnnl_primitive_desc_destroy(description), "free a description");
    }
    layout_free(a);
    layout_free(b);
    layout_free(c);
    onednn_check(dnnl_engine_destroy(engine), "free the engine");
    return fast;
#endif
}

Gemm *gemm_create(Precision precision) {
    if (!gemm_supports(precision))
        fail("bf16 products: this processor has no instructions for them that oneDNN %d.%d uses; "
             "use float32",
             dnnl_version()->major, dnnl_version()->minor);
    threads_settle();
    Gemm *gemm = allocate(1, sizeof(*gemm), "a GEMM handle");
    gemm->precision = precision;
    gemm->own_gradient = precision == PRECISION_BFLOAT16 && weight_gradient_available();
    onednn_check(dnnl_engine_create(&gemm->engine, dnnl_cpu, 0), "create an engine");
    onednn_check(dnnl_stream_create(&gemm->stream, gemm->engine, dnnl_stream_default_flags),
                 "create a stream");
    char *name = gemm_library_name();
    snprintf(gemm->library, sizeof(gemm->library), "%s", name);
    free(name);
    return gemm;
}

Gemm *gemm_create_serial(const Gemm *parent) {
    Gemm *gemm = allocate(1, sizeof(*gemm), "a GEMM handle");
    gemm->precision = parent->precision;
    gemm->own_gradient = parent->own_gradient;
    gemm->parent = parent;
    gemm->engine = parent->engine;
    onednn_check(dnnl_stream_create(&gemm->stream, gemm->engine, dnnl_stream_default_flags),
                 "create a stream");
    memcpy(gemm->library, parent->library, sizeof(gemm->library));
    return gemm;
}

static void plan_free(Plan *plan) {
    onednn_check(dnnl_primitive_destroy(plan->primitive), "free a product");
    onednn_check(dnnl_memory_destroy(plan->a), "free a memory object");
    if (plan->b) onednn_check(dnnl_memory_destroy(plan->b), "free a memory object");
    onednn_check(dnnl_memory_destroy(plan->c), "free a memory object");
    onednn_check(dnnl_memory_destroy(plan->scratch), "free a memory object");
}

void gemm_free(Gemm *gemm) {
    if (!gemm) return;
    for (int i = 0; i < gemm->plan_count; i++) plan_free(&gemm->plans[i]);
    onednn_check(dnnl_stream_destroy(gemm->stream), "free the stream");
    if (!gemm->parent) onednn_check(dnnl_engine_destroy(gemm->engine), "free the engine");
    free(gemm->scratch);
    free(gemm);
}

const char *gemm_library(const Gemm *gemm) {
    return gemm->library;
}

char *gemm_library_name(void) {
    return format_string("oneDNN %d.%d", dnnl_version()->major, dnnl_version()->minor);
}

Precision gemm_precision(const Gemm *gemm) {
    return gemm->precision;
}

// ---- weights ----------------------------------------------------------------
// Lets oneDNN choose the packing of the right-hand matrix (rows, columns) of a product, and
// prepares the packing from `source`, the same matrix in float32. The size in bytes is known once
// oneDNN has chosen, before any memory is allocated.
static Packing packing_create(const Gemm *gemm, size_t rows, size_t columns, MatrixLayout source) {
    Packing packing = {0};
    MatrixLayout a = row_major(TYPICAL_ROWS, rows, input_type(gemm));
    MatrixLayout b =
        layout_any((dnnl_dims_t){(dnnl_dim_t)rows, (dnnl_dim_t)columns}, input_type(gemm));
    MatrixLayout c = row_major(TYPICAL_ROWS, columns, dnnl_f32);
    dnnl_primitive_desc_t description;
    onednn_check(describe(&description, gemm->engine, a, b, c, false),
                 "choose how a weight is packed");
    packing.layout =
        layout_copy(dnnl_primitive_desc_query_md(description, dnnl_query_weights_md, 0));
    onednn_check(dnnl_primitive_desc_destroy(description), "free a description");
    layout_free(a);
    layout_free(b);
    layout_free(c);

    packing.from = memory_of(source, gemm->engine, DNNL_MEMORY_NONE);
    packing.to = memory_of(packing.layout, gemm->engine, DNNL_MEMORY_NONE);
    onednn_check(dnnl_reorder_primitive_desc_create(&description, source, gemm->engine,
                                                    packing.layout, gemm->engine, NULL),
                 "describe a packing");
    onednn_check(dnnl_primitive_create(&packing.reorder, description), "create a packing");
    onednn_check(dnnl_primitive_desc_destroy(description), "free a description");
    layout_free(source);
    return packing;
}

static void packing_carve(Packing *packing, Arena *arena, const char *what) {
    packing->data = arena_array(arena, dnnl_memory_desc_get_size(packing->layout), 1, what);
}

static void packing_free(Packing *packing) {
    onednn_check(dnnl_primitive_destroy(packing->reorder), "free a packing");
    onednn_check(dnnl_memory_destroy(packing->from), "free a memory object");
    onednn_check(dnnl_memory_destroy(packing->to), "free a memory object");
    layout_free(packing->layout);
}

GemmWeight *gemm_weight_create(Gemm *gemm, size_t n, size_t k, WeightLayout layout,
                               const char *what) {
    if (n == 0 || k == 0 || n > INT32_MAX || k > INT32_MAX)
        fail("%s: a weight of %zu outputs and %zu inputs; each must be from 1 to %d", what, n, k,
             INT32_MAX);
    GemmWeight *weight = allocate(1, sizeof(*weight), what);
    weight->gemm = gemm;
    weight->n = n;
    weight->k = k;
    weight->layout = layout;
    const bool rows_are_outputs = layout == WEIGHT_OUT_IN;
    weight->what = what;
    weight->forward = packing_create(
        gemm, k, n, rows_are_outputs ? column_major(k, n, dnnl_f32) : row_major(k, n, dnnl_f32));
    weight->backward = packing_create(
        gemm, n, k, rows_are_outputs ? row_major(n, k, dnnl_f32) : column_major(n, k, dnnl_f32));
    return weight;
}

void gemm_weight_carve(GemmWeight *weight, Arena *arena) {
    packing_carve(&weight->forward, arena, weight->what);
    packing_carve(&weight->backward, arena, weight->what);
}

void gemm_weight_free(GemmWeight *weight) {
    if (!weight) return;
    packing_free(&weight->forward);
    packing_free(&weight->backward);
    free(weight);
}

static void pack(Packing *packing, dnnl_stream_t stream, const real *values) {
    // oneDNN takes a pointer to non-const even for data that it only reads.
    onednn_check(dnnl_memory_set_data_handle(packing->from, (void *)values), "set a matrix");
    onednn_check(dnnl_memory_set_data_handle(packing->to, packing->data), "set a packed matrix");
    const dnnl_exec_arg_t arguments[] = {{DNNL_ARG_FROM, packing->from},
                                         {DNNL_ARG_TO, packing->to}};
    onednn_check(dnnl_primitive_execute(packing->reorder, stream, 2, arguments), "pack a weight");
}

void gemm_weight_pack(GemmWeight *weight, const real *values) {
    pack(&weight->forward, weight->gemm->stream, values);
    pack(&weight->backward, weight->gemm->stream, values);
}

// ---- products ---------------------------------------------------------------
// The layouts of a product's three matrices; b belongs to the weight except for PRODUCT_WEIGHT.
typedef struct {
    MatrixLayout a, b, c;
} ProductLayouts;

static ProductLayouts product_layouts(const Gemm *gemm, ProductKind kind, const GemmWeight *weight,
                                      size_t m) {
    const dnnl_data_type_t type = input_type(gemm);
    const size_t n = weight->n, k = weight->k;
    switch (kind) {
    case PRODUCT_FORWARD:
        return (ProductLayouts){row_major(m, k, type), weight->forward.layout,
                                row_major(m, n, dnnl_f32)};
    case PRODUCT_INPUT:
    case PRODUCT_INPUT_ADD:
        return (ProductLayouts){row_major(m, n, type), weight->backward.layout,
                                row_major(m, k, dnnl_f32)};
    case PRODUCT_WEIGHT:
        break;
    }
    const bool rows_are_outputs = weight->layout == WEIGHT_OUT_IN;
    const size_t rows = rows_are_outputs ? n : k, columns = rows_are_outputs ? k : n;
    return (ProductLayouts){column_major(rows, m, type), row_major(m, columns, type),
                            row_major(rows, columns, dnnl_f32)};
}

// A plan keeps the number of OpenMP threads at the time when it is created.
static dnnl_primitive_t create_primitive(const Gemm *gemm, const ProductLayouts *layouts, bool add,
                                         dnnl_primitive_desc_t *description) {
#ifdef _OPENMP
    const int threads = omp_get_max_threads();
    if (gemm->parent) omp_set_num_threads(1);
#endif
    onednn_check(describe(description, gemm->engine, layouts->a, layouts->b, layouts->c, add),
                 "describe a product");
    dnnl_primitive_t primitive;
    onednn_check(dnnl_primitive_create(&primitive, *description), "create a product");
#ifdef _OPENMP
    omp_set_num_threads(threads);
#endif
    return primitive;
}

static void plan_create(Plan *plan, const Gemm *gemm, ProductKind kind, const GemmWeight *weight,
                        size_t m) {
    const ProductLayouts layouts = product_layouts(gemm, kind, weight, m);
    const bool own_b = kind == PRODUCT_WEIGHT,
               add = kind != PRODUCT_FORWARD && kind != PRODUCT_INPUT;
    dnnl_primitive_desc_t description;
    *plan =
        (Plan){kind, weight->layout, m, weight->n, weight->k, 0, NULL, NULL, NULL, NULL, NULL, 0};
    plan->primitive = create_primitive(gemm, &layouts, add, &description);
    ConstMatrixLayout scratch =
        dnnl_primitive_desc_query_md(description, dnnl_query_scratchpad_md, 0);
    plan->scratch_size = dnnl_memory_desc_get_size(scratch);
    plan->scratch = memory_of(scratch, gemm->engine, DNNL_MEMORY_NONE);
    onednn_check(dnnl_primitive_desc_destroy(description), "free a description");

    plan->a = memory_of(layouts.a, gemm->engine, DNNL_MEMORY_NONE);
    plan->b = own_b ? memory_of(layouts.b, gemm->engine, DNNL_MEMORY_NONE) : NULL;
    plan->c = memory_of(layouts.c, gemm->engine, DNNL_MEMORY_NONE);
    layout_free(layouts.a);
    if (own_b) layout_free(layouts.b);
    layout_free(layouts.c);
}

static bool plan_matches(const Plan *plan, ProductKind kind, const GemmWeight *weight, size_t m) {
    return plan->m == m && plan->n == weight->n && plan->k == weight->k && plan->kind == kind &&
           (kind != PRODUCT_WEIGHT || plan->layout == weight->layout);
}

static Plan *plan_find(Gemm *gemm, ProductKind kind, const GemmWeight *weight, size_t m) {
    Plan *oldest = &gemm->plans[0];
    for (int i = 0; i < gemm->plan_count; i++) {
        Plan *plan = &gemm->plans[i];
        if (plan_matches(plan, kind, weight, m)) return plan;
        if (plan->last_use < oldest->last_use) oldest = plan;
    }
    Plan *plan = oldest;
    if (gemm->plan_count < PLAN_MAX)
        plan = &gemm->plans[gemm->plan_count++];
    else
        plan_free(oldest);
    plan_create(plan, gemm, kind, weight, m);
    return plan;
}

// The scratch size of a product is known only once the product is created, at its first use, so the
// arena does not count it. It amounts to a few blocks of a matrix per thread.
static void *scratch_memory(Gemm *gemm, size_t size) {
    if (size > gemm->scratch_size) {
        free(gemm->scratch);
        gemm->scratch = allocate(size, 1, "the GEMM's scratch memory");
        gemm->scratch_size = size;
    }
    return gemm->scratch;
}

// `right` is the packed weight; if it is NULL, b is the right-hand matrix.
static void product(Gemm *gemm, ProductKind kind, const GemmWeight *weight, size_t m, void *a,
                    dnnl_memory_t right, void *b, void *c) {
    Plan *plan = plan_find(gemm, kind, weight, m);
    plan->last_use = ++gemm->uses;
    onednn_check(dnnl_memory_set_data_handle(plan->a, a), "set a matrix");
    if (!right) onednn_check(dnnl_memory_set_data_handle(plan->b, b), "set a matrix");
    onednn_check(dnnl_memory_set_data_handle(plan->c, c), "set a matrix");
    void *scratch = scratch_memory(gemm, plan->scratch_size);
    onednn_check(dnnl_memory_set_data_handle(plan->scratch, scratch), "set the scratch memory");
    const dnnl_exec_arg_t arguments[] = {{DNNL_ARG_SRC, plan->a},
                                         {DNNL_ARG_WEIGHTS, right ? right : plan->b},
                                         {DNNL_ARG_DST, plan->c},
                                         {DNNL_ARG_SCRATCHPAD, plan->scratch}};
    onednn_check(dnnl_primitive_execute(plan->primitive, gemm->stream, 4, arguments), "multiply");
}

void gemm_forward(Gemm *gemm, real *y, Matrix x, const GemmWeight *weight, size_t m) {
    gemm_check_input(gemm, x, m, weight->k, "x");
    if (m > 0) product(gemm, PRODUCT_FORWARD, weight, m, x.data, weight->forward.to, NULL, y);
}

void gemm_backward_input(Gemm *gemm, real *dx, Matrix dy, const GemmWeight *weight, size_t m) {
    gemm_check_input(gemm, dy, m, weight->n, "dy");
    if (m > 0) product(gemm, PRODUCT_INPUT, weight, m, dy.data, weight->backward.to, NULL, dx);
}

void gemm_backward_input_add(Gemm *gemm, real *dx, Matrix dy, const GemmWeight *weight, size_t m) {
    gemm_check_input(gemm, dy, m, weight->n, "dy");
    if (m > 0) product(gemm, PRODUCT_INPUT_ADD, weight, m, dy.data, weight->backward.to, NULL, dx);
}

void gemm_backward_weight(Gemm *gemm, real *dw, Matrix dy, Matrix x, const GemmWeight *weight,
                          size_t m) {
    gemm_check_input(gemm, dy, m, weight->n, "dy");
    gemm_check_input(gemm, x, m, weight->k, "x");
    const bool rows_are_outputs = weight->layout == WEIGHT_OUT_IN;
    const Matrix left = rows_are_outputs ? dy : x, right = rows_are_outputs ? x : dy;
    if (m == 0) return;
    if (gemm->own_gradient && weight_gradient_suits(left.columns, right.columns)) {
        const int threads = gemm->parent ? 1 : thread_limit();
        weight_gradient(dw, left.data, right.data, left.columns, right.columns, m,
                        scratch_memory(gemm, weight_gradient_scratch(threads)), threads);
    } else
        product(gemm, PRODUCT_WEIGHT, weight, m, left.data, NULL, right.data, dw);
}

#endif
