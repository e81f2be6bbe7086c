// Several processes with MPI. MPI only moves bytes between pairs of ranks. Sums are computed here,
// in the order of ranks, so that they do not depend on the MPI implementation.
//
// A chunk of gradients is summed in two phases: each rank receives its part of the chunk from all
// others and adds these up; then it sends the sums to all others. A rank sends and receives
// 2 (n-1)/n times the array for any n, like a ring, but with 2 messages to each other rank instead
// of 2 (n-1) in sequence.
#include "bf16.h"
#include "clock.h"
#include "error.h"
#include "memory.h"
#include "sizes.h"
#include "transport.h"
#include <mpi.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum {
    TAG_NUMBERS = 1,
    TAG_SCATTER, // gradients to the rank that sums them
    TAG_GATHER,  // their sums to all ranks
    PIECE = RANKS_PIECE,
    CHUNK = 16,        // least number of pieces per chunk; more with more ranks
    BLOCK = 1024,      // elements summed at a time
    MESSAGE = 1 << 30, // most bytes per message
    LOOKS = 300        // checks for messages before sleeping between checks
};

// Ranks.engine.
typedef struct {
    MPI_Comm world;
    bool threads; // any thread may call MPI, one at a time
} Engine;

static const Engine *engine(const Ranks *r) {
    return r->engine;
}

static void check(int code, const char *what) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length;
    if (code == MPI_SUCCESS) return;
    MPI_Error_string(code, text, &length);
    fail("%s: MPI error: %s", what, text);
}

// ---- messages ---------------------------------------------------------------
// Messages in flight, each from or to one other rank.
typedef struct {
    Ranks *ranks;
    const char *what; // their purpose, for error messages
    MPI_Request *requests;
    int *peers;
    int count;
} Messages;

// Allocates space for one message from and one to each other rank.
static Messages messages_create(Ranks *r, const char *what) {
    const size_t most = 2 * (size_t)r->size;
    return (Messages){.ranks = r,
                      .what = what,
                      .requests = allocate(most, sizeof(MPI_Request), "messages"),
                      .peers = allocate(most, sizeof(int), "messages")};
}

static void messages_free(Messages *m) {
    free(m->requests);
    free(m->peers);
}

static void send_to(Messages *m, int peer, int tag, const void *data, size_t bytes) {
    if (bytes == 0) return;
    m->peers[m->count] = peer;
    check(MPI_Isend(data, (int)bytes, MPI_BYTE, peer, tag, engine(m->ranks)->world,
                    &m->requests[m->count++]),
          m->what);
    if (tag != TAG_NUMBERS) m->ranks->report.bytes += (double)bytes;
}

static void receive_from(Messages *m, int peer, int tag, void *data, size_t bytes) {
    if (bytes == 0) return;
    m->peers[m->count] = peer;
    check(MPI_Irecv(data, (int)bytes, MPI_BYTE, peer, tag, engine(m->ranks)->world,
                    &m->requests[m->count++]),
          m->what);
}

// Exits with an error that names the ranks whose messages are missing.
static _Noreturn void give_up(const Messages *m) {
    const Ranks *r = m->ranks;
    char *names = copy_string("");
    int last = -1, missing = 0;
    for (int peer = 0; peer < r->size; peer++) {
        for (int i = 0; i < m->count; i++) {
            int done = 0;
            if (m->peers[i] != peer || m->requests[i] == MPI_REQUEST_NULL || peer == last) continue;
            MPI_Request_get_status(m->requests[i], &done, MPI_STATUS_IGNORE);
            if (done) continue;
            last = peer;
            if (missing++ < 8)
                append_format(&names, "%srank %d%s%s", missing > 1 ? ", " : "", peer,
                              r->hosts ? " on " : "", r->hosts ? r->hosts[peer] : "");
        }
    }
    fail("%s: waited %g s (--timeout) for %s%s", m->what, r->timeout, names,
         missing > 8 ? ", ..." : "");
}

