#include "sentencepiece.h"
#include "bytes.h"
#include "error.h"
#include "memory.h"
#include "process.h"
#include "sentencepiece_model.h"
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
    uint64_t number; // which field
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

// The next field of a message; false at its end.
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

// "<0x0A>" -> 10.
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

static void read_trainer(Message message, Sentencepiece *model) {
    for (Field field; read_field(&message, &field);) {
        if (field.number == 3) model->type = field.value;
        if (field.number == 24) model->space_as_suffix = field.value != 0;
        if (field.number == 35) model->byte_fallback = field.value != 0;
        if (field.number == 44) model->unknown_surface = field.bytes;
        if (field.number == 47) model->end_name = field.bytes;
        if (field.number == 48) model->padding_name = field.bytes;
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

// Token of the control piece of that name; -1: none.
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
    model->end_name = (Text){"</s>", 4};
    model->padding_name = (Text){"<pad>", 5};
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
        if (field.number == 2) read_trainer(part, model);
        if (field.number == 3) read_normalizer(part, model);
        if (field.number == 5) refuse_denormalizer(part);
    }
    model->end = find_control(model, model->end_name);
    model->padding = find_control(model, model->padding_name);
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

int32_t sentencepiece_size(const Sentencepiece *model) {
    return model->count;
}

int32_t sentencepiece_end(const Sentencepiece *model) {
    return model->end;
}

int32_t sentencepiece_padding(const Sentencepiece *model) {
    return model->padding;
}

bool sentencepiece_is_byte(const Sentencepiece *model, int32_t token) {
    return model->pieces[token].kind == PIECE_BYTE;
}

// ---- its programs -----------------------------------------------------------
// Ends the program with the reason that is in the last line of
//   spm_train_main.cc(275) [status.ok()] Internal: file.cc(660) [condition] Vocabulary size too
//   high. Program terminated with an unrecoverable error.
static _Noreturn void program_failed(const char *program, ProcessResult *result) {
    bytes_append(&result->errors, "", 1);
    const char *reason = "";
    for (char *rest, *line = strtok_r(result->errors.data, "\n", &rest); line;
         line = strtok_r(NULL, "\n", &rest))
        if (strncmp(line, "Program terminated", 18) != 0) reason = line;
    if (strstr(reason, "output->Write")) // all it says
        reason = "it cannot write the model: the disk is full, or a limit on the size of files is "
                 "reached";
    for (const char *bracket = strstr(reason, "] "); bracket; bracket = strstr(reason, "] "))
        reason = bracket + 2;
    if (result->exit_code > 128 && result->exit_code < 128 + 65)
        fail("%s was ended by signal %d (%s). %s", program, result->exit_code - 128,
             strsignal(result->exit_code - 128), reason);
    fail("%s failed (exit code %d): %s", program, result->exit_code,
         *reason ? reason : "without a reason");
}

// Its output, in *output; false: there is no such program.
static bool run(const char *const *arguments, Text input, Bytes *output) {
    ProcessResult result = process_run(arguments, input);
    if (result.start_error == ENOENT) return false;
    if (result.start_error != 0)
        fail("%s cannot be started: %s", arguments[0], strerror(result.start_error));
    if (result.exit_code != 0) program_failed(arguments[0], &result);
    bytes_free(&result.errors);
    *output = result.output;
    return true;
}

// spm_train does not look whether all of its model was written, and leaves it to the system when
// that comes to the disk. Where no byte more can be written, not all of it was.
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
        // Every character of the text is a piece; bytes are for those of other texts.
        "--character_coverage=1.0",
        // A paragraph is a line: the default would leave those above 4192 bytes out.
        "--max_sentence_length=1073741824",
        // WikiText's <unk> is a word like any other; what SentencePiece cannot encode has another
        // name.
        "--user_defined_symbols=<unk>", "--unk_piece=<unknown>",
        // Token 0 is padding, as in the published models.
        "--pad_id=0", "--eos_id=1", "--unk_id=2", "--bos_id=-1",
        // As many pieces as there are, where they are fewer.
        "--hard_vocab_limit=false",
        normalise ? "--normalization_rule_name=nmt_nfkc" : "--normalization_rule_name=identity",
        normalise ? "--remove_extra_whitespaces=true" : "--remove_extra_whitespaces=false", NULL};
    Bytes output;
    if (!run(arguments, text, &output))
        fail("spm_train is not installed, and the spm tokenizer needs it: install SentencePiece's "
             "programs (Debian and Ubuntu: apt install sentencepiece), or take another tokenizer");
    bytes_free(&output);
    finish_writing(prefix);
    free(prefix_flag);
    free(size_flag);

    char *vocabulary_path = format_string("%s.vocab", prefix); // nothing here reads it
    if (unlink(vocabulary_path) != 0 && errno != ENOENT)
        fail("%s: cannot remove: %s", vocabulary_path, strerror(errno));
    free(vocabulary_path);
}

