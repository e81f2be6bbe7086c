// Runs the blocks of a CUDA grid on the CPU. The threads of a block are fibers: each runs until it
// reaches a barrier or a warp collective, and continues when all threads it waits for have arrived.
// Between two barriers the threads of a block run in an order that changes every time, so that a
// missing barrier gives wrong numbers here as well. Blocks run on OpenMP threads.
//
// Blocks that wait for each other are interleaved on one thread. Several are active at once and
// they start in any order, as on a GPU.
//
// Aborts with a message if threads wait at different barriers (undefined on a GPU, usually a hang)
// or if a block writes beyond its dynamic shared memory.
#ifndef EMULATOR_CUDA_FIBERS_H
#define EMULATOR_CUDA_FIBERS_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif
#if defined(__SANITIZE_ADDRESS__)
#define FIBER_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FIBER_ASAN 1
#endif
#endif
#define FIBER_UNCHECKED __attribute__((no_sanitize("address"))) // its frame may never be left
#ifdef FIBER_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#ifdef FIBER_ASAN
static constexpr size_t FIBER_STACK = 256 * 1024;
#else
static constexpr size_t FIBER_STACK = 64 * 1024;
#endif

struct uint3 {
    unsigned x, y, z;
};

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x0 = 1, unsigned y0 = 1, unsigned z0 = 1) : x(x0), y(y0), z(z0) {}
};

static constexpr unsigned FIBER_WARP = 32;
static constexpr unsigned FIBER_THREADS = 1024;    // maximum per block
static constexpr size_t FIBER_SLOT = 64;           // bytes per lane in a collective
static constexpr int FIBER_COPIES = 64;            // maximum pending asynchronous copies per thread
static constexpr size_t FIBER_SHARED = 163 * 1024; // maximum bytes per block on sm_80
static constexpr size_t FIBER_SHARED_90 = 227 * 1024; // on sm_90
static constexpr unsigned FIBER_BLOCKS = 8;           // max active blocks that wait for each other
static constexpr size_t FIBER_GUARD = 4096;           // guard bytes after shared memory
static constexpr size_t FIBER_STAGGER =
    192; // offset between stacks, which would otherwise map to the same cache lines

enum FiberState {
    FIBER_READY,
    FIBER_AT_BLOCK,
    FIBER_AT_WARP,
    FIBER_ASLEEP,
    FIBER_AT_OTHER_BLOCK, // polls
    FIBER_DONE
};

// An asynchronous copy from global to shared memory. It happens when it is waited for, not earlier.
struct FiberCopy {
    void *to;
    const void *from; // NULL: zeros
    int group;
};

struct Fiber {
#if defined(__x86_64__)
    void *stack_pointer;
#else
    ucontext_t context;
#endif
    char *stack;
    unsigned rank; // in the block
    uint3 index;
    FiberState state;
    const char *file; // where it waits
    int line;
    const void *asleep;   // wait until fiber_wake(asleep), or until another block changes it
    unsigned collectives; // count so far: slots alternate, as one lane may be a collective ahead
    unsigned votes;
    int vote[2];       // of __syncthreads_count, alternating in the same way
    FiberCopy *copies; // (FIBER_COPIES)
    int copy_count, group;
};

struct FiberWarp {
    unsigned alive, waiting;
    alignas(16) char slots[2][FIBER_WARP][FIBER_SLOT];
};

// A running block. Each OpenMP thread reuses its own: one, or up to FIBER_BLOCKS.
struct FiberBlock {
    unsigned place; // index among the blocks of the thread
    dim3 grid, block;
    uint3 index;
    Fiber *fibers;    // (FIBER_THREADS)
    FiberWarp *warps; // (FIBER_THREADS / 32)
    unsigned count, alive, waiting;
    unsigned phase; // determines the order of the threads
    uint64_t runs;  // blocks so far, including this one
    Fiber *current;
    char *shared;                     // (shared_size), followed by FIBER_GUARD bytes
    size_t shared_size, shared_limit; // the limit is higher once a block uses features of sm_90
    void (*kernel)(const void *arguments);
    const void *arguments;
#if defined(__x86_64__)
    void *scheduler;
#else
    ucontext_t scheduler;
#endif
#ifdef FIBER_ASAN
    void *fake_stack;
    const void *stack_bottom;
    size_t stack_size;
#endif
};

