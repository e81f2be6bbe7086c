#include "bpe.h"
#include "error.h"
#include "memory.h"
#include "terminal.h"
#include "threads.h"
#include "words.h"
#include <stdlib.h>
#include <string.h>

enum {
    PART = 1 << 20,
    LEAST_COUNT = 2
}; // bytes of text whose words are counted at a time; lowest count of a merged pair

// ---- words ------------------------------------------------------------------
// The parts of a text in which words are counted: between added tokens, split between words.
typedef struct {
    Text *items; // (count)
    size_t count;
} Parts;

static void add_part(Parts *parts, Text part) {
    parts->items = grow_list(parts->items, parts->count, sizeof(Text), "parts of a text");
    parts->items[parts->count++] = part;
}

static bool add_parts(void *parts, Text text, int32_t token) {
    while (token < 0 && text.size > 0) {
        const size_t from = text.size < PART ? text.size : PART;
        const size_t size = bpe_words_cut(BPE_GPT2, text, from, false);
        add_part(parts, (Text){text.data, size});
        text = (Text){text.data + size, text.size - size};
    }
    return true;
}

static void count_words(Words *words, Text text) {
    while (text.size > 0) {
        const size_t size = bpe_word(BPE_GPT2, text);
        words_add(words, (Text){text.data, size}, 1);
        text = (Text){text.data + size, text.size - size};
    }
}

// Returns the distinct words of the texts and their counts, in an order that depends on the
// threads.
static Words *different_words(const Bpe *bpe, const Text *texts, int count) {
    Parts parts = {0};
    Words *all = words_create();
    for (int i = 0; i < count; i++) bpe_walk(bpe, texts[i], add_parts, &parts);
    Meter meter = meter_start();
#pragma omp parallel
    {
        Words *own = words_create();
#pragma omp for schedule(dynamic)
        for (size_t i = 0; i < parts.count; i++) {
            count_words(own, parts.items[i]);
            if (thread_index() == 0)
                meter_show(&meter, "counting words", (double)i / (double)parts.count);
        }
#pragma omp critical
        for (int32_t i = 0; i < words_count(own); i++)
            words_add(all, words_text(own, i), words_occurrences(own, i));
        words_free(own);
    }
    meter_end(&meter);
    free(parts.items);
    return all;
}

// ---- pairs ------------------------------------------------------------------
// All words one after another; initially one symbol per byte.
typedef struct {
    int32_t token;        // -1: merged into the symbol before it
    int32_t word;         // to which it belongs
    int32_t before, next; // neighbours in the word; -1: none
} Symbol;

typedef struct {
    int32_t left, right;
    int64_t count;   // in all texts
    int32_t *places; // (place_count) its left symbols at the time they were recorded
    int32_t place_count;
    bool grew; // since it was pushed on the heap
} Pair;

// A pair with its count when it was pushed. Counts may fall later, so best_pair() checks them.
typedef struct {
    int64_t count;
    int32_t pair;
} Candidate;

typedef struct {
    Bpe *bpe;
    Words *words;
    Symbol *symbols;
    PairMap map;
    Pair *pairs;     // (map.count)
    Candidate *heap; // (waiting) the best one at the top
    size_t waiting;
    int32_t *grown; // (grown_count) pairs that grew during a merge
    int32_t grown_count;
} Trainer;

static Pair *find_pair(Trainer *t, int32_t left, int32_t right) {
    int32_t number = pair_map_find(&t->map, left, right);
    if (number < 0) {
        t->pairs = grow_list(t->pairs, (size_t)t->map.count, sizeof(Pair), "pairs of tokens");
        number = pair_map_add(&t->map, left, right);
        t->pairs[number] = (Pair){.left = left, .right = right};
    }
    return &t->pairs[number];
}

static int64_t occurrences(const Trainer *t, const Symbol *symbol) {
    return words_occurrences(t->words, symbol->word);
}

