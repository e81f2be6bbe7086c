// What sentencepiece.c reads of a model's file, for sentencepiece_encode.c, too.
#ifndef TEXT_SENTENCEPIECE_MODEL_H
#define TEXT_SENTENCEPIECE_MODEL_H

#include "file.h"
#include "sentencepiece.h"

#define SPACE "\xe2\x96\x81"       // U+2581, what SentencePiece writes for a space
#define REPLACEMENT "\xef\xbf\xbd" // U+FFFD, what it decodes a byte to that is no UTF-8

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

struct Sentencepiece {
    FileMap file;
    Piece *pieces;
    int32_t count, end, padding;
    Text end_name, padding_name, unknown_surface;
    bool dummy_prefix, remove_extra_spaces; // the reason of a line's leading space
    uint64_t type;
    bool byte_fallback, space_as_suffix, escapes_spaces;
    Text charsmap; // of characters to what they are rewritten as; empty: as they are
};

// Tokens of a line, which spm_encode would give, appended to *tokens (*count): fresh memory where
// that is NULL.
typedef struct SentencepieceEncoder SentencepieceEncoder;
SentencepieceEncoder *sentencepiece_encoder_create(const Sentencepiece *model);
void sentencepiece_encoder_free(SentencepieceEncoder *encoder);
void sentencepiece_encode_line(const SentencepieceEncoder *encoder, Text line, int32_t **tokens,
                               size_t *count);

#endif
