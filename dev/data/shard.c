#include "shard.h"
#include "bytes.h"
#include "checksum.h"
#include "error.h"
#include "file.h"
#include "memory.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    VERSION_UINT16 = 1,
    VERSION_UINT32 = 7,
    UINT16_VOCABULARY = 65536,
    READ_SIZE = 1 << 14,   // bytes at a time
    CHECK_TOKENS = 1 << 16 // tokens at a time
};

// ---- reading ----------------------------------------------------------------

static int open_file(const char *path, struct stat *status) {
    const int fd = file_open(path, status);
    if (fd < 0) fail("%s: cannot open: %s", path, strerror(ENOENT));
    return fd;
}

static void read_at(const char *path, int fd, int64_t offset, void *out, size_t size) {
    for (size_t done = 0; done < size;) {
        const ssize_t got =
            pread(fd, (char *)out + done, size - done, (off_t)(offset + (int64_t)done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) fail("%s: cannot read: %s", path, strerror(errno));
        if (got == 0) fail("%s: became shorter while it was read", path);
        done += (size_t)got;
    }
}

Shard shard_open(const char *path) {
    Shard shard = {.path = copy_string(path), .vocabulary = INT32_MAX, .padding = -1};
    const int fd = open_file(path, &shard.status);
    int32_t header[3];
    if (shard.status.st_size < SHARD_HEADER_SIZE)
        fail("%s: has %lld bytes, expected a header of %d", path, (long long)shard.status.st_size,
             SHARD_HEADER_SIZE);
    read_at(path, fd, 0, header, sizeof(header));
    close(fd);
    if (header[0] != SHARD_MAGIC && header[0] != SHARD_MAGIC_LLAMA3)
        fail("%s: is not a shard of tokens: found magic %d, expected %d or %d", path, header[0],
             SHARD_MAGIC, SHARD_MAGIC_LLAMA3);
    if (header[1] != VERSION_UINT16 && header[1] != VERSION_UINT32)
        fail("%s: found version %d, expected %d (uint16) or %d (uint32)", path, header[1],
             VERSION_UINT16, VERSION_UINT32);
    if (header[2] < 1) fail("%s: the header has %d tokens, expected at least 1", path, header[2]);
    shard.magic = header[0];
    shard.width = header[1] == VERSION_UINT16 ? 2 : 4;
    shard.count = header[2];
    const int64_t expected = SHARD_HEADER_SIZE + shard.count * shard.width;
    if (shard.status.st_size != expected)
        fail("%s: has %lld bytes, expected %lld for %lld tokens", path,
             (long long)shard.status.st_size, (long long)expected, (long long)shard.count);
    return shard;
}

Shard shard_in_memory(int32_t *tokens, int64_t count) {
    return (Shard){.tokens = tokens,
                   .count = count,
                   .magic = SHARD_MAGIC,
                   .vocabulary = INT32_MAX,
                   .padding = -1};
}

void shard_close(Shard *shard) {
    free(shard->path);
    free(shard->tokens);
    *shard = (Shard){0};
}

// Opens the file again. Exits with an error if the file has changed.
static int open_again(const Shard *shard) {
    struct stat now;
    const struct stat *then = &shard->status;
    const int fd = open_file(shard->path, &now);
    if (now.st_dev != then->st_dev || now.st_ino != then->st_ino || now.st_size != then->st_size ||
        now.st_mtim.tv_sec != then->st_mtim.tv_sec || now.st_mtim.tv_nsec != then->st_mtim.tv_nsec)
        fail("%s: was changed while it was in use: start again when it is complete", shard->path);
    return fd;
}

// Converts the bytes of a file to tokens.
static void unpack(const char *restrict bytes, int width, int64_t count, int32_t *restrict out) {
    if (width == 4) {
        memcpy(out, bytes, (size_t)count * sizeof(*out));
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        uint16_t token;
        memcpy(&token, bytes + 2 * i, sizeof(token));
        out[i] = token;
    }
}

static void check_tokens(const Shard *shard, int64_t start, int64_t count, const int32_t *tokens) {
    uint32_t maximum = 0;
#pragma omp simd reduction(max : maximum)
    for (int64_t i = 0; i < count; i++)
        maximum = (uint32_t)tokens[i] > maximum ? (uint32_t)tokens[i] : maximum;
    if (maximum < (uint32_t)shard->vocabulary) return;
    int64_t i = 0;
    while ((uint32_t)tokens[i] < (uint32_t)shard->vocabulary) i++;
    const int64_t place = start + i;
    fail("%s: token number %lld is %u, expected less than the vocabulary's %d",
         shard->path ? shard->path : "embedded", (long long)place, (uint32_t)tokens[i],
         shard->vocabulary);
}

void shard_copy(const Shard *shard, int64_t start, int64_t count, int32_t *restrict out) {
    if (shard->tokens) {
        memcpy(out, shard->tokens + start, (size_t)count * sizeof(*out));
        return;
    }
    const int fd = open_again(shard);
    char bytes[READ_SIZE];
    const int64_t most = READ_SIZE / shard->width;
    for (int64_t done = 0; done < count;) {
        const int64_t part = count - done < most ? count - done : most;
        read_at(shard->path, fd, SHARD_HEADER_SIZE + (start + done) * shard->width, bytes,
                (size_t)(part * shard->width));
        unpack(bytes, shard->width, part, out + done);
        done += part;
    }
    close(fd);
    check_tokens(shard, start, count, out);
}

void shard_check(Shard *shard) {
    const int width = shard->tokens ? (int)sizeof(*shard->tokens) : shard->width;
    const int fd = shard->tokens ? -1 : open_again(shard);
    char *bytes = allocate(CHECK_TOKENS, sizeof(int32_t), "tokens");
    int32_t *tokens = allocate(CHECK_TOKENS, sizeof(*tokens), "tokens");
    Checksum checksum = checksum_begin();
    for (int64_t start = 0; start < shard->count; start += CHECK_TOKENS) {
        const int64_t left = shard->count - start, part = left < CHECK_TOKENS ? left : CHECK_TOKENS;
        const size_t size = (size_t)(part * width);
        if (shard->tokens)
            memcpy(bytes, shard->tokens + start, size);
        else
            read_at(shard->path, fd, SHARD_HEADER_SIZE + start * width, bytes, size);
        checksum_add(&checksum, bytes, size);
        unpack(bytes, width, part, tokens);
        check_tokens(shard, start, part, tokens);
        for (int64_t i = 0; i < part; i++) shard->paddings += tokens[i] == shard->padding;
    }
    shard->checksum = checksum_end(&checksum);
    if (shard->expected && shard->expected != shard->checksum)
        fail("%s: was changed or damaged since it was made: its checksum is %016llx, meta.json has "
             "%016llx; make the data again",
             shard->path, (unsigned long long)shard->checksum, (unsigned long long)shard->expected);
    if (fd >= 0) close(fd);
    free(bytes);
    free(tokens);
}

// ---- writing ----------------------------------------------------------------

struct ShardWriter {
    const char *directory, *split;
    int width, shards;
    int64_t limit;
    Bytes tokens;    // of the current shard
    Bytes checksums; // of the shards written so far
};

ShardWriter *shard_writer_open(const char *directory, const char *split, int32_t vocabulary,
                               int64_t limit) {
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
    Checksum checksum = checksum_begin();
    checksum_add(&checksum, writer->tokens.data, writer->tokens.size);
    const uint64_t sum = checksum_end(&checksum);
    bytes_append(&writer->checksums, &sum, sizeof(sum));
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

int shard_writer_close(ShardWriter *writer, uint64_t **checksums) {
    write_shard(writer);
    const int shards = writer->shards;
    *checksums = (uint64_t *)writer->checksums.data;
    bytes_free(&writer->tokens);
    free(writer);
    return shards;
}
