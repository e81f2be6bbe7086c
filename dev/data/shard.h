// A shard: llm.c's .bin file. A header of 256 int32 (magic, version, token count), then the tokens
// as uint16 (version 1) or uint32 (version 7), little-endian like the supported processors.
#ifndef DATA_SHARD_H
#define DATA_SHARD_H

#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

// Magic numbers of llm.c's GPT-2 files (20240520) and Llama 3 files (20240801, version 7).
enum { SHARD_MAGIC = 20240520, SHARD_MAGIC_LLAMA3 = 20240801, SHARD_HEADER_SIZE = 1024 };

typedef struct {
    char *path;         // NULL: in memory
    struct stat status; // of the file when it was opened
    int32_t *tokens;    // (count) of a shard in memory
    int width;          // bytes per token in the file: 2 or 4
    int64_t count;
    int32_t magic;
    int32_t vocabulary; // tokens must be smaller; initially INT32_MAX
    int32_t padding;    // padding token; initially -1: none
    int64_t paddings;   // number of padding tokens, set by shard_check()
    uint64_t checksum;  // of the tokens' bytes, set by shard_check()
    uint64_t expected;  // required checksum; 0: unknown
} Shard;

// Checks a file's header and size. Tokens are read from the file when needed, so that no descriptor
// stays open, and a change of the file by another program ends this one with an error message.
Shard shard_open(const char *path);

// Returns a shard in memory, which owns `tokens` (count).
Shard shard_in_memory(int32_t *tokens, int64_t count);
void shard_close(Shard *shard);

// Reads all tokens, counts the padding and computes the checksum. Exits with an error if a token is
// not in the vocabulary or the checksum is not the expected one.
void shard_check(Shard *shard);

// Copies tokens start .. start+count-1 to out (count). Exits with an error if the file was replaced
// or changed since shard_open().
void shard_copy(const Shard *shard, int64_t start, int64_t count, int32_t *out);

// Writes DIR/SPLIT_000000.bin and so on, each with at most `limit` tokens. The tokens are uint16 if
// the vocabulary allows it.
typedef struct ShardWriter ShardWriter;
ShardWriter *shard_writer_open(const char *directory, const char *split, int32_t vocabulary,
                               int64_t limit);
void shard_writer_add(ShardWriter *writer, const int32_t *tokens, size_t count);

// Returns the number of shards and sets *checksums to their checksums (allocated).
int shard_writer_close(ShardWriter *writer, uint64_t **checksums);

#endif
