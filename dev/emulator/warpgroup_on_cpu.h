// The instructions of warpgroup.cuh for the emulator, as defined in the PTX ISA (8.8): barriers
// (9.7.13.15, "mbarrier"), copies of tiles (9.7.9.27.1.2, "cp.async.bulk.tensor", and 5.5,
// "Tensors"), and products (9.7.15.5, "wgmma.mma_async": register fragments in 9.7.15.5.1.1, tiles
// in shared memory in 9.7.15.5.1.2).
//
// Copies arrive when a thread waits for their barrier, sums are added when they are waited for, and
// products are computed either then or at once. So code that does not wait reads the old values.
#ifndef EMULATOR_WARPGROUP_ON_CPU_H
#define EMULATOR_WARPGROUP_ON_CPU_H

#include "cuda_on_cpu.h"
#include <vector>

// ---- barriers ---------------------------------------------------------------
// The 8 bytes of an mbarrier object.
struct Barrier {
    uint16_t threads, missing; // expected per phase; still missing in this one
    uint16_t parity;           // of this phase
    uint16_t valid;
    static constexpr uint16_t VALID = 0x5ba1;
};
static_assert(sizeof(Barrier) == 8, "");

struct TensorMap {
    const char *data;
    size_t sizes[4], strides[4]; // in elements of 2 bytes; in bytes
};

// A pending copy.
struct WarpgroupCopy {
    char *to;
    TensorMap map;
    Barrier *full;
    int at[4];
};

// State of the block that this CPU thread runs: copies, and the bytes that barriers expect.
struct WarpgroupBytes {
    Barrier *barrier;
    int64_t missing;
};
struct WarpgroupBlock {
    uint64_t run; // fiber_block->runs
    std::vector<WarpgroupCopy> copies;
    std::vector<WarpgroupBytes> bytes;
};

static inline WarpgroupBlock *warpgroup_block() {
    static thread_local WarpgroupBlock blocks[FIBER_BLOCKS];
    WarpgroupBlock *block = &blocks[fiber_block->place];
    if (block->run != fiber_block->runs) {
        if (!block->copies.empty()) fiber_fault("a block ended with copies under way", NULL, NULL);
        block->bytes.clear();
        block->run = fiber_block->runs;
    }
    return block;
}

static inline uint32_t shared_address(const void *p) {
    const ptrdiff_t offset = (const char *)p - fiber_block->shared;
    if (offset < 0 || (size_t)offset >= fiber_block->shared_size)
        fiber_fault("an address that is not in shared memory", fiber_block->current, NULL);
    return (uint32_t)offset;
}

static inline WarpgroupBytes *barrier_bytes(Barrier *b) {
    if (shared_address(b) % 8 != 0 || b->valid != Barrier::VALID)
        fiber_fault("a barrier that was not created", fiber_block->current, NULL);
    WarpgroupBlock *block = warpgroup_block();
    for (WarpgroupBytes &bytes : block->bytes)
        if (bytes.barrier == b) return &bytes;
    block->bytes.push_back({b, 0});
    return &block->bytes.back();
}

static inline void barrier_create(Barrier *b, int threads) {
    fiber_block->shared_limit = FIBER_SHARED_90;
    *b = {(uint16_t)threads, (uint16_t)threads, 0, Barrier::VALID};
}

static inline void barriers_publish() {}

static inline void barrier_end_phase(Barrier *b) {
    if (b->missing > 0 || barrier_bytes(b)->missing != 0) return;
    b->missing = b->threads;
    b->parity ^= 1;
    fiber_wake(b);
}

static inline void barrier_arrive(Barrier *b) {
    (void)barrier_bytes(b);
    if (b->missing == 0)
        fiber_fault("more threads arrive than a barrier expects", fiber_block->current, NULL);
    b->missing--;
    barrier_end_phase(b);
}

static inline void barrier_expect(Barrier *b, size_t bytes) {
    barrier_bytes(b)->missing += (int64_t)bytes;
    barrier_arrive(b);
}

static inline void warpgroup_finish_copies(Barrier *b);

