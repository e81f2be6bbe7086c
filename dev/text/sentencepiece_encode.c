// SentencePiece's encoding: normalisation as in normalizer.cc, BPE as in bpe_model.cc, unigrams as
// in the optimised Viterbi search of unigram_model.cc, which computes sums in double and stores
// them as float.

#include "bytes.h"
#include "error.h"
#include "memory.h"
#include "sentencepiece.h"
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    Text text;
    int32_t piece;
} NamedPiece;

typedef struct {
    const Sentencepiece *model;
    NamedPiece *sorted; // (sorted_count) pieces that text may become, sorted by text
    int32_t *named;     // (named_count) user-defined ones
    size_t sorted_count, named_count, longest; // bytes of the longest piece
    int32_t unknown, bytes[256];
    float least, greatest; // scores of normal pieces; `greatest` is at least FLT_MIN
} Encoder;

// ---- pieces -----------------------------------------------------------------
static int compare_texts(const void *a, const void *b) {
    const Text x = ((const NamedPiece *)a)->text, y = ((const NamedPiece *)b)->text;
    const int order = memcmp(x.data, y.data, x.size < y.size ? x.size : y.size);
    return order ? order : (x.size > y.size) - (x.size < y.size);
}

// Returns the piece with this text, or -1.
static int32_t find_piece(const Encoder *e, Text text) {
    const NamedPiece *found = bsearch(&(NamedPiece){text, -1}, e->sorted, e->sorted_count,
                                      sizeof(*e->sorted), compare_texts);
    return found ? found->piece : -1;
}

static void add_piece(Encoder *e, int32_t i) {
    const Piece *piece = &e->model->pieces[i];
    if (piece->kind == PIECE_UNUSED)
        fail("%s: has unused pieces, which are not supported", e->model->file.path);
    if (piece->kind == PIECE_UNKNOWN) e->unknown = i;
    if (piece->kind == PIECE_BYTE) e->bytes[(unsigned char)piece->byte] = i;
    if (piece->kind == PIECE_NORMAL) {
        e->least = fminf(e->least, piece->score);
        e->greatest = fmaxf(e->greatest, piece->score);
    }
    if (piece->kind == PIECE_USER_DEFINED) e->named[e->named_count++] = i;
    if (piece->kind != PIECE_NORMAL && piece->kind != PIECE_USER_DEFINED) return;
    e->sorted[e->sorted_count++] = (NamedPiece){piece->text, i};
    if (piece->text.size > e->longest) e->longest = piece->text.size;
}

static Encoder encoder_create(const Sentencepiece *model) {
    if (model->type != MODEL_BPE && model->type != MODEL_UNIGRAM)
        fail("%s: is neither BPE nor unigrams, which alone can encode text here", model->file.path);
    const size_t count = (size_t)model->count;
    Encoder e = {.model = model,
                 .sorted = allocate(count, sizeof(NamedPiece), "pieces"),
                 .named = allocate(count, sizeof(int32_t), "pieces"),
                 .unknown = -1,
                 .least = FLT_MAX,
                 .greatest = FLT_MIN}; // as SentencePiece begins, although scores are negative
    memset(e.bytes, -1, sizeof(e.bytes));
    for (int32_t i = 0; i < model->count; i++) add_piece(&e, i);
    for (size_t i = 0; i < 256; i++)
        if (model->byte_fallback ? e.bytes[i] < 0 : e.unknown < 0)
            fail("%s: has no piece for unknown characters", model->file.path);
    qsort(e.sorted, e.sorted_count, sizeof(*e.sorted), compare_texts);
    return e;
}

// ---- normalisation ----------------------------------------------------------
// Returns the size of the longest user-defined piece that text begins with, or 0.
static size_t named_length(const Encoder *e, Text text) {
    size_t longest = 0;
    for (size_t i = 0; i < e->named_count; i++) {
        const Text name = e->model->pieces[e->named[i]].text;
        if (name.size > longest && name.size <= text.size &&
            memcmp(name.data, text.data, name.size) == 0)
            longest = name.size;
    }
    return longest;
}

// Returns the length of the first character, or 1 if it is not UTF-8.
static size_t character_length(Text text) {
    const size_t length = utf8_length(text);
    return length ? length : 1;
}

static uint32_t unit_at(Text trie, size_t i) {
    uint32_t unit = 0;
    if (i < trie.size / sizeof(unit)) memcpy(&unit, trie.data + i * sizeof(unit), sizeof(unit));
    return unit;
}