inline thread_local FiberBlock *fiber_block;

// ---- switching --------------------------------------------------------------

#if defined(__x86_64__)
// Pushes the callee-saved registers onto the current stack, stores the stack pointer in *save, and
// continues on the other stack.
__attribute__((naked, noinline)) static void fiber_jump(void **, void *) {
    __asm__("pushq %rbp\n pushq %rbx\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n"
            "movq %rsp, (%rdi)\n movq %rsi, %rsp\n"
            "popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbx\n popq %rbp\n ret\n");
}
#endif

// Switches from the scheduler to a fiber.
FIBER_UNCHECKED static void fiber_enter(FiberBlock *b, Fiber *f) {
    b->current = f;
#ifdef FIBER_ASAN
    void *fake;
    __sanitizer_start_switch_fiber(&fake, f->stack, FIBER_STACK);
#endif
#if defined(__x86_64__)
    fiber_jump(&b->scheduler, f->stack_pointer);
#else
    swapcontext(&b->scheduler, &f->context);
#endif
#ifdef FIBER_ASAN
    __sanitizer_finish_switch_fiber(fake, NULL, NULL);
#endif
}

// Switches from the running fiber back to the scheduler.
FIBER_UNCHECKED static void fiber_leave(void) {
    FiberBlock *b = fiber_block;
    Fiber *f = b->current;
#ifdef FIBER_ASAN
    void *fake;
    __sanitizer_start_switch_fiber(f->state == FIBER_DONE ? NULL : &fake, b->stack_bottom,
                                   b->stack_size);
#endif
#if defined(__x86_64__)
    fiber_jump(&f->stack_pointer, b->scheduler);
#else
    swapcontext(&f->context, &b->scheduler);
#endif
#ifdef FIBER_ASAN
    __sanitizer_finish_switch_fiber(fake, &b->stack_bottom, &b->stack_size);
#endif
}

// ---- barriers ---------------------------------------------------------------

static void fiber_print(const Fiber *f) {
    static const char *const states[] = {"runs",
                                         "waits at __syncthreads",
                                         "waits for its warp",
                                         "waits for a barrier in shared memory",
                                         "waits for another block",
                                         "ended"};
    fprintf(stderr, "  thread (%u,%u,%u) %s", f->index.x, f->index.y, f->index.z, states[f->state]);
    if (f->file) fprintf(stderr, " in %s:%d", f->file, f->line);
    fprintf(stderr, "\n");
}

[[noreturn]] static void fiber_fault(const char *what, const Fiber *a, const Fiber *b) {
    const uint3 at = fiber_block->index;
    fprintf(stderr, "error: CUDA kernel, block (%u,%u,%u): %s\n", at.x, at.y, at.z, what);
    if (a) fiber_print(a);
    if (b) fiber_print(b);
    abort();
}

static void fiber_check_place(const Fiber *a, const Fiber *b) {
    if (a->line != b->line || (a->file != b->file && strcmp(a->file, b->file) != 0))
        fiber_fault("threads wait at different barriers", a, b);
}

// Called when all threads of the warp have arrived.
static void fiber_release_warp(FiberBlock *b, unsigned warp) {
    const Fiber *first = NULL;
    for (unsigned i = warp * FIBER_WARP; i < b->count && i < (warp + 1) * FIBER_WARP; i++) {
        Fiber *f = &b->fibers[i];
        if (f->state != FIBER_AT_WARP) continue;
        if (first) fiber_check_place(first, f);
        first = f;
        f->state = FIBER_READY;
    }
    b->warps[warp].waiting = 0;
}

static void fiber_release_block(FiberBlock *b) {
    const Fiber *first = NULL;
    for (unsigned i = 0; i < b->count; i++) {
        Fiber *f = &b->fibers[i];
        if (f->state != FIBER_AT_BLOCK) continue;
        if (first) fiber_check_place(first, f);
        first = f;
        f->state = FIBER_READY;
    }
    b->waiting = 0;
}

static void fiber_wait_warp(const char *file, int line) {
    FiberBlock *b = fiber_block;
    Fiber *f = b->current;
    FiberWarp *warp = &b->warps[f->rank / FIBER_WARP];
    f->state = FIBER_AT_WARP;
    f->file = file;
    f->line = line;
    if (++warp->waiting == warp->alive) fiber_release_warp(b, f->rank / FIBER_WARP);
    fiber_leave();
}

