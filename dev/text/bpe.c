#include "bpe.h"
#include "bytes.h"
#include "error.h"
#include "memory.h"
#include "nfc.h"
#include "sizes.h"
#include <stdlib.h>
#include <string.h>

// ---- construction -----------------------------------------------------------

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
    for (int i = 0; i < 2; i++) bpe->added[i].children = pair_map_create();
    bpe->end = bpe->padding = bpe->mask = -1;
    return bpe;
}

void bpe_free(Bpe *bpe) {
    if (!bpe) return;
    for (int32_t i = 0; i < bpe->count; i++) free((char *)bpe->tokens[i].data);
    for (int i = 0; i < 2; i++) {
        pair_map_free(&bpe->added[i].children);
        free(bpe->added[i].tokens);
    }
    pair_map_free(&bpe->pairs);
    if (bpe->whole) words_free(bpe->whole);
    void *const parts[] = {bpe->source, bpe->tokens,       bpe->flags,
                           bpe->merges, bpe->whole_tokens, bpe->before,
                           bpe->after,  bpe->settings,     bpe->model_settings};
    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++) free(parts[i]);
    free(bpe);
}

int32_t bpe_add_token(Bpe *bpe, Text bytes, int flags) {
    char *copy = allocate(bytes.size, 1, "a token");
    if (bytes.size > 0) memcpy(copy, bytes.data, bytes.size);
    const size_t count = (size_t)bpe->count;
    bpe->tokens = grow_list(bpe->tokens, count, sizeof(*bpe->tokens), "a vocabulary");
    bpe->flags = grow_list(bpe->flags, count, sizeof(*bpe->flags), "a vocabulary");
    bpe->tokens[count] = (Text){copy, bytes.size};
    bpe->flags[count] = (uint8_t)flags;
    return bpe->count++;
}

void bpe_add_merge(Bpe *bpe, int32_t left, int32_t right, int32_t merged) {
    const size_t count = (size_t)bpe->pairs.count;
    bpe->merges = grow_list(bpe->merges, count, sizeof(*bpe->merges), "merges");
    bpe->merges[count] = (BpeMerge){left, right, merged};
    pair_map_add(&bpe->pairs, left, right);
}

static void trie_add(BpeTrie *trie, Text bytes, int32_t token) {
    int32_t node = 0;
    for (size_t i = 0; i < bytes.size; i++) {
        const int32_t byte = (unsigned char)bytes.data[i];
        int32_t child = pair_map_find(&trie->children, node, byte) + 1;
        if (child == 0) {
            child = pair_map_add(&trie->children, node, byte) + 1;
            trie->tokens = grow_list(trie->tokens, (size_t)child, sizeof(int32_t), "a vocabulary");
            trie->tokens[child] = -1;
        }
        node = child;
    }
    trie->tokens[node] = token;
    trie->first[(unsigned char)bytes.data[0]] = true;
}

// Returns the longest token at the start of a text and its bytes in *size, or -1.
static int32_t trie_find(const BpeTrie *trie, Text text, size_t *size) {
    int32_t found = -1, node = 0;
    for (size_t i = 0; i < text.size; i++) {
        node = pair_map_find(&trie->children, node, (unsigned char)text.data[i]) + 1;
        if (node == 0) break;
        if (trie->tokens[node] < 0) continue;
        found = trie->tokens[node];
        *size = i + 1;
    }
    return found;
}

void bpe_finish(Bpe *bpe) {
    memset(bpe->byte_tokens, -1, sizeof(bpe->byte_tokens));
    for (int i = 0; i < 2; i++) {
        bpe->added[i].tokens = grow_list(bpe->added[i].tokens, 0, sizeof(int32_t), "a vocabulary");
        bpe->added[i].tokens[0] = -1;
    }
    for (int32_t i = 0; i < bpe->count; i++) {
        const int flags = bpe->flags[i];
        if (flags & BPE_ADDED)
            trie_add(&bpe->added[(flags & BPE_NORMALIZED) != 0], bpe->tokens[i], i);
        else if (bpe->tokens[i].size == 1 && !(flags & BPE_VERBATIM))
            bpe->byte_tokens[(unsigned char)bpe->tokens[i].data[0]] = i;
    }
    bpe->end = bpe_added(bpe, BPE_END);
    bpe->padding = bpe_added(bpe, BPE_PADDING);
    bpe->mask = bpe_added(bpe, BPE_MASK);
}

