#include "recall.h"

#include "error.h"
#include "memory.h"
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

// Tokens of each kind. Pairs follow Zoology: keys start at 1, values at the middle of the
// vocabulary. The others start with marks: begin and end of a passkey, question; begin of a copy.
enum {
    PAIRS_VOCABULARY = 8192, // maximum and default
    MARK_BEGIN = 0,
    MARK_END,
    MARK_QUESTION,
    MARKS,
    FILLERS = 61,  // tokens without a meaning
    KEYS = 1024,   // possible passkeys, after the fillers
    COPY_MARK = 0, // followed by the 63 tokens to copy
    COPY_VOCABULARY = 64
};

bool recall_named(const char *name) {
    return strncmp(name, "recall:", strlen("recall:")) == 0;
}

// Reads a whole number at *text and advances *text past it. Returns -1 if there is none.
static int64_t take_number(const char **text) {
    int64_t number = isdigit((unsigned char)**text) ? 0 : -1;
    for (; isdigit((unsigned char)**text) && number < INT32_MAX; ++*text)
        number = 10 * number + (**text - '0');
    return number;
}

Recall recall_parse(const char *name) {
    const char *kind = name + strlen("recall:");
    if (strcmp(kind, "passkey") == 0) return (Recall){RECALL_PASSKEY, -1, -1, 0};
    if (strcmp(kind, "copy") == 0) return (Recall){RECALL_COPY, 0, 0, 0};
    if (strcmp(kind, "parity") == 0) return (Recall){RECALL_PARITY, 0, 0, 0};
    const bool pairs = strncmp(kind, "pairs=", 6) == 0;
    if (pairs || strncmp(kind, "passkey=", 8) == 0) {
        const char *rest = kind + (pairs ? 6 : 8);
        const int64_t first = take_number(&rest), more = *rest == '-';
        rest += more;
        const int64_t last = more ? take_number(&rest) : first;
        int64_t vocabulary = PAIRS_VOCABULARY;
        if (pairs && strncmp(rest, ",vocab=", 7) == 0) {
            rest += 7;
            vocabulary = take_number(&rest);
        }
        const int64_t least = pairs ? 1 : 0, most = pairs ? vocabulary / 4 : 100;
        if (!*rest && first >= least && last >= first && last <= most && (pairs || !more) &&
            vocabulary <= PAIRS_VOCABULARY)
            return (Recall){pairs ? RECALL_PAIRS : RECALL_PASSKEY, first, last,
                            (int32_t)vocabulary};
    }
    fail("%s: expected recall:pairs=N or A-B (1 to %d, a quarter of the vocabulary), "
         "recall:pairs=N,vocab=V (up to %d), recall:passkey, recall:passkey=PERCENT, recall:copy "
         "or recall:parity",
         name, PAIRS_VOCABULARY / 4, PAIRS_VOCABULARY);
}

int32_t recall_vocabulary(const Recall *recall) {
    switch (recall->kind) {
    case RECALL_PAIRS:
        return recall->vocabulary;
    case RECALL_PASSKEY:
        return MARKS + FILLERS + KEYS;
    case RECALL_COPY:
        return COPY_VOCABULARY;
    default:
        return 2;
    }
}

void recall_check_length(const Recall *recall, int64_t length) {
    const int64_t shortest = recall->kind == RECALL_PAIRS     ? 4 * recall->last
                             : recall->kind == RECALL_PASSKEY ? 4
                             : recall->kind == RECALL_COPY    ? 2
                                                              : 1;
    if (length < shortest || (recall->kind == RECALL_PAIRS && length % 2 == 1))
        fail_usage("--seq-len %lld: recall needs %s of at least %lld tokens", (long long)length,
                   recall->kind == RECALL_PAIRS ? "an even number" : "sequences",
                   (long long)shortest);
}

// ---- choosing without replacement -------------------------------------------

// Draws `count` different numbers of first .. first+choices-1 in random order (Fisher-Yates).
static void choose_tokens(Random *random, int32_t first, int32_t choices, int64_t count,
                          int32_t *chosen) {
    int32_t *all = allocate((size_t)choices, sizeof(*all), "a recall sequence");
    for (int32_t i = 0; i < choices; i++) all[i] = first + i;
    for (int64_t i = 0; i < count; i++) {
        const int64_t j = i + (int64_t)random_below(random, (uint64_t)(choices - i));
        chosen[i] = all[j];
        all[j] = all[i];
    }
    free(all);
}

// Weighted sampling without replacement: `count` different places below `space`, with weights
// (place + 1)^(POWER - 1), so that most questions come early. Takes the places with the smallest
// exponential variates divided by their weights (Efraimidis and Spirakis, 2006).
typedef struct {
    double time;
    int64_t place;
} Arrival;

static int compare_arrivals(const void *a, const void *b) {
    const Arrival *x = a, *y = b;
    if (x->time != y->time) return x->time < y->time ? -1 : 1;
    return x->place < y->place ? -1 : x->place > y->place;
}