static size_t unit_offset(uint32_t unit) {
    return (size_t)(unit >> 10) << ((unit & 1u << 9) >> 6);
}

// Finds the longest entry of the charsmap that text begins with, its length and what it becomes;
// returns false if there is none. The charsmap is a size, a Darts-clone double array and the
// strings.
static bool find_rewriting(Text charsmap, Text text, size_t *length, Text *becomes) {
    uint32_t size = 0;
    if (charsmap.size < sizeof(size)) return false;
    memcpy(&size, charsmap.data, sizeof(size));
    if (size > charsmap.size - sizeof(size)) return false;
    const Text trie = {charsmap.data + sizeof(size), size};
    const Text strings = {trie.data + size, charsmap.size - sizeof(size) - size};
    size_t node = unit_offset(unit_at(trie, 0));
    *length = 0;
    for (size_t i = 0; i < text.size; i++) {
        const unsigned char byte = (unsigned char)text.data[i];
        node ^= byte;
        const uint32_t unit = unit_at(trie, node);
        if ((unit & (1u << 31 | 0xff)) != byte) break;
        node ^= unit_offset(unit);
        if (!(unit >> 8 & 1)) continue;
        const size_t at = unit_at(trie, node) & ~(1u << 31);
        const char *end =
            at < strings.size ? memchr(strings.data + at, 0, strings.size - at) : NULL;
        if (!end) break;
        *length = i + 1;
        *becomes = (Text){strings.data + at, (size_t)(end - strings.data) - at};
    }
    return *length > 0;
}

// Normalises the beginning of text into *becomes; returns how many bytes of text it takes.
static size_t normalise_beginning(const Encoder *e, Text text, Text *becomes) {
    size_t length = named_length(e, text);
    *becomes = (Text){text.data, length};
    if (length > 0) return length;
    if (find_rewriting(e->model->charsmap, text, &length, becomes)) return length;
    length = utf8_length(text);
    *becomes =
        length ? (Text){text.data, length} : (Text){PIECE_REPLACEMENT, strlen(PIECE_REPLACEMENT)};
    return length ? length : 1;
}

static bool ends_in(Text text, const char *end) {
    const size_t size = strlen(end);
    return text.size >= size && memcmp(text.data + text.size - size, end, size) == 0;
}

static Bytes normalise(const Encoder *e, Text text) {
    const Sentencepiece *m = e->model;
    const char *const space = m->escapes_spaces ? PIECE_SPACE : " ";
    Bytes out = {0};
    Text part;
    while (m->remove_extra_spaces && text.size > 0) {
        const size_t length = normalise_beginning(e, text, &part);
        if (part.size != 1 || *part.data != ' ') break;
        text = (Text){text.data + length, text.size - length};
    }
    if (text.size == 0) return out;
    if (m->dummy_prefix && !m->space_as_suffix) bytes_append(&out, space, strlen(space));
    for (bool after_space = m->remove_extra_spaces; text.size > 0;) {
        const size_t length = normalise_beginning(e, text, &part);
        while (after_space && part.size > 0 && *part.data == ' ')
            part = (Text){part.data + 1, part.size - 1};
        for (size_t i = 0; i < part.size; i++)
            if (part.data[i] == ' ')
                bytes_append(&out, space, strlen(space));
            else
                bytes_append(&out, part.data + i, 1);
        if (part.size > 0) after_space = m->remove_extra_spaces && part.data[part.size - 1] == ' ';
        text = (Text){text.data + length, text.size - length};
    }
    while (m->remove_extra_spaces && ends_in((Text){out.data, out.size}, space))
        out.size -= strlen(space);
    if (m->dummy_prefix && m->space_as_suffix) bytes_append(&out, space, strlen(space));
    return out;
}

// ---- BPE --------------------------------------------------------------------
// A part of the text, in a linked list of the remaining ones.
typedef struct {
    Text text; // size 0: merged into another symbol
    ptrdiff_t before, after;
    bool frozen; // user-defined
} Symbol;

// Two neighbours that may be merged, valid while they have `size` bytes together.
typedef struct {
    float score;
    ptrdiff_t left, right;
    size_t size;
} Pair;

typedef struct {
    const Encoder *encoder;
    Symbol *symbols; // (count)
    size_t count;
    Pair *heap; // (heap_count) the best one at the top
    size_t heap_count;
} Merging;