int32_t bpe_added(const Bpe *bpe, const char *text) {
    for (int i = 0; i < 2; i++) {
        size_t size = 0;
        const Text whole = {text, strlen(text)};
        const int32_t token = trie_find(&bpe->added[i], whole, &size);
        if (token >= 0 && size == whole.size) return token;
    }
    return -1;
}

// ---- added tokens -----------------------------------------------------------
// An added token in a text, with the white space that it takes.
typedef struct {
    size_t start, end;
    int32_t token;
} Match;

// Finds the next match from *scan on, which is the end of the last match without the white space it
// took. The text before `taken` belongs to earlier matches. Returns false if there is no match.
static bool next_match(const Bpe *bpe, const BpeTrie *trie, Text text, size_t *scan, size_t taken,
                       Match *match) {
    for (size_t i = *scan, size; i < text.size; i++) {
        if (!trie->first[(unsigned char)text.data[i]]) continue;
        const int32_t token = trie_find(trie, (Text){text.data + i, text.size - i}, &size);
        if (token < 0) continue;
        const Text left = {text.data, i}, right = {text.data + i + size, text.size - i - size};
        const int flags = bpe->flags[token];
        *scan = i + size;
        if (flags & BPE_SINGLE_WORD && (bpe_wordly_last(left) || bpe_wordly_first(right))) {
            i = *scan - 1;
            continue;
        }
        *match = (Match){i, i + size, token};
        if (flags & BPE_LEFT) match->start -= bpe_space_last(left);
        if (flags & BPE_LEFT && match->start < taken) match->start = taken;
        if (flags & BPE_RIGHT) match->end += bpe_space_first(right);
        return true;
    }
    return false;
}

typedef struct {
    const Bpe *bpe;
    BpeVisit *visit;
    void *context;
    Bytes *owned; // char *: memory of normalised parts; NULL: do not normalise
} Walk;

static bool walk(const Walk *w, int level, Text text) {
    if (level == 2) return text.size == 0 || w->visit(w->context, text, -1);
    char *normal = level == 1 && w->owned ? nfc_normalise(text, &text.size) : NULL;
    if (normal) {
        text.data = normal;
        bytes_append(w->owned, &normal, sizeof(normal));
    }
    size_t scan = 0, taken = 0;
    Match match;
    while (next_match(w->bpe, &w->bpe->added[level], text, &scan, taken, &match)) {
        if (match.start > taken &&
            !walk(w, level + 1, (Text){text.data + taken, match.start - taken}))
            return false;
        const Text part = {text.data + match.start, match.end - match.start};
        if (!w->visit(w->context, part, match.token)) return false;
        taken = match.end;
    }
    return walk(w, level + 1, (Text){text.data + taken, text.size - taken});
}

void bpe_walk(const Bpe *bpe, Text text, BpeVisit *visit, void *context) {
    walk(&(Walk){bpe, visit, context, NULL}, 0, text);
}

enum { LOOK_AHEAD = 1 << 16 }; // bytes

typedef struct {
    const Bpe *bpe;
    Text text;
    size_t from, cut;
} Cut;

static bool cut_part(void *context, Text part, int32_t token) {
    Cut *cut = context;
    const size_t start = (size_t)(part.data - cut->text.data);
    if (token >= 0 || start + part.size <= cut->from) return true;
    const size_t from = cut->from > start ? cut->from - start : 1;
    const size_t place = bpe_words_cut(cut->bpe->pattern, part, from, cut->bpe->prefix_space);
    if (place < part.size) cut->cut = start + place;
    return place == part.size;
}

