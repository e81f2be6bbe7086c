// What must hold of every model, given as a ModelType.
#ifndef TEST_MODEL_TEST_H
#define TEST_MODEL_TEST_H

#include "model.h"
#include "test.h"

// A model made for a test. `options` is a list "layers=2 channels=32 ..." over the trainer's and
// the model's options, which start at their defaults but for dropout 0 and precision fp32.
typedef struct {
    const ModelType *type;
    Options *options;
    ModelSetup setup;
    void *model;
    const ParameterTable *table;
    real *values; // (total) as the model has them
} ModelTest;

ModelTest model_test_create(const ModelType *type, const char *options, int64_t batch,
                            int64_t length, int64_t vocabulary);
void model_test_free(ModelTest *test);

// A batch of random tokens; padding: share of masked positions (which predict nothing). Freed with
// model_test_batch_free.
Batch model_test_batch(const ModelTest *test, double padding, uint32_t number);
void model_test_batch_free(Batch *batch);

// Whether two arrays hold the same numbers.
bool model_test_same(const real *a, const real *b, size_t count);

// Double build: gradients of train() against central differences, element by element for a sample
// of each parameter.
void model_check_gradients(ModelTest *test, const Batch *batch);

// Decoding gives the logits of the parallel form at every position, for two streams side by side.
void model_check_decoding(ModelTest *test, double tolerance);

// No output depends on later tokens.
void model_check_causality(ModelTest *test);

// The loss of a few training steps, dropout on, with 1 and with 3 threads; and twice the same.
void model_check_threads(const ModelType *type, const char *options);

// An update from two small batches is the update from one large batch, dropout on.
void model_check_accumulation(const ModelType *type, const char *options);

// What statistics() measured in one layer, by what must add up. The residual stream (B, T,
// channels) is a sum:
void model_check_residual_statistics(Statistics *s, const Batch *batch, size_t layer,
                                     size_t channels);
// and the softmax weights of a row, of the last `window` tokens (0: all), are 1 together with the
// sink's share.
void model_check_weight_statistics(const Measurement *m, const Batch *batch, size_t heads,
                                   size_t window);

// A model with several kinds of attention, "attention=softmax" and so on, and what must hold of
// each added to the options given.
typedef struct {
    const ModelType *type;
    const char *const *kinds;
    size_t count;
    size_t every; // every so-manieth token has a target
} ModelKinds;
// Gradients for a batch of 2 sequences, as model_check_gradients().
void model_check_kind_gradients(const ModelKinds *kinds, const char *options, int64_t length,
                                double padding);
// A token in a padded position changes nothing elsewhere, and rows that see only padding are
// finite.
void model_check_kind_padding(const ModelKinds *kinds, const char *options);
// Threads and accumulation, with dropout.
void model_check_kind_threads(const ModelKinds *kinds, const char *options);
void model_check_kind_accumulation(const ModelKinds *kinds, const char *options);

// A batch with those targets.
Batch model_kinds_batch(const ModelKinds *kinds, const ModelTest *test, double padding,
                        uint32_t number);

// Creates the model with these options, and frees it.
void model_test_options(const ModelType *type, const char *options);

// Runs the program in the case's directory with these arguments, quietly, and exits.
void model_test_program(const ModelType *type, const char *arguments);

// --audit: a step that is computed twice changes nothing, and a bit that flips in its gradients
// ends the program. `arguments`: of a small run, without --output.
void model_check_audit(const ModelType *type, const char *arguments);

// The program of a model's reference vectors and tests:
//   PROGRAM [NAME]                               the test cases whose names contain NAME
//   PROGRAM -r FILE... [-p double|float|bf16]    reference vectors, a line each
// The double build runs -p float and -p bf16 through the float build, whose path it was compiled
// with. padding: the published class's padding token, -1: none.
int model_test_main(int argc, char **argv, const ModelType *type, int32_t padding,
                    const TestCase *cases, int count);

// One file; prints its line and returns whether it passed. precision: "double", "float" or "bf16".
bool model_reference(const ModelType *type, const char *path, const char *precision,
                     int32_t padding);

#endif