static inline void barrier_wait(Barrier *b, uint32_t parity, CUDA_PLACE) {
    warpgroup_finish_copies(b);
    while (b->parity == parity) {
        fiber_sleep(b, file, line);
        warpgroup_finish_copies(b);
    }
}

// ---- copies -----------------------------------------------------------------
// Checks the requirements of cuTensorMapEncodeTiled().
static inline TensorMap tensor_map(const __nv_bfloat16 *data, const size_t *sizes,
                                   const size_t *strides) {
    TensorMap map = {(const char *)data,
                     {sizes[0], sizes[1], sizes[2], sizes[3]},
                     {sizeof(*data), strides[0], strides[1], strides[2]}};
    bool valid = (uintptr_t)data % 16 == 0;
    for (int i = 0; i < 4; i++) valid = valid && sizes[i] > 0 && sizes[i] <= (size_t)1 << 32;
    for (int i = 0; i < 3; i++)
        valid = valid && strides[i] % 16 == 0 && strides[i] < (size_t)1 << 40;
    if (!valid) {
        fprintf(stderr, "error: a tensor map that no GPU takes\n");
        abort();
    }
    return map;
}

// The 128-byte swizzle: bits 4-6 of an address in shared memory are XORed with bits 7-9.
static inline uint32_t swizzled(uint32_t address) {
    return address ^ (address >> 7 & 7) << 4;
}

static constexpr int WARPGROUP_BOX = 64; // rows and columns

static inline void tensor_copy(__nv_bfloat16 *shared, const TensorMap *map, Barrier *full,
                               int column, int second, int row, int fourth) {
    if (shared_address(shared) % 1024)
        fiber_fault("a copied tile is not aligned", fiber_block->current, NULL);
    (void)barrier_bytes(full);
    warpgroup_block()->copies.push_back(
        {(char *)shared, *map, full, {column, second, row, fourth}});
    fiber_wake(full);
}

static inline void warpgroup_finish_copy(const WarpgroupCopy &c) {
    char *to = fiber_block->shared;
    const TensorMap &m = c.map;
    const uint32_t start = shared_address(c.to);
    for (int r = 0; r < WARPGROUP_BOX; r++)
        for (int i = 0; i < WARPGROUP_BOX; i++) {
            const int64_t at[4] = {c.at[0] + i, c.at[1], c.at[2] + r, c.at[3]};
            const char *from = m.data;
            bool inside = true;
            for (int d = 0; d < 4; d++) {
                inside = inside && at[d] >= 0 && (uint64_t)at[d] < m.sizes[d];
                from += at[d] * (int64_t)m.strides[d];
            }
            char *place = to + swizzled(start + (uint32_t)(r * WARPGROUP_BOX + i) * 2);
            if (inside)
                memcpy(place, from, 2);
            else
                memset(place, 0, 2);
        }
}

static inline void warpgroup_finish_copies(Barrier *b) {
    std::vector<WarpgroupCopy> &copies = warpgroup_block()->copies;
    WarpgroupBytes *bytes = barrier_bytes(b);
    size_t left = 0;
    for (const WarpgroupCopy &c : copies) {
        if (c.full != b) {
            copies[left++] = c;
            continue;
        }
        warpgroup_finish_copy(c);
        bytes->missing -= WARPGROUP_BOX * WARPGROUP_BOX * 2;
    }
    const bool any = left < copies.size();
    copies.resize(left);
    if (any) barrier_end_phase(b);
}

// ---- products ---------------------------------------------------------------
// A lane's product that is not yet computed.
struct WarpgroupProduct {
    float (*d)[4];
    int columns, group;
    bool add, from_lanes, a_in_rows, b_in_rows; // the last two: k runs along the rows of the tile
    float left[2][16];                          // from_lanes: the lane's two rows
    uint64_t a, b;
};

// Pending sums to global memory.
struct WarpgroupSums {
    float *to;
    const float *from;
    size_t count;
    bool add, is_read;
    std::vector<float> read;
};

struct WarpgroupLane {
    uint64_t run;
    int group;
    std::vector<WarpgroupProduct> products;
    std::vector<WarpgroupSums> sums;
};

