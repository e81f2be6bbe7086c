// Byte-level byte-pair encoding (Sennrich et al. 2016, Radford et al. 2019).
//
// A text is cut at special tokens, then into GPT-2's words (gpt2_words.h). A word begins as its
// bytes; of all neighbours that the list of merges has, the pair that stands first in it becomes
// one token, the leftmost where there are several, until none is left. Decoding joins the bytes of
// the tokens: any bytes come back as they were. Equal to Hugging Face's tokenizers library.
#ifndef TEXT_BPE_H
#define TEXT_BPE_H

#include "pair_map.h"
#include "text.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BPE_END "<|endoftext|>"
#define BPE_PADDING "[PAD]"
#define BPE_MASK "[MASK]"

typedef struct {
    int32_t left, right, merged; // tokens
} BpeMerge;

typedef struct {
    char *source;             // what error messages call it
    int32_t count;            // V
    Text *tokens;             // (V) their bytes, fresh memory each
    int32_t byte_tokens[256]; // -1: none
    int32_t *specials;        // (special_count) tokens that a text is cut at, the longest first
    int32_t special_count;
    bool special_first[256]; // bytes that a special token begins with
    BpeMerge *merges;        // (pairs.count) the first that applies first
    PairMap pairs;           // numbers of merges
    bool decodes_only;       // its file holds no merges
} Bpe;

// Learns merges on texts until the vocabulary has `vocabulary` tokens or no pair occurs twice: at
// each step the most frequent pair of neighbours, of equal ones the one with the smallest tokens.
// First come the reserved tokens, which are special, then the 256 bytes in GPT-2's order. The
// result depends neither on threads nor on the order of the texts.
Bpe *bpe_train(const Text *texts, int count, int64_t vocabulary, const char *const *reserved,
               int reserved_count);
void bpe_free(Bpe *bpe);

bool bpe_is_special(const Bpe *bpe, int32_t token);

// The special token of a text; -1: there is none.
int32_t bpe_special(const Bpe *bpe, const char *text);

// Bytes of a text before its first special token, which goes to *special; all of them, and -1:
// there is none.
size_t bpe_special_next(const Bpe *bpe, Text text, int32_t *special);

// Tokens of a text, in *tokens (fresh memory); returns their number. Threads share the work.
size_t bpe_encode(const Bpe *bpe, Text text, int32_t **tokens);

// "BPE-Dropout" (Provilkov, Emelianenko, Voita, ACL 2020): before each merge of a word every one
// that is possible is left out with this probability, so that a word is cut into tokens in several
// ways.
typedef struct {
    double probability;
    uint32_t number; // of the text: each is cut in its own way, always the same
} BpeDropout;

// As bpe_encode(), with dropout.
size_t bpe_encode_dropout(const Bpe *bpe, Text text, BpeDropout dropout, int32_t **tokens);

// The bytes of tokens in range, NUL-terminated (fresh memory), their number in *size.
char *bpe_decode(const Bpe *bpe, const int32_t *tokens, size_t count, size_t *size);

// ---- making one: training and files -----------------------------------------
// The code points that GPT-2 writes for bytes, (256) below U+0144: itself where it is a visible
// character of Latin-1, else one beyond. Ascending code points are the order of the bytes in its
// vocabulary.
void bpe_byte_characters(uint16_t characters[256]);

Bpe *bpe_create(const char *source);
int32_t bpe_add_token(Bpe *bpe, Text bytes, bool special); // copies the bytes; returns the token
// Appends a merge that is not there yet; the token it makes stands in the vocabulary.
void bpe_add_merge(Bpe *bpe, int32_t left, int32_t right, int32_t merged);
// What encoding needs beside tokens and merges. Ends the program where a byte has no token.
void bpe_finish(Bpe *bpe);

#endif