// Waits until all messages have completed.
static void wait_for(Messages *m) {
    Deadline deadline = deadline_in(m->ranks->timeout);
    for (int64_t looks = 0;; looks++) {
        const bool late = deadline_passed(&deadline); // messages may complete meanwhile
        int done;
        check(MPI_Testall(m->count, m->requests, &done, MPI_STATUSES_IGNORE), m->what);
        if (done) break;
        if (late) give_up(m);
        if (looks >= LOOKS) ranks_nap();
    }
    m->count = 0;
}

// ---- a few numbers ----------------------------------------------------------

// Broadcasts along a tree: rank r receives from r without its lowest bit.
static void spread(Messages *m, char *data, size_t bytes) {
    const Ranks *r = m->ranks;
    const int lowest = r->rank & -r->rank;
    if (r->rank > 0) {
        receive_from(m, r->rank - lowest, TAG_NUMBERS, data, bytes);
        wait_for(m);
    }
    for (int bit = 1; (r->rank == 0 || bit < lowest) && r->rank + bit < r->size; bit *= 2)
        send_to(m, r->rank + bit, TAG_NUMBERS, data, bytes);
    wait_for(m);
}

void transport_broadcast(Ranks *r, void *data, size_t bytes) {
    Messages m = messages_create(r, "broadcast");
    for (size_t at = 0; at < bytes; at += MESSAGE)
        spread(&m, (char *)data + at, bytes - at < MESSAGE ? bytes - at : MESSAGE);
    messages_free(&m);
}

void transport_gather(Ranks *r, const void *data, size_t bytes, void *all, const char *what) {
    Messages m = messages_create(r, what);
    if (r->rank == 0) {
        memcpy(all, data, bytes);
        for (int peer = 1; peer < r->size; peer++)
            receive_from(&m, peer, TAG_NUMBERS, (char *)all + (size_t)peer * bytes, bytes);
    } else {
        send_to(&m, 0, TAG_NUMBERS, data, bytes);
    }
    wait_for(&m);
    messages_free(&m);
}

// ---- joining and leaving ----------------------------------------------------
// MPI starts its own servers, so it is not initialised unless a launcher started the process.
static bool was_launched(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK",
                                        "MV2_COMM_WORLD_SIZE"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (getenv(names[i])) return true;
    return false;
}

static void finalize(void) {
    int begun = 0, ended = 0;
    MPI_Initialized(&begun);
    MPI_Finalized(&ended);
    if (begun && !ended) MPI_Finalize();
}

char *ranks_library(void) {
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length;
    if (MPI_Get_library_version(text, &length) != MPI_SUCCESS) text[0] = '\0';
    text[strcspn(text, ",\n")] = '\0'; // drop the build information
    for (char *c = text; *c; c++)
        if (*c == '\t') *c = ' ';
    return copy_string(text);
}

void transport_leave(Ranks *r) {
    Engine *e = r->engine;
    MPI_Comm_free(&e->world);
    finalize();
    free(e);
}

void transport_abort(const Ranks *r, int status) {
    (void)r;
    MPI_Abort(MPI_COMM_WORLD, status);
}

Ranks *ranks_open(double timeout) {
    int provided, rank, size;
    if (!was_launched()) return NULL;
    // The calls below may never return if another process is killed during the start.
    Watchdog *watchdog = watchdog_start(timeout, "start of MPI");
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided) != MPI_SUCCESS)
        fail("MPI cannot start");
    atexit(finalize); // for early exits such as --help
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    Ranks *r = NULL;
    if (size > 1) {
        Engine *e = allocate(1, sizeof(*e), "ranks");
        check(MPI_Comm_dup(MPI_COMM_WORLD, &e->world), "start");
        MPI_Comm_set_errhandler(e->world, MPI_ERRORS_RETURN);
        e->threads = provided >= MPI_THREAD_SERIALIZED;
        r = allocate(1, sizeof(*r), "ranks");
        *r = (Ranks){.engine = e, .rank = rank, .size = size, .timeout = timeout};
    }
    watchdog_stop(watchdog);
    return r ? ranks_join(r) : NULL;
}

