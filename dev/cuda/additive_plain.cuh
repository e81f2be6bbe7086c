// Additive attention with plain scores, w . x / sqrt(D). They are unbounded, so the sums have a
// running maximum (row_add_exp). The computation per row is that of the kernels for bounded scores,
// but its inputs and results are in global memory. A pass is five launches: rows, sums, rows, sums,
// rows. It is not optimized: the sums of a global layer go over T rows sequentially.
#ifndef CUDA_ADDITIVE_PLAIN_CUH
#define CUDA_ADDITIVE_PLAIN_CUH

#include "additive_backward.cuh"
#include "additive_forward.cuh"

namespace additive {

static constexpr int PLAIN_ROWS = 96; // per thread block

// p.sums = the sums of p.summed over their windows. A group of lanes processes a block of k rows:
// for the windows that end in it, first the rows of the block before, from the last row backward,
// then its own rows. All lanes of a group read the weights and tops that its first lane stored.
template <int SIZE>
static __global__ void __launch_bounds__(THREADS) plain_sums(const AdditivePass p, size_t units) {
    begin_kernel();
    const size_t blocks = (size_t)((p.length + p.window - 1) / p.window),
                 index = (size_t)blockIdx.x * Row<SIZE>::GROUPS + (size_t)group_index<SIZE>();
    const bool present = index < units * blocks;
    const int start = present ? (int)(index % blocks) * p.window : p.length;
    AdditiveHead head = {};
    head.row = present ? index / blocks * (size_t)p.length : 0;
    Row<SIZE> nothing = row_zero<SIZE>();
    nothing.top = -INFINITY;

    Row<SIZE> sum = nothing;
    for (int r = p.global ? 0 : p.window - 1; r > 0; r--) {
        row_add_exp<SIZE>(sum, stored_row<SIZE, true>(p, head, p.summed, start - p.window + r));
        store_row<SIZE, true>(p, head, p.sums, start + r - 1, sum);
    }
    __syncwarp();
    sum = nothing;
    for (int r = 0; r < p.window; r++) {
        Row<SIZE> all = nothing;
        if (!p.global && r + 1 < p.window) all = stored_row<SIZE, true>(p, head, p.sums, start + r);
        __syncwarp();
        row_add_exp<SIZE>(sum, stored_row<SIZE, true>(p, head, p.summed, start + r));
        row_add_exp<SIZE>(all, sum);
        store_row<SIZE, true>(p, head, p.sums, start + r, all);
    }
}

// The operation on each row between sums, forward and backward. It reads p.sums, except in the
// first step of a pass, and writes p.summed, except in the last.
typedef enum {
    QUERIES,  // rows to sum
    PRODUCTS, // G from the sums, and rows G * k to sum
    RESULTS,  // P from the sums, and x + P * v
    RESULT_GRADIENTS,
    PRODUCT_GRADIENTS,
    QUERY_GRADIENTS
} PlainStep;

template <int SIZE>
static __global__ void __launch_bounds__(THREADS)
    plain_rows(const AdditivePass p, const PlainStep step) {
    begin_kernel();
    const AdditiveHead head = head_of_block(p);
    const int start = head.tile * p.tile_rows, rows = min(p.tile_rows, p.length - start);
    const bool products = step == PRODUCTS || step == PRODUCT_GRADIENTS;
    const Row<SIZE> weight = normal_weight<SIZE, true>(p, head, products);
    const Kept kept = keep_rows(p, head, products ? p.drop_query : p.drop_key,
                                shared_memory<uint8_t>(), start, rows);
    Kept kept_query = keeps_all();
    if (step == RESULTS && p.gain)
        kept_query = keep_rows(p, head, p.drop_query,
                               shared_memory<uint8_t>() + kept_bytes(PLAIN_ROWS, (size_t)p.size),
                               start, rows);
    Row<SIZE> dweight = row_zero<SIZE>(), dgain = row_zero<SIZE>();
    __syncthreads();
    for (int first = 0; first < rows; first += Row<SIZE>::GROUPS) {
        const int r = first + group_index<SIZE>(), position = r < rows ? start + r : -1;
        Row<SIZE> row = row_zero<SIZE>();
        if (step != QUERIES && step != RESULT_GRADIENTS)
            row = stored_row<SIZE, true>(p, head, p.sums, position);
        switch (step) {
        case QUERIES:
            row = query_row<SIZE, true>(p, head, position, weight);
            break;
        case PRODUCTS:
            row = pool_query<SIZE, true>(p, head, position, row, weight, kept, true);
            break;
        case RESULTS:
            pool_key<SIZE, true>(p, head, position, row, kept_query, kept);
            continue;
        case RESULT_GRADIENTS:
            row = key_gradient_row<SIZE, true>(p, head, position, kept, true);
            break;
        case PRODUCT_GRADIENTS:
            row = query_gradient_row<SIZE, true>(p, head, position, row, weight, kept, dweight,
                                                 dgain, true);
            break;
        case QUERY_GRADIENTS:
            query_gradient<SIZE, true>(p, head, position, row, weight, dweight);
            continue;
        }
        store_row<SIZE, true>(p, head, p.summed, position, row);
    }
    if (step == PRODUCT_GRADIENTS || step == QUERY_GRADIENTS)
        store_dweight<SIZE>(p, head, products, shared_memory<float>(), dweight);
    if (step == PRODUCT_GRADIENTS && p.gain)
        store_dweight<SIZE>(p, head, 2, shared_memory<float>(), dgain);
}

// Runs a pass. first: QUERIES or RESULT_GRADIENTS. shared: bytes per thread block of rows.
template <int SIZE>
static void run_plain(const Device *d, const AdditivePass &p, size_t shared, dim3 grid,
                      PlainStep first) {
    const size_t units = grid.x / (size_t)p.tiles,
                 blocks = units * (size_t)((p.length + p.window - 1) / p.window);
    for (int step = 0; step < 3; step++) {
        if (step > 0)
            launch_early(d, plain_sums<SIZE>, dim3(blocks_of(blocks, Row<SIZE>::GROUPS)), THREADS,
                         0, p, units);
        launch_early(d, plain_rows<SIZE>, grid, THREADS, shared, p, (PlainStep)(first + step));
    }
}

} // namespace additive

#endif
