#include "sentencepiece.h"
#include "bytes.h"
#include "error.h"
#include "memory.h"
#include "process.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_UNKNOWN " \xe2\x81\x87 "

// ---- the model file: a protocol buffer (https://protobuf.dev/programming-guides/encoding) ----

typedef struct {
    Text text; // of the message
    size_t at;
    const char *path;
} Message;

typedef struct {
    uint64_t number; // field number
    uint64_t value;  // of a varint
    Text bytes;      // of a string or message
} Field;

static _Noreturn void broken(const Message *message) {
    fail("%s: is not a SentencePiece model", message->path);
}

static uint64_t read_varint(Message *message) {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        if (message->at >= message->text.size) broken(message);
        const unsigned char byte = (unsigned char)message->text.data[message->at++];
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) return value;
    }
    broken(message);
}

static Text read_bytes(Message *message, uint64_t size) {
    if (size > message->text.size - message->at) broken(message);
    const Text bytes = {message->text.data + message->at, (size_t)size};
    message->at += (size_t)size;
    return bytes;
}

// Reads the next field of a message; returns false at its end.
static bool read_field(Message *message, Field *field) {
    if (message->at == message->text.size) return false;
    const uint64_t tag = read_varint(message);
    *field = (Field){.number = tag >> 3};
    switch (tag & 7) {
    case 0:
        field->value = read_varint(message);
        break;
    case 1:
        field->bytes = read_bytes(message, 8);
        break;
    case 2:
        field->bytes = read_bytes(message, read_varint(message));
        break;
    case 5:
        field->bytes = read_bytes(message, 4);
        break;
    default:
        broken(message);
    }
    return true;
}

// Returns the byte of a piece: "<0x0A>" -> 10.
static char piece_byte(const Message *message, Text name) {
    char digits[3] = {0};
    if (name.size != 6 || memcmp(name.data, "<0x", 3) != 0 || name.data[5] != '>') broken(message);
    memcpy(digits, name.data + 3, 2);
    if (strspn(digits, "0123456789ABCDEF") != 2) broken(message);
    return (char)strtol(digits, NULL, 16);
}

static Piece read_piece(Message message) {
    Piece piece = {.kind = PIECE_NORMAL};
    for (Field field; read_field(&message, &field);) {
        if (field.number == 1) piece.text = field.bytes;
        if (field.number == 2 && field.bytes.size == sizeof(piece.score))
            memcpy(&piece.score, field.bytes.data, sizeof(piece.score));
        if (field.number == 3) {
            if (field.value < PIECE_NORMAL || field.value > PIECE_BYTE) broken(&message);
            piece.kind = (uint8_t)field.value;
        }
    }
    if (piece.text.size == 0) broken(&message);
    if (piece.kind == PIECE_BYTE) piece.byte = piece_byte(&message, piece.text);
    return piece;
}

// Names of the control pieces to find.
typedef struct {
    Text end, padding;
} ControlNames;

static void read_trainer(Message message, Sentencepiece *model, ControlNames *names) {
    for (Field field; read_field(&message, &field);) {
        if (field.number == 3) model->type = field.value;
        if (field.number == 24) model->space_as_suffix = field.value != 0;
        if (field.number == 35) model->byte_fallback = field.value != 0;
        if (field.number == 44) model->unknown_surface = field.bytes;
        if (field.number == 47) names->end = field.bytes;
        if (field.number == 48) names->padding = field.bytes;
    }
}

static void read_normalizer(Message message, Sentencepiece *model) {
    for (Field field; read_field(&message, &field);) {
        if (field.number == 2) model->charsmap = field.bytes;
        if (field.number == 3) model->dummy_prefix = field.value != 0;
        if (field.number == 4) model->remove_extra_spaces = field.value != 0;
        if (field.number == 5) model->escapes_spaces = field.value != 0;
    }
}

static void refuse_denormalizer(Message message) {
    for (Field field; read_field(&message, &field);)
        if (field.number == 2 && field.bytes.size > 0)
            fail("%s: rewrites decoded text (denormalizer_spec), which is not supported",
                 message.path);
}

// Returns the token of the control piece with that name, or -1.
static int32_t find_control(const Sentencepiece *model, Text name) {
    for (int32_t i = 0; i < model->count; i++) {
        const Piece *piece = &model->pieces[i];
        if (piece->kind == PIECE_CONTROL && piece->text.size == name.size &&
            memcmp(piece->text.data, name.data, name.size) == 0)
            return i;
    }
    return -1;
}

