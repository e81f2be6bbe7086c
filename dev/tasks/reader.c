#include "reader.h"

#include "error.h"
#include "memory.h"
#include <stdlib.h>
#include <string.h>

struct Reader {
    const Run *run;
    int streams; // S
    ReaderBeyond beyond;
    int64_t positions; // T
    int64_t count;     // tokens that the decoder has read
    int32_t *last;     // READER_SLIDE: (T, S) these tokens
    void *decoder;
};

Reader *reader_create(const Run *run, int streams, ReaderBeyond beyond) {
    Reader *r = allocate(1, sizeof(*r), "a reader");
    *r = (Reader){.run = run,
                  .streams = streams,
                  .beyond = beyond,
                  .positions = run->setup.positions,
                  .decoder = run->type->decoder_create(run->model, streams)};
    return r;
}

void reader_free(Reader *r) {
    if (!r) return;
    r->run->type->decoder_destroy(r->decoder);
    free(r->last);
    free(r);
}

int64_t reader_room(const Reader *r) {
    return r->count < r->positions ? r->positions - r->count : 0;
}

bool reader_full(const Reader *r) {
    return r->beyond == READER_STOP && reader_room(r) == 0;
}

// Replaces the decoder by a new one that has read the last half again.
static void read_again(Reader *r) {
    const ModelType *type = r->run->type;
    const size_t S = (size_t)r->streams, kept = (size_t)(r->positions / 2);
    type->decoder_destroy(r->decoder);
    r->decoder = type->decoder_create(r->run->model, r->streams);
    memmove(r->last, r->last + ((size_t)r->positions - kept) * S, kept * S * sizeof(int32_t));
    for (size_t i = 0; i < kept; i++) type->decode(r->decoder, r->last + i * S, NULL);
    r->count = (int64_t)kept;
}

// Stores a token of each text; the list grows with the texts.
static void remember(Reader *r, const int32_t *tokens) {
    const size_t S = (size_t)r->streams;
    for (size_t s = 0; s < S; s++) {
        r->last = grow_list(r->last, (size_t)r->count * S + s, sizeof(int32_t), "a text");
        r->last[(size_t)r->count * S + s] = tokens[s];
    }
}

void reader_read(Reader *r, const int32_t *tokens, real *logits) {
    const int64_t T = r->positions, past = r->count - T; // tokens beyond the last position
    if (r->beyond == READER_SLIDE) {
        if (past == 0) read_again(r);
        remember(r, tokens);
    } else if (r->beyond == READER_REPEAT && past >= 0) {
        r->run->type->decoder_place(r->decoder, T / 2 + past % (T - T / 2));
    }
    r->run->type->decode(r->decoder, tokens, logits);
    r->count++;
}
