// The text inside the program: the project's own source and documentation (build/corpus.txt, which
// the Makefile puts together).
#ifndef DATA_CORPUS_H
#define DATA_CORPUS_H

#include "text.h"

Text corpus_text(void);

#endif
