// Tests of BERT on the GPU: it reproduces the reference vectors and the CPU's results.
//
//   ./test_bertcu [NAME]    runs tests whose names contain NAME

#include "gpu_model_test.cuh"
extern "C" {
#include "bert.h"
}

ModelType bert_on_gpu(); // in train_bert.cu

#define SMALL "layers=2 channels=24 heads=3 "
#define LONG "layers=1 channels=16 heads=2 ffn=40 " // more than one tile of attention

static const char *const kinds[] = {"attention=softmax", "attention=softmax1", "attention=cosine",
                                    "attention=cosine cosine-power=0.5", "attention=additive"};

static GpuPair pair() {
    static const ModelType type = bert_on_gpu();
    return {&type, &bert, 3};
}

static void check_references(const char *precision) {
    gpu_check_references(pair().gpu, "bert_",
                         {"softmax", "softmax1", "cosine", "padded", "additive"}, precision, 0);
}

static void test_reference() {
    check_references("float");
}

static void test_reference_bf16() {
    check_references("bf16");
}

static void check_steps(const char *size, const char *precision, int64_t length, double padding,
                        double tolerance) {
    for (const char *kind : kinds) {
        char *options = format_string("%s %s", size, kind);
        gpu_check_step(pair(), options, precision, length, padding, tolerance);
        free(options);
    }
}

static void test_step() {
    check_steps(SMALL "dropout=0.2", "fp32", 1, 0, 1e-4);
    check_steps(SMALL "dropout=0.2", "fp32", 37, 0.3, 1e-4);
    check_steps(LONG "dropout=0.1", "fp32", 139, 0.3, 1e-4);
    check_steps(LONG "dropout=0", "fp32", 139, 0.9, 1e-4); // whole tiles of padding
    check_steps("layers=1 channels=15 heads=5 dropout=0.1", "fp32", 33, 0, 1e-4);
}

static void test_step_bf16() {
    check_steps(SMALL "dropout=0.2", "bf16", 37, 0.2, 5e-2);
    check_steps(SMALL "dropout=0", "tf32", 37, 0, 2e-2);
}

static void test_shapes() {
    for (const char *kind : kinds) {
        char *options = format_string(SMALL "%s", kind);
        gpu_check_shapes(pair(), options);
        free(options);
    }
}

static void test_training() {
    gpu_check_kinds(pair(), SMALL,
                    std::initializer_list<const char *>{kinds[0], kinds[2], kinds[4]});
}

// The number of correct predictions equals the CPU's. Without targets, loss and gradients are 0.
static void test_targets() {
    ModelTest gpu = gpu_test_create(pair().gpu, SMALL, "fp32", 2, 40, 7),
              cpu = gpu_test_create(pair().cpu, SMALL, "fp32", 2, 40, 7);
    for (uint32_t number = 0; number < 3; number++) {
        Batch batch = gpu_test_batch(&gpu, 3, 0, number);
        batch.counts_correct = true;
        gpu.type->forward(gpu.model, &batch);
        cpu.type->forward(cpu.model, &batch);
        CHECK(gpu.type->correct(gpu.model) == cpu.type->correct(cpu.model));
        for (size_t i = 0; number == 2 && i < 2 * 40; i++) ((int32_t *)batch.targets)[i] = -1;
        if (number == 2) {
            CHECK(gpu.type->forward(gpu.model, &batch) == 0 && gpu.type->correct(gpu.model) == 0);
            CHECK(gpu.type->train(gpu.model, &batch, 1) == 0 &&
                  gpu.type->gradient_norm(gpu.model) == 0);
        }
        model_test_batch_free(&batch);
    }
    model_test_free(&gpu);
    model_test_free(&cpu);
}

static void test_model() {
    for (const char *kind : kinds) {
        char *options = format_string(SMALL "dropout=0.2 %s", kind);
        model_check_accumulation(pair().gpu, options);
        gpu_check_statistics(pair(), options);
        free(options);
    }
}

static void test_program() {
    gpu_check_programs(pair(), "-b 2 -t 16 -L 1 -C 16 -H 2");
}

static void test_memory() {
    gpu_check_memory(pair().gpu);
}

int main(int argc, char **argv) {
    static const TestCase cases[] = {
        {"reference", test_reference}, {"reference: bf16", test_reference_bf16},
        {"step", test_step},           {"step: bf16", test_step_bf16},
        {"shapes", test_shapes},       {"training", test_training},
        {"targets", test_targets},     {"model", test_model},
        {"program", test_program},     {"memory", test_memory},
    };
    return gpu_test_main(argc, argv, "test_bertcu", cases, sizeof(cases) / sizeof(cases[0]));
}
