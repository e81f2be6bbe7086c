#include "bpe.h"
#include "bytes.h"
#include "error.h"
#include "gpt2_words.h"
#include "memory.h"
#include "random.h"
#include <stdlib.h>
#include <string.h>

// ---- making -----------------------------------------------------------------

void bpe_byte_characters(uint16_t characters[256]) {
    uint16_t beyond = 256;
    for (int byte = 0; byte < 256; byte++) {
        const bool visible = (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte != 0xad);
        characters[byte] = visible ? (uint16_t)byte : beyond++;
    }
}

Bpe *bpe_create(const char *source) {
    Bpe *bpe = allocate(1, sizeof(*bpe), "a tokenizer");
    bpe->source = copy_string(source);
    bpe->pairs = pair_map_create();
    return bpe;
}

void bpe_free(Bpe *bpe) {
    if (!bpe) return;
    for (int32_t i = 0; i < bpe->count; i++) free((char *)bpe->tokens[i].data);
    free(bpe->source);
    free(bpe->tokens);
    free(bpe->specials);
    free(bpe->merges);
    pair_map_free(&bpe->pairs);
    free(bpe);
}

int32_t bpe_add_token(Bpe *bpe, Text bytes, bool special) {
    char *copy = allocate(bytes.size, 1, "a token");
    if (bytes.size > 0) memcpy(copy, bytes.data, bytes.size);
    bpe->tokens = grow_list(bpe->tokens, (size_t)bpe->count, sizeof(*bpe->tokens), "a vocabulary");
    bpe->tokens[bpe->count] = (Text){copy, bytes.size};
    if (special) {
        bpe->specials = grow_list(bpe->specials, (size_t)bpe->special_count, sizeof(*bpe->specials),
                                  "a vocabulary");
        bpe->specials[bpe->special_count++] = bpe->count;
    }
    return bpe->count++;
}

void bpe_add_merge(Bpe *bpe, int32_t left, int32_t right, int32_t merged) {
    const size_t count = (size_t)bpe->pairs.count;
    bpe->merges = grow_list(bpe->merges, count, sizeof(*bpe->merges), "merges");
    bpe->merges[count] = (BpeMerge){left, right, merged};
    pair_map_add(&bpe->pairs, left, right);
}

bool bpe_is_special(const Bpe *bpe, int32_t token) {
    for (int32_t i = 0; i < bpe->special_count; i++)
        if (bpe->specials[i] == token) return true;
    return false;
}

void bpe_finish(Bpe *bpe) {
    memset(bpe->byte_tokens, -1, sizeof(bpe->byte_tokens));
    for (int32_t i = 0; i < bpe->count; i++)
        if (bpe->tokens[i].size == 1 && !bpe_is_special(bpe, i))
            bpe->byte_tokens[(unsigned char)bpe->tokens[i].data[0]] = i;
    for (int byte = 0; byte < 256 && !bpe->decodes_only; byte++)
        if (bpe->byte_tokens[byte] < 0)
            fail("%s: is no byte-level vocabulary: it has no token for byte 0x%02x", bpe->source,
                 (unsigned)byte);
    // The longest first, by insertion: they are few.
    for (int32_t i = 0; i < bpe->special_count; i++) {
        const int32_t token = bpe->specials[i];
        int32_t place = i;
        for (; place > 0 && bpe->tokens[bpe->specials[place - 1]].size < bpe->tokens[token].size;
             place--)
            bpe->specials[place] = bpe->specials[place - 1];
        bpe->specials[place] = token;
        bpe->special_first[(unsigned char)bpe->tokens[token].data[0]] = true;
    }
}

int32_t bpe_special(const Bpe *bpe, const char *text) {
    for (int32_t i = 0; i < bpe->special_count; i++) {
        const Text token = bpe->tokens[bpe->specials[i]];
        if (token.size == strlen(text) && memcmp(token.data, text, token.size) == 0)
            return bpe->specials[i];
    }
    return -1;
}

// ---- one word ---------------------------------------------------------------

#define NONE UINT32_MAX

typedef struct {
    int32_t token;         // -1: it became a part of the node before it
    uint32_t before, next; // NONE: none
} Node;

// A word that was encoded before: its tokens stand among those of the thread.
typedef struct {
    Text word;
    size_t start, count;
} CachedWord;

enum { CACHED_WORDS = 1 << 14, LONGEST_CACHED = 64 }; // the latter in bytes

// What a thread has for itself.
typedef struct {
    const Bpe *bpe;
    Bytes tokens;      // int32_t, of all it encoded
    CachedWord *cache; // (CACHED_WORDS) each at the place that its hash gives
    Node *nodes;       // (capacity) of a word
    uint64_t *heap;    // (2 * capacity) merges that may be possible, the first one at the top
    uint64_t *dropped; // (2 * capacity) those that dropout keeps from the next merge
    size_t capacity, waiting;
    BpeDropout dropout;
    Random random; // of the segment
} Encoder;

