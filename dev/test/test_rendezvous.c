#include "error.h"
#include "file.h"
#include "memory.h"
#include "rendezvous.h"
#include "test.h"
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 3 };

static char *file; // where they meet

static void meet(int rank, double timeout, const char *device, const char *secret) {
    char data[32] = "";
    const Place place = {rank, RANKS, rank};
    if (rank == 0) snprintf(data, sizeof(data), "%s", secret);
    rendezvous(file, &place, timeout, device, data, sizeof(data));
    if (strcmp(data, secret) != 0) fail("got '%s', expected '%s'", data, secret);
}

// A process that meets the others, after some milliseconds.
static pid_t start(int rank, int delay, double timeout, const char *device, const char *secret) {
    const pid_t child = fork();
    if (child != 0) return child;
    usleep((useconds_t)delay * 1000);
    meet(rank, timeout, device, secret);
    _exit(0);
}

static int exit_code(pid_t child) {
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

// Whether all meet, when each comes after that many milliseconds.
static bool all_meet(const int *delays, const char *secret) {
    static const char *const devices[RANKS] = {"a", "b", "c"};
    pid_t children[RANKS];
    bool met = true;
    for (int rank = 0; rank < RANKS; rank++)
        children[rank] = start(rank, delays[rank], 20, devices[rank], secret);
    for (int rank = 0; rank < RANKS; rank++) met = exit_code(children[rank]) == 0 && met;
    return met;
}

// Of FILE and cards, whole ones.
static size_t files_left(void) {
    size_t all = 0, count = 0;
    char **names = directory_list(test_directory(), &all);
    for (size_t i = 0; i < all; i++)
        count += strncmp(names[i], "meet", 4) == 0 && !strstr(names[i], ".tmp");
    directory_list_free(names, all);
    return count;
}

static void begin(void) {
    unsetenv("SLURM_JOB_ID");
    unsetenv("TORCHELASTIC_RUN_ID");
    file = format_string("%s/meet", test_directory());
}

static void test_meet(void) {
    begin();
    CHECK(all_meet((const int[]){0, 0, 0}, "one"));
    CHECK(all_meet((const int[]){300, 0, 100}, "two"));
    CHECK(all_meet((const int[]){0, 300, 0}, "three"));
    CHECK(files_left() == 0);
    free(file);
}

// What ranks that were killed left: cards that nobody waits for, and a FILE that nobody took.
static void test_stale(void) {
    begin();
    const pid_t lost[] = {start(1, 0, 20, "b", "old"), start(2, 0, 20, "c", "old")};
    while (files_left() < 2) usleep(1000);
    for (int i = 0; i < 2; i++) {
        kill(lost[i], SIGKILL);
        CHECK(exit_code(lost[i]) == -SIGKILL);
    }
    // Rank 0 takes the cards for those of ranks that come, until these come.
    const pid_t first = start(0, 0, 20, "a", "old");
    while (!file_exists(file)) usleep(1000);
    kill(first, SIGKILL);
    CHECK(exit_code(first) == -SIGKILL);
    CHECK(files_left() == 3);
    CHECK(all_meet((const int[]){0, 300, 600}, "new"));
    CHECK(files_left() == 0);
    free(file);
}

static void leads_alone(void *unused) {
    (void)unused;
    meet(0, 0.3, "a", "");
}

static void follows_alone(void *unused) {
    (void)unused;
    meet(2, 0.3, "a", "");
}

static void test_nobody_comes(void) {
    begin();
    CHECK_FAILS(leads_alone, NULL, 1, "rank 0 of 3 waited 0.3 s (--timeout) for rank 1, 2");
    CHECK_FAILS(follows_alone, NULL, 1, "rank 2 of 3 waited 0.3 s (--timeout) for rank 0");
    const pid_t other = start(1, 0, 20, "b", "");
    while (files_left() < 1) usleep(1000);
    CHECK_FAILS(leads_alone, NULL, 1, "for rank 2");
    kill(other, SIGKILL);
    CHECK(exit_code(other) == -SIGKILL);
    free(file);
}

static void leads(void *unused) {
    (void)unused;
    meet(0, 20, "a", "");
}

static void test_same_device(void) {
    begin();
    const pid_t one = start(1, 0, 20, "b", ""), two = start(2, 0, 20, "b", "");
    CHECK_FAILS(leads, NULL, 1, "have the same GPU (b)");
    CHECK(exit_code(one) == 1); // and says nothing
    CHECK(exit_code(two) == 1);
    free(file);
}

// Cards of another job are passed over.
static void test_other_job(void) {
    begin();
    setenv("SLURM_JOB_ID", "7", 1);
    const pid_t one = start(1, 0, 20, "b", ""), two = start(2, 0, 20, "c", "");
    while (files_left() < 2) usleep(1000);
    setenv("SLURM_JOB_ID", "8", 1);
    CHECK_FAILS(leads_alone, NULL, 1, "for rank 1, 2");
    kill(one, SIGKILL);
    kill(two, SIGKILL);
    CHECK(exit_code(one) == -SIGKILL && exit_code(two) == -SIGKILL);
    free(file);
}

static void asks(void *unused) {
    (void)unused;
    place_in_environment();
}

static void test_environment(void) {
    static const char *const names[] = {"RANK",         "WORLD_SIZE",   "LOCAL_RANK",
                                        "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) unsetenv(names[i]);
    CHECK_FAILS(asks, NULL, 1, "neither RANK and WORLD_SIZE nor SLURM_PROCID and SLURM_NTASKS");
    setenv("SLURM_PROCID", "5", 1);
    setenv("SLURM_NTASKS", "16", 1);
    Place place = place_in_environment();
    CHECK(place.rank == 5 && place.size == 16 && place.local == -1);
    setenv("SLURM_LOCALID", "1", 1);
    CHECK(place_in_environment().local == 1);
    setenv("RANK", "2", 1);
    setenv("WORLD_SIZE", "4", 1);
    setenv("LOCAL_RANK", "0", 1);
    place = place_in_environment();
    CHECK(place.rank == 2 && place.size == 4 && place.local == 0);
    setenv("RANK", "4", 1);
    CHECK_FAILS(asks, NULL, 1, "RANK in the environment is '4', expected 0 to 3");
    setenv("RANK", "1x", 1);
    CHECK_FAILS(asks, NULL, 1, "RANK in the environment is '1x'");
    setenv("WORLD_SIZE", "0", 1);
    CHECK_FAILS(asks, NULL, 1, "WORLD_SIZE in the environment is '0', expected 1 to 65536");
}

int main(int argc, char **argv) {
    static const TestCase cases[] = {
        {"meet", test_meet},
        {"stale files", test_stale},
        {"nobody comes", test_nobody_comes},
        {"same device", test_same_device},
        {"another job", test_other_job},
        {"environment", test_environment},
    };
    return test_main(argc, argv, "rendezvous", cases, sizeof(cases) / sizeof(*cases));
}
