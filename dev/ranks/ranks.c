// The communication of ranks, on top of any transport (transport.h).
#include "clock.h"
#include "error.h"
#include "memory.h"
#include "transport.h"
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    NAP = 20 * 1000, // nanoseconds
    SPEAK = 2        // seconds that rank 0 has to print the error that ends all ranks
};

void ranks_nap(void) {
    nanosleep(&(struct timespec){.tv_nsec = NAP}, NULL);
}

Deadline deadline_in(double seconds) {
    const double now = clock_seconds();
    return (Deadline){now + seconds, now};
}

bool deadline_passed(Deadline *deadline) {
    const double now = clock_seconds(), between = now - deadline->looked;
    if (between > 1) deadline->end += between;
    deadline->looked = now;
    return now > deadline->end;
}

// ---- a time limit for any call ----------------------------------------------

struct Watchdog {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool over;
    double seconds;
    const char *what;
};

static void *watch(void *watchdog) {
    Watchdog *w = watchdog;
    struct timespec end;
    int error = 0;
    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += (time_t)w->seconds;
    end.tv_nsec += (long)(1e9 * (w->seconds - (double)(time_t)w->seconds));
    if (end.tv_nsec >= 1000000000) {
        end.tv_sec++;
        end.tv_nsec -= 1000000000;
    }
    pthread_mutex_lock(&w->lock);
    while (!w->over && error != ETIMEDOUT)
        error = pthread_cond_timedwait(&w->changed, &w->lock, &end);
    const bool over = w->over;
    pthread_mutex_unlock(&w->lock);
    if (!over) fail("%s: waited %g s (--timeout) for the other processes", w->what, w->seconds);
    return NULL;
}

Watchdog *watchdog_start(double seconds, const char *what) {
    Watchdog *w = allocate(1, sizeof(*w), "a watchdog");
    pthread_condattr_t attributes;
    *w = (Watchdog){.lock = PTHREAD_MUTEX_INITIALIZER, .seconds = seconds, .what = what};
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&w->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    if (pthread_create(&w->thread, NULL, watch, w) != 0)
        fail("cannot start the thread that checks for timeouts");
    return w;
}