static inline WarpgroupLane *warpgroup_lane() {
    static thread_local std::vector<WarpgroupLane> lanes(FIBER_BLOCKS * FIBER_THREADS);
    WarpgroupLane *lane = &lanes[fiber_block->place * FIBER_THREADS + fiber_block->current->rank];
    if (lane->run != fiber_block->runs) {
        if (!lane->products.empty() || !lane->sums.empty())
            fiber_fault("a thread ended with products or sums under way", NULL, NULL);
        lane->run = fiber_block->runs;
        lane->group = 0;
    }
    return lane;
}

static inline void wgmma_fence() {}

// The fields of a descriptor (9.7.15.5.1.2.2, "Matrix Descriptor Format"), in bytes.
struct WarpgroupTile {
    uint32_t start, leading, stride;
};

static inline WarpgroupTile warpgroup_tile(uint64_t descriptor) {
    if (descriptor >> 62 != 1 || (descriptor >> 49 & 7) != 0)
        fiber_fault("a tile that is not swizzled by 128 bytes, or moved", fiber_block->current,
                    NULL);
    return {(uint32_t)(descriptor & 0x3fff) << 4, (uint32_t)(descriptor >> 16 & 0x3fff) << 4,
            (uint32_t)(descriptor >> 32 & 0x3fff) << 4};
}

static inline float warpgroup_number(uint32_t address) {
    const uint32_t at = swizzled(address);
    if (at + 2 > fiber_block->shared_size)
        fiber_fault("a product reads beyond the shared memory", fiber_block->current, NULL);
    __nv_bfloat16 x;
    memcpy(&x, fiber_block->shared + at, sizeof(x));
    return (float)x;
}

// The canonical layouts for 128 bytes (9.7.15.5.1.2.1.3): k along the columns,
// ((8,m),(T,2k)):((8T,SBO),(1,T)) with T = 8 numbers of 16 bits, and k along the rows,
// ((T,8,m),(8,k)):((1,T,LBO),(8T,SBO)).
static inline float warpgroup_k_in_columns(const WarpgroupTile &t, uint32_t row, uint32_t k) {
    return warpgroup_number(t.start + row / 8 * t.stride + row % 8 * 128 + k * 2);
}
static inline float warpgroup_k_in_rows(const WarpgroupTile &t, uint32_t column, uint32_t k) {
    return warpgroup_number(t.start + column / 64 * t.leading + column % 64 * 2 + k / 8 * t.stride +
                            k % 8 * 128);
}

// Element e of d[n] of lane i of warp w is in row 16 w + i / 4 + e / 2 * 8, column 8 n + i % 4 * 2
// + e % 2.
static inline void warpgroup_compute(const WarpgroupProduct &p) {
    const unsigned rank = fiber_block->current->rank, lane = rank % 32,
                   first = rank / 32 % 4 * 16 + lane / 4;
    const WarpgroupTile b = warpgroup_tile(p.b);
    float left[2][16];
    memcpy(left, p.left, sizeof(left));
    if (!p.from_lanes) {
        const WarpgroupTile a = warpgroup_tile(p.a);
        for (unsigned half = 0; half < 2; half++)
            for (unsigned k = 0; k < 16; k++)
                left[half][k] = p.a_in_rows ? warpgroup_k_in_rows(a, first + 8 * half, k)
                                            : warpgroup_k_in_columns(a, first + 8 * half, k);
    }
    for (int n = 0; n < p.columns / 8; n++)
        for (unsigned odd = 0; odd < 2; odd++) {
            const unsigned column = 8 * (unsigned)n + lane % 4 * 2 + odd;
            float right[16];
            for (unsigned k = 0; k < 16; k++)
                right[k] = p.b_in_rows ? warpgroup_k_in_rows(b, column, k)
                                       : warpgroup_k_in_columns(b, column, k);
            for (unsigned half = 0; half < 2; half++) {
                float sum = 0;
                for (unsigned k = 0; k < 16; k++) sum += left[half][k] * right[k];
                float *d = &p.d[n][2 * half + odd];
                *d = p.add ? *d + sum : sum;
            }
        }
}

// Computes the products of all groups but the last `pending`.
static inline void warpgroup_compute_groups(WarpgroupLane *lane, int pending) {
    size_t left = 0;
    for (size_t i = 0; i < lane->products.size(); i++) {
        if (lane->products[i].group >= lane->group - pending)
            lane->products[left++] = lane->products[i];
        else
            warpgroup_compute(lane->products[i]);
    }
    lane->products.resize(left);
}

