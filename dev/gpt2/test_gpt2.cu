// Tests of GPT-2 on the GPU: it reproduces the reference vectors and the CPU's results.
//
//   ./test_gpt2cu [NAME]    runs tests whose names contain NAME

#include "gpu_model_test.cuh"
extern "C" {
#include "gpt2.h"
}

ModelType gpt2_on_gpu(); // in train_gpt2.cu

#define SMALL "layers=2 channels=24 heads=3 "
#define LONG "layers=1 channels=16 heads=2 " // more than one tile of attention

static const char *const kinds[] = {"attention=softmax", "attention=softmax1", "attention=cosine",
                                    "attention=cosine cosine-power=0.5"};

static GpuPair pair() {
    static const ModelType type = gpt2_on_gpu();
    return {&type, &gpt2, 1};
}

static void check_references(const char *precision) {
    gpu_check_references(pair().gpu, "gpt2_", {"softmax", "softmax1", "cosine", "softmax_padded"},
                         precision, -1);
}

static void test_reference() {
    check_references("float");
}

static void test_reference_bf16() {
    check_references("bf16");
}

static void check_steps(const char *size, const char *more, const char *precision, int64_t length,
                        double padding, double tolerance) {
    for (const char *kind : kinds) {
        char *options = format_string("%s %s %s", size, more, kind);
        gpu_check_step(pair(), options, precision, length, padding, tolerance);
        free(options);
    }
}

static void test_step() {
    check_steps(SMALL, "dropout=0.2", "fp32", 1, 0, 1e-4);
    check_steps(SMALL, "dropout=0.2", "fp32", 37, 0, 1e-4);
    check_steps(LONG, "dropout=0", "fp32", 139, 0.3, 1e-4);
    check_steps("layers=1 channels=10 heads=10", "dropout=0.1", "fp32", 33, 0, 1e-4);
    check_steps("layers=1 channels=128 heads=2", "dropout=0.1", "fp32", 70, 0.2, 1e-4);
}

static void test_step_bf16() {
    check_steps(SMALL, "dropout=0.2", "bf16", 37, 0, 5e-2);
    check_steps("layers=1 channels=128 heads=2", "dropout=0.1", "bf16", 70, 0.2, 5e-2);
    gpu_check_step(pair(), "layers=1 channels=136 heads=4 dropout=0.1", "bf16", 20, 0,
                   5e-2); // one kernel per part of the feed-forward network
    check_steps(SMALL, "dropout=0", "tf32", 37, 0, 2e-2);
}

static void test_shapes() {
    for (const char *kind : kinds) {
        char *options = format_string(SMALL "%s", kind);
        gpu_check_shapes(pair(), options);
        free(options);
    }
}

static void test_training() {
    gpu_check_kinds(pair(), SMALL, kinds);
    gpu_check_training(pair(), LONG "dropout=0.1", "bf16", 2e-2);
    gpu_check_bits(pair().gpu, LONG "dropout=0.1", "fp32");
    // A model planned for 320 sequences has too many tokens to group its weight gradient products.
    gpu_check_kept(pair().gpu, SMALL "dropout=0.1", "bf16", SMALL "dropout=0.1", 320);
}

static void test_model() {
    for (const char *kind : kinds) {
        char *options = format_string(SMALL "%s", kind),
             *drops = format_string("%s dropout=0.2", options);
        ModelTest t = model_test_create(pair().gpu, options, 2, 70, 29);
        model_check_decoding(&t, 2e-5);
        model_check_causality(&t);
        model_test_free(&t);
        model_check_accumulation(pair().gpu, drops);
        gpu_check_statistics(pair(), drops);
        free(options);
        free(drops);
    }
}

static void test_decoding() {
    for (const char *options :
         {"attention=softmax:7 scores=qknorm", "attention=softmax1 positions=rotary kv-heads=1",
          "attention=cosine:5", "attention=cosine cosine-power=0.5 positions=sinusoidal",
          "attention=additive*3+softmax windows=1,5,global,9 rescale=3",
          "attention=additive windows=6,global scores=plain positions=none query-gain=2",
          "attention=additive pool=raw sink=1 windows=3,32 ffn=swiglu",
          "attention=softmax:2+additive*2+softmax pool=raw token-shift=0.5 positions=none "
          "query-gain=0.7"}) {
        char *all = format_string("layers=%d channels=24 heads=3 %s", strchr(options, '*') ? 4 : 2,
                                  options);
        gpu_check_decoding(pair(), all);
        free(all);
    }
    gpu_check_decoding(pair(), "layers=2 channels=260 heads=2 attention=softmax,additive");
    gpu_check_decoding(pair(), "layers=1 channels=257 heads=1"); // too large for the GPU
    gpu_check_decoding_without_memory(pair(), SMALL "attention=softmax:5");
    gpu_check_decoding_memory(pair().gpu, SMALL);
}

static void test_program() {
    gpu_check_programs(pair(), "-b 2 -t 16 -L 1 -C 16 -H 2");
    model_check_audit(
        pair().gpu, "--preset published -b 2 -t 16 -L 1 -C 16 -H 2 --total-batch 64 -x 5 -v 5 -m 1 "
                    "--dropout 0.1 --no-test");
}

static void test_nodes() {
    gpu_check_nodes(pair().gpu, "layers=6 channels=24 heads=3 dropout=0.1", 134);
}

// Layers of several kinds of attention, with windows.
static void test_hybrid() {
    const char *const hybrid = "layers=4 channels=24 heads=3 attention=additive*3+softmax:7 "
                               "windows=3,5,8,global rescale=3 dropout=0.1";
    for (int64_t length : {1, 37}) gpu_check_step(pair(), hybrid, "fp32", length, 0.2, 1e-4);
    gpu_check_step(pair(), hybrid, "bf16", 37, 0, 5e-2);
    gpu_check_step(pair(), "layers=3 channels=128 heads=2 attention=softmax,cosine,softmax1:9",
                   "bf16", 70, 0, 5e-2);
    gpu_check_step(pair(), LONG "attention=cosine:67 dropout=0.1", "fp32", 139, 0.3, 1e-4);
    gpu_check_training(pair(), hybrid, "fp32", 1e-4);
    gpu_check_bits(pair().gpu, hybrid, "bf16");
    gpu_check_shapes(pair(), hybrid);
    gpu_check_statistics(pair(), hybrid);
}

// The blocks of newer models, with biases.
static void test_blocks() {
    const char *const options = "layers=2 channels=24 heads=6 dropout=0.2 kv-heads=3 norm=rms "
                                "positions=rotary scores=rescaled rescale=3 untied=true ffn=";
    for (const char *ffn : {"gelu", "swiglu"}) {
        char *all = format_string("%s%s", options, ffn);
        gpu_check_step(pair(), all, "fp32", 37, 0.2, 1e-4);
        gpu_check_step(pair(), all, "bf16", 37, 0, 5e-2);
        free(all);
    }
}

static void test_memory() {
    gpu_check_memory(pair().gpu);
}

int main(int argc, char **argv) {
    static const TestCase cases[] = {
        {"reference", test_reference}, {"reference: bf16", test_reference_bf16},
        {"step", test_step},           {"step: bf16", test_step_bf16},
        {"shapes", test_shapes},       {"training", test_training},
        {"model", test_model},         {"decoding", test_decoding},
        {"program", test_program},     {"nodes", test_nodes},
        {"hybrid", test_hybrid},       {"blocks", test_blocks},
        {"memory", test_memory},
    };
    return gpu_test_main(argc, argv, "test_gpt2cu", cases, sizeof(cases) / sizeof(cases[0]));
}
