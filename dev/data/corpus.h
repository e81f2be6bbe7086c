// The text embedded in the program: the project's source and documentation (build/corpus.txt, built
// by the Makefile).
#ifndef DATA_CORPUS_H
#define DATA_CORPUS_H

#include "text.h"

Text corpus_text(void);

#endif
