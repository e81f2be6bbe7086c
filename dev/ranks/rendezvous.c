#include "rendezvous.h"

#include "error.h"
#include "file.h"
#include "memory.h"
#include "transport.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#define MAGIC "ranks 1"

enum {
    MOST_RANKS = 1 << 16,
    NAMED = 8,
    LOOK = 20 * 1000 * 1000
}; // nanoseconds between two looks at a file

// Of one process. All of it is zero where nothing is written.
typedef struct {
    char magic[8];
    unsigned char number[16]; // of this process alone
    char job[64];             // of which scheduler's job it is
    char host[RANKS_HOST], device[RANKS_HOST];
} Card;

// FILE is this, a card for each rank, and the data.
typedef struct {
    char magic[8];
    int size;
    int refused; // rank 0 said why nobody goes on
} Header;

static void nap(void) {
    nanosleep(&(struct timespec){.tv_nsec = LOOK}, NULL);
}

// ---- the environment --------------------------------------------------------

static int number_of(const char *name, int least, int most) {
    const char *given = getenv(name), *text = given ? given : "";
    char *end;
    errno = 0;
    const long value = strtol(text, &end, 10);
    if (!*text || *end || errno || value < least || value > most)
        fail("%s in the environment is '%s', expected %d to %d", name, text, least, most);
    return (int)value;
}

