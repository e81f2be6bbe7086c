// A shard: llm.c's .bin file. 256 int32 of header (magic, version, token count), then the tokens,
// uint16 (version 1) or uint32 (version 7), little-endian as the processors this runs on.
#ifndef DATA_SHARD_H
#define DATA_SHARD_H

#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

// The magic is that of llm.c's GPT-2 files (20240520) or of its Llama 3 files (20240801), which are
// version 7.
enum { SHARD_MAGIC = 20240520, SHARD_MAGIC_LLAMA3 = 20240801, SHARD_HEADER_SIZE = 1024 };

typedef struct {
    char *path;         // NULL: it is in memory
    struct stat status; // of the file when it was opened
    int32_t *tokens;    // (count) of a shard in memory
    int width;          // bytes per token in the file: 2 or 4
    int64_t count;
    int32_t magic;
    int32_t vocabulary; // whose tokens alone are allowed; INT32_MAX at first
    int32_t padding;    // the token that means none; -1 at first: there is none
    int64_t paddings;   // how many of these there are, which shard_check() finds
    uint64_t checksum;  // of the tokens' bytes, which shard_check() finds,
    uint64_t expected;  // and what it has to be; 0: unknown
} Shard;

// Checks a file's header and size. The file is read when tokens are needed, so that no file
// descriptor stays open, and nothing that others do to it can end the program without a message.
Shard shard_open(const char *path);

// A shard in memory, which takes over `tokens` (count).
Shard shard_in_memory(int32_t *tokens, int64_t count);
void shard_close(Shard *shard);

// Reads all tokens, counts padding and finds their checksum. Ends the program at the first token
// that the vocabulary does not have, or if the checksum is not the expected one.
void shard_check(Shard *shard);

// Copies tokens start .. start+count-1 to out (count). Ends the program if the file is not the one
// that was opened, or has changed since.
void shard_copy(const Shard *shard, int64_t start, int64_t count, int32_t *out);

// Writes DIR/SPLIT_000000.bin and so on, each of at most `limit` tokens, as they come in. uint16
// where the vocabulary allows it.
typedef struct ShardWriter ShardWriter;
ShardWriter *shard_writer_open(const char *directory, const char *split, int32_t vocabulary,
                               int64_t limit);
void shard_writer_add(ShardWriter *writer, const int32_t *tokens, size_t count);

// Returns the number of shards, whose checksums go to *checksums (fresh memory).
int shard_writer_close(ShardWriter *writer, uint64_t **checksums);

#endif
