// The text inside the program: the project's own source and documentation (build/corpus.txt, which the
// Makefile puts together).
#ifndef TRAINER_CORPUS_H
#define TRAINER_CORPUS_H

#include "text.h"

Text corpus_text(void);

#endif
