// The decoder in the page of a run: this program's own models, tokenizers and readers, compiled to
// WebAssembly (dev/build/wasm.mk), with what the page's worker calls. It sees no file but those
// that the page hands over.
//
// A text is a list of tokens. session_begin() makes it of a prompt, and each session_next() shows
// one more: first those of the prompt, then such as the model draws, until the page stops asking.
// What is drawn is what --prompt draws of the same weights, settings and seed.
//
// What fails ends the instance, by fail(): the worker starts another.

#include "attention_view.h"
#include "bf16.h"
#include "corpus.h"
#include "error.h"
#include "generation.h"
#include "memory.h"
#include "process.h"
#include "reader.h"
#include "run_data.h"
#include "sampler.h"
#include "stop.h"
#include "threads.h"
#include "transformer_plan.h"
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// ---- what the worker calls ------------------------------------------------------
typedef struct {
    int32_t token;
    float loss;       // -log p; NaN: nothing was read before it
    int32_t joined;   // tokens before it whose text is a part of this one's, as they have bytes
                      // of one character
    int32_t drawn;    // 0: of the prompt
    int32_t ended;    // it ends the text, and is no part of it
    int32_t size;     // of
    const char *text; // what it adds, until the next token is asked for
} ShownToken;

typedef struct Session Session;
#define EXPORTED(name) __attribute__((export_name(#name)))

void *session_allocate(size_t size) EXPORTED(session_allocate);

// A file to be opened, before the session is; takes over both arrays.
void session_add_file(char *name, unsigned char *data, size_t size) EXPORTED(session_add_file);

Session *session_open(void) EXPORTED(session_open);

// What the model is, as JSON.
const char *session_about(const Session *session) EXPORTED(session_about);

// Begins a text. Returns the tokens of the prompt and of what is read before it.
size_t session_begin(Session *session, const char *text, size_t size, double temperature,
                     double top_p, double seed) EXPORTED(session_begin);

// The next token of the text.
const ShownToken *session_next(Session *session) EXPORTED(session_next);

// What token i of the text drew on (attention_view.h): JSON, until it is asked for again. Of a text
// that is longer than the model has positions, the last ones count.
const char *session_attention(Session *session, size_t i) EXPORTED(session_attention);

// What the program does with --translate, to standard input, or with --fill TEXT; --json.
void session_act(Session *session, const char *text) EXPORTED(session_act);

// Each is in a file of its own (train_NAME.c).
extern const ModelType fastformer, gpt2, bert, translate;

// ---- files ------------------------------------------------------------------
// In the place of dev/base/file.c. The only state that is global, as a file system is.

static FileMap *files; // (file_count)
static size_t file_count;

void *session_allocate(size_t size) {
    return allocate(size, 1, "a file");
}

void session_add_file(char *name, unsigned char *data, size_t size) {
    files = grow_list(files, file_count, sizeof(FileMap), "files");
    files[file_count++] = (FileMap){name, data, size};
}

static const FileMap *find(const char *path) {
    for (size_t i = 0; i < file_count; i++)
        if (strcmp(files[i].path, path_name(path)) == 0) return &files[i];
    return NULL;
}

const char *path_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

char *path_directory(const char *path) {
    (void)path;
    return copy_string(".");
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

// stat(), by which a tokenizer's directory is told from its file.
int file_status(const char *path, struct stat *status) {
    *status = (struct stat){.st_mode = strcmp(path, ".") == 0 ? S_IFDIR : S_IFREG};
    return file_exists(path) || S_ISDIR(status->st_mode) ? 0 : -1;
}

size_t file_number(const char *path, const char *key, size_t unit) {
    (void)path, (void)key, (void)unit;
    return SIZE_MAX;
}

// ---- what a page has not: signals, programs, other processes, threads, the embedded text
// -------

int stop_requested(void) {
    return 0;
}

void stop_request(int number) {
    (void)number;
}

void stop_interrupts(bool interrupts) {
    (void)interrupts;
}

ProcessResult process_run(const char *const *arguments, Text input) {
    (void)arguments, (void)input;
    return (ProcessResult){.start_error = ENOENT};
}

void process_result_free(ProcessResult *result) {
    *result = (ProcessResult){0};
}

int ranks_size(const Ranks *ranks) {
    (void)ranks;
    return 1;
}

int ranks_on_machine(const Ranks *ranks) {
    return ranks_size(ranks);
}

void ranks_union(Ranks *ranks, unsigned char *set, size_t count) {
    (void)ranks, (void)set, (void)count;
}

ssize_t getrandom(void *buffer, size_t size, unsigned flags) {
    (void)flags;
    return getentropy(buffer, size) == 0 ? (ssize_t)size : -1;
}

int madvise(void *from, size_t size, int advice);
int madvise(void *from, size_t size, int advice) {
    (void)from, (void)size, (void)advice;
    return 0;
}

void threads_settle(void) {}

Text corpus_text(void) {
    return (Text){"", 0};
}

const Exchange fastformer_exchange;

// ---- the model --------------------------------------------------------------

struct Session {
    Run run;
    const Action *action; // of a model that writes nothing by itself; NULL
    Generation generation;
    SamplerSettings sampler;
    Random random;
    Reader *reader;       // NULL: no text was begun
    real *logits, *drawn; // (V) of the next token; and without what is never drawn,
    bool *unused;         // (V) as there is no such token
    int32_t *tokens;      // (count)
    size_t count, read, shown;
    char *decoded;
    AttentionView *view; // NULL: not asked for so far
    JsonWriter attention;
    ShownToken token;
};

static const ModelType *type_of(const Safetensors *weights) {
    static const ModelType *const types[] = {&fastformer, &gpt2, &bert, &translate};
    const char *name = safetensors_metadata(weights, "model");
    for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++)
        if (strcmp(types[i]->name, name ? name : "") == 0) return types[i];
    fail("%s: a model that the page does not know", name ? name : "");
}

