// Tests of Llama on the GPU: it reproduces the reference vectors and, with every kind of block, the
// CPU's results.
//
//   ./test_llamacu [NAME]    runs tests whose names contain NAME

#include "gpu_model_test.cuh"
extern "C" {
#include "llama.h"
}

ModelType llama_on_gpu(); // in train_llama.cu

#define SMALL "layers=2 channels=24 heads=4 "
#define HYBRID "layers=4 channels=24 heads=4 attention=additive*3+softmax:7 rescale=3 kv-heads=2 "

static const char *const kinds[] = {
    "kv-heads=2 untied=true ffn-size=20",
    "kv-heads=1 scores=qknorm norm-eps=1e-6",
    "scores=rescaled rescale=3 attention=softmax1:5 rotary-base=100 rotary-part=0.5",
    "scores=rescaled rescale=0",
    "norm=layer positions=sinusoidal ffn=relu2 attention=cosine kv-heads=2",
    "norm=layer positions=none ffn=gelu scores=qknorm token-shift=0.5",
    "norm=layer positions=none attention=cosine,softmax token-shift=0.3",
};

static GpuPair pair() {
    static const ModelType type = llama_on_gpu();
    return {&type, &llama, 1};
}

static void check_references(const char *precision) {
    gpu_check_references(pair().gpu, "", {"llama_grouped", "llama_tied", "qwen3"}, precision, -1);
}

static void test_reference() {
    check_references("float");
}

static void test_reference_bf16() {
    check_references("bf16");
}

static void test_step() {
    for (const char *kind : kinds) {
        char *options = format_string(SMALL "dropout=0.2 %s", kind);
        for (int64_t length : {1, 37}) gpu_check_step(pair(), options, "fp32", length, 0.2, 1e-4);
        gpu_check_step(pair(), options, "bf16", 37, 0, 5e-2);
        free(options);
    }
    gpu_check_step(pair(), "layers=1 channels=256 heads=4 kv-heads=2", "bf16", 70, 0.2, 5e-2);
    gpu_check_step(pair(), SMALL, "tf32", 37, 0, 2e-2);
}

static void test_training() {
    gpu_check_kinds(pair(), SMALL, kinds);
    gpu_check_training(pair(), SMALL "optimizer=muon", "fp32", 1e-4);
}

static void test_model() {
    const char *const options = SMALL "dropout=0.2 kv-heads=2 untied=true scores=qknorm";
    ModelTest t = model_test_create(pair().gpu, options, 2, 70, 29);
    model_check_decoding(&t, 2e-5);
    model_check_causality(&t);
    model_test_free(&t);
    model_check_accumulation(pair().gpu, options);
    gpu_check_shapes(pair(), options);
    for (const char *kind : kinds) {
        char *all = format_string(SMALL "%s", kind);
        gpu_check_statistics(pair(), all);
        free(all);
    }
    gpu_check_kept_weights(pair(), options);
}

static void test_program() {
    gpu_check_programs(pair(), "-b 2 -t 16 -L 2 -C 16 -H 2 --kv-heads 1 --untied");
}

static void test_nodes() {
    gpu_check_nodes(pair().gpu, "layers=6 channels=24 heads=4 kv-heads=2 dropout=0.1", 134);
}

// Layers of additive attention and of softmax attention, which prepares its queries and keys. The
// last check plans for 320 sequences, too many tokens to group weight gradient products.
static void test_hybrid() {
    const char *const hybrid = HYBRID "dropout=0.1 windows=3,5,8,global";
    for (int64_t length : {1, 37}) gpu_check_step(pair(), hybrid, "fp32", length, 0.2, 1e-4);
    gpu_check_step(pair(), hybrid, "tf32", 37, 0, 5e-2);
    gpu_check_step(pair(), SMALL "attention=additive+softmax:7 rescale=3 kv-heads=2", "bf16", 37, 0,
                   5e-2);
    gpu_check_training(pair(), hybrid, "fp32", 1e-4);
    gpu_check_bits(pair().gpu, hybrid, "bf16");
    gpu_check_kept(pair().gpu, hybrid, "bf16", hybrid, 320);
}

int main(int argc, char **argv) {
    static const TestCase cases[] = {
        {"reference", test_reference}, {"reference: bf16", test_reference_bf16},
        {"step", test_step},           {"training", test_training},
        {"model", test_model},         {"program", test_program},
        {"nodes", test_nodes},         {"hybrid", test_hybrid},
    };
    return gpu_test_main(argc, argv, "test_llamacu", cases, sizeof(cases) / sizeof(cases[0]));
}