size_t bpe_cut(const Bpe *bpe, Text text, size_t from) {
    size_t longest = 0; // added token
    for (int32_t i = 0; i < bpe->count; i++)
        if (bpe->flags[i] & BPE_ADDED) longest = larger(longest, bpe->tokens[i].size);
    // Looks for added tokens in the text up to `end` only: all of it would be read for every cut.
    for (size_t ahead = LOOK_AHEAD;; ahead *= 2) {
        const size_t end = from + smaller(ahead, text.size - from);
        Cut cut = {bpe, {text.data, end}, from, end};
        bpe_walk(bpe, cut.text, cut_part, &cut);
        // An added token may continue after the end, and another one may begin in it.
        if (end == text.size || cut.cut + 2 * longest < end) return cut.cut;
    }
}

// ---- one word ---------------------------------------------------------------

#define NONE UINT32_MAX

typedef struct {
    int32_t token;         // -1: merged into the node before it
    uint32_t before, next; // NONE: none
} Node;

// A word encoded before. Its tokens are in the list of the thread.
typedef struct {
    Text word;
    size_t start, count;
} CachedWord;

enum { CACHED_WORDS = 1 << 14, LONGEST_CACHED = 64 }; // words, bytes

// The state of a thread.
typedef struct {
    const Bpe *bpe;
    Bytes tokens;      // int32_t, of all its words
    CachedWord *cache; // (CACHED_WORDS) indexed by hash
    Node *nodes;       // (capacity) of a word
    uint64_t *heap;    // (2 * capacity) candidate merges, the first one at the top
    size_t capacity, waiting;
} Encoder;

static void encoder_reserve(Encoder *e, size_t bytes) {
    if (bytes <= e->capacity) return;
    if (bytes >= NONE) fail("a word of %zu bytes is too long to be encoded", bytes);
    free(e->nodes);
    free(e->heap);
    e->capacity = bytes > e->capacity * 2 ? bytes : e->capacity * 2;
    e->nodes = allocate(e->capacity, sizeof(*e->nodes), "a long word");
    e->heap = allocate(2 * e->capacity, sizeof(*e->heap), "a long word");
}

// Orders the heap by priority of the merge, then by position from the left.
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

// Returns the merge of a node with the next one, or -1.
static int32_t merge_at(const Encoder *e, uint32_t place) {
    const Node *node = &e->nodes[place];
    if (node->token < 0 || node->next == NONE) return -1;
    return pair_map_find(&e->bpe->pairs, node->token, e->nodes[node->next].token);
}

static void consider(Encoder *e, uint32_t place) {
    const int32_t merge = merge_at(e, place);
    if (merge >= 0) heap_push(e, (uint64_t)merge << 32 | place);
}

// Removes the next valid merge from the heap; returns false if none is left.
static bool next_merge(Encoder *e, int32_t *merge, uint32_t *place) {
    while (e->waiting > 0) {
        const uint64_t top = heap_pop(e);
        *place = (uint32_t)top;
        *merge = (int32_t)(top >> 32);
        if (merge_at(e, *place) == *merge) return true; // else another merge changed the pair
    }
    return false;
}

// Encodes a word into `out` (at most one token per byte); returns the number of tokens. O(n log n)
// for n bytes.
static size_t merge_word(Encoder *e, Text word, int32_t *out) {
    const uint32_t n = (uint32_t)word.size;
    const int32_t whole = e->bpe->whole ? words_find(e->bpe->whole, word) : -1;
    if (whole >= 0) {
        out[0] = e->bpe->whole_tokens[whole];
        return 1;
    }
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

enum { SEGMENT = 1 << 16 }; // bytes that a thread takes at a time, if the text can be split there

// A part of the text that is encoded by itself, and where its tokens are.
typedef struct {
    Text text;
    char *own;            // its memory; NULL: it is in the input text
    int32_t special;      // it is this added token; -1: it is text
    const Encoder *owner; // the thread that encoded it
    size_t start, count;  // its tokens in the list of that thread
    size_t place;         // index of its tokens in the result
} Segment;

// Appends a word's tokens to the list of the thread.
static void encode_word(Encoder *e, Text word) {
    const size_t start = e->tokens.size / sizeof(int32_t);
    // Reserve first: this may move the tokens.
    int32_t *out = (int32_t *)(void *)bytes_reserve(&e->tokens, word.size * sizeof(int32_t));
    CachedWord *cached =
        word.size <= LONGEST_CACHED ? &e->cache[text_hash(word) % CACHED_WORDS] : NULL;
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
        const Text word = {rest.data, bpe_word(e->bpe->pattern, rest)};
        encode_word(e, word);
        rest = (Text){rest.data + word.size, rest.size - word.size};
    }
    segment->count = e->tokens.size / sizeof(int32_t) - segment->start;
}

