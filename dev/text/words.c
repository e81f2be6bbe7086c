#include "words.h"
#include "error.h"
#include "file.h"
#include "memory.h"
#include <stdlib.h>
#include <string.h>

typedef struct {
    Text text;
    int64_t occurrences;
} Word;

// A hash table with open addressing. `slots` holds word numbers + 1 (0: free); at most half are
// used.
struct Words {
    Word *items; // (capacity)
    int32_t count, capacity;
    int32_t *slots; // (2 * capacity), a power of two
};

enum { FIRST_CAPACITY = 1024 };

// ---- the hash table ---------------------------------------------------------
// Returns the slot of a word, or the free slot for it.
static int32_t *find_slot(const Words *words, Text word) {
    const size_t mask = 2 * (size_t)words->capacity - 1;
    for (size_t i = text_hash(word) & mask;; i = (i + 1) & mask) {
        const int32_t number = words->slots[i] - 1;
        if (number < 0) return &words->slots[i];
        const Text text = words->items[number].text;
        if (text.size == word.size && memcmp(text.data, word.data, word.size) == 0)
            return &words->slots[i];
    }
}

static void set_capacity(Words *words, int32_t capacity) {
    Word *items = allocate((size_t)capacity, sizeof(Word), "a vocabulary");
    if (words->count > 0) memcpy(items, words->items, (size_t)words->count * sizeof(Word));
    free(words->items);
    free(words->slots);
    words->items = items;
    words->slots = allocate(2 * (size_t)capacity, sizeof(int32_t), "a vocabulary");
    words->capacity = capacity;
    for (int32_t i = 0; i < words->count; i++) *find_slot(words, items[i].text) = i + 1;
}

Words *words_create(void) {
    Words *words = allocate(1, sizeof(*words), "a vocabulary");
    set_capacity(words, FIRST_CAPACITY);
    return words;
}

int32_t words_add(Words *words, Text word, int64_t occurrences) {
    int32_t *slot = find_slot(words, word);
    if (*slot == 0) {
        if (words->count == words->capacity) {
            if (words->capacity > INT32_MAX / 4)
                fail("a text has more than %d different words", words->count);
            set_capacity(words, 2 * words->capacity);
            slot = find_slot(words, word);
        }
        words->items[words->count].text = word;
        *slot = ++words->count;
    }
    words->items[*slot - 1].occurrences += occurrences;
    return *slot - 1;
}

void words_free(Words *words) {
    free(words->items);
    free(words->slots);
    free(words);
}

int32_t words_count(const Words *words) {
    return words->count;
}

Text words_text(const Words *words, int32_t number) {
    return words->items[number].text;
}

int64_t words_occurrences(const Words *words, int32_t number) {
    return words->items[number].occurrences;
}

int32_t words_find(const Words *words, Text word) {
    return *find_slot(words, word) - 1;
}

// ---- from texts -------------------------------------------------------------

typedef struct {
    int64_t occurrences;
    int32_t number;
} Rank;

static int compare_ranks(const void *a, const void *b) {
    const Rank *x = a, *y = b;
    if (x->occurrences != y->occurrences) return x->occurrences < y->occurrences ? 1 : -1;
    return x->number - y->number; // the earlier one first
}

// Returns the `limit` most frequent words, in the order of `all`.
static Words *most_frequent(const Words *all, int64_t limit) {
    const size_t count = (size_t)all->count;
    Rank *ranks = allocate(count, sizeof(Rank), "a vocabulary");
    unsigned char *kept = allocate(count, 1, "a vocabulary");
    for (int32_t i = 0; i < all->count; i++) ranks[i] = (Rank){all->items[i].occurrences, i};
    qsort(ranks, count, sizeof(Rank), compare_ranks);
    for (int64_t i = 0; i < limit; i++) kept[ranks[i].number] = 1;
    Words *words = words_create();
    for (int32_t i = 0; i < all->count; i++)
        if (kept[i]) words_add(words, all->items[i].text, all->items[i].occurrences);
    free(ranks);
    free(kept);
    return words;
}

Words *words_of_texts(const Text *texts, int count, int64_t limit) {
    const Text end = {WORD_END, strlen(WORD_END)}, unknown = {WORD_UNKNOWN, strlen(WORD_UNKNOWN)};
    Words *words = words_create();
    for (int i = 0; i < count; i++) {
        Text word;
        size_t at = 0;
        for (TextItem item; (item = text_next(texts[i], &at, &word)) != TEXT_END;)
            words_add(words, item == TEXT_WORD ? word : end, 1);
    }
    // Keep these two whatever the limit.
    words_add(words, end, INT64_MAX / 2);
    words_add(words, unknown, INT64_MAX / 2);
    if (limit <= 0 || words->count <= limit) return words;
    Words *frequent = most_frequent(words, limit);
    words_free(words);
    return frequent;
}

// ---- files ------------------------------------------------------------------

Words *words_of_lines(Text file, const char *path) {
    Words *words = words_create();
    while (file.size > 0) {
        const Text word = text_without_newline(text_take_line(&file));
        const int32_t before = words->count;
        if (word.size == 0)
            fail("%s: line %d: found an empty line, expected a word", path, before + 1);
        if (words_add(words, word, 1) != before)
            fail("%s: line %d: the word \"%.*s\" is listed twice", path, before + 1,
                 (int)(word.size < 100 ? word.size : 100), word.data);
    }
    return words;
}

void words_save(const Words *words, const char *path) {
    AtomicFile *file = atomic_open(path);
    for (int32_t i = 0; i < words->count; i++) {
        atomic_write(file, words->items[i].text.data, words->items[i].text.size);
        atomic_write(file, "\n", 1);
    }
    atomic_commit(file);
}
