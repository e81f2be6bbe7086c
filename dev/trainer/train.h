// The training program of all models, which a model's main() calls.
#ifndef TRAINER_TRAIN_H
#define TRAINER_TRAIN_H

#include "model.h"

// Reads the command line, and trains, evaluates, or does what else the options ask for. Returns the
// exit code.
int train_main(int argc, char **argv, const ModelType *type);

// The main() of a model's program. A test that includes its source has its own.
#ifdef TESTING
#define TRAINER_MAIN(type)
#else
#define TRAINER_MAIN(type)                                                                         \
    int main(int argc, char **argv) {                                                              \
        return train_main(argc, argv, &(type));                                                    \
    }
#endif

#endif
