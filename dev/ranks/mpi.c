// Several processes, by MPI. MPI moves bytes between pairs of ranks, and nothing else is asked of it: sums
// are taken here, in the order of ranks, so that they do not depend on how an implementation takes them.
//
// A chunk of gradients is summed in two halves: each rank gets, from all others, what they have of its part
// of the chunk and adds it up; then it sends the sums to all others. A rank sends and receives 2 (n-1)/n
// times the array for any n, as a ring does, in 2 messages to each other rank instead of 2 (n-1) in a row.
#include "ranks.h"

#include "bf16.h"
#include "error.h"
#include "memory.h"
#include <mpi.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    HOST = 64,
    TAG_NUMBERS = 1, // and gradients on their way to the rank that sums them, and back
    TAG_SCATTER,
    TAG_GATHER,
    PIECE = RANKS_PIECE,
    CHUNK = 16,        // pieces of a chunk, where there are not more ranks
    BLOCK = 1024,      // elements that are summed at a time
    MESSAGE = 1 << 30, // bytes at most
    LOOKS = 300,       // at messages, before sleeping in between
    NAP = 20 * 1000,   // nanoseconds
    SPEAK = 2          // seconds that rank 0 has to say what ends everybody
};

struct Ranks {
    int rank, size;
    int on_machine, machines, cores;
    bool bound;          // to these cores
    char (*hosts)[HOST]; // (size)
    double timeout;
    bool threads; // one thread at a time may call MPI, whichever
    MPI_Comm world;
    RanksReport report;
};

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void nap(long nanoseconds) {
    nanosleep(&(struct timespec){.tv_nsec = nanoseconds}, NULL);
}

static void check(int code, const char *what) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length;
    if (code == MPI_SUCCESS) return;
    MPI_Error_string(code, text, &length);
    fail("%s: MPI says: %s", what, text);
}

// ---- messages -------------------------------------------------------------------------------------------

// On their way, each from or to one other rank.
typedef struct {
    Ranks *ranks;
    const char *what; // they are for
    MPI_Request *requests;
    int *peers;
    int count;
} Messages;

// Room for one from and one to each other rank.
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
    check(MPI_Isend(data, (int)bytes, MPI_BYTE, peer, tag, m->ranks->world, &m->requests[m->count++]),
          m->what);
    if (tag != TAG_NUMBERS) m->ranks->report.bytes += (double)bytes;
}

static void receive_from(Messages *m, int peer, int tag, void *data, size_t bytes) {
    if (bytes == 0) return;
    m->peers[m->count] = peer;
    check(MPI_Irecv(data, (int)bytes, MPI_BYTE, peer, tag, m->ranks->world, &m->requests[m->count++]),
          m->what);
}

// Ends the program: names those whose messages did not come.
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
                append_format(&names, "%srank %d on %s", missing > 1 ? ", " : "", peer, r->hosts[peer]);
        }
    }
    fail("%s: waited %g s (--timeout) for %s%s", m->what, r->timeout, names, missing > 8 ? ", ..." : "");
}

// Waits until all have arrived.
static void wait_for(Messages *m) {
    const double deadline = seconds() + m->ranks->timeout;
    for (int64_t looks = 0;; looks++) {
        int done;
        check(MPI_Testall(m->count, m->requests, &done, MPI_STATUSES_IGNORE), m->what);
        if (done) break;
        if (looks < LOOKS) continue;
        nap(NAP);
        if (seconds() > deadline) give_up(m);
    }
    m->count = 0;
}

// ---- joining and leaving ----------------------------------------------------------------------------------

// MPI starts servers of its own, so it is left alone where nobody wants several processes.
static bool was_launched(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK",
                                        "MV2_COMM_WORLD_SIZE"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (getenv(names[i])) return true;
    return false;
}

static void leave(void) {
    int begun = 0, ended = 0;
    MPI_Initialized(&begun);
    MPI_Finalized(&ended);
    if (begun && !ended) MPI_Finalize();
}

