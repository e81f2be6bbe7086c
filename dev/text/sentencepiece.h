// SentencePiece (Kudo and Richardson 2018, https://github.com/google/sentencepiece).
//
// Training is its own program, run as a child process. Encoding and decoding are ours, equal to
// spm_encode and spm_decode, and so is the vocabulary, from the model file: spm_export_vocab's text
// does not say which pieces are control, byte or unknown.
#ifndef TEXT_SENTENCEPIECE_H
#define TEXT_SENTENCEPIECE_H

#include "file.h"
#include "text.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PIECE_SPACE "\xe2\x96\x81"       // U+2581, what SentencePiece writes for a space
#define PIECE_REPLACEMENT "\xef\xbf\xbd" // U+FFFD, what it decodes a byte to that is no UTF-8

// SentencePiece.Type in sentencepiece_model.proto.
enum {
    PIECE_NORMAL = 1,
    PIECE_UNKNOWN,
    PIECE_CONTROL,
    PIECE_USER_DEFINED,
    PIECE_UNUSED,
    PIECE_BYTE
};

// TrainerSpec.ModelType.
enum { MODEL_UNIGRAM = 1, MODEL_BPE };

typedef struct {
    Text text; // in the mapped file
    float score;
    uint8_t kind;
    char byte; // PIECE_BYTE
} Piece;

typedef struct {
    FileMap file;
    Piece *pieces;                          // (count)
    int32_t count;                          // V
    int32_t end;                            // "</s>"
    int32_t padding;                        // "<pad>"; -1: none
    Text unknown_surface;                   // what an unknown piece is decoded to
    bool dummy_prefix, remove_extra_spaces; // the reason of a line's leading space
    uint64_t type;
    bool byte_fallback, space_as_suffix, escapes_spaces;
    Text charsmap; // of characters to what they are rewritten as; empty: as they are
} Sentencepiece;

// Trains BPE with byte fallback on a text and writes PREFIX.model. A text that has fewer pieces
// than asked for gives what it has. `normalise`: characters are rewritten by NFKC and white space
// is collapsed (spm_train's defaults); without it text comes back from its tokens as it was.
void sentencepiece_train(Text text, int64_t vocabulary, bool normalise, const char *prefix);

// Reads and checks a model file; ends the program if it is none, or has no end-of-sentence piece.
Sentencepiece *sentencepiece_open(const char *path);
void sentencepiece_free(Sentencepiece *model);

// Tokens of a text, the end-of-sentence piece in place of each newline; with `last_end` also after
// a last line that has none. Fresh memory in *tokens; returns their number. Ends the program where
// the model is neither BPE nor unigrams, or has unused pieces.
size_t sentencepiece_encode(const Sentencepiece *model, Text text, bool last_end, int32_t **tokens);

// Equal to spm_decode line by line, each end-of-sentence piece a newline. NUL-terminated fresh
// memory. The tokens must be in range.
char *sentencepiece_decode(const Sentencepiece *model, const int32_t *tokens, size_t count,
                           size_t *size);

#endif