// ---- gradients --------------------------------------------------------------

// A chunk in flight. Elements are sent as `real`, or as uint16_t if bf16.
typedef struct {
    size_t chunk;
    Messages scattered, gathered;
    char *out; // (chunk) bf16: elements to send
    char *in;  // (size - 1, part) received elements of this rank's part; then bf16: sums (chunk)
} Slot;

struct Reduction {
    Ranks *ranks;
    size_t count;
    bool bf16;
    size_t chunks;
    Slot slots[2]; // one is scattered while the other one is gathered
    // For the reducing thread, if it exists.
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    real *values;
    size_t early;              // number of chunks at the beginning that are reduced first
    bool early_final;          // these are final
    size_t from;               // elements from here on are final
    bool begun, done, leaving; // the reduction has begun, is done; the thread must end
};

typedef struct {
    size_t begin, end;
} Range;

// Returns the number of pieces of a chunk.
static size_t chunk_pieces(const Ranks *r) {
    return r->size > CHUNK ? (size_t)r->size : CHUNK;
}

// Returns the elements of a chunk that are a rank's part.
static Range part_of(const Ranks *r, size_t count, size_t chunk, int rank) {
    const size_t pieces = (count + PIECE - 1) / PIECE, first = chunk * chunk_pieces(r);
    const size_t here = smaller(chunk_pieces(r), pieces - first), n = (size_t)r->size,
                 k = (size_t)rank;
    return (Range){smaller(count, (first + here * k / n) * PIECE),
                   smaller(count, (first + here * (k + 1) / n) * PIECE)};
}

static size_t count_chunks(const Ranks *r, size_t count) {
    const size_t size = chunk_pieces(r) * PIECE;
    return (count + size - 1) / size;
}

static size_t element_size(const Reduction *d) {
    return d->bf16 ? sizeof(uint16_t) : sizeof(real);
}

// Returns the data to send for elements from `begin` on.
static const char *outgoing(const Reduction *d, const Slot *slot, const real *values,
                            size_t begin) {
    const size_t first = slot->chunk * chunk_pieces(d->ranks) * PIECE;
    return d->bf16 ? slot->out + (begin - first) * sizeof(uint16_t)
                   : (const char *)(values + begin);
}

static void round_all(uint16_t *restrict out, const real *restrict in, size_t count) {
    for (size_t i = 0; i < count; i++) out[i] = bf16_from_float((float)in[i]);
}

static void add_real(real *restrict sum, const real *restrict x, size_t count) {
    for (size_t i = 0; i < count; i++) sum[i] += x[i];
}

static void add_bf16(real *restrict sum, const uint16_t *restrict x, size_t count) {
    for (size_t i = 0; i < count; i++) sum[i] += (real)float_from_bf16(x[i]);
}

// Starts to receive this rank's part from all others and to send them their parts.
static void scatter(Reduction *d, Slot *slot, const real *values, size_t chunk) {
    Ranks *r = d->ranks;
    const Range all = {part_of(r, d->count, chunk, 0).begin,
                       part_of(r, d->count, chunk, r->size - 1).end};
    const Range mine = part_of(r, d->count, chunk, r->rank);
    const size_t size = element_size(d), part = (mine.end - mine.begin) * size;
    slot->chunk = chunk;
    if (d->bf16) round_all((uint16_t *)slot->out, values + all.begin, all.end - all.begin);
    char *in = slot->in;
    for (int peer = 0; peer < r->size; peer++) {
        if (peer == r->rank) continue;
        receive_from(&slot->scattered, peer, TAG_SCATTER, in, part);
        in += part;
    }
    for (int peer = 0; peer < r->size; peer++) {
        const Range theirs = part_of(r, d->count, chunk, peer);
        if (peer != r->rank)
            send_to(&slot->scattered, peer, TAG_SCATTER, outgoing(d, slot, values, theirs.begin),
                    (theirs.end - theirs.begin) * size);
    }
}