static void learn_hosts(Ranks *r) {
    char host[HOST] = "";
    gethostname(host, sizeof(host) - 1);
    r->hosts = allocate((size_t)r->size, HOST, "names of machines");
    check(MPI_Allgather(host, HOST, MPI_CHAR, r->hosts, HOST, MPI_CHAR, r->world), "start");
}

// Where all processes of this machine may use the same cores, each takes its share of them.
static void share_cores(Ranks *r) {
    MPI_Comm machine;
    int place;
    cpu_set_t mine, first, taken;
    CPU_ZERO(&mine);
    CPU_ZERO(&taken);
    check(MPI_Comm_split_type(r->world, MPI_COMM_TYPE_SHARED, r->rank, MPI_INFO_NULL, &machine), "start");
    MPI_Comm_rank(machine, &place);
    MPI_Comm_size(machine, &r->on_machine);
    int leads = place == 0, same;
    check(MPI_Allreduce(&leads, &r->machines, 1, MPI_INT, MPI_SUM, r->world), "start");
    sched_getaffinity(0, sizeof(mine), &mine);
    first = mine;
    check(MPI_Bcast(&first, sizeof(first), MPI_BYTE, 0, machine), "start");
    same = CPU_EQUAL(&mine, &first);
    check(MPI_Allreduce(MPI_IN_PLACE, &same, 1, MPI_INT, MPI_LAND, machine), "start");
    MPI_Comm_free(&machine);
    const int cores = CPU_COUNT(&mine);
    r->cores = cores;
    r->bound = !same;
    if (!same || r->on_machine == 1) return;
    r->cores = cores < r->on_machine ? 1 : 0;
    if (r->cores == 1) return; // they take turns
    for (int core = 0, number = 0; core < CPU_SETSIZE; core++) {
        if (!CPU_ISSET(core, &mine)) continue;
        if (number++ * r->on_machine / cores == place) CPU_SET(core, &taken);
    }
    r->cores = CPU_COUNT(&taken);
    r->bound = sched_setaffinity(0, sizeof(taken), &taken) == 0;
}

Ranks *ranks_open(void) {
    int provided, size;
    if (!was_launched()) return NULL;
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided) != MPI_SUCCESS)
        fail("MPI cannot start");
    atexit(leave); // --help
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size == 1) return NULL;
    Ranks *r = allocate(1, sizeof(*r), "ranks");
    *r = (Ranks){.size = size, .timeout = 600, .threads = provided >= MPI_THREAD_SERIALIZED};
    MPI_Comm_rank(MPI_COMM_WORLD, &r->rank);
    check(MPI_Comm_dup(MPI_COMM_WORLD, &r->world), "start");
    MPI_Comm_set_errhandler(r->world, MPI_ERRORS_RETURN);
    learn_hosts(r);
    share_cores(r);
    return r;
}

void ranks_close(Ranks *r) {
    if (!r) return;
    ranks_vote(r, 0);
    MPI_Comm_free(&r->world);
    leave();
    free(r->hosts);
    free(r);
}

int ranks_rank(const Ranks *r) {
    return r ? r->rank : 0;
}

int ranks_size(const Ranks *r) {
    return r ? r->size : 1;
}

int ranks_on_machine(const Ranks *r) {
    return r ? r->on_machine : 1;
}

int ranks_cores(const Ranks *r) {
    return r ? r->cores : 0;
}

char *ranks_describe(const Ranks *r) {
    if (!r) return NULL;
    return format_string("%d on %d machine%s, %s %d core%s", r->size, r->machines, r->machines > 1 ? "s" : "",
                         r->bound ? "each bound to" : "not bound, each for", r->cores,
                         r->cores > 1 ? "s" : "");
}

void ranks_set_timeout(Ranks *r, double limit) {
    if (r) r->timeout = limit;
}

RanksReport ranks_report(const Ranks *r) {
    return r ? r->report : (RanksReport){0};
}

// ---- a few numbers ----

// Down a tree: rank r has it from r without its lowest bit.
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