static void encoder_reserve(Encoder *e, size_t bytes) {
    if (bytes <= e->capacity) return;
    if (bytes >= NONE) fail("a word of %zu bytes is too long to be encoded", bytes);
    free(e->nodes);
    free(e->heap);
    free(e->dropped);
    e->capacity = bytes > e->capacity * 2 ? bytes : e->capacity * 2;
    e->nodes = allocate(e->capacity, sizeof(*e->nodes), "a long word");
    e->heap = allocate(2 * e->capacity, sizeof(*e->heap), "a long word");
    e->dropped = allocate(2 * e->capacity, sizeof(*e->dropped), "a long word");
}

// The heap's order: the first merge of the list, in the leftmost place.
static void heap_push(Encoder *e, uint64_t key) {
    size_t i = e->waiting++;
    for (; i > 0 && e->heap[(i - 1) / 2] > key; i = (i - 1) / 2) e->heap[i] = e->heap[(i - 1) / 2];
    e->heap[i] = key;
}

static uint64_t heap_pop(Encoder *e) {
    const uint64_t top = e->heap[0], last = e->heap[--e->waiting];
    size_t i = 0;
    for (size_t child = 1; child < e->waiting; child = 2 * i + 1) {
        if (child + 1 < e->waiting && e->heap[child + 1] < e->heap[child]) child++;
        if (e->heap[child] >= last) break;
        e->heap[i] = e->heap[child];
        i = child;
    }
    e->heap[i] = last;
    return top;
}

// The merge of a node with the next one; -1: there is none.
static int32_t merge_at(const Encoder *e, uint32_t place) {
    const Node *node = &e->nodes[place];
    if (node->token < 0 || node->next == NONE) return -1;
    return pair_map_find(&e->bpe->pairs, node->token, e->nodes[node->next].token);
}

static void consider(Encoder *e, uint32_t place) {
    const int32_t merge = merge_at(e, place);
    if (merge >= 0) heap_push(e, (uint64_t)merge << 32 | place);
}

// Takes the merge that comes next out of the heap; false: none is left, or dropout left them all
// out.
static bool next_merge(Encoder *e, int32_t *merge, uint32_t *place) {
    size_t dropped = 0;
    bool found = false;
    while (!found && e->waiting > 0) {
        const uint64_t top = heap_pop(e);
        *place = (uint32_t)top;
        *merge = (int32_t)(top >> 32);
        if (merge_at(e, *place) != *merge) continue; // another one changed the pair
        found =
            !(e->dropout.probability > 0 && random_uniform(&e->random) < e->dropout.probability);
        if (!found) e->dropped[dropped++] = top;
    }
    while (dropped > 0) heap_push(e, e->dropped[--dropped]);
    return found;
}

// Tokens of a word to out (at most its bytes); returns their number. O(n log n) for n bytes.
static size_t merge_word(Encoder *e, Text word, int32_t *out) {
    const uint32_t n = (uint32_t)word.size;
    encoder_reserve(e, word.size);
    for (uint32_t i = 0; i < n; i++)
        e->nodes[i] = (Node){e->bpe->byte_tokens[(unsigned char)word.data[i]], i > 0 ? i - 1 : NONE,
                             i + 1 < n ? i + 1 : NONE};
    e->waiting = 0;
    for (uint32_t i = 0; i < n; i++) consider(e, i);
    int32_t merge;
    uint32_t place;
    while (next_merge(e, &merge, &place)) {
        Node *node = &e->nodes[place];
        node->token = e->bpe->merges[merge].merged;
        e->nodes[node->next].token = -1;
        node->next = e->nodes[node->next].next;
        if (node->next != NONE) e->nodes[node->next].before = place;
        consider(e, place);
        if (node->before != NONE) consider(e, node->before);
    }
    size_t count = 0;
    for (uint32_t i = 0; i != NONE && i < n; i = e->nodes[i].next) out[count++] = e->nodes[i].token;
    return count;
}

// ---- a text -----------------------------------------------------------------

enum { SEGMENT = 1 << 16 }; // bytes that a thread takes at a time, where a text can be cut

// A part of the text that is encoded by itself, and where its tokens are.
typedef struct {
    Text text;
    int32_t special;      // it is this token; -1: it is text
    const Encoder *owner; // the thread that encoded it, among whose tokens are
    size_t start, count;  // these,
    size_t place;         // which go here in the result
} Segment;

// Appends a word's tokens to those of the thread.
static void encode_word(Encoder *e, Text word) {
    const size_t start = e->tokens.size / sizeof(int32_t);
    // Reserved first: it moves the tokens.
    int32_t *out = (int32_t *)(void *)bytes_reserve(&e->tokens, word.size * sizeof(int32_t));
    const bool caches = word.size <= LONGEST_CACHED && !(e->dropout.probability > 0);
    CachedWord *cached = caches ? &e->cache[text_hash(word) % CACHED_WORDS] : NULL;
    size_t count;
    if (cached && cached->word.size == word.size &&
        memcmp(cached->word.data, word.data, word.size) == 0) {
        count = cached->count;
        memcpy(out, (const int32_t *)(void *)e->tokens.data + cached->start, count * sizeof(*out));
    } else {
        count = merge_word(e, word, out);
        if (cached) *cached = (CachedWord){word, start, count};
    }
    e->tokens.size += count * sizeof(*out);
}