// Records a symbol and the next one as a pair.
static void add_pair(Trainer *t, int32_t place) {
    const Symbol *left = &t->symbols[place];
    Pair *pair = find_pair(t, left->token, t->symbols[left->next].token);
    pair->count += occurrences(t, left);
    pair->places =
        grow_list(pair->places, (size_t)pair->place_count, sizeof(int32_t), "pairs of tokens");
    pair->places[pair->place_count++] = place;
    if (pair->grew) return;
    pair->grew = true;
    t->grown = grow_list(t->grown, (size_t)t->grown_count, sizeof(int32_t), "pairs of tokens");
    t->grown[t->grown_count++] = (int32_t)(pair - t->pairs);
}

static void remove_pair(Trainer *t, int32_t place) {
    const Symbol *left = &t->symbols[place];
    find_pair(t, left->token, t->symbols[left->next].token)->count -= occurrences(t, left);
}

// ---- the heap ---------------------------------------------------------------

static bool comes_first(const Trainer *t, Candidate a, Candidate b) {
    const Pair *x = &t->pairs[a.pair], *y = &t->pairs[b.pair];
    return a.count != b.count ? a.count > b.count
                              : pair_of(x->left, x->right) < pair_of(y->left, y->right);
}

static void push(Trainer *t, int32_t pair) {
    const Candidate candidate = {t->pairs[pair].count, pair};
    if (candidate.count < LEAST_COUNT) return;
    t->heap = grow_list(t->heap, t->waiting, sizeof(Candidate), "pairs of tokens");
    size_t i = t->waiting++;
    for (; i > 0 && comes_first(t, candidate, t->heap[(i - 1) / 2]); i = (i - 1) / 2)
        t->heap[i] = t->heap[(i - 1) / 2];
    t->heap[i] = candidate;
}

static Candidate pop(Trainer *t) {
    const Candidate top = t->heap[0], last = t->heap[--t->waiting];
    size_t i = 0;
    for (size_t child = 1; child < t->waiting; child = 2 * i + 1) {
        if (child + 1 < t->waiting && comes_first(t, t->heap[child + 1], t->heap[child])) child++;
        if (!comes_first(t, t->heap[child], last)) break;
        t->heap[i] = t->heap[child];
        i = child;
    }
    t->heap[i] = last;
    return top;
}

static void push_grown(Trainer *t) {
    for (int32_t i = 0; i < t->grown_count; i++) {
        t->pairs[t->grown[i]].grew = false;
        push(t, t->grown[i]);
    }
    t->grown_count = 0;
}

// Returns the most frequent pair, or -1 if none occurs often enough.
static int32_t best_pair(Trainer *t) {
    while (t->waiting > 0) {
        const Candidate top = pop(t);
        if (top.count == t->pairs[top.pair].count) return top.pair;
        push(t, top.pair);
    }
    return -1;
}

// ---- training ---------------------------------------------------------------

static void make_symbols(Trainer *t) {
    size_t total = 0;
    for (int32_t w = 0; w < words_count(t->words); w++) total += words_text(t->words, w).size;
    if (total > INT32_MAX)
        fail("the different words of the training text have %zu bytes together, more than %d: "
             "train the tokenizer on a part of it",
             total, INT32_MAX);
    t->symbols = allocate(total, sizeof(Symbol), "the words of a text");
    for (int32_t w = 0, at = 0; w < words_count(t->words); w++) {
        const Text word = words_text(t->words, w);
        const int32_t end = at + (int32_t)word.size;
        for (size_t i = 0; i < word.size; i++, at++)
            t->symbols[at] = (Symbol){t->bpe->byte_tokens[(unsigned char)word.data[i]], w,
                                      i > 0 ? at - 1 : -1, at + 1 < end ? at + 1 : -1};
    }
    for (int32_t i = 0; i < (int32_t)total; i++)
        if (t->symbols[i].next >= 0) add_pair(t, i);
    push_grown(t);
}