static void fiber_wait_block(const char *file, int line) {
    FiberBlock *b = fiber_block;
    Fiber *f = b->current;
    f->state = FIBER_AT_BLOCK;
    f->file = file;
    f->line = line;
    if (++b->waiting == b->alive) fiber_release_block(b);
    fiber_leave();
}

static inline void fiber_wait_for(FiberState state, const void *what, const char *file, int line) {
    Fiber *f = fiber_block->current;
    f->state = state;
    f->asleep = what;
    f->file = file;
    f->line = line;
    fiber_leave();
}

// Waits until another thread of the block calls fiber_wake(what).
static inline void fiber_sleep(const void *what, const char *file, int line) {
    fiber_wait_for(FIBER_ASLEEP, what, file, line);
}

static inline void fiber_wake(const void *what) {
    for (unsigned i = 0; i < fiber_block->count; i++) {
        Fiber *f = &fiber_block->fibers[i];
        if (f->state == FIBER_ASLEEP && f->asleep == what) f->state = FIBER_READY;
    }
}

// Waits for another block to change the memory at `what`. May return early: check again.
static inline void fiber_wait_other_block(const void *what, const char *file, int line) {
    fiber_wait_for(FIBER_AT_OTHER_BLOCK, what, file, line);
}

// Lets other threads and other active blocks run, for a varying number of rounds.
static inline void fiber_pause() {
    for (unsigned i = fiber_block->phase * 2654435761u >> 25; i > 0; i--) {
        fiber_block->current->state = FIBER_READY;
        fiber_leave();
    }
}

// Passes `mine` (at most FIBER_SLOT bytes) to the warp. Returns the slots of its lanes, FIBER_SLOT
// bytes each.
static const char *fiber_exchange(const void *mine, size_t size, const char *file, int line) {
    Fiber *f = fiber_block->current;
    char(*slots)[FIBER_SLOT] = fiber_block->warps[f->rank / FIBER_WARP].slots[f->collectives++ & 1];
    memcpy(slots[f->rank % FIBER_WARP], mine, size);
    fiber_wait_warp(file, line);
    return slots[0];
}

// ---- asynchronous copies ----------------------------------------------------

static void fiber_copy_start(void *to, const void *from) {
    Fiber *f = fiber_block->current;
    if (f->copy_count == FIBER_COPIES)
        fiber_fault("too many asynchronous copies under way", f, NULL);
    f->copies[f->copy_count++] = {to, from, f->group};
}

// Completes the copies of all groups but the last `pending`.
static void fiber_copy_finish(int pending) {
    Fiber *f = fiber_block->current;
    int left = 0;
    for (int i = 0; i < f->copy_count; i++) {
        const FiberCopy c = f->copies[i];
        if (c.group >= f->group - pending)
            f->copies[left++] = c;
        else if (c.from)
            memcpy(c.to, c.from, 16);
        else
            memset(c.to, 0, 16);
    }
    f->copy_count = left;
}

// ---- a block ----------------------------------------------------------------

FIBER_UNCHECKED static void fiber_main(void) {
    FiberBlock *b = fiber_block;
#ifdef FIBER_ASAN
    __sanitizer_finish_switch_fiber(NULL, &b->stack_bottom, &b->stack_size);
#endif
    Fiber *f = b->current;
    b->kernel(b->arguments);
    fiber_copy_finish(-1);
    f->state = FIBER_DONE;
    const unsigned warp = f->rank / FIBER_WARP;
    b->alive--;
    b->warps[warp].alive--;
    // Nothing waits for a thread that has ended.
    if (b->warps[warp].waiting > 0 && b->warps[warp].waiting == b->warps[warp].alive)
        fiber_release_warp(b, warp);
    if (b->waiting > 0 && b->waiting == b->alive) fiber_release_block(b);
    fiber_leave();
}