static inline bool warpgroup_now_and_then() {
    return (fiber_block->phase + fiber_block->current->rank / 32) * 2654435761u >> 30 == 0;
}

// Computes some products immediately.
static inline void wgmma_commit() {
    WarpgroupLane *lane = warpgroup_lane();
    lane->group++;
    if (warpgroup_now_and_then()) warpgroup_compute_groups(lane, 0);
}

template <int PENDING> static inline void wgmma_wait(CUDA_PLACE) {
    warpgroup_compute_groups(warpgroup_lane(), PENDING);
    if (cuda_lane() == 0 && warpgroup_now_and_then()) fiber_pause(); // this warp falls behind
    fiber_wait_warp(file, line);                                     // .aligned
}

template <typename S> static inline void sums_settle(S &) {}
static inline void registers_leave() {}
static inline void registers_take() {}

template <int N, bool ADD>
static inline void wgmma_tiles(float (&d)[N / 8][4], uint64_t a, uint64_t b) {
    WarpgroupLane *lane = warpgroup_lane();
    lane->products.push_back({d, N, lane->group, ADD, false, false, false, {}, a, b});
}

template <bool ADD> static inline void wgmma_columns(float (&d)[8][4], uint64_t a, uint64_t b) {
    WarpgroupLane *lane = warpgroup_lane();
    lane->products.push_back({d, 64, lane->group, ADD, false, true, true, {}, a, b});
}

// Registers of a lane: rows i / 4 and i / 4 + 8, k = 2 (i % 4) and the next, then both plus 8.
template <int N>
static inline void wgmma_sums(float (*d)[4], const uint32_t a[4], uint64_t b, CUDA_PLACE) {
    WarpgroupLane *lane = warpgroup_lane();
    WarpgroupProduct p = {d, N, lane->group, true, true, false, true, {}, 0, b};
    const char *slots = fiber_exchange(a, 4 * sizeof(*a), file, line);
    const unsigned quad = cuda_lane() / 4 * 4;
    for (unsigned k = 0; k < 16; k++) {
        uint32_t registers[4];
        memcpy(registers, slots + (quad + k % 8 / 2) * FIBER_SLOT, sizeof(registers));
        for (unsigned half = 0; half < 2; half++)
            p.left[half][k] = cuda_half_word(registers[k / 8 * 2 + half], k % 2);
    }
    lane->products.push_back(p);
}

// ---- sums that are added in memory ------------------------------------------

static inline void async_publish() {}

static inline void warpgroup_sums(float *to, const float *shared, size_t bytes, bool add) {
    if (shared_address(shared) % 16 || (uintptr_t)to % 16 || bytes % 16)
        fiber_fault("sums for memory are not aligned", fiber_block->current, NULL);
    warpgroup_lane()->sums.push_back({to, shared, bytes / sizeof(float), add, false, {}});
}
static inline void bulk_store(float *to, const float *shared, size_t bytes) {
    warpgroup_sums(to, shared, bytes, false);
}
static inline void bulk_add(float *to, const float *shared, size_t bytes) {
    warpgroup_sums(to, shared, bytes, true);
}

static inline void bulk_wait_read() {
    fiber_pause();
    for (WarpgroupSums &s : warpgroup_lane()->sums) {
        if (s.is_read) continue;
        s.read.assign(s.from, s.from + s.count);
        s.is_read = true;
    }
}
static inline void bulk_wait() {
    bulk_wait_read();
    fiber_pause();
    for (const WarpgroupSums &s : warpgroup_lane()->sums)
        for (size_t i = 0; i < s.count; i++) s.to[i] = s.add ? s.to[i] + s.read[i] : s.read[i];
    warpgroup_lane()->sums.clear();
}

static inline void turn_wait(const unsigned *counter, unsigned turn, CUDA_PLACE) {
    while (*counter != turn) fiber_wait_other_block(counter, file, line);
}
static inline void turn_pass(unsigned *counter, unsigned next) {
    *counter = next;
}

#endif
