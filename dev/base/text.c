#include "text.h"
#include <string.h>

// ---- words and lines --------------------------------------------------------
// The same in every locale.
static bool is_space(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

TextItem text_next(Text text, size_t *at, Text *word) {
    size_t i = *at;
    while (i < text.size && is_space(text.data[i]) && text.data[i] != '\n') i++;
    if (i < text.size && text.data[i] != '\n') {
        const size_t start = i;
        while (i < text.size && !is_space(text.data[i])) i++;
        *word = (Text){text.data + start, i - start};
        *at = i;
        return TEXT_WORD;
    }
    // *at = size + 1: the end of the last line, which has no newline, was returned as well.
    if (i < text.size || (i == text.size && i > 0 && text.data[i - 1] != '\n')) {
        *at = i + 1;
        return TEXT_LINE_END;
    }
    *at = i;
    return TEXT_END;
}

Text text_take_line(Text *text) {
    const char *newline = text->size > 0 ? memchr(text->data, '\n', text->size) : NULL;
    const Text line = {text->data, newline ? (size_t)(newline - text->data) + 1 : text->size};
    *text = (Text){text->data + line.size, text->size - line.size};
    return line;
}

bool text_next_line(Text *text, Text *line) {
    *line = text_take_line(text);
    return line->size > 0 && line->data[line->size - 1] == '\n';
}

Text text_without_newline(Text line) {
    return (Text){line.data, line.size - (line.size > 0 && line.data[line.size - 1] == '\n')};
}

Text text_sentence(Text line) {
    size_t at = 0;
    Text word;
    if (text_next(line, &at, &word) != TEXT_WORD) return (Text){line.data, 0};
    return (Text){line.data, line.size - (line.data[line.size - 1] == '\r')};
}

TextCounts text_count(Text text) {
    TextCounts counts = {.bytes = (int64_t)text.size};
    Text word;
    size_t at = 0;
    for (TextItem item; (item = text_next(text, &at, &word)) != TEXT_END;) {
        counts.words++;
        if (item == TEXT_LINE_END) counts.lines++;
    }
    return counts;
}

// ---- comparing --------------------------------------------------------------
// Removes the common suffix, then matches each byte of `made` in turn at its first occurrence in
// the line. Returns the number of unmatched bytes of the line.
static size_t line_lost(Text line, Text made) {
    size_t found = 0;
    while (line.size > 0 && made.size > 0 && line.data[line.size - 1] == made.data[made.size - 1]) {
        line.size--;
        made.size--;
    }
    for (size_t i = 0; i < line.size && found < made.size; i++)
        found += line.data[i] == made.data[found];
    return line.size - found;
}

size_t text_lost(Text text, Text made) {
    size_t lost = 0;
    if (text.size == made.size && memcmp(text.data, made.data, text.size) == 0) return 0;
    while (text.size > 0) {
        const Text line = text_take_line(&text);
        lost += line_lost(line, text_take_line(&made));
    }
    return lost;
}

// ---- cutting ----------------------------------------------------------------
// Returns the last position p in (from, to] with `c` before it, or 0.
static size_t place_after(const char *data, char c, size_t from, size_t to) {
    const char *last = memrchr(data + from, c, to - from);
    return last ? (size_t)(last - data) + 1 : 0;
}

static size_t cut_before(Text text, size_t place) {
    const size_t near = text.size / 40, from = place > near ? place - near : 0;
    size_t cut = place_after(text.data, '\n', from, place);
    if (cut == 0) cut = place_after(text.data, ' ', from, place);
    return cut > 0 ? cut : utf8_complete((Text){text.data, place}); // not inside a character
}

void text_split(Text text, Text parts[3]) {
    const size_t twentieth = text.size / 20;
    const size_t validation = cut_before(text, text.size - 2 * twentieth);
    const size_t test = cut_before(text, text.size - twentieth);
    parts[0] = (Text){text.data, validation};
    parts[1] = (Text){text.data + validation, test - validation};
    parts[2] = (Text){text.data + test, text.size - test};
}

// ---- UTF-8 ------------------------------------------------------------------

// Returns the length of a character that begins with this byte, or 0 if none does.
static size_t length_of(unsigned char lead) {
    if (lead < 0x80) return 1;
    return lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : lead < 0xf5 ? 4 : 0;
}

size_t utf8_length(Text text) {
    const unsigned char *u = (const unsigned char *)text.data;
    const size_t length = text.size > 0 ? length_of(u[0]) : 0;
    if (length == 0 || length > text.size) return 0;
    for (size_t i = 1; i < length; i++)
        if ((u[i] & 0xc0) != 0x80) return 0;
    const bool overlong = (u[0] == 0xe0 && u[1] < 0xa0) || (u[0] == 0xf0 && u[1] < 0x90);
    const bool surrogate = u[0] == 0xed && u[1] > 0x9f, beyond = u[0] == 0xf4 && u[1] > 0x8f;
    return overlong || surrogate || beyond ? 0 : length;
}

uint32_t utf8_read(const char *text, size_t length) {
    const unsigned char *u = (const unsigned char *)text;
    uint32_t code = length == 1 ? u[0] : u[0] & (0x7fu >> length);
    for (size_t i = 1; i < length; i++) code = code << 6 | (u[i] & 0x3fu);
    return code;
}

char *utf8_write(char *out, uint32_t code) {
    static const uint32_t leads[] = {0, 0xc0, 0xe0, 0xf0};
    const int more = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3; // bytes after it
    *out++ = (char)(leads[more] | code >> 6 * more);
    for (int i = more; i-- > 0;) *out++ = (char)(0x80 | (code >> 6 * i & 0x3f));
    return out;
}

size_t utf8_valid_prefix(Text text) {
    size_t at = 0;
    while (at < text.size) {
        const size_t length = utf8_length((Text){text.data + at, text.size - at});
        if (length == 0) break;
        at += length;
    }
    return at;
}

size_t utf8_complete(Text text) {
    for (size_t size = 1; size <= 3 && size <= text.size; size++) {
        const unsigned char lead = (unsigned char)text.data[text.size - size];
        if ((lead & 0xc0) == 0x80) continue; // inside a character
        return length_of(lead) > size ? text.size - size : text.size;
    }
    return text.size;
}