static void fiber_start(FiberBlock *b, unsigned rank) {
    Fiber *f = &b->fibers[rank];
    f->rank = rank;
    f->state = FIBER_READY;
    f->file = NULL;
    f->collectives = f->votes = 0;
    f->copy_count = f->group = 0;
    f->index = {rank % b->block.x, rank / b->block.x % b->block.y, rank / b->block.x / b->block.y};
#if defined(__x86_64__)
    // The stack looks as if fiber_jump had been called: six registers, the return address, and the
    // alignment of a stack after a call.
    uintptr_t *top = (uintptr_t *)(f->stack + FIBER_STACK - rank % 64 * FIBER_STAGGER) - 1;
    *--top = (uintptr_t)fiber_main;
    top -= 6;
    memset(top, 0, 6 * sizeof(*top));
    f->stack_pointer = top;
#else
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack;
    f->context.uc_stack.ss_size = FIBER_STACK;
    makecontext(&f->context, fiber_main, 0);
#endif
}

static FiberBlock *fiber_block_create(unsigned place) {
    FiberBlock *b = (FiberBlock *)calloc(1, sizeof(FiberBlock));
    b->fibers = (Fiber *)calloc(FIBER_THREADS, sizeof(Fiber));
    FiberCopy *copies =
        (FiberCopy *)calloc((size_t)FIBER_THREADS * FIBER_COPIES, sizeof(FiberCopy));
    b->warps = (FiberWarp *)calloc(FIBER_THREADS / FIBER_WARP, sizeof(FiberWarp));
    b->shared = (char *)aligned_alloc(1024, FIBER_SHARED_90 + FIBER_GUARD);
    char *stacks = (char *)mmap(NULL, (size_t)FIBER_THREADS * FIBER_STACK, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!b->fibers || !copies || !b->warps || !b->shared || stacks == MAP_FAILED) {
        fprintf(stderr, "error: no memory for the stacks of a CUDA block\n");
        abort();
    }
    for (size_t i = 0; i < FIBER_THREADS; i++) {
        b->fibers[i].stack = stacks + i * FIBER_STACK;
        b->fibers[i].copies = copies + i * FIBER_COPIES;
    }
    b->place = place;
    return b;
}

static uint64_t fiber_divisor(uint64_t a, uint64_t b) {
    return b == 0 ? a : fiber_divisor(b, a % b);
}

// A permutation of `count` indices: start + i * step, with step coprime to count.
struct FiberOrder {
    uint64_t start, step;
};
static FiberOrder fiber_order(unsigned number, uint64_t count) {
    const unsigned hash = number * 2654435761u;
    uint64_t step = count > 1 ? (hash >> 8) % (count - 1) + 1 : 1;
    while (fiber_divisor(count, step) != 1) step = step % count + 1;
    return {(hash >> 4) % count, step};
}

// Runs every runnable thread once. Returns whether any made progress.
static bool fiber_pass(FiberBlock *b) {
    const FiberOrder order = fiber_order(++b->phase, b->count);
    bool ran = false;
    for (unsigned i = 0, rank = (unsigned)order.start; i < b->count; i++) {
        Fiber *f = &b->fibers[rank];
        const bool looks = f->state == FIBER_AT_OTHER_BLOCK;
        const void *at = f->asleep;
        if (f->state == FIBER_READY || looks) {
            fiber_enter(b, f);
            ran = ran || !looks || f->state != FIBER_AT_OTHER_BLOCK || f->asleep != at;
        }
        rank += (unsigned)order.step;
        if (rank >= b->count) rank -= b->count;
    }
    return ran;
}

[[noreturn]] static void fiber_stuck(const FiberBlock *b) {
    const Fiber *stuck[2] = {NULL, NULL};
    for (unsigned i = 0; i < b->count; i++) {
        const FiberState state = b->fibers[i].state;
        if (state != FIBER_DONE)
            stuck[state == FIBER_AT_WARP || state == FIBER_AT_OTHER_BLOCK] = &b->fibers[i];
    }
    fiber_fault("threads wait for each other for ever", stuck[0], stuck[1]);
}

// Common to all blocks of a grid.
struct FiberGrid {
    dim3 grid, block;
    size_t shared;
    void (*kernel)(const void *arguments);
    const void *arguments;
};