static bool is_better(const Pair *a, const Pair *b) {
    return a->score > b->score || (a->score == b->score && a->left < b->left);
}

static void add_pair(Merging *m, ptrdiff_t left, ptrdiff_t right) {
    if (left < 0 || right < 0 || m->symbols[left].frozen || m->symbols[right].frozen) return;
    const Text text = {m->symbols[left].text.data,
                       m->symbols[left].text.size + m->symbols[right].text.size};
    const int32_t piece = find_piece(m->encoder, text);
    if (piece < 0) return;
    const Pair pair = {m->encoder->model->pieces[piece].score, left, right, text.size};
    m->heap = grow_list(m->heap, m->heap_count, sizeof(Pair), "pairs");
    size_t i = m->heap_count++;
    for (; i > 0 && is_better(&pair, &m->heap[(i - 1) / 2]); i = (i - 1) / 2)
        m->heap[i] = m->heap[(i - 1) / 2];
    m->heap[i] = pair;
}

static Pair take_pair(Merging *m) {
    const Pair best = m->heap[0], last = m->heap[--m->heap_count];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < m->heap_count; i = child) {
        if (child + 1 < m->heap_count && is_better(&m->heap[child + 1], &m->heap[child])) child++;
        if (!is_better(&m->heap[child], &last)) break;
        m->heap[i] = m->heap[child];
    }
    m->heap[i] = last;
    return best;
}

static void merge(Merging *m, const Pair *pair) {
    Symbol *left = &m->symbols[pair->left], *right = &m->symbols[pair->right];
    if (left->text.size == 0 || right->text.size == 0 ||
        left->text.size + right->text.size != pair->size)
        return;
    left->text.size = pair->size;
    right->text.size = 0;
    left->after = right->after;
    if (right->after >= 0) m->symbols[right->after].before = pair->left;
    add_pair(m, left->before, pair->left);
    add_pair(m, pair->left, left->after);
}

// ---- tokens -----------------------------------------------------------------

typedef struct {
    const Encoder *encoder;
    int32_t *tokens; // (count)
    size_t count;
    bool after_unknown; // consecutive unknown pieces become one
} Writer;

static void write_token(Writer *w, int32_t token) {
    w->tokens = grow_list(w->tokens, w->count, sizeof(int32_t), "tokens");
    w->tokens[w->count++] = token;
}

static void write_piece(Writer *w, Text text, int32_t piece) {
    const Encoder *e = w->encoder;
    const bool unknown = piece < 0;
    for (size_t i = 0; unknown && e->model->byte_fallback && i < text.size; i++)
        write_token(w, e->bytes[(unsigned char)text.data[i]]);
    if (!unknown || (!e->model->byte_fallback && !w->after_unknown))
        write_token(w, unknown ? e->unknown : piece);
    w->after_unknown = unknown;
}

static void encode_bpe(const Encoder *e, Text text, Writer *w) {
    Merging m = {.encoder = e};
    for (Text left = text; left.size > 0;) {
        const size_t named = named_length(e, left), length = named ? named : character_length(left);
        const ptrdiff_t i = (ptrdiff_t)m.count;
        m.symbols = grow_list(m.symbols, m.count, sizeof(Symbol), "a text");
        m.symbols[m.count++] = (Symbol){{left.data, length}, i - 1, i + 1, named > 0};
        left = (Text){left.data + length, left.size - length};
    }
    if (m.count > 0) m.symbols[m.count - 1].after = -1;
    for (size_t i = 1; i < m.count; i++) add_pair(&m, (ptrdiff_t)i - 1, (ptrdiff_t)i);
    while (m.heap_count > 0) {
        const Pair pair = take_pair(&m);
        merge(&m, &pair);
    }
    for (size_t i = 0; i < m.count; i++)
        if (m.symbols[i].text.size > 0)
            write_piece(w, m.symbols[i].text, find_piece(e, m.symbols[i].text));
    free(m.symbols);
    free(m.heap);
}

// The best path to a position in the text: its last piece (-1: unknown) and where that begins.
typedef struct {
    float score;
    int32_t piece;
    ptrdiff_t from; // -1: no path found yet
} Way;

static void offer(Way *way, double score, int32_t piece, size_t from) {
    if (way->from < 0 || score > (double)way->score)
        *way = (Way){(float)score, piece, (ptrdiff_t)from};
}

