#include "corpus.h"
#include "embed.h"

EMBED(corpus, CORPUS_FILE); // which make has put together

Text corpus_text(void) {
    return EMBEDDED(corpus);
}
