// A thread block with two warp groups, which compute 64 rows each, and a warp that copies tiles for
// them. Tiles arrive in a ring of stages. The barriers of a stage signal that it is full, and that
// both groups have read it.
#ifndef CUDA_WARPGROUP_RING_CUH
#define CUDA_WARPGROUP_RING_CUH

#include "warpgroup.cuh"

static constexpr int GROUPS = 2, BLOCK_ROWS = GROUPS * GROUP_ROWS, // per thread block
    GROUP_WARPS = GROUPS * WARPGROUP / WARP, GROUP_THREADS = (GROUPS + 1) * WARPGROUP;

// The stage of a tile, and the parity of the phase of its barriers.
struct Stage {
    int place;
    uint32_t parity;
};

template <int STAGES> static __device__ __forceinline__ Stage stage_of(int tile) {
    return {tile % STAGES, (uint32_t)(tile / STAGES) & 1};
}

// A ring of stages with TILES tiles each, stored consecutively in shared memory.
template <typename Tile_, int TILES_, int STAGES_> struct Ring {
    using Tile = Tile_;
    static constexpr int TILES = TILES_, STAGES = STAGES_;
    static constexpr size_t BYTES = (size_t)STAGES * TILES * Tile::BYTES;
    bf16 *tiles;          // (STAGES, TILES)
    Barrier *full, *free; // (STAGES)
};

template <typename R>
static __device__ __forceinline__ bf16 *ring_tile(const R &ring, const Stage &s, int which) {
    return ring.tiles + (s.place * R::TILES + which) * R::Tile::NUMBERS;
}

// Called by one thread. `threads`: number of threads that fill a stage.
template <typename R>
static __device__ __forceinline__ void ring_create(const R &ring, int threads) {
    for (int i = 0; i < R::STAGES; i++) {
        barrier_create(ring.full + i, threads);
        barrier_create(ring.free + i, GROUP_WARPS);
    }
}

// Waits until a stage can be filled: until its previous tile has been read.
template <typename R>
static __device__ __forceinline__ void ring_wait_free(const R &ring, const Stage &s) {
    barrier_wait(ring.free + s.place, s.parity ^ 1);
}

template <typename R>
static __device__ __forceinline__ void ring_wait_full(const R &ring, const Stage &s) {
    barrier_wait(ring.full + s.place, s.parity);
}

// Called by all warps of both groups, after their products have read a stage.
template <typename R>
static __device__ __forceinline__ void ring_release(const R &ring, int place) {
    if (lane_index() == 0) barrier_arrive(ring.free + place);
}

// Whether a thread is in the last warp group, which only copies, with one of its warps. The other
// groups take its registers.
static __device__ __forceinline__ bool copies_only() {
    const bool copies = threadIdx.x >= GROUPS * WARPGROUP;
    if (copies)
        registers_leave();
    else
        registers_take();
    return copies;
}

// Whether a thread of the last warp group is in the warp that copies.
static __device__ __forceinline__ bool is_copying_warp() {
    return threadIdx.x < GROUPS * WARPGROUP + WARP;
}

#endif
