#include "gpt2_words.h"
#include <stdbool.h>
#include <stdint.h>

typedef enum { O, L, N, S } Kind; // other, letter, number, white space

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
    ['w'] = L,  ['x'] = L,  ['y'] = L,  ['z'] = L,
};

static Kind kind_of(uint32_t code) {
    size_t low = 0, high = sizeof(ranges) / sizeof(*ranges);
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (ranges[middle].last < code)
            low = middle + 1;
        else
            high = middle;
    }
    return low < sizeof(ranges) / sizeof(*ranges) && ranges[low].first <= code ? ranges[low].kind
                                                                               : O;
}

// Kind and length of the character at byte `at`.
static Kind kind_at(Text text, size_t at, size_t *length) {
    const unsigned char *u = (const unsigned char *)text.data + at;
    *length = 1;
    if (u[0] < 0x80) return ascii[u[0]];
    switch (utf8_length((Text){text.data + at, text.size - at})) {
    case 2:
        *length = 2;
        return kind_of((u[0] & 0x1fu) << 6 | (u[1] & 0x3fu));
    case 3:
        *length = 3;
        return kind_of((u[0] & 0xfu) << 12 | (u[1] & 0x3fu) << 6 | (u[2] & 0x3fu));
    case 4:
        *length = 4;
        return kind_of((u[0] & 7u) << 18 | (u[1] & 0x3fu) << 12 | (u[2] & 0x3fu) << 6 |
                       (u[3] & 0x3fu));
    default:
        return O;
    }
}

// Where the characters of a kind end that begin at `at`; *last: where the last of them begins.
static size_t run_end(Text text, size_t at, Kind kind, size_t *last) {
    size_t length;
    while (at < text.size && kind_at(text, at, &length) == kind) {
        *last = at;
        at += length;
    }
    return at;
}

// Length of 's, 'd, 'm, 't, 'll, 've or 're at the start of a text; 0: none.
static size_t contraction(Text text) {
    if (text.size < 2 || text.data[0] != '\'') return 0;
    const char a = text.data[1], b = text.size > 2 ? text.data[2] : '\0';
    if (a == 's' || a == 'd' || a == 'm' || a == 't') return 2;
    return (a == 'l' && b == 'l') || (a == 'v' && b == 'e') || (a == 'r' && b == 'e') ? 3 : 0;
}

size_t gpt2_word(Text text) {
    size_t length = contraction(text), last = 0;
    if (length > 0) return length;
    const size_t space = text.data[0] == ' ' && text.size > 1;
    Kind kind = kind_at(text, space, &length);
    if (kind != S) return run_end(text, space, kind, &last);
    const size_t end = run_end(text, 0, S, &last);
    // The last character before something that is no white space is left to it, unless it stands
    // alone.
    return end < text.size && last > 0 ? last : end;
}

static bool is_ascii_space(char c) {
    return (unsigned char)c < 0x80 && ascii[(unsigned char)c] == S;
}

size_t gpt2_cut(Text text, size_t from) {
    for (size_t i = from; i < text.size; i++)
        // Only ASCII on either side: a byte beyond may be the end of a character that is white
        // space.
        if (is_ascii_space(text.data[i]) && (unsigned char)text.data[i - 1] < 0x80 &&
            !is_ascii_space(text.data[i - 1]))
            return i;
    return text.size;
}