// Of one parameter (page_model.h).
static void load_parameter(const Safetensors *file, const Parameter *p, real *out) {
    const Tensor *tensor = safetensors_find(file, p->name);
    if (!tensor || tensor->count != p->size) fail("%s: is not as the model has it", p->name);
    if (tensor->type != TENSOR_U8) {
        tensor_read_real(file, tensor, out);
        return;
    }
    char *name = format_string("%s.scale", p->name);
    const Tensor *scale = safetensors_find(file, name);
    const size_t rows = (size_t)p->shape[0], n = p->size / rows;
    if (!scale || scale->count != rows) fail("%s: is missing", name);
    real *scales = allocate(rows, sizeof(real), "scales");
    tensor_read_real(file, scale, scales);
    for (size_t i = 0; i < p->size; i++)
        out[i] = (real)float_from_bf16(bf16_from_float(
            (float)(((const uint8_t *)tensor->data)[i] - 128) * (float)scales[i / n]));
    free(scales);
    free(name);
}

static void load_weights(Run *run) {
    const ParameterTable *table = run->type->parameters(run->model);
    real *values = allocate(table->total, sizeof(real), "parameters");
    for (int i = 0; i < table->count; i++)
        load_parameter(run->weights, &table->items[i], values + table->items[i].offset);
    run->type->write(run->model, MODEL_VALUES, values);
    free(values);
}

// Weights that are bf16 are decoded as such: half the bytes to read for each token.
static void choose_precision(Run *run) {
    const Tensor *largest = &run->weights->tensors[0];
    for (int i = 0; i < run->weights->tensor_count; i++)
        if (run->weights->tensors[i].count > largest->count) largest = &run->weights->tensors[i];
    options_set(run->options, OPT_PRECISION, largest->type == TENSOR_F32 ? "fp32" : "bf16",
                "the page");
}

static void prepare_drawing(Session *session) {
    const Dataset *dataset = session->run.dataset;
    const int64_t V = session->run.setup.vocabulary;
    session->generation = generation_open(session->run.weights, dataset, V);
    session->logits = allocate((size_t)V, sizeof(real), "logits");
    session->drawn = allocate((size_t)V, sizeof(real), "logits");
    session->unused = allocate((size_t)V, sizeof(bool), "logits");
    for (int64_t i = 0; i < V; i++)
        session->unused[i] =
            i >= dataset->vocabulary || tokenizer_is_unused(dataset->tokenizer, (int32_t)i);
}

