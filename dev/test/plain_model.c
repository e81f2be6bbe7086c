#include "plain_model.h"

int plain_main(int argc, char **argv);
#define main plain_main
#include "../fastformer/plain.c"
#undef main

_Static_assert((int)T == PLAIN_LENGTH && (int)V == PLAIN_VOCABULARY, "plain.c has other sizes");

double plain_model_loss(const double *parameters, const unsigned char *tokens, double part,
                        double *gradients) {
    State *s = calloc(1, sizeof(*s));
    Parameters *p = calloc(1, sizeof(*p));
    if (!s || !p) exit(1);
    memcpy(p, parameters, sizeof(*p));
    const double loss = model_loss(p, tokens, s, (Parameters *)gradients, part);
    free(s);
    free(p);
    return loss;
}
