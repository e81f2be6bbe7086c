// Byte-level byte-pair encoding (Sennrich et al. 2016, Radford et al. 2019).
//
// A text is cut at added tokens, then into the words of a pattern (bpe_words.h). A word begins as
// its bytes; of all neighbours that the list of merges has, the pair that is first in it becomes
// one token, the leftmost where there are several, until none is left. Decoding joins the bytes of
// the tokens: any bytes come back as they were, where nothing below says otherwise. Equal to
// Hugging Face's tokenizers library.
#ifndef TEXT_BPE_H
#define TEXT_BPE_H

#include "bpe_words.h"
#include "pair_map.h"
#include "text.h"
#include "words.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BPE_END "<|endoftext|>"
#define BPE_PADDING "[PAD]"
#define BPE_MASK "[MASK]"

typedef struct {
    int32_t left, right, merged; // tokens
} BpeMerge;

// What is known of a token.
enum {
    BPE_ADDED = 1,   // a text is cut at it
    BPE_SPECIAL = 2, // it means something, and is no text: who reads a text may leave it out
    BPE_NORMALIZED = 4,
    BPE_LEFT = 8,         // it takes the white space before it,
    BPE_RIGHT = 16,       // and after it
    BPE_SINGLE_WORD = 32, // it is no part of a word
    BPE_VERBATIM = 64,    // files write it as it is, not byte by byte
    BPE_OUTSIDE = 128     // it is among the added tokens of its file alone
};

// Added tokens by their bytes: from node 0 on, the child of a node for a byte is 1 + the number of
// that pair.
typedef struct {
    PairMap children;
    int32_t *tokens; // (children.count + 1) that end at a node; -1: none
    bool first[256]; // bytes that one begins with
} BpeTrie;

typedef struct {
    char *source;             // what error messages call it
    int32_t count;            // V
    Text *tokens;             // (V) their bytes, fresh memory each; of no size: no token has that
                              // number
    uint8_t *flags;           // (V)
    int32_t byte_tokens[256]; // -1: none
    BpeTrie added[2];         // which a text is cut at first, and then (BPE_NORMALIZED)
    BpeMerge *merges;         // (pairs.count) the first that applies first
    PairMap pairs;            // numbers of merges
    BpePattern pattern;
    bool prefix_space; // a space is put before a text, and after an added token, that has none
    bool composes;     // a text is normalised to NFC
    bool decodes_only; // its file holds no merges
    // A word that is one of these becomes that token, whatever merges make of it; NULL: none does.
    Words *whole;
    int32_t *whole_tokens;            // (words_count(whole))
    int32_t end, padding, mask;       // -1: none
    int32_t *before, *after;          // what is put around a text,
    size_t before_count, after_count; // so many
    char *settings, *model_settings;  // members of tokenizer.json and of its model, as they were
                                      // read; NULL: our own
} Bpe;

// Learns merges on texts until the vocabulary has `vocabulary` tokens or no pair occurs twice: at
// each step the most frequent pair of neighbours, of equal ones the one with the smallest tokens.
// First come the reserved tokens, which are special, then the 256 bytes in GPT-2's order. The
// result depends neither on threads nor on the order of the texts.
Bpe *bpe_train(const Text *texts, int count, int64_t vocabulary, const char *const *reserved,
               int reserved_count);
void bpe_free(Bpe *bpe);

// The token of that text which BPE_ADDED has; -1: there is none.
int32_t bpe_added(const Bpe *bpe, const char *text);

// The parts of a text in their order: an added token, or (token -1) text between two. Ends where
// one of the calls returns false.
typedef bool BpeVisit(void *context, Text part, int32_t token);
void bpe_walk(const Bpe *bpe, Text text, BpeVisit *visit, void *context);

// The first place at or after `from`, 0 < from, where a text can be cut and each part encoded by
// itself; the size of the text if there is none.
size_t bpe_cut(const Bpe *bpe, Text text, size_t from);

// Tokens of a text, in *tokens (fresh memory); returns their number. Threads share the work. Ends
// the program where the text has a byte that no token is. Tokens that are put around a text are not
// among them.
size_t bpe_encode(const Bpe *bpe, Text text, int32_t **tokens);

// The bytes of tokens in range, NUL-terminated (fresh memory), their number in *size.
char *bpe_decode(const Bpe *bpe, const int32_t *tokens, size_t count, size_t *size);

// ---- making one: training and files -----------------------------------------
// The code points that GPT-2 writes for bytes, (256) below U+0144: itself where it is a visible
// character of Latin-1, else one beyond. Ascending code points are the order of the bytes in its
// vocabulary.
void bpe_byte_characters(uint16_t characters[256]);

Bpe *bpe_create(const char *source);
int32_t bpe_add_token(Bpe *bpe, Text bytes, int flags); // copies the bytes; returns the token
// Appends a merge that does not exist yet; the token it makes is in the vocabulary.
void bpe_add_merge(Bpe *bpe, int32_t left, int32_t right, int32_t merged);
// What encoding needs in addition to tokens and merges, and the tokens that BPE_END, BPE_PADDING
// and BPE_MASK name.
void bpe_finish(Bpe *bpe);

#endif