// A user-defined piece scores higher than any other pieces of the same text.
static double piece_score(const Encoder *e, int32_t piece, size_t length) {
    if (e->model->pieces[piece].kind != PIECE_USER_DEFINED)
        return (double)e->model->pieces[piece].score;
    const float others = (float)length * e->greatest;
    return (double)others - 0.1;
}

static void encode_unigrams(const Encoder *e, Text text, Writer *w) {
    Way *ways = allocate(text.size + 1, sizeof(Way), "a text");
    size_t *path = allocate(text.size + 1, sizeof(size_t), "a text"), count = 0;
    for (size_t i = 0; i <= text.size; i++) ways[i].from = i == 0 ? 0 : -1;
    for (size_t i = 0, character; i < text.size; i += character) {
        const Text left = {text.data + i, text.size - i};
        bool single = false;
        character = character_length(left);
        for (size_t length = character; length <= left.size && length <= e->longest;) {
            const int32_t piece = find_piece(e, (Text){left.data, length});
            if (piece >= 0)
                offer(&ways[i + length], piece_score(e, piece, length) + (double)ways[i].score,
                      piece, i);
            single = single || (piece >= 0 && length == character);
            if (length == left.size) break;
            length += character_length((Text){left.data + length, left.size - length});
        }
        const float unknown = e->least - 10 + ways[i].score;
        if (!single) offer(&ways[i + character], (double)unknown, -1, i);
    }
    for (size_t end = text.size; end > 0; end = (size_t)ways[end].from) path[count++] = end;
    while (count-- > 0) {
        const size_t from = (size_t)ways[path[count]].from;
        write_piece(w, (Text){text.data + from, path[count] - from}, ways[path[count]].piece);
    }
    free(path);
    free(ways);
}

// ---- a text -----------------------------------------------------------------
// Returns whether no piece spans two words, so that a word is encoded the same alone and in a line:
// pieces have spaces only at the beginning, and a line's first word gets a space as well.
static bool words_stand_alone(const Sentencepiece *model) {
    const size_t space = strlen(PIECE_SPACE);
    if (!model->dummy_prefix) return false;
    for (int32_t i = 0; i < model->count; i++) {
        if (model->pieces[i].kind == PIECE_CONTROL) continue;
        Text text = model->pieces[i].text;
        while (text.size >= space && memcmp(text.data, PIECE_SPACE, space) == 0)
            text = (Text){text.data + space, text.size - space};
        if (memmem(text.data, text.size, PIECE_SPACE, space) || memchr(text.data, ' ', text.size))
            return false;
    }
    return true;
}

// Returns whether a character is part of a word and normalisation does not join it with its
// neighbours.
static bool is_plain(char c) {
    return c > ' ' && c < 127;
}

// Returns where to split a long line, at a space between two words, or its size.
static size_t find_cut(Text line) {
    enum { LONGEST_PART = 1 << 16 };
    for (size_t i = LONGEST_PART; i + 1 < line.size; i++)
        if (line.data[i] == ' ' && is_plain(line.data[i - 1]) && is_plain(line.data[i + 1]))
            return i;
    return line.size;
}

// Encodes a line or a part of it.
static void encode_part(const Encoder *e, Text part, Writer *w) {
    Bytes text = normalise(e, part);
    w->after_unknown = false;
    (e->model->type == MODEL_BPE ? encode_bpe : encode_unigrams)(e, (Text){text.data, text.size},
                                                                 w);
    bytes_free(&text);
}

size_t sentencepiece_encode(const Sentencepiece *model, Text text, bool last_end,
                            int32_t **tokens) {
    const Encoder e = encoder_create(model);
    const bool cuts = words_stand_alone(model); // so that memory does not grow with the line
    Writer w = {.encoder = &e};
    while (text.size > 0) {
        const Text line = text_take_line(&text);
        Text rest = text_without_newline(line);
        const bool ended = rest.size < line.size;
        for (size_t cut; cuts && (cut = find_cut(rest)) < rest.size;) {
            encode_part(&e, (Text){rest.data, cut}, &w);
            rest = (Text){rest.data + cut + 1, rest.size - cut - 1};
        }
        encode_part(&e, rest, &w);
        if (ended || last_end) write_token(&w, model->end);
    }
    free(e.sorted);
    free(e.named);
    *tokens = w.tokens ? w.tokens : allocate(1, sizeof(int32_t), "tokens");
    return w.count;
}
