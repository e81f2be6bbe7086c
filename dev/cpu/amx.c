#include "amx_tiles.h"
#include "sizes.h"
#include "tile.h"

#if TILE_PAIRS

#ifdef AMX_IN_C

_Thread_local AmxTile amx_tiles[AMX_TILES];

bool amx_available(void) {
    return true;
}

#else

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

bool amx_available(void) {
    const unsigned need = 1u << 22 | 1u << 24; // AMX-BF16, AMX-TILE
    unsigned eax, ebx, ecx, edx;
    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || (edx & need) != need) return false;
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

#endif

// The configuration of the eight tiles, as LDTILECFG reads it.
typedef struct {
    uint8_t palette, first_row, zeros[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} Configuration;

void amx_begin(void) {
    static const Configuration largest = {.palette = 1,
                                          .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
                                          .rows = {16, 16, 16, 16, 16, 16, 16, 16}};
    AMX_CONFIGURE(&largest);
}

void amx_end(void) {
    AMX_RELEASE();
}

void amx_product(real *c, size_t c_row, const real *start, size_t start_row, TileView a,
                 const real *b, size_t b_row, size_t m, size_t n, size_t k) {
    enum { TILE = AMX_BLOCK / 2 };
    const size_t a_stride = larger(a.row, a.column); // from one row of a tile to the next
    for (size_t j = 0; j < n; j += AMX_BLOCK) {
        for (size_t i = 0; i < m; i += AMX_BLOCK) {
            const float *const from = start + i * start_row + j;
            AMX_LOAD(0, from, start_row);
            AMX_LOAD(1, from + TILE, start_row);
            AMX_LOAD(2, from + TILE * start_row, start_row);
            AMX_LOAD(3, from + TILE * start_row + TILE, start_row);
            for (size_t s = 0; s < k; s += AMX_WORDS) {
                const float *const rows = a.data + i * a.row + s * a.column, *const columns =
                                                                                 b + s * b_row + j;
                AMX_LOAD(4, rows, a_stride);
                AMX_LOAD(5, rows + TILE * a.row, a_stride);
                AMX_LOAD(6, columns, b_row);
                AMX_LOAD(7, columns + TILE, b_row);
                AMX_MULTIPLY_ADD(0, 4, 6);
                AMX_MULTIPLY_ADD(1, 4, 7);
                AMX_MULTIPLY_ADD(2, 5, 6);
                AMX_MULTIPLY_ADD(3, 5, 7);
            }
            float *const to = c + i * c_row + j;
            AMX_STORE(0, to, c_row);
            AMX_STORE(1, to + TILE, c_row);
            AMX_STORE(2, to + TILE * c_row, c_row);
            AMX_STORE(3, to + TILE * c_row + TILE, c_row);
        }
    }
}

#endif