// Replaces two neighbours by one token.
static void join(Trainer *t, int32_t place, int32_t merged) {
    Symbol *left = &t->symbols[place], *right = &t->symbols[left->next];
    remove_pair(t, place);
    if (left->before >= 0) remove_pair(t, left->before);
    if (right->next >= 0) remove_pair(t, left->next);
    left->token = merged;
    left->next = right->next;
    right->token = -1;
    if (left->next >= 0) t->symbols[left->next].before = place;
    if (left->before >= 0) add_pair(t, left->before);
    if (left->next >= 0) add_pair(t, place);
}

static int compare_places(const void *a, const void *b) {
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static void merge_pair(Trainer *t, int32_t number, int32_t merged) {
    const Pair pair = t->pairs[number];
    t->pairs[number].places = NULL; // the list may move, and the pair may occur again
    t->pairs[number].place_count = 0;
    // Of overlapping pairs, the left one is merged.
    qsort(pair.places, (size_t)pair.place_count, sizeof(int32_t), compare_places);
    for (int32_t i = 0; i < pair.place_count; i++) {
        const Symbol *left = &t->symbols[pair.places[i]];
        if (left->token == pair.left && left->next >= 0 &&
            t->symbols[left->next].token == pair.right)
            join(t, pair.places[i], merged);
    }
    free(pair.places);
    push_grown(t);
}

// Returns the token with the joined bytes of two tokens: a new one, or one that another pair made
// before.
static int32_t merged_token(Trainer *t, Words *known, const Pair *pair) {
    const Text left = t->bpe->tokens[pair->left], right = t->bpe->tokens[pair->right];
    char *bytes = allocate(left.size + right.size, 1, "a token");
    memcpy(bytes, left.data, left.size);
    memcpy(bytes + left.size, right.data, right.size);
    const Text both = {bytes, left.size + right.size};
    int32_t token = words_find(known, both);
    if (token < 0) {
        token = bpe_add_token(t->bpe, both, 0);
        words_add(known, t->bpe->tokens[token], 1);
    }
    free(bytes);
    return token;
}

Bpe *bpe_train(const Text *texts, int count, int64_t vocabulary, const char *const *reserved,
               int reserved_count) {
    Bpe *bpe = bpe_create("the tokenizer");
    uint16_t characters[256];
    bpe_byte_characters(characters);
    for (int i = 0; i < reserved_count; i++)
        bpe_add_token(bpe, (Text){reserved[i], strlen(reserved[i])},
                      BPE_ADDED | BPE_SPECIAL | BPE_VERBATIM);
    for (uint16_t character = 0; character < 0x144; character++)
        for (int byte = 0; byte < 256; byte++)
            if (characters[byte] == character)
                bpe_add_token(bpe, (Text){(char[]){(char)byte}, 1}, 0);
    bpe_finish(bpe);

    Trainer t = {.bpe = bpe, .words = different_words(bpe, texts, count), .map = pair_map_create()};
    Words *known = words_create(); // bytes of tokens; a word's number is its token
    for (int32_t i = 0; i < bpe->count; i++) words_add(known, bpe->tokens[i], 1);
    make_symbols(&t);
    Meter meter = meter_start();
    while (bpe->count < vocabulary) {
        meter_show(&meter, "merging pairs of tokens", (double)bpe->count / (double)vocabulary);
        const int32_t best = best_pair(&t);
        if (best < 0) break;
        const Pair pair = t.pairs[best];
        const int32_t merged = merged_token(&t, known, &pair);
        if (pair_map_find(&bpe->pairs, pair.left, pair.right) < 0)
            bpe_add_merge(bpe, pair.left, pair.right, merged);
        merge_pair(&t, best, merged);
    }
    meter_end(&meter);
    for (int32_t i = 0; i < t.map.count; i++) free(t.pairs[i].places);
    free(t.pairs);
    free(t.heap);
    free(t.grown);
    free(t.symbols);
    pair_map_free(&t.map);
    words_free(t.words);
    words_free(known);
    return bpe;
}
