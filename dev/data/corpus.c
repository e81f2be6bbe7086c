#include "corpus.h"
#include "embed.h"

EMBED(corpus, CORPUS_FILE); // built by make

Text corpus_text(void) {
    return EMBEDDED(corpus);
}
