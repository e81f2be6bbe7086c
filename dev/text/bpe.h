// Byte-level byte-pair encoding (Sennrich et al. 2016, Radford et al. 2019).
//
// A text is split at added tokens, then into the words of a pattern (bpe_words.h). A word starts as
// its bytes. Of all pairs of neighbours in the list of merges, the first in the list becomes one
// token, the leftmost if it occurs several times, until no pair is left. Decoding joins the bytes
// of the tokens and restores any bytes, except as noted below. Equal to Hugging Face's tokenizers
// library.
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

// Properties of a token.
enum {
    BPE_ADDED = 1,   // a text is split at it
    BPE_SPECIAL = 2, // it is a control token, not text: output may omit it
    BPE_NORMALIZED = 4,
    BPE_LEFT = 8,         // it takes the white space before it
    BPE_RIGHT = 16,       // it takes the white space after it
    BPE_SINGLE_WORD = 32, // it does not match inside a word
    BPE_VERBATIM = 64,    // files contain it as it is, not byte by byte
    BPE_OUTSIDE = 128     // it is only among the added tokens of its file
};

// A trie of added tokens. Node 0 is the root. The child of a node for a byte is 1 + the number of
// the pair (node, byte) in `children`.
typedef struct {
    PairMap children;
    int32_t *tokens; // (children.count + 1) the token that ends at a node; -1: none
    bool first[256]; // first bytes of tokens
} BpeTrie;

typedef struct {
    char *source;             // its name in error messages
    int32_t count;            // V
    Text *tokens;             // (V) their bytes, allocated each; empty: an unused number
    uint8_t *flags;           // (V)
    int32_t byte_tokens[256]; // -1: none
    BpeTrie added[2];         // a text is split at [0], then at [1] (BPE_NORMALIZED)
    BpeMerge *merges;         // (pairs.count) by priority
    PairMap pairs;            // numbers of merges
    BpePattern pattern;
    bool prefix_space; // adds a missing space before a text and after an added token
    bool composes;     // normalises a text to NFC
    bool decodes_only; // its file has no merges
    // A word in `whole` becomes its token without merges. NULL: no such words.
    Words *whole;
    int32_t *whole_tokens;            // (words_count(whole))
    int32_t end, padding, mask;       // -1: none
    int32_t *before, *after;          // tokens added around a text
    size_t before_count, after_count; // their numbers
    char *settings, *model_settings;  // members of tokenizer.json and of its model as read;
                                      // NULL: our own
} Bpe;

// Learns merges on texts until the vocabulary has `vocabulary` tokens or no pair occurs twice. Each
// step merges the most frequent pair of neighbours, among equals the one with the smallest tokens.
// The reserved tokens, which are special, come first, then the 256 bytes in GPT-2's order. The
// result depends neither on threads nor on the order of the texts.
Bpe *bpe_train(const Text *texts, int count, int64_t vocabulary, const char *const *reserved,
               int reserved_count);
void bpe_free(Bpe *bpe);

// Returns the token with BPE_ADDED and that text, or -1.
int32_t bpe_added(const Bpe *bpe, const char *text);

// Visits the parts of a text in order: added tokens, and the text between them (token -1). Stops if
// a call returns false.
typedef bool BpeVisit(void *context, Text part, int32_t token);
void bpe_walk(const Bpe *bpe, Text text, BpeVisit *visit, void *context);

// Returns a position at or after `from` (> 0, at most text.size) where a text can be split and each
// part encoded by itself, or the size of the text if there is none. Reads no more of the text than
// it needs for that.
size_t bpe_cut(const Bpe *bpe, Text text, size_t from);

// Encodes a text into *tokens (new memory) on all threads; returns their number. Exits with an
// error if the text has a byte without a token. Does not add the tokens around a text.
size_t bpe_encode(const Bpe *bpe, Text text, int32_t **tokens);

// Returns the bytes of tokens, NUL-terminated (new memory), and their number in *size. The tokens
// must be in range.
char *bpe_decode(const Bpe *bpe, const int32_t *tokens, size_t count, size_t *size);

// ---- construction: training and files ---------------------------------------
// Sets the (256) code points that GPT-2 writes for bytes, all below U+0144: the byte itself if it
// is a visible character of Latin-1, else one from U+0100 on. The vocabulary has the bytes in
// ascending order of code points.
void bpe_byte_characters(uint16_t characters[256]);

Bpe *bpe_create(const char *source);
int32_t bpe_add_token(Bpe *bpe, Text bytes, int flags); // copies the bytes; returns the token
// Appends a merge that does not exist yet. Its token must be in the vocabulary.
void bpe_add_merge(Bpe *bpe, int32_t left, int32_t right, int32_t merged);
// Prepares what encoding needs in addition to tokens and merges, and finds the tokens named
// BPE_END, BPE_PADDING and BPE_MASK.
void bpe_finish(Bpe *bpe);

#endif