// Replaces this rank's part by the sum, in the order of ranks.
static void add_up(const Reduction *d, const Slot *slot, real *values) {
    const Ranks *r = d->ranks;
    const Range mine = part_of(r, d->count, slot->chunk, r->rank);
    const size_t size = element_size(d), part = mine.end - mine.begin;
    for (size_t at = 0; at < part; at += BLOCK) {
        const size_t count = smaller(BLOCK, part - at);
        real sum[BLOCK] = {0};
        const char *in = slot->in + at * size;
        for (int peer = 0; peer < r->size; peer++) {
            if (peer == r->rank) {
                add_real(sum, values + mine.begin + at, count);
                continue;
            }
            if (d->bf16)
                add_bf16(sum, (const uint16_t *)in, count);
            else
                add_real(sum, (const real *)in, count);
            in += part * size;
        }
        memcpy(values + mine.begin + at, sum, count * sizeof(real));
    }
}

// Exchanges the parts of a chunk between all ranks. With bf16 all parts are rounded, including this
// rank's own, so that all ranks have the same values.
static void gather(Reduction *d, Slot *slot, real *values) {
    Ranks *r = d->ranks;
    const bool bf16 = d->bf16;
    const size_t size = element_size(d);
    const Range mine = part_of(r, d->count, slot->chunk, r->rank);
    const size_t first = slot->chunk * chunk_pieces(r) * PIECE;
    uint16_t *sums = (uint16_t *)slot->in; // (a chunk)
    if (bf16) round_all(sums + (mine.begin - first), values + mine.begin, mine.end - mine.begin);
    for (int peer = 0; peer < r->size; peer++) {
        if (peer == r->rank) continue;
        const Range theirs = part_of(r, d->count, slot->chunk, peer);
        receive_from(&slot->gathered, peer, TAG_GATHER,
                     bf16 ? (void *)(sums + (theirs.begin - first))
                          : (void *)(values + theirs.begin),
                     (theirs.end - theirs.begin) * size);
        send_to(&slot->gathered, peer, TAG_GATHER,
                bf16 ? (void *)(sums + (mine.begin - first)) : (void *)(values + mine.begin),
                (mine.end - mine.begin) * size);
    }
    wait_for(&slot->gathered);
    const size_t end = part_of(r, d->count, slot->chunk, r->size - 1).end;
    for (size_t i = first; bf16 && i < end; i++) values[i] = (real)float_from_bf16(sums[i - first]);
}

static void finish(Reduction *d, Slot *slot, real *values) {
    wait_for(&slot->scattered);
    add_up(d, slot, values);
    gather(d, slot, values);
}

// ---- the thread that reduces during the backward pass -----------------------

// Requires the lock.
static bool known_final(const Reduction *d, size_t chunk) {
    return d->from <= chunk * chunk_pieces(d->ranks) * PIECE ||
           (chunk < d->early && d->early_final);
}

static bool is_final(Reduction *d, size_t chunk) {
    pthread_mutex_lock(&d->lock);
    const bool final = known_final(d, chunk);
    pthread_mutex_unlock(&d->lock);
    return final;
}

static void wait_until_final(Reduction *d, size_t chunk) {
    pthread_mutex_lock(&d->lock);
    while (!known_final(d, chunk)) pthread_cond_wait(&d->changed, &d->lock);
    pthread_mutex_unlock(&d->lock);
}

// Reduces all chunks in the order in which they become final.
static void reduce(Reduction *d) {
    Slot *pending = NULL;
    for (size_t i = 0; i < d->chunks; i++) {
        const size_t chunk = i < d->early ? i : d->chunks - 1 - (i - d->early);
        double start = clock_seconds();
        if (pending && !is_final(d, chunk)) {
            finish(d, pending, d->values);
            pending = NULL;
        }
        d->ranks->report.seconds += clock_seconds() - start;
        wait_until_final(d, chunk);
        start = clock_seconds();
        Slot *slot = &d->slots[i % 2];
        scatter(d, slot, d->values, chunk);
        if (pending) finish(d, pending, d->values);
        pending = slot;
        d->ranks->report.seconds += clock_seconds() - start;
    }
    const double start = clock_seconds();
    if (pending) finish(d, pending, d->values);
    d->ranks->report.seconds += clock_seconds() - start;
}

