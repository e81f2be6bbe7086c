#include "pairs.h"

#include "error.h"
#include <string.h>

// Removes the first line from a text and returns its sentence.
static Text take_sentence(Text *text) {
    return text_sentence(text_without_newline(text_take_line(text)));
}

static void add_counts(TextCounts *sum, TextCounts counts) {
    sum->words += counts.words;
    sum->lines += counts.lines;
    sum->bytes += counts.bytes + 1;
}

static void append(Pairs *pairs, const char *name, int64_t number, Text sentence, const char *end) {
    if (memmem(sentence.data, sentence.size, end, strlen(end)))
        fail("%s, line %lld: holds %s, which ends a sentence: remove it, or the pair", name,
             (long long)number, end);
    bytes_append(&pairs->text, sentence.data, sentence.size);
    bytes_append(&pairs->text, end, strlen(end));
    add_counts(&pairs->counts, text_count(sentence));
}

Pairs pairs_join(PairSide source, PairSide target, const char *end) {
    Pairs pairs = {0};
    const PairSide sides[] = {source, target};
    int64_t number = 1;
    for (; source.text.size > 0 && target.text.size > 0; number++) {
        const Text sentences[] = {take_sentence(&source.text), take_sentence(&target.text)};
        if (sentences[0].size == 0 || sentences[1].size == 0) {
            if (pairs.left_out++ == 0) pairs.first_empty = number;
            continue;
        }
        for (int side = 0; side < 2; side++)
            append(&pairs, sides[side].name, number, sentences[side], end);
        pairs.pairs++;
    }
    if (source.text.size > 0 || target.text.size > 0) {
        const int longer = target.text.size > 0;
        fail("%s, line %lld: has no partner, %s has only %lld lines", sides[longer].name,
             (long long)number, sides[!longer].name, (long long)number - 1);
    }
    if (pairs.pairs == 0) fail("%s and %s: have no pair of sentences", source.name, target.name);
    return pairs;
}
