#include "text_format.h"

#include "memory.h"
#include "options.h"
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { LOOKED_AT = 1 << 20 }; // bytes

#define UTF16 "UTF-16", "iconv -f UTF-16 -t UTF-8 %s"
#define UTF32 "UTF-32", "iconv -f UTF-32 -t UTF-8 %s"

// A longer mark comes before its own prefixes.
static const struct {
    const char *mark;
    size_t size;
    TextFormat format;
} marks[] = {
    {"\x1f\x8b", 2, {"compressed by gzip", "zcat %s"}},
    {"\xfd"
     "7zXZ\0",
     6,
     {"compressed by xz", "xzcat %s"}},
    {"\x28\xb5\x2f\xfd", 4, {"compressed by zstd", "zstdcat %s"}},
    {"\x04\x22\x4d\x18", 4, {"compressed by lz4", "lz4cat %s"}},
    {"PK\3\4", 4, {"a zip archive", "unzip -p %s"}},
    {"%PDF-", 5, {"a PDF", "pdftotext %s -"}},
    {"\xff\xfe\0\0", 4, {UTF32}},
    {"\0\0\xfe\xff", 4, {UTF32}},
    {"\xff\xfe", 2, {UTF16}},
    {"\xfe\xff", 2, {UTF16}},
};

// bzip2's mark is three letters, the block size, and the mark of the first block or of the end.
static bool is_bzip2(Text text) {
    return text.size >= 10 && memcmp(text.data, "BZh", 3) == 0 && text.data[3] >= '1' &&
           text.data[3] <= '9' &&
           (memcmp(text.data + 4, "1AY&SY", 6) == 0 ||
            memcmp(text.data + 4, "\x17rE8P\x90", 6) == 0);
}

TextFormat text_format(Text text) {
    for (size_t i = 0; i < sizeof(marks) / sizeof(*marks); i++)
        if (text.size >= marks[i].size && memcmp(text.data, marks[i].mark, marks[i].size) == 0)
            return marks[i].format;
    if (is_bzip2(text)) return (TextFormat){"compressed by bzip2", "bzcat %s"};
    const size_t size = text.size < LOOKED_AT ? text.size : LOOKED_AT;
    size_t nulls[2] = {0}, controls = 0; // NULs at even and odd positions
    for (size_t i = 0; i < size; i++) {
        const unsigned char c = (unsigned char)text.data[i];
        nulls[i % 2] += c == 0;
        controls += c < 0x20 && !(c >= '\a' && c <= '\r') && c != '\x1b';
    }
    for (int odd = 0; odd < 2; odd++)
        if (nulls[odd] > size / 5 && nulls[1 - odd] < nulls[odd] / 20 + 1)
            return odd ? (TextFormat){"UTF-16", "iconv -f UTF-16LE -t UTF-8 %s"}
                       : (TextFormat){"UTF-16", "iconv -f UTF-16BE -t UTF-8 %s"};
    if (controls * 25 >= size && controls > 0) return (TextFormat){"binary", NULL};
    return (TextFormat){NULL, NULL};
}

char *text_format_advice(TextFormat format, const char *name, const char *reader) {
    char *advice = format_string("%s: is %s, expected plain text", name, format.name);
    if (!format.command) return advice;
    char *file = strcmp(name, STANDARD_INPUT) == 0 ? copy_string("FILE") : options_quoted(name);
    char *command = format_string(format.command, file);
    append_format(&advice, ": %s | %s", command, reader);
    free(command);
    free(file);
    return advice;
}
