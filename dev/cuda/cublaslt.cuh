// The products of gemm.cuh through cuBLASLt. Part of gemm.cuh.
#ifndef CUDA_CUBLASLT_CUH
#define CUDA_CUBLASLT_CUH

#include <cublasLt.h>

// The library's choice for a product.
struct BlasPlan {
    BlasProduct product;
    bool supported;
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algorithm;
};

static constexpr int BLAS_PLANS = 128;         // maximum number of cached plans
static constexpr uint32_t BLAS_ALIGNMENT = 16; // bytes: parameters are aligned to 16 elements
static constexpr size_t BLAS_WORKSPACE = (size_t)32 << 20; // NVIDIA's recommendation for Hopper

struct Blas {
    const Device *device;
    bool tf32; // float32 products run as TF32
    cublasLtHandle_t library;
    void *workspace; // (BLAS_WORKSPACE)
    BlasPlan plans[BLAS_PLANS];
    int plan_count, oldest;
    char name[32];
};

static inline void blas_check(cublasStatus_t status, const char *call) {
    if (status != CUBLAS_STATUS_SUCCESS)
        fail("cuBLASLt: %s (%s)", cublasLtGetStatusString(status), call);
}

#define BLAS_CHECK(call) blas_check(call, #call)

static inline void blas_create(Blas *blas, const Device *device, bool tf32) {
    *blas = {};
    blas->device = device;
    blas->tf32 = tf32;
    BLAS_CHECK(cublasLtCreate(&blas->library));
    const size_t version = cublasLtGetVersion(); // 10000 major + 100 minor + patch
    snprintf(blas->name, sizeof(blas->name), "cuBLASLt %zu.%zu", version / 10000,
             version / 100 % 100);
}

static inline void blas_forget(BlasPlan *plan) {
    BLAS_CHECK(cublasLtMatmulDescDestroy(plan->operation));
    BLAS_CHECK(cublasLtMatrixLayoutDestroy(plan->a));
    BLAS_CHECK(cublasLtMatrixLayoutDestroy(plan->b));
    BLAS_CHECK(cublasLtMatrixLayoutDestroy(plan->d));
}

static inline void blas_destroy(Blas *blas) {
    for (int i = 0; i < blas->plan_count; i++) blas_forget(&blas->plans[i]);
    BLAS_CHECK(cublasLtDestroy(blas->library));
}

static inline void blas_workspace(Blas *blas, DeviceArena *a) {
    blas->workspace = arena_carve(a, BLAS_WORKSPACE, 1, "cuBLASLt");
}

static inline const char *blas_library(const Blas *blas) {
    return blas->name;
}

// Layout of `count` matrices that start `step` elements apart.
static inline cublasLtMatrixLayout_t blas_layout(bool in_bf16, bool transposed, size_t rows,
                                                 size_t columns, size_t ld, size_t count,
                                                 size_t step) {
    cublasLtMatrixLayout_t layout;
    const int32_t batch = (int32_t)count;
    const int64_t offset = (int64_t)step;
    BLAS_CHECK(cublasLtMatrixLayoutCreate(&layout, in_bf16 ? CUDA_R_16BF : CUDA_R_32F,
                                          transposed ? columns : rows, transposed ? rows : columns,
                                          (int64_t)ld));
    BLAS_CHECK(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch,
                                                sizeof(batch)));
    BLAS_CHECK(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                                &offset, sizeof(offset)));
    return layout;
}

template <typename T>
static inline void blas_set(cublasLtMatmulDesc_t operation,
                            cublasLtMatmulDescAttributes_t attribute, T value) {
    BLAS_CHECK(cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof(value)));
}

