// Tests of BERT: gradients, reference vectors, padding, masked tokens, exchange with Hugging Face.
//
//   ./test_bert [NAME]                              runs tests whose names contain NAME
//   ./test_bert -r FILE... [-p double|float|bf16]   checks reference vectors (dev/reference)

#define TESTING
#include "train_bert.c"

#include "checkpoint.h"
#include "model_test.h"
#include "random.h"
#include "threads.h"
#include <math.h>
#include <unistd.h>

enum { IS_DOUBLE = sizeof(real) == sizeof(double) };

#define SMALL "layers=2 channels=24 heads=3 "
#define LONG "layers=1 channels=16 heads=2 ffn=40 " // more than one tile of attention

static const char *const kinds[] = {"attention=softmax",
                                    "attention=softmax1",
                                    "attention=cosine",
                                    "attention=cosine cosine-power=0",
                                    "attention=cosine cosine-power=0.5",
                                    "attention=additive",
                                    "attention=pairwise similarity=manhattan activation=sigmoid"};
static const ModelKinds all = {&bert, kinds, sizeof(kinds) / sizeof(kinds[0]), 3};

// Layers of several kinds of attention.
static const char *const mixed[] = {"attention=additive,softmax", "attention=cosine+softmax1"};
static const ModelKinds hybrids = {&bert, mixed, sizeof(mixed) / sizeof(mixed[0]), 3};

static void test_gradients(void) {
    model_check_kind_gradients(&hybrids, SMALL "dropout=0.2", 40, 0.3);
    model_check_kind_gradients(&all, SMALL, 1, 0);
    model_check_kind_gradients(&all, SMALL, 21, 0);
    model_check_kind_gradients(&all, LONG, 139, 0);
    model_check_kind_gradients(&all, "layers=1 channels=10 heads=10", 33, 0);
}

static void test_gradients_padding(void) {
    model_check_kind_gradients(&all, SMALL, 21, 0.3);
    model_check_kind_gradients(&all, LONG, 139, 0.9); // whole tiles of padding
}

static void test_gradients_dropout(void) {
    model_check_kind_gradients(&all, SMALL "dropout=0.3", 40, 0);
    model_check_kind_gradients(&all, LONG "dropout=0.1", 139, 0.2);
}

static void test_padding(void) {
    model_check_kind_padding(&all, SMALL);
}

static void test_threads(void) {
    model_check_kind_threads(&all, SMALL);
}

static void test_accumulation(void) {
    model_check_kind_accumulation(&all, SMALL);
}

// Loss and accuracy equal those computed here from the logits of all tokens.
static void test_targets(void) {
    enum { T = 100, V = 29 };
    ModelTest t = model_test_create(&bert, SMALL, 2, T, V);
    Batch batch = model_kinds_batch(&all, &t, 0, 3);
    batch.counts_correct = true;
    real *logits = allocate((size_t)2 * T * V, sizeof(real), "test");
    transformer_logits(t.model, &batch, logits);
    double loss = 0;
    int64_t correct = 0;
    for (size_t i = 0; i < 2 * T; i++) {
        if (batch.targets[i] < 0) continue;
        double sum = 0;
        bool best = true;
        for (size_t v = 0; v < V; v++) {
            sum += exp((double)logits[i * V + v]);
            best &= logits[i * V + v] <= logits[i * V + (size_t)batch.targets[i]];
        }
        loss += log(sum) - (double)logits[i * V + (size_t)batch.targets[i]];
        correct += best;
    }
    CHECK_CLOSE(transformer_forward(t.model, &batch), loss, 1e-5 * loss);
    CHECK(transformer_correct(t.model) == correct);
    // Of a model that has diverged, no prediction is correct.
    for (size_t i = 0; i < t.table->items[0].size; i++) t.values[i] = (real)NAN;
    cpu_model_write(t.model, MODEL_VALUES, t.values);
    CHECK(isnan(transformer_forward(t.model, &batch)) && transformer_correct(t.model) == 0);
    // Without targets, loss and gradients are 0.
    for (size_t i = 0; i < 2 * T; i++) ((int32_t *)batch.targets)[i] = -1;
    CHECK(transformer_train(t.model, &batch, 1) == 0 && transformer_forward(t.model, &batch) == 0);
    CHECK(cpu_model_gradient_norm(t.model) == 0);
    free(logits);
    model_test_batch_free(&batch);
    model_test_free(&t);
}

static void test_reference(void) {
    static const char *const files[] = {"softmax", "softmax1", "cosine", "padded", "additive"};
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        char *path = format_string("dev/reference/bert_%s.safetensors", files[i]);
        CHECK(model_reference(&bert, path, IS_DOUBLE ? "double" : "float", 0));
        free(path);
    }
}

static void create_with(void *options) {
    model_test_options(&bert, options);
}

static void test_bad_options(void) {
    CHECK_FAILS(create_with, "channels=24 heads=5", 1, "--heads 5");
    CHECK_FAILS(create_with, "attention=linear", 2, "softmax|softmax1|cosine|additive");
    CHECK_FAILS(create_with, "cosine-power=2", 2, "expected a number from 0 to 1, or learned");
}

static void test_tensor_names(void) {
    static const struct {
        const char *theirs, *ours;
    } names[] = {
        {"bert.embeddings.LayerNorm.gamma", "bert.embeddings.LayerNorm.weight"},
        {"embeddings.LayerNorm.beta", "bert.embeddings.LayerNorm.bias"},
        {"encoder.layer.3.output.dense.bias", "bert.encoder.layer.3.output.dense.bias"},
        {"cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"},
        {"cls.predictions.decoder.bias", "cls.predictions.bias"},
        {"bert.pooler.dense.weight", NULL},
        {"cls.seq_relationship.bias", NULL},
        {"bert.embeddings.position_ids", NULL},
    };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char *name = bert_tensor_name(names[i].theirs, NULL);
        CHECK(names[i].ours ? name && strcmp(name, names[i].ours) == 0 : !name);
        free(name);
    }
}

// Runs on the embedded corpus, which has no mask token.
static void run_program(void *arguments) {
    model_test_program(&bert, arguments);
}

static void test_no_mask_token(void) {
    CHECK_FAILS(run_program, "-o none -x 1", 1, "has no mask token; make the data with ./tokenize");
}

int main(int argc, char **argv) {
    static const TestCase cases[] = {
        {"reference vectors", test_reference},
        {"gradients", test_gradients},
        {"gradients with padding", test_gradients_padding},
        {"gradients with dropout", test_gradients_dropout},
        {"padding", test_padding},
        {"threads", test_threads},
        {"accumulation", test_accumulation},
        {"targets", test_targets},
        {"bad options", test_bad_options},
        {"names of tensors", test_tensor_names},
        {"data without a mask token", test_no_mask_token},
    };
    return model_test_main(argc, argv, &bert, 0, cases, sizeof(cases) / sizeof(*cases));
}