static void fiber_block_begin(const FiberGrid *g, unsigned place, int64_t i) {
    static thread_local FiberBlock *blocks[FIBER_BLOCKS];
    if (!blocks[place]) blocks[place] = fiber_block_create(place);
    FiberBlock *b = fiber_block = blocks[place];
    const dim3 grid = g->grid;
    b->grid = grid;
    b->block = g->block;
    b->index = {(unsigned)(i % grid.x), (unsigned)(i / grid.x % grid.y),
                (unsigned)(i / grid.x / grid.y)};
    b->shared_size = g->shared;
    b->shared_limit = FIBER_SHARED;
    b->kernel = g->kernel;
    b->arguments = g->arguments;
    b->count = b->alive = b->block.x * b->block.y * b->block.z;
    b->waiting = 0;
    b->runs++;
    for (unsigned w = 0; w * FIBER_WARP < b->count; w++) {
        const unsigned rest = b->count - w * FIBER_WARP;
        b->warps[w].alive = rest < FIBER_WARP ? rest : FIBER_WARP;
        b->warps[w].waiting = 0;
    }
    for (unsigned rank = 0; rank < b->count; rank++) fiber_start(b, rank);
    memset(b->shared, 0xff, b->shared_size); // NaN for reads of uninitialized memory
    memset(b->shared + b->shared_size, 0xa5, FIBER_GUARD);
}

static void fiber_block_end(const FiberBlock *b) {
    if (b->shared_size > b->shared_limit)
        fiber_fault("more shared memory than sm_80 has, and nothing of sm_90 used", NULL, NULL);
    for (size_t i = 0; i < FIBER_GUARD; i++)
        if ((unsigned char)b->shared[b->shared_size + i] != 0xa5)
            fiber_fault("wrote beyond its dynamic shared memory", NULL, NULL);
}

// Runs all blocks, `places` at once. In each round some blocks progress further than others.
static void fiber_run_together(const FiberGrid *g, int64_t blocks, unsigned places) {
    FiberBlock *running[FIBER_BLOCKS] = {};
    static unsigned number; // determines the order of the blocks
    const FiberOrder order = fiber_order(++number, (uint64_t)blocks);
    for (int64_t begun = 0, ended = 0; ended < blocks;) {
        bool ran = false;
        for (unsigned place = 0; place < places; place++) {
            if (!running[place] && begun < blocks) {
                const uint64_t i = order.start + (uint64_t)begun++ * order.step;
                fiber_block_begin(g, place, (int64_t)(i % (uint64_t)blocks));
                running[place] = fiber_block;
            }
            FiberBlock *b = fiber_block = running[place];
            const unsigned passes = 1 + (++number * 2654435761u >> 16) % 16;
            for (unsigned i = 0; b && b->alive > 0 && i < passes && fiber_pass(b); i++) ran = true;
            if (!b || b->alive > 0) continue;
            fiber_block_end(b);
            running[place] = NULL;
            ended++;
        }
        if (!ran) {
            unsigned place = 0;
            while (!running[place]) place++;
            fiber_block = running[place];
            fiber_stuck(fiber_block);
        }
    }
}

// Runs kernel(arguments) in every thread of a grid. together: 0 if blocks do not wait for each
// other, else the maximum number of blocks that run at once.
static inline void fiber_run_grid(dim3 grid, dim3 block, size_t shared,
                                  void (*kernel)(const void *), const void *arguments,
                                  int together) {
    const uint64_t threads = (uint64_t)block.x * block.y * block.z;
    if (threads == 0 || threads > FIBER_THREADS || block.z > 64 || shared > FIBER_SHARED_90 ||
        grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > INT32_MAX || grid.y > 65535 ||
        grid.z > 65535) {
        fprintf(
            stderr,
            "error: CUDA launch of (%u,%u,%u) blocks of (%u,%u,%u) threads, %zu bytes shared: no "
            "GPU can do that\n",
            grid.x, grid.y, grid.z, block.x, block.y, block.z, shared);
        abort();
    }
    const FiberGrid g = {grid, block, shared, kernel, arguments};
    const int64_t blocks = (int64_t)grid.x * grid.y * grid.z;
    if (together > 0) {
        fiber_run_together(&g, blocks,
                           (unsigned)together < FIBER_BLOCKS ? (unsigned)together : FIBER_BLOCKS);
        return;
    }
#pragma omp parallel for schedule(static, 1)
    for (int64_t i = 0; i < blocks; i++) {
        fiber_block_begin(&g, 0, i);
        while (fiber_block->alive > 0)
            if (!fiber_pass(fiber_block)) fiber_stuck(fiber_block);
        fiber_block_end(fiber_block);
    }
}

#endif
