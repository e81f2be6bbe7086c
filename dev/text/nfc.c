#include "nfc.h"
#include "bytes.h"
#include "memory.h"
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    uint32_t code, first, second;
} Composition;

typedef struct {
    uint32_t first, last, class;
} Marks;

#include "nfc_table.h"

#define COUNT(array) (sizeof(array) / sizeof(*(array)))

// Hangul syllables are computed. The first syllable, leading consonant and vowel, and the code
// before the first trailing consonant; the number of each (no trailing consonant counts as one).
enum { S_BASE = 0xac00, L_BASE = 0x1100, V_BASE = 0x1161, T_BASE = 0x11a7 };
enum { L_COUNT = 19, V_COUNT = 21, T_COUNT = 28, S_COUNT = L_COUNT * V_COUNT * T_COUNT };

// ---- single characters ------------------------------------------------------

static int compare_marks(const void *code, const void *row) {
    const uint32_t x = *(const uint32_t *)code;
    const Marks *m = row;
    return x < m->first ? -1 : x > m->last;
}

static uint32_t class_of(uint32_t code) {
    const Marks *row = bsearch(&code, marks, COUNT(marks), sizeof(Marks), compare_marks);
    return row ? row->class : 0;
}

static int compare_codes(const void *code, const void *row) {
    const uint32_t x = *(const uint32_t *)code, y = ((const Composition *)row)->code;
    return (x > y) - (x < y);
}

static const Composition *find(uint32_t code) {
    const Composition *row =
        bsearch(&code, composed, COUNT(composed), sizeof(Composition), compare_codes);
    return row ? row
               : bsearch(&code, decomposed, COUNT(decomposed), sizeof(Composition), compare_codes);
}

// Returns the character that two compose to, or 0.
static uint32_t compose(uint32_t first, uint32_t second) {
    const uint32_t l = first - L_BASE, v = second - V_BASE, s = first - S_BASE, t = second - T_BASE;
    if (l < L_COUNT && v < V_COUNT) return S_BASE + (l * V_COUNT + v) * T_COUNT;
    if (s < S_COUNT && s % T_COUNT == 0 && t - 1 < T_COUNT - 1) return first + t;
    for (size_t i = 0; i < COUNT(composed); i++)
        if (composed[i].second == second && composed[i].first == first) return composed[i].code;
    return 0;
}

// ---- a part of a text -------------------------------------------------------
// A part is normalised by itself: nothing combines across its ends.
typedef struct {
    uint32_t code, class;
} Character;

typedef struct {
    Bytes bytes;
    Character *items; // (count) in `bytes`
    size_t count;
} Part;

static void add(Part *part, uint32_t code) {
    const uint32_t s = code - S_BASE;
    const Composition *row = find(code);
    if (s < S_COUNT) {
        add(part, L_BASE + s / (V_COUNT * T_COUNT));
        add(part, V_BASE + s % (V_COUNT * T_COUNT) / T_COUNT);
        if (s % T_COUNT > 0) add(part, T_BASE + s % T_COUNT);
    } else if (row) {
        add(part, row->first);
        if (row->second) add(part, row->second);
    } else {
        bytes_append(&part->bytes, &(Character){code, class_of(code)}, sizeof(Character));
        part->items = (Character *)(void *)part->bytes.data;
        part->count++;
    }
}

static int compare_classes(const void *a, const void *b) {
    const Character *x = *(const Character *const *)a, *y = *(const Character *const *)b;
    if (x->class != y->class) return x->class < y->class ? -1 : 1;
    return (x > y) - (x < y); // by position
}

// Sorts consecutive marks by class; the sort is stable.
static void order_marks(Part *part) {
    for (size_t i = 0, end; i < part->count; i = end) {
        bool ordered = true;
        for (end = i + 1; end < part->count && part->items[i].class && part->items[end].class;
             end++)
            ordered = ordered && part->items[end - 1].class <= part->items[end].class;
        if (ordered) continue;
        const size_t n = end - i;
        Character **places = allocate(n, sizeof(Character *), "a text"),
                  *copy = allocate(n, sizeof(*copy), "a text");
        for (size_t k = 0; k < n; k++) places[k] = &part->items[i + k];
        qsort(places, n, sizeof(Character *), compare_classes);
        for (size_t k = 0; k < n; k++) copy[k] = *places[k];
        memcpy(part->items + i, copy, n * sizeof(*copy));
        free(places);
        free(copy);
    }
}

static void compose_part(Part *part) {
    size_t kept = 0, starter = 0; // starter: the last character so far that has class 0
    bool any = false;
    for (size_t i = 0; i < part->count; i++) {
        const Character c = part->items[i];
        const bool next = any && kept == starter + 1; // nothing is between them
        const bool free_way = any && (next || (part->items[kept - 1].class < c.class));
        const uint32_t both = free_way ? compose(part->items[starter].code, c.code) : 0;
        if (both) {
            part->items[starter].code = both;
            continue;
        }
        if (c.class == 0) {
            starter = kept;
            any = true;
        }
        part->items[kept++] = c;
    }
    part->count = kept;
}

static void end_part(Part *part, Bytes *out) {
    order_marks(part);
    compose_part(part);
    for (size_t i = 0; i < part->count; i++) {
        char text[4];
        bytes_append(out, text, (size_t)(utf8_write(text, part->items[i].code) - text));
    }
    part->bytes.size = part->count = 0;
}

char *nfc_normalise(Text text, size_t *size) {
    size_t first = 0; // text that is all below U+0300 does not change
    while (first < text.size && (unsigned char)text.data[first] < 0xcc) first++;
    if (first == text.size) return NULL;
    Bytes out = {0};
    Part part = {0};
    for (size_t i = 0, length; i < text.size; i += length) {
        const size_t found = utf8_length((Text){text.data + i, text.size - i});
        length = found ? found : 1;
        const uint32_t code = found ? utf8_read(text.data + i, length) : 0;
        if (code < 0x300) end_part(&part, &out);
        if (found)
            add(&part, code);
        else
            bytes_append(&out, text.data + i, 1);
    }
    end_part(&part, &out);
    bytes_free(&part.bytes);
    if (out.size == text.size && memcmp(out.data, text.data, out.size) == 0) {
        bytes_free(&out);
        return NULL;
    }
    *size = out.size;
    return out.data;
}