// Sets the attributes of the operation; pointers are set on each call.
static inline void blas_describe(const Blas *blas, BlasPlan *plan) {
    static const cublasLtEpilogue_t epilogues[] = {
        CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
        CUBLASLT_EPILOGUE_DGELU};
    const BlasProduct &p = plan->product;
    const bool fast = !p.a_bf16 && blas->tf32;
    BLAS_CHECK(cublasLtMatmulDescCreate(
        &plan->operation, fast ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F));
    blas_set(plan->operation, CUBLASLT_MATMUL_DESC_TRANSA,
             p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    blas_set(plan->operation, CUBLASLT_MATMUL_DESC_TRANSB,
             p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    blas_set(plan->operation, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogues[p.epilogue]);
    if (p.epilogue >= BLAS_GELU)
        blas_set(plan->operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, (int64_t)p.ldd);
}

static inline void blas_set_pointers(const BlasPlan *plan, const BlasOperands &o) {
    if (o.bias) blas_set(plan->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, o.bias);
    if (o.aux) blas_set(plan->operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, o.aux);
}

// The library's own choice, not the fastest in a benchmark, so that every run gives the same bits.
static inline void blas_choose(const Blas *blas, BlasPlan *plan) {
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t result;
    int found = 0;
    const size_t workspace = BLAS_WORKSPACE;
    static const cublasLtMatmulPreferenceAttributes_t alignments[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    BLAS_CHECK(cublasLtMatmulPreferenceCreate(&preference));
    BLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(
        preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof(workspace)));
    for (int i = 0; i < 4; i++)
        BLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(preference, alignments[i], &BLAS_ALIGNMENT,
                                                        sizeof(BLAS_ALIGNMENT)));
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(blas->library, plan->operation, plan->a, plan->b, plan->d,
                                       plan->d, preference, 1, &result, &found);
    const bool whole_groups =
        plan->product.epilogue < BLAS_GELU || plan->product.ldd % 8 == 0; // required for aux
    plan->supported = whole_groups && status == CUBLAS_STATUS_SUCCESS && found > 0 &&
                      result.state == CUBLAS_STATUS_SUCCESS;
    if (plan->supported) plan->algorithm = result.algo;
    BLAS_CHECK(cublasLtMatmulPreferenceDestroy(preference));
}

static inline bool blas_same(const BlasProduct &p, const BlasProduct &q) {
    return p.transpose_a == q.transpose_a && p.transpose_b == q.transpose_b &&
           p.a_bf16 == q.a_bf16 && p.d_bf16 == q.d_bf16 && p.add == q.add &&
           p.epilogue == q.epilogue && p.m == q.m && p.n == q.n && p.k == q.k && p.lda == q.lda &&
           p.ldb == q.ldb && p.ldd == q.ldd && p.count == q.count && p.step_a == q.step_a &&
           p.step_b == q.step_b && p.step_d == q.step_d;
}

// Returns a slot for one more plan, evicting the oldest if the cache is full: batches have many
// lengths.
static inline BlasPlan *blas_place(Blas *blas) {
    if (blas->plan_count < BLAS_PLANS) return &blas->plans[blas->plan_count++];
    BlasPlan *plan = &blas->plans[blas->oldest];
    blas->oldest = (blas->oldest + 1) % BLAS_PLANS;
    blas_forget(plan);
    return plan;
}

static inline BlasPlan *blas_plan(Blas *blas, const BlasProduct &p, const BlasOperands &o) {
    for (int i = 0; i < blas->plan_count; i++)
        if (blas_same(blas->plans[i].product, p)) return &blas->plans[i];
    BlasPlan *plan = blas_place(blas);
    plan->product = p;
    blas_describe(blas, plan);
    // The choice depends on the alignment of these pointers, and later operands of this plan may be
    // less aligned than the first.
    BlasOperands least = o;
    if (o.bias) least.bias = (const void *)(uintptr_t)BLAS_ALIGNMENT;
    if (o.aux) least.aux = (void *)(uintptr_t)BLAS_ALIGNMENT;
    blas_set_pointers(plan, least);
    plan->a = blas_layout(p.a_bf16, p.transpose_a, p.m, p.k, p.lda, p.count, p.step_a);
    plan->b = blas_layout(p.a_bf16, p.transpose_b, p.k, p.n, p.ldb, p.count, p.step_b);
    plan->d = blas_layout(p.d_bf16, false, p.m, p.n, p.ldd, p.count, p.step_d);
    blas_choose(blas, plan);
    return plan;
}

// Returns whether the product is supported. If not, does nothing.
static inline bool blas_run(Blas *blas, const BlasProduct &p, const BlasOperands &o) {
    const float one = 1, zero = 0;
    const BlasPlan *plan = blas_plan(blas, p, o);
    if (!plan->supported) return false;
    blas_set_pointers(plan, o);
    BLAS_CHECK(cublasLtMatmul(blas->library, plan->operation, &one, o.a, plan->a, o.b, plan->b,
                              p.add ? &one : &zero, o.d, plan->d, o.d, plan->d, &plan->algorithm,
                              blas->workspace, BLAS_WORKSPACE, blas->device->stream));
    return true;
}

#endif
