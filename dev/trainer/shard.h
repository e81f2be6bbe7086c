// A shard: llm.c's .bin file. 256 int32 of header (magic, version, token count), then the tokens, uint16
// (version 1) or uint32 (version 7), little-endian as the processors this runs on.
#ifndef TRAINER_SHARD_H
#define TRAINER_SHARD_H

#include "file.h"
#include <stdint.h>

// The magic is that of llm.c's GPT-2 files (20240520) or of its Llama 3 files (20240801), which are
// version 7.
enum { SHARD_MAGIC = 20240520, SHARD_MAGIC_LLAMA3 = 20240801, SHARD_HEADER_SIZE = 1024 };

typedef struct {
    FileMap file;       // of a mapped shard; empty for the embedded corpus
    const void *tokens; // uint8_t (the embedded corpus), uint16_t or uint32_t
    int width;          // bytes a token: 1, 2 or 4
    int64_t count;
    int32_t magic;
} Shard;

// Maps a file and checks its header and size.
Shard shard_open(const char *path);
void shard_close(Shard *shard);

// Ends the program at the first token that the vocabulary does not have.
void shard_check(const Shard *shard, int32_t vocabulary);

// Copies tokens start .. start+count-1 to out (count).
void shard_copy(const Shard *shard, int64_t start, int64_t count, int32_t *out);

// Writes DIR/SPLIT_000000.bin and so on, each of at most `limit` tokens, as they come in. uint16 where the
// vocabulary allows it.
typedef struct ShardWriter ShardWriter;
ShardWriter *shard_writer_open(const char *directory, const char *split, int32_t vocabulary, int64_t limit);
void shard_writer_add(ShardWriter *writer, const int32_t *tokens, size_t count);
int shard_writer_close(ShardWriter *writer); // returns the number of shards

#endif