// ---- encoding ---------------------------------------------------------------

static size_t count_byte(Text text, char byte) {
    size_t count = 0;
    for (size_t i = 0; i < text.size; i++) count += text.data[i] == byte;
    return count;
}

// One token of spm_encode's output, a decimal number and the space or newline after it, where *at
// is left at a newline.
static int32_t read_token(const Sentencepiece *model, Text output, size_t *at) {
    int64_t token = 0;
    size_t i = *at;
    for (; i < output.size && output.data[i] >= '0' && output.data[i] <= '9'; i++)
        if (token <= INT32_MAX) token = 10 * token + (output.data[i] - '0');
    const bool ended = i < output.size && (output.data[i] == ' ' || output.data[i] == '\n');
    if (i == *at || !ended || token >= model->count)
        fail("spm_encode wrote something that is no token of %s", model->file.path);
    *at = output.data[i] == ' ' ? i + 1 : i;
    return (int32_t)token;
}

// Whether no piece reaches from one word into the next, so that words are encoded alike alone and
// in a line: a space is only at the beginning of pieces, and a line's first word gets one as
// well.
static bool words_stand_alone(const Sentencepiece *model) {
    const size_t space = strlen(SPACE);
    if (!model->dummy_prefix) return false;
    for (int32_t i = 0; i < model->count; i++) {
        if (model->pieces[i].kind == PIECE_CONTROL) continue;
        Text text = model->pieces[i].text;
        while (text.size >= space && memcmp(text.data, SPACE, space) == 0)
            text = (Text){text.data + space, text.size - space};
        if (memmem(text.data, text.size, SPACE, space) || memchr(text.data, ' ', text.size))
            return false;
    }
    return true;
}

static bool
is_plain(char c) { // part of a word that no normalisation joins with what is before or after it
    return c > ' ' && c < 127;
}

// A text whose long lines are cut between words, as spm_encode's time and memory for one line of
// many megabytes have no bound: there a newline replaces the space. `lines`: the numbers of the
// lines that end so, `count` of them.
typedef struct {
    Bytes text;
    size_t *lines, count;
} CutText;

static CutText cut_long_lines(Text text) {
    enum { LONGEST_LINE = 1 << 16 };
    CutText cut = {.lines = allocate(text.size / LONGEST_LINE + 1, sizeof(size_t), "cut lines")};
    bytes_append(&cut.text, text.data, text.size);
    char *const data = cut.text.data;
    size_t line = 0, start = 0;
    for (size_t i = 0; i < text.size; i++) {
        const bool cuts = i - start >= LONGEST_LINE && i + 1 < text.size && data[i] == ' ' &&
                          is_plain(data[i - 1]) && is_plain(data[i + 1]);
        if (cuts) {
            data[i] = '\n';
            cut.lines[cut.count++] = line;
        }
        if (data[i] != '\n') continue;
        line++;
        start = i + 1;
    }
    return cut;
}

// By our own code, line by line.
static size_t encode_here(const Sentencepiece *model, Text text, bool last_end, int32_t **tokens) {
    SentencepieceEncoder *encoder = sentencepiece_encoder_create(model);
    size_t count = 0;
    *tokens = NULL;
    while (text.size > 0) {
        const char *newline = memchr(text.data, '\n', text.size);
        const size_t size = newline ? (size_t)(newline - text.data) : text.size;
        sentencepiece_encode_line(encoder, (Text){text.data, size}, tokens, &count);
        if (newline || last_end) {
            *tokens = grow_list(*tokens, count, sizeof(int32_t), "tokens");
            (*tokens)[count++] = model->end;
        }
        text = newline ? (Text){newline + 1, text.size - size - 1} : (Text){0};
    }
    sentencepiece_encoder_free(encoder);
    return count;
}

