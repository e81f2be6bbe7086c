// AMX instructions in plain C, as defined in Intel's Software Developer's Manual. They replace
// those in dev/cpu/amx_tiles.h, so that all code that multiplies with AMX is tested on processors
// without it. Exits with an error if a tile is not configured, which would trap on a processor.
#ifndef EMULATOR_AMX_IN_C_H
#define EMULATOR_AMX_IN_C_H

#include "error.h"
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { AMX_TILES = 8, AMX_ROWS = 16, AMX_ROW_BYTES = 64 };

typedef struct {
    size_t rows, row_bytes; // 0: not configured
    uint8_t data[AMX_ROWS][AMX_ROW_BYTES];
} AmxTile;

extern _Thread_local AmxTile amx_tiles[AMX_TILES]; // defined in amx.c

#define AMX_CONFIGURE(configuration) amx_configure((const uint8_t *)(configuration))
#define AMX_RELEASE() memset(amx_tiles, 0, sizeof(amx_tiles))
#define AMX_LOAD(tile, from, row) amx_load(tile, from, row)
#define AMX_STORE(tile, to, row) amx_store(tile, to, row)
#define AMX_ZERO(tile) amx_zero(tile)
#define AMX_MULTIPLY_ADD(sum, a, b) amx_multiply_add(sum, a, b)

// The 64 bytes are: palette 1, first row 0, 14 zeros, 8 row sizes in bytes (16 bits each), 16
// zeros, 8 row counts, 8 zeros.
static inline void amx_configure(const uint8_t bytes[64]) {
    static const uint8_t zeros[16] = {0};
    if (bytes[0] != 1 || memcmp(bytes + 1, zeros, 15) != 0 || memcmp(bytes + 32, zeros, 16) != 0 ||
        memcmp(bytes + 56, zeros, 8) != 0)
        fail("AMX: palette, first row or what must be 0 in a configuration");
    AMX_RELEASE();
    for (size_t t = 0; t < AMX_TILES; t++) {
        amx_tiles[t].row_bytes = (size_t)(bytes[16 + 2 * t] | bytes[17 + 2 * t] << 8);
        amx_tiles[t].rows = bytes[48 + t];
        if (amx_tiles[t].rows > AMX_ROWS || amx_tiles[t].row_bytes > AMX_ROW_BYTES)
            fail("AMX: tile %zu of %zu rows of %zu bytes", t, amx_tiles[t].rows,
                 amx_tiles[t].row_bytes);
    }
}

static inline AmxTile *amx_tile(size_t t) {
    if (amx_tiles[t].rows == 0 || amx_tiles[t].row_bytes == 0)
        fail("AMX: tile %zu is not configured", t);
    return &amx_tiles[t];
}

static inline void amx_zero(size_t t) {
    AmxTile *tile = amx_tile(t);
    memset(tile->data, 0, sizeof(tile->data));
}

static inline void amx_load(size_t t, const float *from, size_t row) {
    AmxTile *tile = amx_tile(t);
    memset(tile->data, 0, sizeof(tile->data));
    for (size_t r = 0; r < tile->rows; r++) memcpy(tile->data[r], from + r * row, tile->row_bytes);
}

static inline void amx_store(size_t t, float *to, size_t row) {
    const AmxTile *tile = amx_tile(t);
    for (size_t r = 0; r < tile->rows; r++) memcpy(to + r * row, tile->data[r], tile->row_bytes);
}

static inline float amx_flush(float x) {
    return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x; // keeps NaN
}

// Element `n` of a row of bf16.
static inline float amx_bf16(const uint8_t *row, size_t n) {
    uint16_t half;
    memcpy(&half, row + n * sizeof(half), sizeof(half));
    const uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof(value));
    return amx_flush(value);
}

// sum += a b. Even and odd elements of pairs are summed separately; each product is added to its
// sum with one rounding (to nearest, ties to even). Then both sums are added to the tile.
static inline void amx_multiply_add(size_t sum, size_t a, size_t b) {
    AmxTile *c = amx_tile(sum);
    const AmxTile *left = amx_tile(a), *right = amx_tile(b);
    const size_t words = left->row_bytes / 4, columns = c->row_bytes / 4;
    if (left->rows != c->rows || right->row_bytes != c->row_bytes || right->rows != words)
        fail("AMX: tiles that do not fit together");
    for (size_t m = 0; m < c->rows; m++) {
        float sums[AMX_ROW_BYTES / 4][2] = {{0}}, row[AMX_ROW_BYTES / 4];
        for (size_t k = 0; k < words; k++) {
            for (size_t n = 0; n < 2 * columns; n++) {
                float *to = &sums[n / 2][n % 2];
                *to = amx_flush(
                    fmaf(amx_bf16(left->data[m], 2 * k + n % 2), amx_bf16(right->data[k], n), *to));
            }
        }
        memcpy(row, c->data[m], c->row_bytes);
        for (size_t n = 0; n < columns; n++)
            row[n] = amx_flush(amx_flush(row[n]) + amx_flush(sums[n][0] + sums[n][1]));
        memcpy(c->data[m], row, c->row_bytes);
    }
}

#endif
