#include "shard.h"
#include "bytes.h"
#include "error.h"
#include "memory.h"
#include <stdlib.h>
#include <string.h>

enum { VERSION_UINT16 = 1, VERSION_UINT32 = 7, UINT16_VOCABULARY = 65536 };

// ---- reading ---------------------------------------------------------------------------------------

Shard shard_open(const char *path) {
    Shard shard = {.file = file_map(path)};
    int32_t header[3];
    if (shard.file.size < SHARD_HEADER_SIZE)
        fail("%s: has %zu bytes, expected a header of %d", path, shard.file.size, SHARD_HEADER_SIZE);
    memcpy(header, shard.file.data, sizeof(header));
    if (header[0] != SHARD_MAGIC && header[0] != SHARD_MAGIC_LLAMA3)
        fail("%s: is no shard of tokens: found magic %d, expected %d or %d", path, header[0], SHARD_MAGIC,
             SHARD_MAGIC_LLAMA3);
    if (header[1] != VERSION_UINT16 && header[1] != VERSION_UINT32)
        fail("%s: found version %d, expected %d (uint16) or %d (uint32)", path, header[1], VERSION_UINT16,
             VERSION_UINT32);
    if (header[2] < 1) fail("%s: the header says %d tokens, expected at least 1", path, header[2]);
    shard.magic = header[0];
    shard.width = header[1] == VERSION_UINT16 ? 2 : 4;
    shard.count = header[2];
    const int64_t expected = SHARD_HEADER_SIZE + shard.count * shard.width;
    if ((int64_t)shard.file.size != expected)
        fail("%s: has %zu bytes, expected %lld for %lld tokens", path, shard.file.size, (long long)expected,
             (long long)shard.count);
    shard.tokens = shard.file.data + SHARD_HEADER_SIZE;
    return shard;
}

void shard_close(Shard *shard) {
    file_unmap(&shard->file);
}

static uint16_t maximum_u16(const uint16_t *tokens, int64_t count) {
    uint16_t maximum = 0;
#pragma omp simd reduction(max : maximum)
    for (int64_t i = 0; i < count; i++) maximum = tokens[i] > maximum ? tokens[i] : maximum;
    return maximum;
}

static uint32_t maximum_u32(const uint32_t *tokens, int64_t count) {
    uint32_t maximum = 0;
#pragma omp simd reduction(max : maximum)
    for (int64_t i = 0; i < count; i++) maximum = tokens[i] > maximum ? tokens[i] : maximum;
    return maximum;
}

static uint32_t token_at(const Shard *shard, int64_t i) {
    if (shard->width == 1) return ((const uint8_t *)shard->tokens)[i];
    return shard->width == 2 ? ((const uint16_t *)shard->tokens)[i] : ((const uint32_t *)shard->tokens)[i];
}

void shard_check(const Shard *shard, int32_t vocabulary) {
    const uint32_t maximum = shard->width == 2 ? maximum_u16(shard->tokens, shard->count)
                                               : maximum_u32(shard->tokens, shard->count);
    if (maximum < (uint32_t)vocabulary) return;
    int64_t i = 0;
    while (token_at(shard, i) < (uint32_t)vocabulary) i++;
    fail("%s: token number %lld is %u, expected less than the vocabulary's %d", shard->file.path,
         (long long)i, token_at(shard, i), vocabulary);
}

void shard_copy(const Shard *shard, int64_t start, int64_t count, int32_t *restrict out) {
    if (shard->width == 1) {
        const uint8_t *tokens = (const uint8_t *)shard->tokens + start;
        for (int64_t i = 0; i < count; i++) out[i] = tokens[i];
    } else if (shard->width == 2) {
        const uint16_t *tokens = (const uint16_t *)shard->tokens + start;
        for (int64_t i = 0; i < count; i++) out[i] = tokens[i];
    } else {
        const uint32_t *tokens = (const uint32_t *)shard->tokens + start;
        for (int64_t i = 0; i < count; i++) out[i] = (int32_t)tokens[i];
    }
}

// ---- writing ---------------------------------------------------------------------------------------

struct ShardWriter {
    const char *directory, *split;
    int width, shards;
    int64_t limit;
    Bytes tokens; // of the shard that is being filled
};

ShardWriter *shard_writer_open(const char *directory, const char *split, int32_t vocabulary, int64_t limit) {
    ShardWriter *writer = allocate(1, sizeof(*writer), "a shard");
    writer->directory = directory;
    writer->split = split;
    writer->width = vocabulary <= UINT16_VOCABULARY ? 2 : 4;
    writer->limit = limit;
    return writer;
}

static void write_shard(ShardWriter *writer) {
    if (writer->tokens.size == 0) return;
    int32_t header[SHARD_HEADER_SIZE / sizeof(int32_t)] = {0};
    header[0] = writer->width == 2 ? SHARD_MAGIC : SHARD_MAGIC_LLAMA3;
    header[1] = writer->width == 2 ? VERSION_UINT16 : VERSION_UINT32;
    header[2] = (int32_t)(writer->tokens.size / (size_t)writer->width);
    char *path = format_string("%s/%s_%06d.bin", writer->directory, writer->split, writer->shards);
    AtomicFile *file = atomic_open(path);
    atomic_write(file, header, sizeof(header));
    atomic_write(file, writer->tokens.data, writer->tokens.size);
    atomic_commit(file);
    free(path);
    writer->tokens.size = 0;
    writer->shards++;
}

static void pack(const int32_t *restrict tokens, size_t count, int width, char *restrict out) {
    if (width == 4) {
        memcpy(out, tokens, count * sizeof(*tokens));
        return;
    }
    for (size_t i = 0; i < count; i++) {
        const uint16_t token = (uint16_t)tokens[i];
        memcpy(out + 2 * i, &token, 2);
    }
}

void shard_writer_add(ShardWriter *writer, const int32_t *tokens, size_t count) {
    while (count > 0) {
        const size_t width = (size_t)writer->width;
        const size_t room = (size_t)writer->limit - writer->tokens.size / width;
        const size_t part = count < room ? count : room;
        pack(tokens, part, writer->width, bytes_reserve(&writer->tokens, part * width));
        writer->tokens.size += part * width;
        if (part == room) write_shard(writer);
        tokens += part;
        count -= part;
    }
}

int shard_writer_close(ShardWriter *writer) {
    write_shard(writer);
    const int shards = writer->shards;
    bytes_free(&writer->tokens);
    free(writer);
    return shards;
}