// The segments (Segment) that make up a text.
typedef struct {
    const Bpe *bpe;
    Bytes segments, owned;
} Segments;

static void check_bytes(const Bpe *bpe, Text text) {
    for (size_t i = 0; i < text.size; i++)
        if (bpe->byte_tokens[(unsigned char)text.data[i]] < 0)
            fail("%s: has no token for byte 0x%02x, which the text has; train the tokenizer on "
                 "text that has it, or with all 256 bytes",
                 bpe->source, (unsigned)(unsigned char)text.data[i]);
}

static bool add_segments(void *context, Text part, int32_t token) {
    Segments *s = context;
    Segment segment = {.text = part, .special = token};
    if (token >= 0) bytes_append(&s->segments, &segment, sizeof(segment));
    if (token >= 0) return true;
    check_bytes(s->bpe, part);
    for (bool first = true; part.size > 0; first = false) {
        const size_t from = part.size < SEGMENT ? part.size : SEGMENT;
        const size_t size = bpe_words_cut(s->bpe->pattern, part, from, s->bpe->prefix_space);
        segment = (Segment){.text = {part.data, size}, .special = -1};
        if (first && s->bpe->prefix_space && part.data[0] != ' ') {
            check_bytes(s->bpe, (Text){" ", 1});
            segment.own = allocate(size + 1, 1, "a text");
            segment.own[0] = ' ';
            memcpy(segment.own + 1, part.data, size);
            segment.text = (Text){segment.own, size + 1};
        }
        bytes_append(&s->segments, &segment, sizeof(segment));
        part = (Text){part.data + size, part.size - size};
    }
    return true;
}

// Assigns each segment's tokens their index in the result, and allocates it. Returns the number of
// tokens.
static size_t place_segments(Segment *segments, size_t count, int32_t **tokens) {
    size_t total = 0;
    for (size_t i = 0; i < count; i++) {
        segments[i].place = total;
        total += segments[i].count;
    }
    *tokens = allocate(total, sizeof(**tokens), "tokens");
    return total;
}

size_t bpe_encode(const Bpe *bpe, Text text, int32_t **tokens) {
    if (bpe->decodes_only)
        fail("%s: holds no merges, so it decodes tokens and encodes no text", bpe->source);
    Segments list = {.bpe = bpe};
    const Walk whole = {bpe, add_segments, &list, bpe->composes ? &list.owned : NULL};
    walk(&whole, 0, text);
    Segment *segments = (Segment *)(void *)list.segments.data;
    const size_t count = list.segments.size / sizeof(Segment);
    size_t total = 0;
#pragma omp parallel if (count > 1)
    {
        Encoder e = {.bpe = bpe, .cache = allocate(CACHED_WORDS, sizeof(CachedWord), "words")};
#pragma omp for schedule(dynamic)
        for (size_t i = 0; i < count; i++) encode_segment(&e, &segments[i]);
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
    }
    for (size_t i = 0; i < count; i++) free(segments[i].own);
    for (size_t i = 0; i < list.owned.size / sizeof(char *); i++)
        free(((char **)(void *)list.owned.data)[i]);
    bytes_free(&list.owned);
    bytes_free(&list.segments);
    return total;
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