Sentencepiece *sentencepiece_open(const char *path) {
    Sentencepiece *model = allocate(1, sizeof(*model), "a SentencePiece model");
    model->file = file_map(path);
    ControlNames names = {{"</s>", 4}, {"<pad>", 5}};
    model->unknown_surface = (Text){DEFAULT_UNKNOWN, strlen(DEFAULT_UNKNOWN)};
    model->dummy_prefix = model->remove_extra_spaces = model->escapes_spaces = true;
    model->type = MODEL_UNIGRAM;

    const Message whole = {{(const char *)model->file.data, model->file.size}, 0, path};
    Message message = whole;
    int64_t count = 0;
    for (Field field; read_field(&message, &field);) count += field.number == 1;
    if (count == 0 || count > INT32_MAX) broken(&whole);
    model->pieces = allocate((size_t)count, sizeof(Piece), "a SentencePiece vocabulary");

    message = whole;
    for (Field field; read_field(&message, &field);) {
        const Message part = {field.bytes, 0, path};
        if (field.number == 1) model->pieces[model->count++] = read_piece(part);
        if (field.number == 2) read_trainer(part, model, &names);
        if (field.number == 3) read_normalizer(part, model);
        if (field.number == 5) refuse_denormalizer(part);
    }
    model->end = find_control(model, names.end);
    model->padding = find_control(model, names.padding);
    if (model->end < 0)
        fail("%s: has no end-of-sentence piece (train it with --eos_id), found %d pieces", path,
             model->count);
    return model;
}

void sentencepiece_free(Sentencepiece *model) {
    file_unmap(&model->file);
    free(model->pieces);
    free(model);
}

// ---- training ---------------------------------------------------------------
// Exits with an error that gives the reason from the last line of output such as
//   spm_train_main.cc(275) [status.ok()] Internal: file.cc(660) [condition] Vocabulary size too
//   high. Program terminated with an unrecoverable error.
static _Noreturn void training_failed(ProcessResult *result) {
    bytes_append(&result->errors, "", 1);
    const char *reason = "";
    for (char *rest, *line = strtok_r(result->errors.data, "\n", &rest); line;
         line = strtok_r(NULL, "\n", &rest))
        if (strncmp(line, "Program terminated", 18) != 0) reason = line;
    if (strstr(reason, "output->Write")) // its whole message
        reason = "it cannot write the model: the disk is full, or a limit on the size of files is "
                 "reached";
    for (const char *bracket = strstr(reason, "] "); bracket; bracket = strstr(reason, "] "))
        reason = bracket + 2;
    if (result->exit_code > 128 && result->exit_code < 128 + 65)
        fail("spm_train was ended by signal %d (%s). %s", result->exit_code - 128,
             strsignal(result->exit_code - 128), reason);
    fail("spm_train failed (exit code %d): %s", result->exit_code,
         *reason ? reason : "without a reason");
}

// spm_train does not check that its whole model was written, and does not sync it to disk. If one
// more byte cannot be written, the model is incomplete.
static void finish_writing(const char *prefix) {
    char *path = format_string("%s.model", prefix);
    const int fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    const off_t size = fd < 0 ? -1 : lseek(fd, 0, SEEK_END);
    if (size < 0 || write(fd, "", 1) != 1 || ftruncate(fd, size) != 0 || fsync(fd) != 0)
        fail("%s: cannot write: %s", path, strerror(errno));
    close(fd);
    free(path);
}