void ranks_broadcast(Ranks *r, void *data, size_t bytes) {
    if (!r) return;
    Messages m = messages_create(r, "broadcast");
    for (size_t at = 0; at < bytes; at += MESSAGE)
        spread(&m, (char *)data + at, bytes - at < MESSAGE ? bytes - at : MESSAGE);
    messages_free(&m);
}

// Rank 0 gathers everybody's data, (size, bytes), which it gives back fresh; others NULL. `what` is said of
// who waits.
static void *gather_all(Ranks *r, const void *data, size_t bytes, const char *what) {
    Messages m = messages_create(r, what);
    char *all = NULL;
    if (r->rank == 0) {
        all = allocate((size_t)r->size, bytes, what);
        memcpy(all, data, bytes);
        for (int peer = 1; peer < r->size; peer++)
            receive_from(&m, peer, TAG_NUMBERS, all + (size_t)peer * bytes, bytes);
    } else {
        send_to(&m, 0, TAG_NUMBERS, data, bytes);
    }
    wait_for(&m);
    messages_free(&m);
    return all;
}

static double *gather_numbers(Ranks *r, const double *values, size_t count) {
    return gather_all(r, values, count * sizeof(double), "numbers of a step");
}

void ranks_sum(Ranks *r, double *values, size_t count) {
    if (!r) return;
    double *all = gather_numbers(r, values, count);
    for (size_t peer = 1; all && peer < (size_t)r->size; peer++)
        for (size_t i = 0; i < count; i++) values[i] += all[peer * count + i];
    free(all);
    ranks_broadcast(r, values, count * sizeof(double));
}

int ranks_vote(Ranks *r, int vote) {
    if (!r) return vote;
    double largest = vote;
    double *all = gather_numbers(r, &largest, 1);
    for (int peer = 1; all && peer < r->size; peer++)
        if (all[peer] > largest) largest = all[peer];
    free(all);
    ranks_broadcast(r, &largest, sizeof(largest));
    return (int)largest;
}

void ranks_union(Ranks *r, unsigned char *set, size_t count) {
    if (!r) return;
    unsigned char *all = gather_all(r, set, count, "sets of a step");
    for (size_t peer = 1; all && peer < (size_t)r->size; peer++)
        for (size_t i = 0; i < count; i++) set[i] |= all[peer * count + i];
    free(all);
    ranks_broadcast(r, set, count);
}

void ranks_compare(Ranks *r, const char *text, const char *what) {
    if (!r) return;
    size_t size = strlen(text) + 1;
    ranks_broadcast(r, &size, sizeof(size));
    char *first = allocate(size, 1, "options");
    if (r->rank == 0) memcpy(first, text, size);
    ranks_broadcast(r, first, size);
    if (strcmp(first, text) != 0) {
        size_t begin = 0; // of the line that differs
        for (size_t i = 0; first[i] && first[i] == text[i]; i++)
            if (text[i] == '\n') begin = i + 1;
        fail("%s: here %.*s, rank 0 on %s has %.*s", what, (int)strcspn(text + begin, "\n"), text + begin,
             r->hosts[0], (int)strcspn(first + begin, "\n"), first + begin);
    }
    free(first);
    ranks_vote(r, 0); // nobody goes on before all have compared
}

// ---- gradients ----

// A chunk on its way. Elements that travel are `real`, or uint16_t where they are bf16.
typedef struct {
    size_t chunk;
    Messages scattered, gathered;
    char *out; // (a chunk) bf16: what is sent
    char
        *in; // (size - 1, a part) what others have of this rank's part; then, with bf16, (a chunk) their sums
} Slot;

struct Reduction {
    Ranks *ranks;
    size_t count;
    bool bf16, parts;
    size_t chunks;
    Slot slots[2]; // one is scattered while the other is gathered
    // For the thread that does the work, where there is one.
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    real *values;
    size_t early;              // chunks at the beginning that come first
    bool early_final;          // they are final
    size_t from;               // elements from here on are final
    bool begun, done, leaving; // this reduction; the thread
};

