// The decoder in the page of a run: the program's models, tokenizers and readers, compiled to
// WebAssembly (dev/build/wasm.mk), and the functions that the page's worker calls. It can only
// access files that the page passes to it.
//
// A text is a list of tokens. session_begin() creates it from a prompt, and each session_next()
// returns one more token: first those of the prompt, then tokens drawn from the model, until the
// page stops. The result is that of --prompt with the same weights, settings and seed. A
// translator's text is the source, the first token of its decoder, and the translation; BERT's text
// contains masks.
//
// Errors end the instance by fail(), and the worker starts another one. The worker provides
// functions that a page lacks (signals, programs, other processes); absent.txt lists them.

#include "attention_view.h"
#include "error.h"
#include "generation.h"
#include "masked.h"
#include "memory.h"
#include "page_model.h"
#include "reader.h"
#include "run_data.h"
#include "sampler.h"
#include "transformer_plan.h"
#include "translation.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

typedef struct {
    int32_t token;
    float loss;       // -log p; NaN: not predicted by the model
    int32_t joined;   // number of tokens before it that are merged with this one because they are
                      // bytes of the same character
    int32_t drawn;    // 0: of the prompt
    int32_t ended;    // it ends the text and is not part of it
    int32_t size;     // bytes of `text`
    const char *text; // text of the token, valid until the next call
} ShownToken;

typedef struct Session Session;

