// SentencePiece (Kudo and Richardson 2018, https://github.com/google/sentencepiece).
//
// Training runs SentencePiece's own program as a child process. Encoding and decoding are
// implemented here and equal spm_encode and spm_decode. The vocabulary is read from the model file,
// because the text of spm_export_vocab does not mark control, byte and unknown pieces.
#ifndef TEXT_SENTENCEPIECE_H
#define TEXT_SENTENCEPIECE_H

#include "file.h"
#include "text.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PIECE_SPACE "\xe2\x96\x81"       // U+2581, SentencePiece's mark for a space
#define PIECE_REPLACEMENT "\xef\xbf\xbd" // U+FFFD, decoded from a byte that is not UTF-8

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
    Text unknown_surface;                   // decoded text of an unknown piece
    bool dummy_prefix, remove_extra_spaces; // why a line has a leading space
    uint64_t type;
    bool byte_fallback, space_as_suffix, escapes_spaces;
    Text charsmap; // maps characters to replacements; empty: none
} Sentencepiece;

// Trains BPE with byte fallback on a text and writes PREFIX.model. The vocabulary is smaller than
// requested if the text has fewer pieces. `normalise`: rewrites characters by NFKC and collapses
// white space (spm_train's defaults). Without it, decoding restores the text exactly.
void sentencepiece_train(Text text, int64_t vocabulary, bool normalise, const char *prefix);

// Reads and checks a model file. Exits with an error if it is invalid or has no end-of-sentence
// piece.
Sentencepiece *sentencepiece_open(const char *path);
void sentencepiece_free(Sentencepiece *model);

// Encodes a text into *tokens (new memory); returns their number. Each newline becomes the
// end-of-sentence piece; with `last_end`, a last line without a newline also gets one. Exits with
// an error if the model is neither BPE nor unigram, or has unused pieces.
size_t sentencepiece_encode(const Sentencepiece *model, Text text, bool last_end, int32_t **tokens);

// Decodes as spm_decode does line by line; each end-of-sentence piece becomes a newline. Returns
// NUL-terminated new memory. The tokens must be in range.
char *sentencepiece_decode(const Sentencepiece *model, const int32_t *tokens, size_t count,
                           size_t *size);

#endif
