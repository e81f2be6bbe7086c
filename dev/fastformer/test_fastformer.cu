// Tests of the Fastformer on the GPU: it reproduces the reference vectors and the CPU's results.
//
//   ./test_fastformercu [NAME]    runs tests whose names contain NAME

#include "gpu_model_test.cuh"
extern "C" {
#include "fastformer.h"
}

ModelType fastformer_on_gpu(); // in train_fastformer.cu

#define SMALL "layers=3 channels=24 heads=3 "
#define WHOLE "layers=2 channels=128 heads=4 " // rows are whole blocks of the dropout generator

static GpuPair pair() {
    static const ModelType type = fastformer_on_gpu();
    return {&type, &fastformer, 1};
}

static void check_references(const char *precision) {
    gpu_check_references(pair().gpu, "fastformer_",
                         {"windowed", "global", "padded", "holes", "sharp"}, precision, 0);
}

static void test_reference() {
    check_references("float");
}

static void test_reference_bf16() {
    check_references("bf16");
}

static void test_step() {
    gpu_check_step(pair(), SMALL "dropout=0.2 windows=1,5,global rescale=5", "fp32", 45, 0.2, 1e-4);
    gpu_check_step(pair(), SMALL "dropout=0.2 windows=global", "fp32", 1, 0, 1e-4);
    gpu_check_step(pair(), SMALL "dropout=0.2 windows=1,5,global scores=plain", "fp32", 45, 0.2,
                   1e-4);
    gpu_check_step(pair(), SMALL "dropout=0.2 windows=1,5,global scores=plain query-gain=0.7",
                   "fp32", 45, 0.2, 1e-4);
    gpu_check_step(pair(), WHOLE "dropout=0.1 windows=4,global", "fp32", 37, 0, 1e-4);
    gpu_check_step(pair(), WHOLE "dropout=0.1 windows=3,100", "fp32", 150, 0.3, 1e-4);
    gpu_check_step(pair(), WHOLE "dropout=0.1 windows=3,100 query-gain=0.7", "fp32", 150, 0.3,
                   1e-4);
    gpu_check_step(pair(), "layers=1 channels=260 heads=5 sink=1 pool=raw dropout=0.1", "fp32", 20,
                   0, 1e-4);
    gpu_check_step(pair(), "layers=2 channels=15 heads=3 dropout=0.1", "fp32", 20, 0.1,
                   1e-4); // not a multiple of four
    gpu_check_step(pair(), "layers=1 channels=1032 heads=8 dropout=0.1", "fp32", 6, 0,
                   1e-4); // too large for registers
}

static void test_step_bf16() {
    gpu_check_step(pair(), SMALL "dropout=0.2 windows=1,5,global rescale=3", "bf16", 37, 0.2, 5e-2);
    gpu_check_step(pair(), WHOLE "dropout=0.1 windows=4,global rescale=3", "bf16", 37, 0, 5e-2);
    gpu_check_step(pair(), "layers=1 channels=136 heads=4 dropout=0.1 rescale=3", "bf16", 20, 0,
                   5e-2); // one kernel per part of the feed-forward network
    gpu_check_step(pair(), SMALL "rescale=3", "tf32", 37, 0, 2e-2);
}

// The fused output layer, which stores no logits, gives the same loss and gradients as the other.
static void test_fused_output() {
    ModelTest t[] = {
        gpu_test_create(pair().gpu, WHOLE "dropout=0.1", "bf16", 2, 37, 61),
        gpu_test_create(pair().gpu, WHOLE "dropout=0.1 fused-output=true", "bf16", 2, 37, 61)};
    Batch batch = gpu_test_batch(&t[0], 3, 0, 0);
    const double loss = t[0].type->train(t[0].model, &batch, 0.1);
    CHECK_CLOSE(t[1].type->train(t[1].model, &batch, 0.1), loss, 1e-3 * loss);
    float *expected = gpu_test_read(&t[0], MODEL_GRADIENTS),
          *gradients = gpu_test_read(&t[1], MODEL_GRADIENTS);
    CHECK(gpu_test_distance(gradients, expected, t[0].table->total) <= 1e-2);
    free(expected);
    free(gradients);
    gpu_test_batch_free(&batch);
    for (ModelTest &model : t) model_test_free(&model);
}

static void test_shapes() {
    gpu_check_shapes(pair(), SMALL);
}