// A function that the worker can call.
#define EXPORTED(type, name, ...)                                                                  \
    type name(__VA_ARGS__) __attribute__((export_name(#name)));                                    \
    type name(__VA_ARGS__)

// Each in its own file (train_NAME.c).
extern const ModelType fastformer, gpt2, llama, bert, translate;

// ---- files ------------------------------------------------------------------
// Replaces dev/base/file.c. The only global state, like a file system.

static FileMap *files; // (file_count)
static size_t file_count;

EXPORTED(void *, session_allocate, size_t size) {
    return allocate(size, 1, "a file");
}

// Adds a file before the session is opened; owns both arrays.
EXPORTED(void, session_add_file, char *name, unsigned char *data, size_t size) {
    files = grow_list(files, file_count, sizeof(FileMap), "files");
    files[file_count++] = (FileMap){name, data, size};
}

static const FileMap *find(const char *path) {
    for (size_t i = 0; i < file_count; i++)
        if (strcmp(files[i].path, path_name(path)) == 0) return &files[i];
    return NULL;
}

bool file_exists(const char *path) {
    return find(path);
}

bool file_try_map(const char *path, FileMap *file) {
    const FileMap *found = find(path);
    if (found) *file = (FileMap){copy_string(path), found->data, found->size};
    return found;
}

FileMap file_map(const char *path) {
    FileMap file;
    if (!file_try_map(path, &file)) fail("%s: is not in the page", path);
    return file;
}

void file_unmap(FileMap *file) {
    free(file->path);
    *file = (FileMap){0};
}

// stat(), used to distinguish a tokenizer's directory from its file.
int file_status(const char *path, struct stat *status) {
    *status = (struct stat){.st_mode = strcmp(path, ".") == 0 ? S_IFDIR : S_IFREG};
    return file_exists(path) || S_ISDIR(status->st_mode) ? 0 : -1;
}

const Exchange fastformer_exchange;

// ---- the model --------------------------------------------------------------

struct Session {
    Run run;
    Generation generation;
    SamplerSettings sampler;
    Random random;
    Reader *reader;  // of a language model; NULL: no text has begun
    bool blank;      // the next token must begin with the blank that ended the prompt
    real *logits;    // (V) of the next token
    int32_t *tokens; // (count), the first `given` are not drawn
    size_t count, given, read, shown;
    size_t source;  // translator: the first `source` tokens are the source text
    double *losses; // (count - given) of a translation; or NULL
    char *decoded;
    AttentionView *view; // NULL: not used yet
    JsonWriter attention, guesses;
    ShownToken token;
};

static const ModelType *type_of(const Safetensors *weights) {
    static const ModelType *const types[] = {&fastformer, &gpt2, &llama, &bert, &translate};
    const char *name = safetensors_metadata(weights, "model");
    for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++)
        if (strcmp(types[i]->name, name ? name : "") == 0) return types[i];
    fail("%s: a model that the page does not know", name ? name : "");
}

// Reads a row (n) of a parameter in the format of page_model.h. Returns the start of the next row.
static const unsigned char *load_row(const unsigned char *at, const unsigned char *end, bool exact,
                                     real *out, size_t n) {
    const size_t size = exact ? n * sizeof(float) : sizeof(float) + n;
    if ((size_t)(end - at) < size) fail("the weights are cut off");
    float value = 0;
    for (size_t i = 0; i < n; i++) {
        if (exact || i == 0) memcpy(&value, at + i * sizeof(float), sizeof(float));
        out[i] = exact ? value : page_weight((int8_t)at[sizeof(float) + i], value);
    }
    return at + size;
}

static void load_weights(Run *run) {
    const ParameterTable *table = run->type->parameters(run->model);
    const bool exact = file_exists("weights.float32");
    const FileMap file = file_map(exact ? "weights.float32" : "weights.int8");
    const unsigned char *at = file.data;
    real *values = allocate(table->total, sizeof(real), "parameters");
    for (int i = 0; i < table->count; i++) {
        const Parameter *p = &table->items[i];
        const size_t n = p->size / (size_t)p->shape[0], end = p->offset + p->size;
        for (size_t row = p->offset; row < end; row += n)
            at = load_row(at, file.data + file.size, exact || p->rank == 1, values + row, n);
    }
    run->type->write(run->model, MODEL_VALUES, values);
    free(values);
}

EXPORTED(Session *, session_open, void) {
    Session *session = allocate(1, sizeof(*session), "a session");
    Run *run = &session->run;
    run->program = "page";
    run->weights = safetensors_open("model.safetensors");
    run->type = type_of(run->weights);
    run->options = trainer_options_create(run->type);
    options_from_metadata(run->options, OPTION_MODEL, run->weights, "");
    options_set(run->options, OPT_PRECISION, file_exists("weights.float32") ? "fp32" : "bf16",
                "the page");
    run->dataset = run_data_open(run->options, run->weights, true);
    const TaskType *task = run->type->task;
    run->setup =
        (ModelSetup){.type = run->type,
                     .options = run->options,
                     .positions = safetensors_integer(run->weights, "n_positions", 1, 1 << 28),
                     .vocabulary = safetensors_integer(run->weights, "vocab_size", 1, INT32_MAX),
                     .padding_token = run->dataset->padding,
                     .end_token = run->dataset->end};
    if (!run->type->decoder_create) {
        const TaskSetup setup = {run->options, run->dataset, run->setup.positions,
                                 false,        false,        {false}};
        run->task = task->create(&setup);
        const TaskPlan *plan = task->plan(run->task);
        run->setup.batch = plan->batch;
        run->setup.length = plan->length;
        run->setup.rows = plan->rows;
    }
    run->model = run->type->create(&run->setup);
    load_weights(run);
    session->generation = generation_open(run->weights, run->dataset, run->setup.vocabulary);
    session->logits = allocate((size_t)run->setup.vocabulary, sizeof(real), "logits");
    return session;
}

// Describes the model as JSON: the first layer of the decoder stack, and the bytes that decoding
// stores for a text of all positions, with this model and with softmax attention.
EXPORTED(const char *, session_about, const Session *session) {
    const Run *run = &session->run;
    const int64_t n = run->setup.positions;
    const TransformerPlan *plan = transformer_plan(run->model);
    const size_t all = plan->size.channels * plan->size.layers;
    return format_string("{\"task\": \"%s\", \"positions\": %lld, \"first\": %zu, "
                         "\"state\": %.0f, \"softmax\": %.0f}",
                         run->type->task->name, (long long)n,
                         plan->stacks[plan->stack_count - 1].first, plan_state_bytes(plan, n),
                         2.0 * sizeof(real) * (double)n * (double)all);
}

// ---- a text --------------------------------------------------------------------

static void append_tokens(Session *session, const int32_t *tokens, size_t count) {
    for (size_t i = 0; i < count; i++) {
        session->tokens = grow_list(session->tokens, session->count, sizeof(int32_t), "a text");
        session->tokens[session->count++] = tokens[i];
    }
}

static void begin_writing(Session *session, Text text) {
    const Dataset *dataset = session->run.dataset;
    session->blank = generation_take_blank(dataset, &text);
    int32_t *encoded;
    const size_t count = tokenizer_encode(dataset->tokenizer, text.data, text.size, 0, &encoded);
    size_t before;
    const int32_t *beginning = generation_before(dataset, &before);
    append_tokens(session, beginning, before);
    append_tokens(session, encoded, count);
    free(encoded);
    if (session->count == 0) fail("no token to begin with: write something");
    session->given = session->count;
    session->reader = reader_create(&session->run, 1, READER_SLIDE);
}

static double log_sum(const real *logits, int64_t count) {
    real largest = -INFINITY;
    for (int64_t i = 0; i < count; i++) largest = logits[i] > largest ? logits[i] : largest;
    return sampler_log_sum(logits, (size_t)count, largest);
}

// Returns the logits of all tokens of a batch with one text, (length, V), allocated.
static real *logits_of(const Run *run, const Batch *batch) {
    real *logits =
        allocate((size_t)(batch->length * run->setup.vocabulary), sizeof(real), "logits");
    run->type->logits(run->model, batch, logits);
    return logits;
}

// Returns the batch of a translation: the decoder reads all its tokens except the last one.
static Batch translation_batch(const Session *session) {
    const size_t S = session->source;
    return (Batch){.batch = 1,
                   .length = (int64_t)(session->count - S) - 1,
                   .inputs = session->tokens + S,
                   .targets = session->tokens + S + 1,
                   .source = {.length = (int64_t)S, .tokens = session->tokens}};
}

static void begin_translation(Session *session, Text text) {
    const Run *run = &session->run;
    TokenList source;
    const Hypothesis translation = translate_text(run, text, &source);
    append_tokens(session, source.tokens, source.count);
    session->source = source.count;
    append_tokens(session, &run->dataset->padding, 1);
    session->given = session->count;
    append_tokens(session, translation.tokens, translation.count);
    free(source.tokens);
    free(translation.tokens);
    const Batch batch = translation_batch(session);
    if (batch.length == 0) fail("nothing to translate: write something");
    const int64_t V = run->setup.vocabulary;
    real *logits = logits_of(run, &batch);
    session->losses = allocate((size_t)batch.length, sizeof(double), "losses");
    for (int64_t i = 0; i < batch.length; i++)
        session->losses[i] = log_sum(logits + i * V, V) - (double)logits[i * V + batch.targets[i]];
    free(logits);
}

static void begin_masked(Session *session, Text text) {
    const Run *run = &session->run;
    const size_t V = (size_t)run->setup.vocabulary;
    session->tokens = fill_encode(run, text.data, &session->count);
    session->given = session->count;
    const Batch batch = {.batch = 1, .length = (int64_t)session->count, .inputs = session->tokens};
    real *logits = logits_of(run, &batch);
    for (size_t i = 0; i < session->count; i++)
        if (session->tokens[i] == run->dataset->mask)
            fill_write_best(run->dataset, logits + i * V, V, &session->guesses);
    free(logits);
}

// Begins a text. Returns the number of tokens known so far.
EXPORTED(size_t, session_begin, Session *session, const char *text, size_t size, double temperature,
         double top_p, double seed) {
    const ModelType *type = session->run.type;
    reader_free(session->reader);
    free(session->tokens);
    json_writer_free(&session->guesses);
    session->reader = NULL;
    free(session->losses);
    session->tokens = NULL;
    session->losses = NULL;
    session->count = session->read = session->shown = session->source = 0;
    session->sampler = (SamplerSettings){temperature, 0, top_p};
    session->random = random_stream((uint64_t)seed, RANDOM_SAMPLE, 0, 0);
    session->guesses = (JsonWriter){0};
    json_begin(&session->guesses, '[');
    (type->translator_create ? begin_translation
     : type->decoder_create  ? begin_writing
                             : begin_masked)(session, (Text){text, size});
    json_end(&session->guesses, ']');
    return session->count;
}

// Returns the most probable tokens for each mask (fill_write_best), as JSON.
EXPORTED(const char *, session_guesses, const Session *session) {
    return session->guesses.text;
}

// Returns the loss of token i, which is drawn if it does not exist yet.
static double read_text(Session *session, size_t i) {
    const int64_t V = session->run.setup.vocabulary;
    while (session->read < i)
        reader_read(session->reader, &session->tokens[session->read++], session->logits);
    const double sum = i > 0 ? log_sum(session->logits, V) : (double)NAN;
    if (i == session->count) {
        generation_forbid(&session->generation, session->logits);
        if (session->blank) generation_keep_blanks(session->run.dataset, session->logits);
        session->blank = false;
        const int32_t token = sampler_draw(&session->sampler, session->logits, V, &session->random);
        append_tokens(session, &token, 1);
    }
    return sum - (double)session->logits[session->tokens[i]];
}

// Decodes the text that token i adds to the text before it, using only a few tokens as context.
static void decode_text(Session *session, size_t i) {
    enum { CONTEXT = 4 };
    const Tokenizer *tokenizer = session->run.dataset->tokenizer;
    size_t start = i, all, before;
    if (tokenizer_is_partial(tokenizer, session->tokens[i]))
        while (start > 0 && tokenizer_is_partial(tokenizer, session->tokens[start - 1])) start--;
    const size_t first = start > CONTEXT ? start - CONTEXT : 0;
    free(session->decoded);
    free(tokenizer_decode(tokenizer, session->tokens + first, start - first, &before));
    session->decoded = tokenizer_decode(tokenizer, session->tokens + first, i + 1 - first, &all);
    session->token.joined = (int32_t)(i - start);
    session->token.text = session->decoded + before;
    session->token.size = (int32_t)(all - before);
}

// Returns the next token of the text.
EXPORTED(const ShownToken *, session_next, Session *session) {
    const size_t i = session->shown++;
    const bool drawn = i >= session->given;
    const double loss = session->reader            ? read_text(session, i)
                        : session->losses && drawn ? session->losses[i - session->given]
                                                   : (double)NAN;
    const int32_t token = session->tokens[i];
    session->token = (ShownToken){.token = token,
                                  .loss = (float)loss,
                                  .drawn = drawn,
                                  .ended = drawn && generation_ends(&session->generation, token)};
    decode_text(session, i);
    return &session->token;
}

// Returns a batch with token i of a text and sets *row to its row. In a translation *row is the row
// that predicted the token.
static Batch batch_with(const Session *session, size_t i, size_t *row) {
    const size_t T = (size_t)session->run.setup.positions, S = session->source;
    const bool writes = session->reader;
    const size_t first = writes && i >= T ? i + 1 - T : 0, end = writes ? i + 1 : session->count;
    *row = S == 0 ? i - first : i > S ? i - S - 1 : i % S;
    return S > 0 ? translation_batch(session)
                 : (Batch){.batch = 1,
                           .length = (int64_t)(end - first),
                           .inputs = session->tokens + first};
}

// Returns the attention of token i (attention_view.h) as JSON, valid until the next call.
EXPORTED(const char *, session_attention, Session *session, size_t i) {
    size_t row;
    const Batch batch = batch_with(session, i, &row);
    if (!session->view)
        session->view = attention_view_create(&session->run, (size_t)session->run.setup.positions);
    json_writer_free(&session->attention);
    attention_view_write(session->view, &batch, row, 0, &session->attention);
    return session->attention.text;
}
