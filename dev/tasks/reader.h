// A model that reads texts side by side, one token of each at a time. Beyond its last position:
//
//   slide    it forgets, and reads the last half of its positions again
//   repeat   it remembers, and reuses the second half of its positions for later tokens
//   stop     it reads no further token
#ifndef TASKS_READER_H
#define TASKS_READER_H

#include "run.h"
#include <stdbool.h>
#include <stdint.h>

#define READER_BEYOND "slide|repeat|stop"
typedef enum { READER_SLIDE, READER_REPEAT, READER_STOP } ReaderBeyond;

typedef struct Reader Reader;

Reader *reader_create(const Run *run, int streams, ReaderBeyond beyond);
void reader_free(Reader *reader);

// Returns how many more tokens of each text can be read before something is forgotten or positions
// are reused.
int64_t reader_room(const Reader *reader);

// Returns whether no further token can be read.
bool reader_full(const Reader *reader);

// Reads a token of each text (streams), and writes the logits (streams, V) of the next ones. logits
// NULL: not needed.
void reader_read(Reader *reader, const int32_t *tokens, real *logits);

#endif
