// Measures the peak of this machine: FLOP/s of vector instructions and of tile registers (AMX),
// without memory access, and the memory bandwidth of all threads. Prints one line of JSON.
#include "amx_tiles.h"
#include "measure.h"
#include "threads.h"
#include "tile.h"

enum { SUMS = 12, REPEATED = 1 << 16 }; // independent sums, so that no addition waits for another

// Runs a round, REPEATED multiply-adds on each of sums[]. Returns its FLOP.
static double vectors(TileVector *restrict sums, TileVector a, TileVector b) {
    for (int i = 0; i < REPEATED; i++) {
#pragma GCC unroll 16
        for (int s = 0; s < SUMS; s++) sums[s] = sums[s] * a + b;
    }
    return 2.0 * SUMS * TILE_LANES * REPEATED;
}

#if TILE_PAIRS
static double vectors_bf16(TileVector *restrict sums, TileVector a, TileVector b) {
    const __m512bh x = (__m512bh)a, y = (__m512bh)b;
    for (int i = 0; i < REPEATED; i++) {
#pragma GCC unroll 16
        for (int s = 0; s < SUMS; s++)
            sums[s] = (TileVector)_mm512_dpbf16_ps((__m512)sums[s], x, y);
    }
    return 4.0 * SUMS * TILE_LANES * REPEATED;
}

// Four sums (16, 16) of products (16, 32) by (32, 16).
static double tiles(TileVector *restrict sums, TileVector a, TileVector b) {
    (void)sums, (void)a, (void)b;
    amx_begin();
    AMX_ZERO(0);
    AMX_ZERO(1);
    AMX_ZERO(2);
    AMX_ZERO(3);
    AMX_ZERO(4);
    AMX_ZERO(5);
    for (int i = 0; i < REPEATED; i++) {
        AMX_MULTIPLY_ADD(0, 4, 5);
        AMX_MULTIPLY_ADD(1, 4, 5);
        AMX_MULTIPLY_ADD(2, 4, 5);
        AMX_MULTIPLY_ADD(3, 4, 5);
    }
    amx_end();
    return 4.0 * 2 * 16 * 16 * 32 * REPEATED;
}
#endif

typedef double (*Round)(TileVector *restrict sums, TileVector a, TileVector b);

// Returns the GFLOP/s of all threads in the best of 20 rounds.
static double measure(Round round) {
    enum { ROUNDS = 20 };
    double best = 0;
    for (int i = 0; i < ROUNDS; i++) {
        double flops = 0, used = 0;
        const double start = clock_seconds();
#pragma omp parallel reduction(+ : flops, used)
        {
            TileVector sums[SUMS] = {0}, a = {0};
            a += (real)0.5;
            flops += round(sums, a, a);
            for (int s = 0; s < SUMS; s++) used += (double)sums[s][0]; // so that they are computed
        }
        const double speed = 1e-9 * flops / (clock_seconds() - start);
        if (speed > best && used == used) best = speed;
    }
    return best;
}

int main(int argc, char **argv) {
    threads_wait_briefly(argv);
    if (argc > 1) fail_usage("usage: %s", argv[0]);
    JsonWriter w = {0};
    json_begin(&w, '{');
    json_add_integer(&w, "threads", thread_limit());
    json_add_string(&w, "vectors", TILE_NAME);
    json_add_number(&w, "vectors_gflops", measure(vectors));
#if TILE_PAIRS
    json_add_number(&w, "vectors_bf16_gflops", measure(vectors_bf16));
    if (amx_available()) json_add_number(&w, "tiles_gflops", measure(tiles));
#endif
    json_add_number(&w, "memory_gb_per_s", 1e-9 * bench_read_bandwidth((size_t)1 << 29));
    bench_line(&w);
    return 0;
}
