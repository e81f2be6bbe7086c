#include "bpe_words.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

// Other, letter, number that counts in \w, white space, other number, other character that counts
// in \w.
typedef enum { O, L, N, S, F, W } Kind;

typedef struct {
    uint32_t first, last;
    Kind kind;
} Range;

static const Range ranges[] = {
#include "unicode_table.h"
};

static const uint8_t ascii[128] = {
    ['\t'] = S, ['\n'] = S, ['\v'] = S, ['\f'] = S, ['\r'] = S, [' '] = S, ['0'] = N, ['1'] = N,
    ['2'] = N,  ['3'] = N,  ['4'] = N,  ['5'] = N,  ['6'] = N,  ['7'] = N, ['8'] = N, ['9'] = N,
    ['A'] = L,  ['B'] = L,  ['C'] = L,  ['D'] = L,  ['E'] = L,  ['F'] = L, ['G'] = L, ['H'] = L,
    ['I'] = L,  ['J'] = L,  ['K'] = L,  ['L'] = L,  ['M'] = L,  ['N'] = L, ['O'] = L, ['P'] = L,
    ['Q'] = L,  ['R'] = L,  ['S'] = L,  ['T'] = L,  ['U'] = L,  ['V'] = L, ['W'] = L, ['X'] = L,
    ['Y'] = L,  ['Z'] = L,  ['a'] = L,  ['b'] = L,  ['c'] = L,  ['d'] = L, ['e'] = L, ['f'] = L,
    ['g'] = L,  ['h'] = L,  ['i'] = L,  ['j'] = L,  ['k'] = L,  ['l'] = L, ['m'] = L, ['n'] = L,
    ['o'] = L,  ['p'] = L,  ['q'] = L,  ['r'] = L,  ['s'] = L,  ['t'] = L, ['u'] = L, ['v'] = L,
    ['w'] = L,  ['x'] = L,  ['y'] = L,  ['z'] = L,  ['_'] = W,
};

static int compare_range(const void *code, const void *range) {
    const uint32_t x = *(const uint32_t *)code;
    const Range *r = range;
    return x < r->first ? -1 : x > r->last;
}

static Kind kind_of(uint32_t code) {
    const Range *range =
        bsearch(&code, ranges, sizeof(ranges) / sizeof(*ranges), sizeof(Range), compare_range);
    return range ? range->kind : O;
}

// Returns the kind of the character at byte `at`, and its length.
static Kind character_at(Text text, size_t at, size_t *length) {
    const unsigned char first = (unsigned char)text.data[at];
    *length = 1;
    if (first < 0x80) return ascii[first];
    const size_t found = utf8_length((Text){text.data + at, text.size - at});
    if (found == 0) return O;
    *length = found;
    return kind_of(utf8_read(text.data + at, found));
}

// The same with the kinds of patterns: O, L, N and S.
static Kind kind_at(Text text, size_t at, size_t *length) {
    static const Kind known[] = {[O] = O, [L] = L, [N] = N, [S] = S, [F] = N, [W] = O};
    return known[character_at(text, at, length)];
}

// Returns the end of the run of characters of a kind that begins at `at`. *last: start of its last
// character.
static size_t run_end(Text text, size_t at, Kind kind, size_t *last) {
    size_t length;
    while (at < text.size && kind_at(text, at, &length) == kind) {
        *last = at;
        at += length;
    }
    return at;
}

// Returns the length of 's, 'd, 'm, 't, 'll, 've or 're at the start of a text, or 0. any_case:
// also accepts 'S and so on, and U+017F, which counts as s.
static size_t contraction(Text text, bool any_case) {
    if (text.size < 2 || text.data[0] != '\'') return 0;
    const int fold = any_case ? 0x20 : 0, a = text.data[1] | fold,
              b = text.size > 2 ? text.data[2] | fold : 0;
    if (a == 's' || a == 'd' || a == 'm' || a == 't') return 2;
    if (any_case && text.size > 2 && memcmp(text.data + 1, "\u017f", 2) == 0) return 3;
    return (a == 'l' && b == 'l') || (a == 'v' && b == 'e') || (a == 'r' && b == 'e') ? 3 : 0;
}

// Returns the length of the white space at the start of a text that \s+(?!\S)|\s+ matches: without
// the last character if something else follows, unless it is the only one. whole: includes the last
// character.
static size_t space_word(Text text, bool whole) {
    size_t last = 0;
    const size_t end = run_end(text, 0, S, &last);
    return end < text.size && last > 0 && !whole ? last : end;
}

