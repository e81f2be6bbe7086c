// Interface to the single-file model, dev/fastformer/plain.c, a reference for the fast model.
#ifndef TEST_PLAIN_MODEL_H
#define TEST_PLAIN_MODEL_H

enum { PLAIN_LENGTH = 64, PLAIN_VOCABULARY = 256 };
#define PLAIN_OPTIONS "layers=3 channels=64 heads=4"

// Returns the mean loss over the positions of a sequence, tokens (PLAIN_LENGTH + 1); gradients +=
// part times its gradients. Both arrays are ordered as in plain.c's struct Parameters.
double plain_model_loss(const double *parameters, const unsigned char *tokens, double part,
                        double *gradients);

#endif
