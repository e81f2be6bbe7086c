// Tests of the encoder-decoder on the GPU: it reproduces the reference vectors and the CPU's
// results.
//
//   ./test_translatecu [NAME]    runs tests whose names contain NAME

#include "gpu_model_test.cuh"
extern "C" {
#include "translate.h"
}

ModelType translate_on_gpu(); // in train_translate.cu

#define SMALL "encoder-layers=2 decoder-layers=2 channels=24 heads=3 ffn=40 "
#define SHALLOW                                                                                    \
    "encoder-layers=1 decoder-layers=1 channels=24 heads=3 ffn=40 " // two layers, like other models
#define LONG                                                                                       \
    "encoder-layers=1 decoder-layers=1 channels=16 heads=2 ffn=24 " // more than a tile of attention
#define DROPS "dropout=0.2 attention-dropout=0.3 label-smoothing=0.1 "

static const char *const norms[] = {"norm=post", "norm=pre"};

static GpuPair pair() {
    static const ModelType type = translate_on_gpu();
    return {&type, &translate, 1};
}

// Not in bf16: rounding can change the sign of a ReLU's input, and with it a whole gradient. In
// bf16 these gradients are off by up to 1.3e-1, and by 9.6e-2 on the CPU.
static void test_reference() {
    for (const char *name : {"postnorm", "prenorm"}) {
        char *path = format_string("dev/reference/translate_%s.safetensors", name);
        CHECK(model_reference(pair().gpu, path, "float", 0));
        free(path);
        if (gpu_test_quick()) break;
    }
}

// Checks both orders of normalisation.
static void check_steps(const char *options, const char *precision, int64_t length, double padding,
                        double tolerance) {
    for (const char *norm : norms) {
        char *all = format_string("%s %s", options, norm);
        gpu_check_step(pair(), all, precision, length, padding, tolerance);
        free(all);
        if (gpu_test_quick()) break;
    }
}

static void test_step() {
    check_steps(SMALL DROPS, "fp32", 1, 0, 1e-4);
    check_steps(SMALL DROPS, "fp32", 37, 0.3, 1e-4);
    check_steps(LONG "dropout=0.1", "fp32", 139, 0.3, 1e-4);
    check_steps(LONG "activation=gelu label-smoothing=0", "fp32", 33, 0, 1e-4);
    check_steps(LONG "activation=swish", "fp32", 33, 0, 1e-4);
}

static void test_step_bf16() {
    check_steps(SHALLOW DROPS "activation=gelu", "bf16", 37, 0.2, 5e-2);
    check_steps(SHALLOW DROPS "activation=swish", "bf16", 37, 0, 5e-2);
}

static void test_shapes() {
    for (const char *norm : norms) {
        char *options = format_string(SMALL "%s", norm);
        gpu_check_shapes(pair(), options);
        free(options);
        if (gpu_test_quick()) break;
    }
}

static void test_training() {
    for (const char *norm : norms) {
        char *options = format_string(SMALL DROPS "%s", norm);
        gpu_check_training(pair(), options, "fp32", 1e-4);
        gpu_check_bits(pair().gpu, options, "bf16");
        free(options);
        if (gpu_test_quick()) break;
    }
}

// The loss of a training step, computed without label smoothing.
static void test_unsmoothed() {
    ModelTest gpu = gpu_test_create(pair().gpu, SMALL "label-smoothing=0.2", "fp32", 2, 21, 61),
              cpu = gpu_test_create(pair().cpu, SMALL "label-smoothing=0.2", "fp32", 2, 21, 61);
    Batch batch = gpu_test_batch(&gpu, 2, 0, 1);
    gpu.type->train(gpu.model, &batch, 1);
    cpu.type->train(cpu.model, &batch, 1);
    const double expected = cpu.type->unsmoothed(cpu.model);
    CHECK_CLOSE(gpu.type->unsmoothed(gpu.model), expected, 1e-5 * expected);
    gpu_test_batch_free(&batch);
    model_test_free(&gpu);
    model_test_free(&cpu);
}

static void test_statistics() {
    for (const char *norm : norms) {
        char *options = format_string(SMALL DROPS "%s", norm);
        gpu_check_statistics(pair(), options);
        free(options);
    }
    gpu_check_kept_weights(pair(), SMALL);
}

static void test_program() {
    gpu_check_programs(pair(), "-L 1 -D 1 -C 16 -H 2 --ffn 24 --batch-tokens 64 --max-length 16");
}

static void test_memory() {
    gpu_check_memory(pair().gpu);
}

int main(int argc, char **argv) {
    static const TestCase cases[] = {
        {"reference", test_reference},   {"step", test_step},
        {"step: bf16", test_step_bf16},  {"shapes", test_shapes},
        {"training", test_training},     {"unsmoothed", test_unsmoothed},
        {"statistics", test_statistics}, {"program", test_program},
        {"memory", test_memory},
    };
    return gpu_test_main(argc, argv, "test_translatecu", cases, sizeof(cases) / sizeof(cases[0]));
}