static size_t gpt2_word(BpePattern pattern, Text text) {
    size_t length = contraction(text, false), last = 0;
    if (length > 0) return length;
    size_t space = text.data[0] == ' ' && text.size > 1;
    Kind kind = kind_at(text, space, &length);
    if (pattern != BPE_GPT2 && kind == N) { // a word with a digit has no space before it
        if (space > 0) return 1;
        return pattern == BPE_GPT2_DIGITS ? length : run_end(text, 0, N, &last);
    }
    if (kind != S) return run_end(text, space, kind, &last);
    const size_t end = run_end(text, 0, S, &last);
    const bool number = pattern != BPE_GPT2 && end < text.size && kind_at(text, end, &length) == N;
    return space_word(text, number);
}

static bool is_line_end(char c) {
    return c == '\r' || c == '\n';
}

static size_t gpt4_word(Text text, int digits) {
    size_t length = contraction(text, true), last = 0, next = 0;
    if (length > 0) return length;
    const Kind kind = kind_at(text, 0, &length);
    const Kind then = length < text.size ? kind_at(text, length, &next) : S;
    if (kind == L) return run_end(text, 0, L, &last);
    if (kind == N) {
        size_t end = length;
        for (int i = 1; i < digits && end < text.size && kind_at(text, end, &next) == N; i++)
            end += next;
        return end;
    }
    if (then == L && !is_line_end(text.data[0])) return run_end(text, length, L, &last);
    if (kind == O || (text.data[0] == ' ' && length < text.size && then == O)) {
        size_t end = run_end(text, kind == O ? 0 : 1, O, &last);
        while (end < text.size && is_line_end(text.data[end])) end++;
        return end;
    }
    // Up to the last line end of the white space, if it has one.
    for (size_t end = run_end(text, 0, S, &last); end > 0; end--)
        if (is_line_end(text.data[end - 1])) return end;
    return space_word(text, false);
}

size_t bpe_word(BpePattern pattern, Text text) {
    if (pattern < BPE_GPT4) return gpt2_word(pattern, text);
    return gpt4_word(text, pattern == BPE_GPT4 ? 3 : 1);
}

static bool is_ascii_space(char c) {
    return (unsigned char)c < 0x80 && ascii[(unsigned char)c] == S;
}

// Returns the start of the last character of a text, which is not empty.
static size_t last_character(Text text) {
    for (size_t length = 2; length <= 4 && length <= text.size; length++)
        if (utf8_length((Text){text.data + text.size - length, length}) == length)
            return text.size - length;
    return text.size - 1;
}

// Returns whether a text, which is not empty, ends in white space.
static bool ends_in_space(Text text) {
    size_t length;
    if ((unsigned char)text.data[text.size - 1] < 0x80)
        return is_ascii_space(text.data[text.size - 1]);
    return kind_at(text, last_character(text), &length) == S;
}

size_t bpe_words_cut(BpePattern pattern, Text text, size_t from, bool space) {
    const bool lines = pattern >= BPE_GPT4; // words of these patterns may end in line ends
    for (size_t i = from, length; i < text.size; i++) {
        if (space || lines ? text.data[i] == ' ' : is_ascii_space(text.data[i])) {
            if (!ends_in_space((Text){text.data, i})) return i;
        } else if (lines && !space && is_line_end(text.data[i - 1])) {
            if (kind_at(text, i, &length) != S) return i;
        }
    }
    return text.size;
}

// ---- the ends of a text -----------------------------------------------------
size_t bpe_space_first(Text text) {
    size_t last;
    return run_end(text, 0, S, &last);
}

size_t bpe_space_last(Text text) {
    size_t length, begin = text.size;
    while (begin > 0) {
        const size_t at = last_character((Text){text.data, begin});
        if (kind_at((Text){text.data, begin}, at, &length) != S) break;
        begin = at;
    }
    return text.size - begin;
}

static bool is_wordly(Text text, size_t at) {
    size_t length;
    const Kind kind = character_at(text, at, &length);
    return kind == L || kind == N || kind == W;
}

bool bpe_wordly_first(Text text) {
    return text.size > 0 && is_wordly(text, 0);
}

bool bpe_wordly_last(Text text) {
    return text.size > 0 && is_wordly(text, last_character(text));
}