static void encode_segment(Encoder *e, Segment *segment) {
    segment->owner = e;
    segment->start = e->tokens.size / sizeof(int32_t);
    if (segment->special >= 0) bytes_append(&e->tokens, &segment->special, sizeof(int32_t));
    for (Text rest = segment->text; segment->special < 0 && rest.size > 0;) {
        const Text word = {rest.data, gpt2_word(rest)};
        encode_word(e, word);
        rest = (Text){rest.data + word.size, rest.size - word.size};
    }
    segment->count = e->tokens.size / sizeof(int32_t) - segment->start;
}

// The longest special token at the start of a text; -1: none.
static int32_t special_at(const Bpe *bpe, Text text) {
    for (int32_t i = 0; i < bpe->special_count; i++) {
        const Text special = bpe->tokens[bpe->specials[i]];
        if (special.size <= text.size && memcmp(special.data, text.data, special.size) == 0)
            return bpe->specials[i];
    }
    return -1;
}

size_t bpe_special_next(const Bpe *bpe, Text text, int32_t *special) {
    for (size_t i = 0; i < text.size; i++) {
        if (!bpe->special_first[(unsigned char)text.data[i]]) continue;
        *special = special_at(bpe, (Text){text.data + i, text.size - i});
        if (*special >= 0) return i;
    }
    *special = -1;
    return text.size;
}

// A list of segments (Segment) that make up the text.
static Bytes cut(const Bpe *bpe, Text text) {
    Bytes segments = {0};
    while (text.size > 0) {
        int32_t special;
        Text before = {text.data, bpe_special_next(bpe, text, &special)};
        text = (Text){text.data + before.size, text.size - before.size};
        while (before.size > 0) {
            const size_t size = gpt2_cut(before, before.size < SEGMENT ? before.size : SEGMENT);
            bytes_append(&segments, &(Segment){.text = {before.data, size}, .special = -1},
                         sizeof(Segment));
            before = (Text){before.data + size, before.size - size};
        }
        if (special < 0) continue;
        const Text token = bpe->tokens[special];
        bytes_append(&segments, &(Segment){.text = token, .special = special}, sizeof(Segment));
        text = (Text){text.data + token.size, text.size - token.size};
    }
    return segments;
}

// Gives the tokens of each segment their place in the result, which is fresh memory; returns their
// number.
static size_t place_segments(Segment *segments, size_t count, int32_t **tokens) {
    size_t total = 0;
    for (size_t i = 0; i < count; i++) {
        segments[i].place = total;
        total += segments[i].count;
    }
    *tokens = allocate(total, sizeof(**tokens), "tokens");
    return total;
}

static size_t encode(const Bpe *bpe, Text text, BpeDropout dropout, int32_t **tokens) {
    if (bpe->decodes_only)
        fail("%s: holds no merges, so it decodes tokens and encodes no text", bpe->source);
    Bytes list = cut(bpe, text);
    Segment *segments = (Segment *)(void *)list.data;
    const size_t count = list.size / sizeof(Segment);
    size_t total = 0;
#pragma omp parallel if (count > 1)
    {
        Encoder e = {.bpe = bpe,
                     .cache = allocate(CACHED_WORDS, sizeof(CachedWord), "words"),
                     .dropout = dropout};
#pragma omp for schedule(dynamic)
        for (size_t i = 0; i < count; i++) {
            e.random = random_stream(0, RANDOM_BPE, dropout.number, (uint32_t)i);
            encode_segment(&e, &segments[i]);
        }
#pragma omp single
        total = place_segments(segments, count, tokens);
        for (size_t i = 0; i < count; i++)
            if (segments[i].owner == &e && segments[i].count > 0)
                memcpy(*tokens + segments[i].place,
                       (int32_t *)(void *)e.tokens.data + segments[i].start,
                       segments[i].count * sizeof(**tokens));
        bytes_free(&e.tokens);
        free(e.cache);
        free(e.nodes);
        free(e.heap);
        free(e.dropped);
    }
    bytes_free(&list);
    return total;
}

size_t bpe_encode(const Bpe *bpe, Text text, int32_t **tokens) {
    return encode(bpe, text, (BpeDropout){0}, tokens);
}

size_t bpe_encode_dropout(const Bpe *bpe, Text text, BpeDropout dropout, int32_t **tokens) {
    return encode(bpe, text, dropout, tokens);
}

// ---- decoding ---------------------------------------------------------------

char *bpe_decode(const Bpe *bpe, const int32_t *tokens, size_t count, size_t *size) {
    Bytes text = {0};
    for (size_t i = 0; i < count; i++)
        bytes_append(&text, bpe->tokens[tokens[i]].data, bpe->tokens[tokens[i]].size);
    *size = text.size;
    bytes_append(&text, "", 1);
    return text.data;
}