static void test_training() {
    const char *const options = SMALL "dropout=0.1 windows=3,8,global rescale=3";
    gpu_check_training(pair(), options, "fp32", 1e-4);
    gpu_check_training(pair(), options, "bf16", 2e-2);
    gpu_check_bits(pair().gpu, options, "fp32");
    gpu_check_bits(pair().gpu, WHOLE "dropout=0.1 windows=3,global query-gain=1", "bf16");
    gpu_check_bits(pair().gpu, SMALL "dropout=0.1 windows=3,8,global scores=plain", "bf16");
    gpu_check_training(pair(), SMALL "windows=3,8,global optimizer=muon", "fp32", 1e-4);
    gpu_check_bits(pair().gpu, SMALL "windows=3,8,global optimizer=muon", "bf16");
}

static void test_model() {
    for (const char *options : {SMALL "windows=1,2,7", SMALL "windows=auto"}) {
        ModelTest t = model_test_create(pair().gpu, options, 2, 50, 29);
        model_check_decoding(&t, 2e-4);
        gpu_train(&t, 0, 1); // the decoder must notice the update
        model_check_decoding(&t, 2e-4);
        model_check_causality(&t);
        model_test_free(&t);
    }
    model_check_accumulation(pair().gpu, SMALL "dropout=0.2");
    for (const char *options :
         {"dropout=0.2", "windows=3,8,global sink=1 pool=raw rescale=3 query-gain=0.7",
          "windows=global,5,1 scores=plain sink=1",
          "attention=additive,softmax:7,additive rescale=0"}) {
        char *all = format_string(SMALL "%s", options);
        gpu_check_statistics(pair(), all);
        free(all);
    }
    gpu_check_kept_weights(pair(), SMALL);
}

static void test_program() {
    gpu_check_programs(pair(), "-b 2 -t 16 -L 2 -C 16 -H 2");
}

static void test_nodes() {
    gpu_check_nodes(pair().gpu, "layers=6 channels=24 heads=3 dropout=0.1", 113);
}

// Layers of additive attention, without a projection, and of softmax attention, with one.
static void test_hybrid() {
    const char *const hybrid = "layers=4 channels=24 heads=3 attention=additive*3+softmax:7 "
                               "windows=3,5,8,global rescale=3 dropout=0.1";
    for (int64_t length : {1, 37}) gpu_check_step(pair(), hybrid, "fp32", length, 0.2, 1e-4);
    gpu_check_step(pair(), hybrid, "bf16", 37, 0, 5e-2);
    gpu_check_training(pair(), hybrid, "fp32", 1e-4);
    gpu_check_bits(pair().gpu, hybrid, "bf16");
    gpu_check_shapes(pair(), hybrid);
    gpu_check_step(
        pair(),
        SMALL "attention=additive,softmax:7,additive token-shift=0.5 positions=rotary norm=rms "
              "ffn=swiglu kv-heads=1 rescale=3 dropout=0.1",
        "bf16", 37, 0, 5e-2);
}

static void create_with(void *options) {
    ModelTest t = model_test_create(pair().gpu, (const char *)options, 1, 16, 20);
    model_test_free(&t);
}

static void train_beyond(void *) {
    ModelTest t = model_test_create(pair().gpu, SMALL, 1, 16, 20);
    Batch batch = model_test_batch(&t, 0, 1);
    ((int32_t *)batch.inputs)[3] = 20;
    t.type->train(t.model, &batch, 1);
}

static void test_errors() {
    CHECK_FAILS(create_with, (void *)"channels=24 heads=5", 1, "--heads 5");
    CHECK_FAILS(train_beyond, NULL, 1, "token 20");
    gpu_check_memory(pair().gpu);
}

int main(int argc, char **argv) {
    static const TestCase cases[] = {
        {"reference", test_reference},
        {"reference: bf16", test_reference_bf16},
        {"step", test_step},
        {"step: bf16", test_step_bf16},
        {"fused output", test_fused_output},
        {"shapes", test_shapes},
        {"training", test_training},
        {"model", test_model},
        {"program", test_program},
        {"nodes", test_nodes},
        {"hybrid", test_hybrid},
        {"errors", test_errors},
    };
    return gpu_test_main(argc, argv, "test_fastformercu", cases, sizeof(cases) / sizeof(cases[0]));
}
