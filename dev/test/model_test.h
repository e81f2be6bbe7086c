// Checks that hold for every model, given as a ModelType.
#ifndef TEST_MODEL_TEST_H
#define TEST_MODEL_TEST_H

#include "model.h"
#include "test.h"

// A model for a test. `options` is a list "layers=2 channels=32 ..." of options of the trainer and
// the model; the others have their defaults, except dropout 0 and precision fp32.
typedef struct {
    const ModelType *type;
    Options *options;
    ModelSetup setup;
    void *model;
    const ParameterTable *table;
    real *values; // (total) the model's parameters
} ModelTest;

ModelTest model_test_create(const ModelType *type, const char *options, int64_t batch,
                            int64_t length, int64_t vocabulary);
void model_test_free(ModelTest *test);

// Returns a batch of random tokens. `padding`: fraction of masked positions, which have no target.
// Free with model_test_batch_free().
Batch model_test_batch(const ModelTest *test, double padding, uint32_t number);
void model_test_batch_free(Batch *batch);

// Returns whether two arrays hold the same numbers.
bool model_test_same(const real *a, const real *b, size_t count);

// Checks, in the double build, the gradients of train() against central differences for a sample of
// elements of each parameter.
void model_check_gradients(ModelTest *test, const Batch *batch);

// Checks that decoding gives the logits of the parallel form, for two streams side by side.
void model_check_decoding(ModelTest *test, double tolerance);

// Checks that no output depends on later tokens.
void model_check_causality(ModelTest *test);

// Checks the loss after a few steps, with dropout, for 1 and 3 threads, and an exact repetition.
void model_check_threads(const ModelType *type, const char *options);

// Checks that two small batches give the loss and gradient norm of one large one, with dropout.
void model_check_accumulation(const ModelType *type, const char *options);

// Checks what statistics() measured in one layer: the residual stream (B, T, channels) is a sum.
void model_check_residual_statistics(Statistics *s, const Batch *batch, size_t layer,
                                     size_t channels);
// Checks that the softmax weights of each row, over the last `window` tokens (0: all), and the
// sink's share sum to 1.
void model_check_weight_statistics(const Measurement *m, const Batch *batch, size_t heads,
                                   size_t window);

// A model and several kinds of attention, "attention=softmax" and so on. The checks below add each
// kind to the given options.
typedef struct {
    const ModelType *type;
    const char *const *kinds;
    size_t count;
    size_t every; // one token in `every` has a target
} ModelKinds;
// Checks the gradients for a batch of 2 sequences, like model_check_gradients().
void model_check_kind_gradients(const ModelKinds *kinds, const char *options, int64_t length,
                                double padding);
// Checks that a token in a padded position affects no other position, and that rows that see only
// padding are finite.
void model_check_kind_padding(const ModelKinds *kinds, const char *options);
// Check threads and accumulation, with dropout.
void model_check_kind_threads(const ModelKinds *kinds, const char *options);
void model_check_kind_accumulation(const ModelKinds *kinds, const char *options);

// Returns a random batch with one target in `every` tokens.
Batch model_kinds_batch(const ModelKinds *kinds, const ModelTest *test, double padding,
                        uint32_t number);

// Creates the model with these options and frees it.
void model_test_options(const ModelType *type, const char *options);

// Runs the program with these arguments in the case's directory, without output, and exits.
void model_test_program(const ModelType *type, const char *arguments);

// Checks --audit: computing a step twice changes nothing, and a flipped bit in its gradients ends
// the program. `arguments`: of a small run, without --output.
void model_check_audit(const ModelType *type, const char *arguments);

// main() of a model's tests and reference vectors:
//   PROGRAM [NAME]                               runs the test cases whose names contain NAME
//   PROGRAM -r FILE... [-p double|float|bf16]    checks reference vectors, one line per file
// The double build runs -p float and -p bf16 with the float build, whose path is compiled in.
// padding: the published class's padding token, -1: none.
int model_test_main(int argc, char **argv, const ModelType *type, int32_t padding,
                    const TestCase *cases, int count);

// Checks one file, prints its line, returns whether it passed. precision: double, float or bf16.
bool model_reference(const ModelType *type, const char *path, const char *precision,
                     int32_t padding);

#endif