Session *session_open(void) {
    Session *session = allocate(1, sizeof(*session), "a session");
    Run *run = &session->run;
    run->program = "page";
    run->weights = safetensors_open("model.safetensors");
    run->type = type_of(run->weights);
    run->options = trainer_options_create(run->type);
    options_from_metadata(run->options, OPTION_MODEL, run->weights, "");
    choose_precision(run);
    run->dataset = run_data_open(run->options, run->weights, true);
    const TaskType *task = run->type->task;
    run->setup =
        (ModelSetup){.type = run->type,
                     .options = run->options,
                     .positions = safetensors_integer(run->weights, "n_positions", 1, 1 << 28),
                     .vocabulary = safetensors_integer(run->weights, "vocab_size", 1, INT32_MAX),
                     .padding_token = run->dataset->padding,
                     .end_token = run->dataset->end};
    if (task->action_count > 0 && task->actions[0].batches) {
        session->action = &task->actions[0];
        options_set(run->options, OPT_JSON, "true", "the page");
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
    prepare_drawing(session);
    return session;
}

const char *session_about(const Session *session) {
    const Run *run = &session->run;
    JsonWriter w = {0};
    json_begin(&w, '{');
    json_key(&w, "model");
    json_write_string(&w, run->type->name);
    json_key(&w, "task");
    json_write_string(&w, run->type->task->name);
    json_key(&w, "positions");
    json_write_integer(&w, run->setup.positions);
    const TransformerPlan *plan = transformer_plan(run->model);
    const StackPlan *stack = &plan->stacks[plan->stack_count - 1];
    json_key(&w, "channels");
    json_write_integer(&w, (int64_t)plan->size.channels);
    json_key(&w, "heads");
    json_write_integer(&w, (int64_t)plan->size.heads);
    json_key(&w, "layers"); // of the stack that writes
    json_begin(&w, '[');
    for (size_t l = stack->first; l < stack->end; l++) {
        const AttentionPlan *attention = &plan->layers[l].attention;
        json_begin(&w, '{');
        json_key(&w, "kind");
        json_write_string(&w, attention_types[attention->kind].name);
        json_key(&w, "window");
        json_write_integer(&w, (int64_t)attention->window);
        json_end(&w, '}');
    }
    json_end(&w, ']');
    json_end(&w, '}');
    return w.text;
}

// ---- writing ----------------------------------------------------------------

static void append_tokens(Session *session, const int32_t *tokens, size_t count) {
    for (size_t i = 0; i < count; i++) {
        session->tokens = grow_list(session->tokens, session->count, sizeof(int32_t), "a text");
        session->tokens[session->count++] = tokens[i];
    }
}

size_t session_begin(Session *session, const char *text, size_t size, double temperature,
                     double top_p, double seed) {
    const Dataset *dataset = session->run.dataset;
    int32_t *encoded;
    const size_t count = tokenizer_encode(dataset->tokenizer, text, size, 0, &encoded);
    size_t before = 1;
    const int32_t *beginning =
        dataset->end >= 0 ? &dataset->end : tokenizer_before(dataset->tokenizer, &before);
    reader_free(session->reader);
    free(session->tokens);
    session->tokens = NULL;
    session->count = session->read = session->shown = 0;
    append_tokens(session, beginning, before);
    append_tokens(session, encoded, count);
    free(encoded);
    if (session->count == 0) fail("no token to begin with: write something");
    session->sampler = (SamplerSettings){temperature, 0, top_p};
    session->random = random_stream((uint64_t)seed, RANDOM_SAMPLE, 0, 0);
    session->reader = reader_create(&session->run, 1, "slide");
    return session->count;
}

static double loss_of(const Session *session, int32_t token) {
    const int64_t V = session->run.setup.vocabulary;
    const real *logits = session->logits;
    real largest = -INFINITY;
    double sum = 0;
    for (int64_t i = 0; i < V; i++) largest = logits[i] > largest ? logits[i] : largest;
    for (int64_t i = 0; i < V; i++) sum += (double)expf(logits[i] - largest);
    return log(sum) + (double)(largest - logits[token]);
}

static int32_t draw(Session *session) {
    const int64_t V = session->run.setup.vocabulary;
    for (int64_t i = 0; i < V; i++)
        session->drawn[i] = session->unused[i] ? -(real)INFINITY : session->logits[i];
    return sampler_draw(&session->sampler, session->drawn, V, &session->random);
}

// The text that token i adds to what is before it, which needs only a few of these.
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

const ShownToken *session_next(Session *session) {
    const size_t i = session->shown++;
    const bool drawn = i == session->count;
    while (session->read < i)
        reader_read(session->reader, &session->tokens[session->read++], session->logits);
    if (drawn) append_tokens(session, &(int32_t){draw(session)}, 1);
    const int32_t token = session->tokens[i];
    session->token = (ShownToken){.token = token,
                                  .loss = i > 0 ? (float)loss_of(session, token) : NAN,
                                  .drawn = drawn,
                                  .ended = drawn && generation_ends(&session->generation, token)};
    decode_text(session, i);
    return &session->token;
}

const char *session_attention(Session *session, size_t i) {
    const size_t T = (size_t)session->run.setup.positions, first = i < T ? 0 : i + 1 - T;
    if (!session->view) session->view = attention_view_create(&session->run, T);
    json_writer_free(&session->attention);
    attention_view_write(session->view, session->tokens + first, i + 1 - first, i - first,
                         &session->attention);
    return session->attention.text;
}

// ---- translating, filling masks ---------------------------------------------
void session_act(Session *session, const char *text) {
    if (session->action->option == OPT_FILL)
        options_set(session->run.options, OPT_FILL, text, "the page");
    clearerr(stdin);
    session->action->run(&session->run);
    fflush(stdout);
}