Place place_in_environment(void) {
    static const struct {
        const char *rank, *size, *local;
    } names[] = {{"RANK", "WORLD_SIZE", "LOCAL_RANK"},
                 {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"}};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (!getenv(names[i].rank) || !getenv(names[i].size)) continue;
        const int size = number_of(names[i].size, 1, MOST_RANKS);
        return (Place){number_of(names[i].rank, 0, size - 1), size,
                       getenv(names[i].local) ? number_of(names[i].local, 0, size - 1) : -1};
    }
    fail("--ranks-file: the environment has neither RANK and WORLD_SIZE nor SLURM_PROCID and "
         "SLURM_NTASKS; "
         "start the "
         "processes with srun, or set the former");
}

// ---- cards ------------------------------------------------------------------

static void copy_text(char *out, size_t size, const char *text) {
    for (size_t i = 0; i + 1 < size && text[i]; i++) out[i] = text[i];
}

// The scheduler's job, where there is one: files of others are passed over.
static const char *job(void) {
    static const char *const names[] = {"TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (getenv(names[i])) return getenv(names[i]);
    return "";
}

static Card own_card(const char *device) {
    Card card = {.magic = MAGIC};
    if (getrandom(card.number, sizeof(card.number), 0) != (ssize_t)sizeof(card.number))
        fail("no random numbers: %s", strerror(errno));
    copy_text(card.job, sizeof(card.job), job());
    gethostname(card.host, sizeof(card.host) - 1);
    copy_text(card.device, sizeof(card.device), device);
    return card;
}

static bool same_card(const Card *a, const Card *b) {
    return memcmp(a->number, b->number, sizeof(a->number)) == 0;
}

static void write_file(const char *path, const void *data, size_t size) {
    AtomicFile *file = atomic_open(path);
    atomic_write(file, data, size);
    atomic_commit(file);
}

static void remove_file(const char *path) {
    if (unlink(path) != 0 && errno != ENOENT) fail("%s: cannot remove: %s", path, strerror(errno));
}

// Whether there is a file of that size, and what it holds. It is read, not mapped: another machine
// may replace it at any time.
static bool read_file(const char *path, void *out, size_t size) {
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 && errno != ENOENT && errno != ESTALE)
        fail("%s: cannot open: %s", path, strerror(errno));
    if (fd < 0) return false;
    size_t done = 0;
    char more;
    for (ssize_t got = 1; got > 0 && done<size; done += got> 0 ? (size_t)got : 0)
        got = read(fd, (char *)out + done, size - done);
    const bool whole = done == size && read(fd, &more, 1) == 0;
    close(fd);
    return whole;
}

// A whole card of this job; false: there is none.
static bool read_card(const char *path, const char *of_job, Card *card) {
    return read_file(path, card, sizeof(*card)) && memcmp(card->magic, MAGIC, sizeof(MAGIC)) == 0 &&
           card->job[sizeof(card->job) - 1] == '\0' && card->host[RANKS_HOST - 1] == '\0' &&
           card->device[RANKS_HOST - 1] == '\0' && strcmp(card->job, of_job) == 0;
}

static char *card_path(const char *file, int rank) {
    return format_string("%s.%d", file, rank);
}

// ---- rank 0 -----------------------------------------------------------------

typedef struct {
    const char *file;
    int size;
    Card *cards;        // (size)
    bool *known, *gone; // (size) its card was read; was removed after it stood in FILE
    bool published;     // FILE holds the cards as they are
    const void *data;
    size_t bytes;
} Table;

static void publish(Table *t, bool refused) {
    Header header = {MAGIC, t->size, refused};
    const size_t cards = (size_t)t->size * sizeof(Card), size = sizeof(header) + cards + t->bytes;
    char *all = allocate(size, 1, "cards");
    memcpy(all, &header, sizeof(header));
    memcpy(all + sizeof(header), t->cards, cards);
    memcpy(all + sizeof(header) + cards, t->data, t->bytes);
    write_file(t->file, all, size);
    free(all);
    t->published = true;
}

// Looks at all cards; true: one of them is new.
static bool look(Table *t) {
    bool changed = false;
    for (int rank = 1; rank < t->size; rank++) {
        char *path = card_path(t->file, rank);
        Card card;
        if (read_card(path, t->cards[0].job, &card)) {
            if (!t->known[rank] || !same_card(&card, &t->cards[rank])) changed = true;
            t->cards[rank] = card;
            t->known[rank] = true;
            t->gone[rank] = false;
        } else if (t->published && !file_exists(path)) {
            t->gone[rank] = true;
        }
        free(path);
    }
    return changed;
}

static bool all_of(const bool *flags, int size) {
    for (int rank = 1; rank < size; rank++)
        if (!flags[rank]) return false;
    return true;
}

static void refuse_same_devices(Table *t) {
    for (int rank = 1; rank < t->size; rank++)
        for (int other = 0; other < rank; other++) {
            const Card *a = &t->cards[other], *b = &t->cards[rank];
            if (strcmp(a->host, b->host) != 0 || strcmp(a->device, b->device) != 0) continue;
            publish(t, true);
            fail(
                "ranks %d and %d on %s have the same GPU (%s): start one process for each, and let "
                "LOCAL_RANK "
                "or SLURM_LOCALID count them",
                other, rank, a->host, a->device);
        }
}

static void give_up(const Table *t, double timeout) {
    char *names = copy_string("");
    int missing = 0;
    for (int rank = 1; rank < t->size; rank++)
        if (!(t->published ? t->gone : t->known)[rank] && missing++ < NAMED)
            append_format(&names, "%s%d", missing > 1 ? ", " : "", rank);
    fail("--ranks-file %s: rank 0 of %d waited %g s (--timeout) for rank %s%s", t->file, t->size,
         timeout, names, missing > NAMED ? ", ..." : "");
}

static void lead(const char *file, int size, double timeout, const Card *own, const void *data,
                 size_t bytes) {
    Table t = {.file = file,
               .size = size,
               .cards = allocate((size_t)size, sizeof(Card), "cards"),
               .known = allocate((size_t)size, sizeof(bool), "cards"),
               .gone = allocate((size_t)size, sizeof(bool), "cards"),
               .data = data,
               .bytes = bytes};
    const double end = ranks_seconds() + timeout;
    t.cards[0] = *own;
    while (!t.published || !all_of(t.gone, size)) {
        const bool changed = look(&t);
        if (all_of(t.known, size) && (changed || !t.published)) {
            refuse_same_devices(&t);
            publish(&t, false);
            continue;
        }
        if (ranks_seconds() > end) give_up(&t, timeout);
        nap();
    }
    remove_file(file);
    free(t.cards);
    free(t.known);
    free(t.gone);
}

// ---- the others -------------------------------------------------------------
// Whether FILE is there with this rank's card; `all` (bytes) is what it holds.
static bool is_for(const char *file, const Place *place, const Card *own, unsigned char *all,
                   size_t bytes) {
    Header header;
    Card card;
    if (!read_file(file, all, bytes)) return false;
    memcpy(&header, all, sizeof(header));
    memcpy(&card, all + sizeof(header) + (size_t)place->rank * sizeof(card), sizeof(card));
    return memcmp(header.magic, MAGIC, sizeof(MAGIC)) == 0 && header.size == place->size &&
           same_card(&card, own);
}

static void follow(const char *file, const Place *place, double timeout, const Card *own,
                   void *data, size_t bytes) {
    char *path = card_path(file, place->rank);
    const double end = ranks_seconds() + timeout;
    const size_t cards = sizeof(Header) + (size_t)place->size * sizeof(Card);
    unsigned char *all = allocate(cards + bytes, 1, "cards");
    write_file(path, own, sizeof(*own));
    while (!is_for(file, place, own, all, cards + bytes)) {
        if (ranks_seconds() > end) {
            remove_file(path);
            fail("--ranks-file %s: rank %d of %d waited %g s (--timeout) for rank 0: all need the "
                 "same file, "
                 "on a disk "
                 "that all of them see",
                 file, place->rank, place->size, timeout);
        }
        nap();
    }
    remove_file(path);
    Header header;
    memcpy(&header, all, sizeof(header));
    if (header.refused) _exit(1); // rank 0 says why
    memcpy(data, all + cards, bytes);
    free(all);
    free(path);
}

void rendezvous(const char *file, const Place *place, double timeout, const char *device,
                void *data, size_t bytes) {
    if (place->size == 1) return;
    const Card own = own_card(device);
    if (place->rank == 0)
        lead(file, place->size, timeout, &own, data, bytes);
    else
        follow(file, place, timeout, &own, data, bytes);
}