void watchdog_stop(Watchdog *w) {
    pthread_mutex_lock(&w->lock);
    w->over = true;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

// ---- callbacks of error.c for one of several processes ----------------------

static const Ranks *joined;

static void name_process(char *text, size_t size) {
    char host[RANKS_HOST] = "";
    *text = '\0';
    gethostname(host, sizeof(host) - 1);
    snprintf(text, size, "rank %d of %d on %s: ", joined->rank, joined->size, host);
}

static void let_others_speak(void) {
    if (joined->rank == 0) return;
    const double end =
        clock_seconds() + SPEAK; // a launcher that ends all ranks first sends a signal
    while (clock_seconds() < end) ranks_nap();
}

static void end_all(int status) {
    transport_abort(joined, status);
}

static const ErrorProcesses at_errors = {name_process, let_others_speak, end_all};

// ---- joining and leaving ----------------------------------------------------
// Returns the data of all ranks on all ranks, (size, bytes), allocated.
static void *gather_to_all(Ranks *r, const void *data, size_t bytes, const char *what) {
    char *all = allocate((size_t)r->size, bytes, what);
    transport_gather(r, data, bytes, all, what);
    transport_broadcast(r, all, (size_t)r->size * bytes);
    return all;
}

static void learn_hosts(Ranks *r) {
    char host[RANKS_HOST] = "";
    gethostname(host, sizeof(host) - 1);
    r->hosts = gather_to_all(r, host, sizeof(host), "start");
    for (int peer = 0; peer < r->size; peer++) {
        r->hosts[peer][RANKS_HOST - 1] = '\0';
        int first = 0; // first rank on that machine
        while (strcmp(r->hosts[first], r->hosts[peer]) != 0) first++;
        r->machines += first == peer;
        if (strcmp(r->hosts[peer], host) != 0) continue;
        r->on_machine++;
        r->place += peer < r->rank;
    }
}

// If all processes of this machine may use the same cores, each takes its share of them.
static void share_cores(Ranks *r) {
    cpu_set_t mine, taken;
    CPU_ZERO(&mine);
    CPU_ZERO(&taken);
    sched_getaffinity(0, sizeof(mine), &mine);
    cpu_set_t *all = gather_to_all(r, &mine, sizeof(mine), "start");
    bool same = true;
    for (int peer = 0; peer < r->size; peer++)
        if (strcmp(r->hosts[peer], r->hosts[r->rank]) == 0 && !CPU_EQUAL(&all[peer], &mine))
            same = false;
    free(all);
    const int cores = CPU_COUNT(&mine);
    r->cores = cores;
    r->bound = !same;
    if (!same || r->on_machine == 1) return;
    r->cores = cores < r->on_machine ? 1 : 0;
    if (r->cores == 1) return; // they take turns
    for (int core = 0, number = 0; core < CPU_SETSIZE; core++) {
        if (!CPU_ISSET(core, &mine)) continue;
        if (number++ * r->on_machine / cores == r->place) CPU_SET(core, &taken);
    }
    r->cores = CPU_COUNT(&taken);
    r->bound = sched_setaffinity(0, sizeof(taken), &taken) == 0;
}

Ranks *ranks_join(Ranks *r) {
    joined = r;
    error_set_processes(&at_errors);
    learn_hosts(r);
    share_cores(r);
    return r;
}

void ranks_close(Ranks *r) {
    if (!r) return;
    ranks_vote(r, 0);
    error_set_processes(NULL);
    joined = NULL;
    transport_leave(r);
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

int ranks_place_on_machine(const Ranks *r) {
    return r ? r->place : 0;
}

int ranks_cores(const Ranks *r) {
    return r ? r->cores : 0;
}

char *ranks_describe(const Ranks *r) {
    if (!r) return NULL;
    return format_string(
        "%d on %d machine%s, %s %d core%s", r->size, r->machines, r->machines > 1 ? "s" : "",
        r->bound ? "each bound to" : "not bound, each for", r->cores, r->cores > 1 ? "s" : "");
}

void ranks_set_timeout(Ranks *r, double limit) {
    if (r) r->timeout = limit;
}

RanksReport ranks_report(const Ranks *r) {
    return r ? r->report : (RanksReport){0};
}

// ---- a few numbers ----------------------------------------------------------

void ranks_broadcast(Ranks *r, void *data, size_t bytes) {
    if (r && bytes > 0) transport_broadcast(r, data, bytes);
}

// Returns the data of all ranks on rank 0, (size, bytes), allocated; NULL on other ranks.
static void *gather_all(Ranks *r, const void *data, size_t bytes, const char *what) {
    void *all = r->rank == 0 ? allocate((size_t)r->size, bytes, what) : NULL;
    transport_gather(r, data, bytes, all, what);
    return all;
}

static double *gather_numbers(Ranks *r, const double *values, size_t count) {
    return gather_all(r, values, count * sizeof(double), "numbers of the step");
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
    unsigned char *all = gather_all(r, set, count, "sets of the step");
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
        fail("%s: here %.*s, rank 0 on %s has %.*s", what, (int)strcspn(text + begin, "\n"),
             text + begin, r->hosts[0], (int)strcspn(first + begin, "\n"), first + begin);
    }
    free(first);
    ranks_vote(r, 0); // no rank continues before all have compared
}

void ranks_refuse_same(Ranks *r, const char *id, const char *what) {
    if (!r) return;
    char mine[RANKS_HOST] = "";
    snprintf(mine, sizeof(mine), "%s", id);
    char(*all)[RANKS_HOST] = gather_all(r, mine, sizeof(mine), "start");
    for (int peer = 1; all && peer < r->size; peer++)
        for (int other = 0; other < peer; other++)
            if (strncmp(all[peer], all[other], RANKS_HOST) == 0 &&
                strcmp(r->hosts[peer], r->hosts[other]) == 0)
                fail("ranks %d and %d on %s have the same %s (%s): start one process for each",
                     other, peer, r->hosts[peer], what, id);
    free(all);
    ranks_vote(r, 0); // no rank continues before the check
}