// Takes what spm_encode wrote for a text, a line of tokens per line; there it was cut.
static size_t read_tokens(const Sentencepiece *model, Text text, Text ids, const CutText *cut,
                          int32_t *tokens) {
    const bool unended = text.size > 0 && text.data[text.size - 1] != '\n';
    const size_t lines = count_byte(text, '\n') + unended;
    if (count_byte(ids, '\n') != lines)
        fail("spm_encode wrote %zu lines of tokens for %zu lines of text", count_byte(ids, '\n'),
             lines);
    size_t count = 0, line = 0, passed = 0; // passed: of the cuts
    for (size_t i = 0; i < ids.size;) {
        if (ids.data[i] != '\n') {
            tokens[count++] = read_token(model, ids, &i);
            continue;
        }
        if (passed < cut->count && cut->lines[passed] == line)
            passed++;
        else
            tokens[count++] = model->end;
        line++;
        i++;
    }
    return count;
}

size_t sentencepiece_encode(const Sentencepiece *model, Text text, bool last_end,
                            int32_t **tokens) {
    CutText cut = {0};
    Text lines = text;
    if (words_stand_alone(model)) {
        cut = cut_long_lines(text);
        lines = (Text){cut.text.data, cut.text.size};
    }
    char *model_flag = format_string("--model=%s", model->file.path);
    const char *const arguments[] = {"spm_encode", model_flag, "--output_format=id",
                                     "--minloglevel=1", NULL};
    Bytes output = {0};
    size_t count;
    if (run(arguments, lines, &output)) {
        const Text ids = {output.data, output.size};
        *tokens = allocate(count_byte(ids, ' ') + 2 * count_byte(ids, '\n') + 1, sizeof(int32_t),
                           "tokens");
        count = read_tokens(model, lines, ids, &cut, *tokens);
        const bool unended = text.size > 0 && text.data[text.size - 1] != '\n';
        if (unended && !last_end) count--;
    } else {
        count = encode_here(model, text, last_end, tokens);
    }
    free(model_flag);
    bytes_free(&output);
    bytes_free(&cut.text);
    free(cut.lines);
    return count;
}

// ---- decoding: SentencePieceProcessor::Decode of sentencepiece_processor.cc ----

typedef struct {
    Bytes text;
    size_t line;      // where the line began
    bool at_start;    // a leading space of the next piece is not the text's own
    bool took_prefix; // the last piece's leading space was the dummy prefix
} Decoder;

static void start_line(Decoder *d) {
    d->line = d->text.size;
    d->at_start = true;
    d->took_prefix = false;
}

// A run of byte pieces: what is no UTF-8 in it becomes U+FFFD, byte by byte. Returns the tokens
// used.
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
            bytes_append(&d->text, REPLACEMENT, strlen(REPLACEMENT));
        i += size > 0 ? size : 1;
    }
    return length;
}

static void decode_piece(Decoder *d, const Sentencepiece *model, const Piece *piece) {
    const size_t space = strlen(SPACE);
    Text text = piece->text;
    if (d->took_prefix || d->text.size > d->line) d->at_start = false;
    d->took_prefix = false;
    if (piece->kind == PIECE_CONTROL) return;
    if (piece->kind == PIECE_UNKNOWN) {
        bytes_append(&d->text, model->unknown_surface.data, model->unknown_surface.size);
        return;
    }
    const bool own_spaces = !model->dummy_prefix && !model->remove_extra_spaces;
    if (d->at_start && !own_spaces && text.size >= space && memcmp(text.data, SPACE, space) == 0) {
        text = (Text){text.data + space, text.size - space};
        // Where extra spaces were removed, all leading ones of the line go.
        d->took_prefix = !model->remove_extra_spaces;
    }
    while (text.size > 0) {
        const char *mark = memmem(text.data, text.size, SPACE, space);
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
