// By cuDNN's C++ interface of headers, cudnn-frontend, which takes nvcc longer than a C++ compiler.
#include "cudnn_library.h"
#include <cudnn_frontend.h>
extern "C" {
#include "error.h"
}
#include <math.h>

namespace fe = cudnn_frontend;
typedef std::shared_ptr<fe::graph::Tensor_attributes> Tensor;

struct CudnnPlan {
    CudnnProblem problem;
    fe::graph::Graph graph;
    bool there;   // cuDNN has kernels for it
    void *memory; // that they work in; captured graphs know where it is
};

struct Cudnn {
    cudnnHandle_t handle;
    std::vector<std::unique_ptr<CudnnPlan>> plans;
};

// Names of what a plan reads and writes.
enum Operand : int64_t {
    OPERAND_PART = 1,
    OPERAND_GRADIENT = 4,
    OPERAND_Y = 7,
    OPERAND_DY,
    OPERAND_LOGSUMEXP
};

static void check(const fe::error_t &error, const char *what) {
    if (error.is_bad()) fail("cuDNN: %s (%s)", error.err_msg.c_str(), what);
}

static void check(cudnnStatus_t status, const char *what) {
    if (status != CUDNN_STATUS_SUCCESS) fail("cuDNN: %s (%s)", cudnnGetErrorString(status), what);
}

Cudnn *cudnn_create() {
    Cudnn *c = new Cudnn();
    check(cudnnCreate(&c->handle), "start");
    return c;
}

void cudnn_free(Cudnn *c) {
    for (const auto &plan : c->plans) cudaFree(plan->memory);
    check(cudnnDestroy(c->handle), "end");
    delete c;
}

// ---- plans ------------------------------------------------------------------
// (B, H, T, D) of rows.
static fe::graph::Tensor_attributes heads_of(const CudnnProblem &p, int64_t length, int64_t stride,
                                             int64_t name) {
    return fe::graph::Tensor_attributes()
        .set_uid(name)
        .set_dim({p.batch, p.heads, length, p.size})
        .set_stride({length * stride, p.size, stride, 1});
}

// (B, H, Tq, 1)
static fe::graph::Tensor_attributes logsumexp_of(const CudnnProblem &p) {
    return fe::graph::Tensor_attributes()
        .set_uid(OPERAND_LOGSUMEXP)
        .set_data_type(fe::DataType_t::FLOAT)
        .set_dim({p.batch, p.heads, p.queries, 1})
        .set_stride({p.heads * p.queries, p.queries, 1, 1});
}

static void set_result(const Tensor &result, const fe::graph::Tensor_attributes &as) {
    result->set_output(true)
        .set_uid(as.get_uid())
        .set_dim(as.get_dim())
        .set_stride(as.get_stride());
    result->set_data_type(as.get_data_type());
}

static void describe(fe::graph::Graph *graph, const CudnnProblem &p) {
    const int64_t lengths[] = {p.queries, p.keys, p.keys}, channels = p.heads * p.size;
    const float scale = (float)(1 / sqrt((double)p.size));
    graph->set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    Tensor parts[3];
    for (int i = 0; i < 3; i++)
        parts[i] = graph->tensor(heads_of(p, lengths[i], p.strides[i], OPERAND_PART + i));
    const auto y = heads_of(p, p.queries, channels, OPERAND_Y);
    if (!p.backward) {
        auto attention = fe::graph::SDPA_attributes();
        attention.set_generate_stats(true).set_attn_scale(scale).set_causal_mask(p.causal);
        const auto results = graph->sdpa(parts[0], parts[1], parts[2], attention);
        set_result(results[0], y);
        set_result(results[1], logsumexp_of(p));
        return;
    }
    auto attention = fe::graph::SDPA_backward_attributes();
    attention.set_attn_scale(scale).set_causal_mask(p.causal).set_deterministic_algorithm(true);
    const auto dy = heads_of(p, p.queries, channels, OPERAND_DY);
    const auto gradients =
        graph->sdpa_backward(parts[0], parts[1], parts[2], graph->tensor(y), graph->tensor(dy),
                             graph->tensor(logsumexp_of(p)), attention);
    for (int i = 0; i < 3; i++)
        set_result(gradients[i],
                   heads_of(p, lengths[i], p.gradient_strides[i], OPERAND_GRADIENT + i));
}

// Chooses kernels by cuDNN's own rules, never by a trial; bytes of working memory.
static fe::error_t build(const Cudnn *c, CudnnPlan *plan, int64_t *bytes) {
    describe(&plan->graph, plan->problem);
    const fe::error_t error = plan->graph.build(c->handle, {fe::HeurMode_t::A});
    return error.is_bad() ? error : plan->graph.get_workspace_size(*bytes);
}

static bool is_same(const CudnnProblem &a, const CudnnProblem &b) {
    bool same = a.backward == b.backward && a.causal == b.causal && a.batch == b.batch &&
                a.heads == b.heads && a.size == b.size && a.queries == b.queries &&
                a.keys == b.keys;
    for (int i = 0; i < 3; i++)
        same =
            same && a.strides[i] == b.strides[i] && a.gradient_strides[i] == b.gradient_strides[i];
    return same;
}

static CudnnPlan *plan_create(const Cudnn *c, const CudnnProblem &p) {
    CudnnPlan *plan = new CudnnPlan();
    plan->problem = p;
    int64_t bytes = 0;
    const fe::error_t error = build(c, plan, &bytes);
    plan->there = error.is_good();
    if (!plan->there) {
        const std::string &why = error.err_msg;
        warn("cuDNN has no %s of B %lld, T %lld and %lld, heads of %lld (%.*s): our own kernels "
             "compute it",
             p.backward ? "backward attention" : "attention", (long long)p.batch,
             (long long)p.queries, (long long)p.keys, (long long)p.size,
             (int)std::min(why.find('\n'), (size_t)200), why.c_str());
    } else if (bytes > 0 && cudaMalloc(&plan->memory, (size_t)bytes) != cudaSuccess) {
        fail("out of GPU memory: cuDNN's attention needs %.1f MiB more; lower --batch, or build "
             "without "
             "CUDNN=1",
             (double)bytes / 1048576);
    }
    return plan;
}

static CudnnPlan *plan_for(Cudnn *c, const CudnnProblem &p) {
    for (const auto &plan : c->plans)
        if (is_same(plan->problem, p)) return plan.get();
    c->plans.emplace_back(plan_create(c, p));
    return c->plans.back().get();
}

bool cudnn_run(Cudnn *c, const CudnnProblem *problem, const CudnnOperands *on, void *stream) {
    CudnnPlan *plan = plan_for(c, *problem);
    if (!plan->there) return false;
    std::unordered_map<int64_t, void *> operands = {{OPERAND_Y, on->y},
                                                    {OPERAND_LOGSUMEXP, on->logsumexp}};
    for (int i = 0; i < 3; i++) operands[OPERAND_PART + i] = on->parts[i];
    if (problem->backward) {
        operands[OPERAND_DY] = on->dy;
        for (int i = 0; i < 3; i++) operands[OPERAND_GRADIENT + i] = on->gradients[i];
    }
    check(cudnnSetStream(c->handle, (cudaStream_t)stream), "a stream");
    check(plan->graph.execute(c->handle, operands, plan->memory), "attention");
    return true;
}