static void choose_places(Random *random, int64_t space, int64_t count, int64_t *places) {
    const double POWER = 0.01; // Zoology's
    Arrival *arrivals = allocate((size_t)space, sizeof(*arrivals), "a recall sequence");
    for (int64_t i = 0; i < space; i++) {
        const double exponential = -log1p(-random_uniform(random));
        arrivals[i] = (Arrival){exponential * pow((double)(i + 1), 1 - POWER), i};
    }
    qsort(arrivals, (size_t)space, sizeof(*arrivals), compare_arrivals);
    for (int64_t i = 0; i < count; i++) places[i] = arrivals[i].place;
    free(arrivals);
}

// ---- the kinds --------------------------------------------------------------

// Draws the number of pairs of a sequence: first, 2 first, 4 first, .. or last.
static int64_t number_of_pairs(const Recall *recall, Random *random) {
    int64_t choices = 1, pairs = recall->first;
    for (int64_t n = recall->first; n < recall->last; n *= 2) choices++;
    for (int64_t i = (int64_t)random_below(random, (uint64_t)choices); i > 0; i--) pairs *= 2;
    return pairs < recall->last ? pairs : recall->last;
}

static int64_t pairs_sequence(const Recall *recall, Random *random, int64_t length, int32_t *inputs,
                              int32_t *targets) {
    const int64_t pairs = number_of_pairs(recall, random), half = recall->vocabulary / 2;
    int32_t *keys = allocate((size_t)pairs, sizeof(*keys), "a recall sequence"),
            *values = allocate((size_t)pairs, sizeof(*values), "a recall sequence");
    int64_t *places = allocate((size_t)pairs, sizeof(*places), "a recall sequence");
    choose_tokens(random, 1, (int32_t)half - 1, pairs, keys);
    choose_tokens(random, (int32_t)half, (int32_t)half, pairs, values);
    choose_places(random, (length - 2 * pairs) / 2, pairs, places);
    for (int64_t t = 0; t < length; t++)
        inputs[t] = (int32_t)random_below(random, (uint64_t)recall->vocabulary);
    for (int64_t i = 0; i < pairs; i++) {
        const int64_t question = 2 * (pairs + places[i]);
        inputs[2 * i] = inputs[question] = keys[i];
        inputs[2 * i + 1] = targets[question] = values[i];
    }
    free(keys);
    free(values);
    free(places);
    return pairs;
}

static int64_t passkey_sequence(const Recall *recall, Random *random, int64_t length,
                                int32_t *inputs, int32_t *targets) {
    const int64_t choices = length - 3; // possible positions of MARK_BEGIN
    const int64_t place = recall->first < 0 ? (int64_t)random_below(random, (uint64_t)choices)
                                            : (choices - 1) * recall->first / 100;
    for (int64_t t = 0; t < length; t++) inputs[t] = MARKS + (int32_t)random_below(random, FILLERS);
    const int32_t key = MARKS + FILLERS + (int32_t)random_below(random, KEYS);
    inputs[place] = MARK_BEGIN;
    inputs[place + 1] = key;
    inputs[place + 2] = MARK_END;
    inputs[length - 1] = MARK_QUESTION;
    targets[length - 1] = key;
    return 1;
}

// The mark is the input of the first of the last length / 2 targets. With an odd length one token
// remains.
static int64_t copy_sequence(Random *random, int64_t length, int32_t *inputs, int32_t *targets) {
    const int64_t count = length / 2;
    for (int64_t t = 0; t < count; t++)
        inputs[t] = 1 + (int32_t)random_below(random, COPY_VOCABULARY - 1);
    inputs[count] = COPY_MARK;
    for (int64_t t = 0; t < count; t++) {
        targets[count + t] = inputs[t];
        if (count + t + 1 < length) inputs[count + t + 1] = inputs[t];
    }
    return count;
}

static int64_t parity_sequence(Random *random, int64_t length, int32_t *inputs, int32_t *targets) {
    int32_t odd = 0;
    for (int64_t t = 0; t < length; t++) {
        inputs[t] = (int32_t)random_below(random, 2);
        targets[t] = odd ^= inputs[t];
    }
    return length;
}

int64_t recall_sequence(const Recall *recall, uint64_t seed, uint32_t split, uint64_t n,
                        int64_t length, int32_t *inputs, int32_t *targets) {
    // The upper half of n and the split share a number: n stays far below 2^62.
    Random random =
        random_stream(seed, RANDOM_RECALL, (uint32_t)n, (uint32_t)(n >> 32) ^ split << 30);
    for (int64_t t = 0; t < length; t++) targets[t] = -1;
    switch (recall->kind) {
    case RECALL_PAIRS:
        return pairs_sequence(recall, &random, length, inputs, targets);
    case RECALL_PASSKEY:
        return passkey_sequence(recall, &random, length, inputs, targets);
    case RECALL_COPY:
        return copy_sequence(&random, length, inputs, targets);
    default:
        return parity_sequence(&random, length, inputs, targets);
    }
}