void sentencepiece_train(Text text, int64_t vocabulary, bool normalise, const char *prefix) {
    char *prefix_flag = format_string("--model_prefix=%s", prefix);
    char *size_flag = format_string("--vocab_size=%lld", (long long)vocabulary);
    const char *const arguments[] = {
        "spm_train", "--input=/dev/stdin", prefix_flag, size_flag, "--minloglevel=1",
        "--model_type=bpe", "--byte_fallback=true",
        // Every character of the text is a piece; bytes are for characters of other texts.
        "--character_coverage=1.0",
        // A paragraph is a line; the default would omit lines above 4192 bytes.
        "--max_sentence_length=1073741824",
        // WikiText's <unk> is a word like any other; the piece for unknown text gets another name.
        "--user_defined_symbols=<unk>", "--unk_piece=<unknown>",
        // Token 0 is padding, as in the published models.
        "--pad_id=0", "--eos_id=1", "--unk_id=2", "--bos_id=-1",
        // Fewer pieces are allowed if the text has no more.
        "--hard_vocab_limit=false",
        normalise ? "--normalization_rule_name=nmt_nfkc" : "--normalization_rule_name=identity",
        normalise ? "--remove_extra_whitespaces=true" : "--remove_extra_whitespaces=false", NULL};
    ProcessResult result = process_run(arguments, text);
    if (result.start_error == ENOENT)
        fail("spm_train is not installed, and the spm tokenizer needs it: install SentencePiece's "
             "programs (Debian and Ubuntu: apt install sentencepiece), or take another tokenizer");
    if (result.start_error != 0)
        fail("spm_train cannot be started: %s", strerror(result.start_error));
    if (result.exit_code != 0) training_failed(&result);
    process_result_free(&result);
    finish_writing(prefix);
    free(prefix_flag);
    free(size_flag);

    char *vocabulary_path = format_string("%s.vocab", prefix); // not used here
    if (unlink(vocabulary_path) != 0 && errno != ENOENT)
        fail("%s: cannot remove: %s", vocabulary_path, strerror(errno));
    free(vocabulary_path);
}

// ---- decoding: SentencePieceProcessor::Decode of sentencepiece_processor.cc ----

typedef struct {
    Bytes text;
    size_t line;      // where the line begins
    bool at_start;    // a leading space of the next piece is not part of the text
    bool took_prefix; // the last piece's leading space was the dummy prefix
} Decoder;

static void start_line(Decoder *d) {
    d->line = d->text.size;
    d->at_start = true;
    d->took_prefix = false;
}

// Decodes a run of byte pieces; each byte that is not UTF-8 becomes U+FFFD. Returns the number of
// tokens used.
static size_t decode_bytes(Decoder *d, const Sentencepiece *model, const int32_t *tokens,
                           size_t count) {
    size_t length = 0;
    while (length < count && model->pieces[tokens[length]].kind == PIECE_BYTE) length++;
    for (size_t i = 0; i < length;) {
        char next[4];
        size_t left = 0;
        for (; left < 4 && i + left < length; left++)
            next[left] = model->pieces[tokens[i + left]].byte;
        const size_t size = utf8_length((Text){next, left});
        if (size > 0)
            bytes_append(&d->text, next, size);
        else
            bytes_append(&d->text, PIECE_REPLACEMENT, strlen(PIECE_REPLACEMENT));
        i += size > 0 ? size : 1;
    }
    return length;
}

static void decode_piece(Decoder *d, const Sentencepiece *model, const Piece *piece) {
    const size_t space = strlen(PIECE_SPACE);
    Text text = piece->text;
    if (d->took_prefix || d->text.size > d->line) d->at_start = false;
    d->took_prefix = false;
    if (piece->kind == PIECE_CONTROL) return;
    if (piece->kind == PIECE_UNKNOWN) {
        bytes_append(&d->text, model->unknown_surface.data, model->unknown_surface.size);
        return;
    }
    const bool own_spaces = !model->dummy_prefix && !model->remove_extra_spaces;
    if (d->at_start && !own_spaces && text.size >= space &&
        memcmp(text.data, PIECE_SPACE, space) == 0) {
        text = (Text){text.data + space, text.size - space};
        // If extra spaces were removed, all leading spaces of the line are dropped.
        d->took_prefix = !model->remove_extra_spaces;
    }
    while (text.size > 0) {
        const char *mark = memmem(text.data, text.size, PIECE_SPACE, space);
        const size_t before = mark ? (size_t)(mark - text.data) : text.size;
        bytes_append(&d->text, text.data, before);
        if (!mark) break;
        bytes_append(&d->text, " ", 1);
        text = (Text){mark + space, text.size - before - space};
    }
}

char *sentencepiece_decode(const Sentencepiece *model, const int32_t *tokens, size_t count,
                           size_t *size) {
    Decoder d = {0};
    start_line(&d);
    for (size_t i = 0; i < count;) {
        const Piece *piece = &model->pieces[tokens[i]];
        if (tokens[i] == model->end) {
            bytes_append(&d.text, "\n", 1);
            start_line(&d);
            i++;
        } else if (piece->kind == PIECE_BYTE) {
            i += decode_bytes(&d, model, tokens + i, count - i);
        } else {
            decode_piece(&d, model, piece);
            i++;
        }
    }
    *size = d.text.size;
    bytes_append(&d.text, "", 1);
    return d.text.data;
}