static void *work(void *reduction) {
    Reduction *d = reduction;
    pthread_mutex_lock(&d->lock);
    for (;;) {
        while (!d->leaving && !(d->begun && !d->done)) pthread_cond_wait(&d->changed, &d->lock);
        if (d->leaving) break;
        pthread_mutex_unlock(&d->lock);
        reduce(d);
        pthread_mutex_lock(&d->lock);
        d->done = true;
        pthread_cond_broadcast(&d->changed);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

Reduction *reduction_create(Ranks *r, const ReductionPlan *plan) {
    if (!r) return NULL;
    Reduction *d = allocate(1, sizeof(*d), "reduction");
    *d = (Reduction){.ranks = r,
                     .count = plan->count,
                     .bf16 = plan->bf16,
                     .chunks = count_chunks(r, plan->count),
                     .early = plan->early / (chunk_pieces(r) * PIECE),
                     .from = plan->count,
                     .lock = PTHREAD_MUTEX_INITIALIZER,
                     .changed = PTHREAD_COND_INITIALIZER};
    const size_t n = (size_t)r->size, chunk = chunk_pieces(r) * PIECE;
    const size_t part = (chunk_pieces(r) + n - 1) / n * PIECE;
    for (int i = 0; i < 2; i++) {
        d->slots[i] = (Slot){.scattered = messages_create(r, "sum of gradients"),
                             .gathered = messages_create(r, "sum of gradients"),
                             .in = allocate(n * part, element_size(d), "reduction")};
        if (d->bf16) d->slots[i].out = allocate(chunk, sizeof(uint16_t), "reduction");
    }
    if (engine(r)->threads && pthread_create(&d->thread, NULL, work, d) != 0)
        fail("cannot start a thread to sum gradients with");
    return d;
}

void reduction_free(Reduction *d) {
    if (!d) return;
    if (engine(d->ranks)->threads) {
        pthread_mutex_lock(&d->lock);
        d->leaving = true;
        pthread_cond_broadcast(&d->changed);
        pthread_mutex_unlock(&d->lock);
        pthread_join(d->thread, NULL);
    }
    for (int i = 0; i < 2; i++) {
        messages_free(&d->slots[i].scattered);
        messages_free(&d->slots[i].gathered);
        free(d->slots[i].in);
        free(d->slots[i].out);
    }
    free(d);
}

void reduction_early(Reduction *d, real *values) {
    if (!d) return;
    pthread_mutex_lock(&d->lock);
    d->early_final = true;
    pthread_mutex_unlock(&d->lock);
    reduction_final(d, values, d->count);
}

void reduction_add(Reduction *d, real *values, size_t count) {
    if (!d) return;
    const double start = clock_seconds();
    Reduction other = *d; // shares the slots
    other.count = count;
    other.chunks = count_chunks(d->ranks, count);
    other.early = other.from = 0;
    other.lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    other.values = values;
    reduce(&other);
    d->ranks->report.waited_seconds += clock_seconds() - start;
}

void reduction_final(Reduction *d, real *values, size_t from) {
    if (!d) return;
    pthread_mutex_lock(&d->lock);
    d->values = values;
    d->from = from;
    d->begun = true;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
}

void reduction_end(Reduction *d, real *values) {
    if (!d) return;
    const double start = clock_seconds();
    reduction_final(d, values, 0);
    if (!engine(d->ranks)->threads) {
        reduce(d);
        d->done = true;
    }
    pthread_mutex_lock(&d->lock);
    while (!d->done) pthread_cond_wait(&d->changed, &d->lock);
    d->begun = d->done = d->early_final = false;
    d->from = d->count;
    pthread_mutex_unlock(&d->lock);
    d->ranks->report.waited_seconds += clock_seconds() - start;
}
