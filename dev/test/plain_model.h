// The model in one file, dev/fastformer/plain.c, which the fast model is held against.
#ifndef TEST_PLAIN_MODEL_H
#define TEST_PLAIN_MODEL_H

enum { PLAIN_LENGTH = 64, PLAIN_VOCABULARY = 256 };
#define PLAIN_OPTIONS "layers=3 channels=64 heads=4"

// The mean loss over the positions of a sequence, tokens (PLAIN_LENGTH + 1); gradients += part
// times those of the loss. parameters, gradients: in the order of its struct Parameters.
double plain_model_loss(const double *parameters, const unsigned char *tokens, double part,
                        double *gradients);

#endif