typedef struct {
    size_t begin, end;
} Range;

// Pieces of a chunk.
static size_t chunk_pieces(const Ranks *r) {
    return r->size > CHUNK ? (size_t)r->size : CHUNK;
}

static size_t least(size_t a, size_t b) {
    return a < b ? a : b;
}

// Elements of a chunk that are a rank's part.
static Range part_of(const Ranks *r, size_t count, size_t chunk, int rank) {
    const size_t pieces = (count + PIECE - 1) / PIECE, first = chunk * chunk_pieces(r);
    const size_t here = least(chunk_pieces(r), pieces - first), n = (size_t)r->size, k = (size_t)rank;
    return (Range){least(count, (first + here * k / n) * PIECE),
                   least(count, (first + here * (k + 1) / n) * PIECE)};
}

static size_t count_chunks(const Ranks *r, size_t count) {
    const size_t size = chunk_pieces(r) * PIECE;
    return (count + size - 1) / size;
}

static size_t element_size(const Reduction *d) {
    return d->bf16 ? sizeof(uint16_t) : sizeof(real);
}

// What is sent of elements from `begin` on.
static const char *outgoing(const Reduction *d, const Slot *slot, const real *values, size_t begin) {
    const size_t first = slot->chunk * chunk_pieces(d->ranks) * PIECE;
    return d->bf16 ? slot->out + (begin - first) * sizeof(uint16_t) : (const char *)(values + begin);
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

// Everybody's elements of this rank's part are on their way to it.
static void scatter(Reduction *d, Slot *slot, const real *values, size_t chunk) {
    Ranks *r = d->ranks;
    const Range all = {part_of(r, d->count, chunk, 0).begin, part_of(r, d->count, chunk, r->size - 1).end};
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

// This rank's part becomes the sum, in the order of ranks.
static void add_up(const Reduction *d, const Slot *slot, real *values) {
    const Ranks *r = d->ranks;
    const Range mine = part_of(r, d->count, slot->chunk, r->rank);
    const size_t size = element_size(d), part = mine.end - mine.begin;
    for (size_t at = 0; at < part; at += BLOCK) {
        const size_t count = least(BLOCK, part - at);
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

// Everybody's parts of a chunk come to everybody. bf16: rounded on the way, the own one, too, so that all
// have the same.
static void gather(Reduction *d, Slot *slot, real *values, bool bf16) {
    Ranks *r = d->ranks;
    const size_t size = bf16 ? sizeof(uint16_t) : sizeof(real);
    const Range mine = part_of(r, d->count, slot->chunk, r->rank);
    const size_t first = slot->chunk * chunk_pieces(r) * PIECE;
    uint16_t *sums = (uint16_t *)slot->in; // (a chunk)
    if (bf16) round_all(sums + (mine.begin - first), values + mine.begin, mine.end - mine.begin);
    for (int peer = 0; peer < r->size; peer++) {
        if (peer == r->rank) continue;
        const Range theirs = part_of(r, d->count, slot->chunk, peer);
        receive_from(&slot->gathered, peer, TAG_GATHER,
                     bf16 ? (void *)(sums + (theirs.begin - first)) : (void *)(values + theirs.begin),
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
    if (!d->parts) gather(d, slot, values, d->bf16);
}

// ---- the thread that reduces while the backward pass goes on ----

// The lock is held.
static bool known_final(const Reduction *d, size_t chunk) {
    return d->from <= chunk * chunk_pieces(d->ranks) * PIECE || (chunk < d->early && d->early_final);
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

// All chunks in the order in which they are final.
static void reduce(Reduction *d) {
    Slot *pending = NULL;
    for (size_t i = 0; i < d->chunks; i++) {
        const size_t chunk = i < d->early ? i : d->chunks - 1 - (i - d->early);
        double start = seconds();
        if (pending && !is_final(d, chunk)) {
            finish(d, pending, d->values);
            pending = NULL;
        }
        d->ranks->report.seconds += seconds() - start;
        wait_until_final(d, chunk);
        start = seconds();
        Slot *slot = &d->slots[i % 2];
        scatter(d, slot, d->values, chunk);
        if (pending) finish(d, pending, d->values);
        pending = slot;
        d->ranks->report.seconds += seconds() - start;
    }
    const double start = seconds();
    if (pending) finish(d, pending, d->values);
    d->ranks->report.seconds += seconds() - start;
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
                     .parts = plan->parts,
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
    if (r->threads && pthread_create(&d->thread, NULL, work, d) != 0)
        fail("cannot start a thread to sum gradients with");
    return d;
}

void reduction_free(Reduction *d) {
    if (!d) return;
    if (d->ranks->threads) {
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
    const double start = seconds();
    Reduction other = *d; // with the same slots
    other.count = count;
    other.chunks = count_chunks(d->ranks, count);
    other.parts = false;
    other.early = other.from = 0;
    other.lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    other.values = values;
    reduce(&other);
    d->ranks->report.waited_seconds += seconds() - start;
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
    const double start = seconds();
    reduction_final(d, values, 0);
    if (!d->ranks->threads) {
        reduce(d);
        d->done = true;
    }
    pthread_mutex_lock(&d->lock);
    while (!d->done) pthread_cond_wait(&d->changed, &d->lock);
    d->begun = d->done = d->early_final = false;
    d->from = d->count;
    pthread_mutex_unlock(&d->lock);
    d->ranks->report.waited_seconds += seconds() - start;
}

size_t reduction_own(const Reduction *d, size_t count) {
    size_t own = 0;
    ReductionPart part;
    for (size_t i = 0; reduction_part(d, count, i, &part); i++) own = part.at + part.end - part.begin;
    return own;
}

void reduction_sum(Reduction *d, double *values, size_t count) {
    if (d && d->parts) ranks_sum(d->ranks, values, count);
}

bool reduction_part(const Reduction *d, size_t count, size_t i, ReductionPart *part) {
    if (!d || !d->parts) {
        *part = (ReductionPart){0, count, 0};
        return i == 0;
    }
    if (i >= count_chunks(d->ranks, count)) return false;
    size_t at = 0;
    for (size_t chunk = 0; chunk < i; chunk++) {
        const Range before = part_of(d->ranks, count, chunk, d->ranks->rank);
        at += before.end - before.begin;
    }
    const Range mine = part_of(d->ranks, count, i, d->ranks->rank);
    *part = (ReductionPart){mine.begin, mine.end, at};
    return true;
}

void reduction_gather(Reduction *d, real *values) {
    if (!d || !d->parts) return;
    for (size_t chunk = 0; chunk < d->chunks; chunk++) {
        d->slots[0].chunk = chunk;
        gather(d, &d->slots[0], values, false);
    }
}

// ---- for error.c ----

static bool is_running(void) {
    int begun = 0, ended = 0;
    MPI_Initialized(&begun);
    MPI_Finalized(&ended);
    return begun && !ended;
}

static int place_in_world(int *size) {
    int rank = 0;
    *size = 1;
    if (!is_running()) return 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, size);
    return rank;
}

void ranks_place(char *text, size_t size) {
    char host[HOST] = "";
    int ranks;
    const int rank = place_in_world(&ranks);
    gethostname(host, sizeof(host) - 1);
    snprintf(text, size, "rank %d of %d on %s: ", rank, ranks, host);
    if (ranks == 1) *text = '\0';
}

void ranks_let_others_speak(void) {
    int ranks;
    if (place_in_world(&ranks) == 0) return;
    const double end = seconds() + SPEAK; // a launcher that ends everybody begins with a signal
    while (seconds() < end) nap(NAP);
}

// _exit, as other threads may be at work whose data exit handlers would tear down.
void ranks_abort(int status) {
    int ranks;
    place_in_world(&ranks);
    if (ranks > 1) MPI_Abort(MPI_COMM_WORLD, status);
    _exit(status);
}
