#include "clock.h"
#include "error.h"
#include "file.h"
#include "generation.h"
#include "growing_text.h"
#include "language.h"
#include "memory.h"
#include "reader.h"
#include "run.h"
#include "sampler.h"
#include "stop.h"
#include "streams.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

typedef enum { ENDED_LENGTH, ENDED_STOP, ENDED_END, ENDED_POSITIONS, ENDED_SIGNAL } Ending;
static const char *const ending_names[] = {"length", "stop", "end", "positions", "signal"};

// A text that is being written.
typedef struct {
    GrowingText text;
    Random random;
    bool *seen;      // (V) whether it contains a token
    int64_t written; // tokens drawn
    bool ended;      // the last token ends the text, and is not part of it
    size_t shown;    // bytes printed
} Sample;

// All texts written side by side.
typedef struct {
    const Run *run;
    SamplerSettings settings;
    double penalty;
    uint64_t seed;
    Generation generation;
    Text *stops; // (stop_count)
    size_t stop_count;
    int count; // S
    Sample *samples;
    Reader *reader;
    real *logits;  // (S, V) of the next tokens
    int32_t *next; // (S)
    bool unread;   // the tokens in `next` were drawn but not read yet
    bool blank;    // the next token must begin with the blank that ended the prompt
    Ending ending; // why a text without a stop or an end token ended
} Writer;

// ---- user input -------------------------------------------------------------
// Returns a text in which \n, \t, \r and \\ are replaced by what they mean, newly allocated.
static Text unescaped(const char *text) {
    static const char names[] = "ntr\\", values[] = "\n\t\r\\";
    char *out = copy_string(text), *end = out;
    for (const char *c = text; *c; c++) {
        const char *name = c[0] == '\\' && c[1] ? strchr(names, c[1]) : NULL;
        *end++ = name ? values[name - names] : *c;
        if (name) c++;
    }
    *end = '\0';
    return (Text){out, (size_t)(end - out)};
}

static Text read_standard_input(void) {
    const Bytes all = streams_read(STDIN_FILENO, "standard input");
    return text_without_newline((Text){all.data, all.size});
}

static Text read_prompt_file(const char *path) {
    FileMap file = file_map(path);
    const Text text = text_without_newline((Text){(const char *)file.data, file.size});
    char *copy = allocate(text.size + 1, 1, "a prompt");
    if (text.size) memcpy(copy, text.data, text.size);
    file_unmap(&file);
    return (Text){copy, text.size};
}

// ---- writing ----------------------------------------------------------------

static uint64_t any_seed(void) {
    uint32_t seed;
    if (getrandom(&seed, sizeof(seed), 0) != sizeof(seed)) return (uint64_t)time(NULL);
    return seed;
}

// Returns the texts of --stop, newly allocated.
static Text *stops_create(const Options *o, size_t *count) {
    const char *given = options_text(o, OPT_STOP);
    char *rest = given ? copy_string(given) : NULL, *next = rest, *word;
    Text *stops = NULL;
    *count = 0;
    while ((word = strsep(&next, OPTION_AGAIN)) != NULL) {
        stops = grow_list(stops, *count, sizeof(Text), "stops");
        stops[(*count)++] = unescaped(word);
    }
    free(rest);
    return stops;
}

static Writer writer_create(const Run *run, int count, uint64_t seed, uint32_t number) {
    const Options *o = run->options;
    const size_t V = (size_t)run->setup.vocabulary;
    dataset_need_tokenizer(run->dataset, "written");
    Writer w = {.run = run,
                .settings = {options_number(o, OPT_TEMPERATURE), options_integer(o, OPT_TOP_K),
                             options_number(o, OPT_TOP_P)},
                .penalty = options_number(o, OPT_REPETITION_PENALTY),
                .seed = seed,
                .generation = generation_open(run->weights, run->dataset, (int64_t)V),
                .count = count,
                .samples = allocate((size_t)count, sizeof(Sample), "samples"),
                .reader = reader_create(run, count, (ReaderBeyond)options_choice(o, OPT_BEYOND)),
                .logits = allocate((size_t)count * V, sizeof(real), "logits"),
                .next = allocate((size_t)count, sizeof(int32_t), "samples")};
    w.stops = stops_create(o, &w.stop_count);
    for (int s = 0; s < count; s++)
        w.samples[s] = (Sample){.text = {.tokenizer = run->dataset->tokenizer,
                                         .stops = w.stops,
                                         .stop_count = w.stop_count},
                                .random = random_stream(seed, RANDOM_SAMPLE, number, (uint32_t)s),
                                .seen = allocate(V, sizeof(bool), "samples")};
    return w;
}

static void writer_free(Writer *w) {
    for (int s = 0; s < w->count; s++) {
        growing_text_free(&w->samples[s].text);
        free(w->samples[s].seen);
    }
    reader_free(w->reader);
    for (size_t i = 0; i < w->stop_count; i++) free((char *)w->stops[i].data);
    free(w->stops);
    generation_free(&w->generation);
    free(w->samples);
    free(w->logits);
    free(w->next);
}

// Continues all texts with the same tokens.
static void read_tokens(Writer *w, const int32_t *tokens, size_t count) {
    int32_t *same = allocate((size_t)w->count, sizeof(int32_t), "samples");
    for (size_t i = 0; i < count && !stop_requested(); i++) {
        for (int s = 0; s < w->count; s++) {
            same[s] = tokens[i];
            w->samples[s].seen[tokens[i]] = true;
        }
        // No token is drawn inside a prompt, so only the last logits are needed.
        reader_read(w->reader, same, i + 1 == count ? w->logits : NULL);
    }
    free(same);
}

// Appends the prompt to the text written so far.
static void read_prompt(Writer *w, Text prompt) {
    const Dataset *dataset = w->run->dataset;
    const bool first = w->samples[0].text.count == 0;
    w->blank = generation_take_blank(dataset, &prompt);
    int32_t *tokens;
    const size_t count = tokenizer_encode(dataset->tokenizer, prompt.data, prompt.size, 0, &tokens);
    size_t before = 0;
    const int32_t *beginning = first ? generation_before(dataset, &before) : NULL;
    const size_t added = before + (size_t)w->unread;
    if (count + added == 0) fail("--prompt: no tokens in \"%.*s\"", (int)prompt.size, prompt.data);
    if (options_choice(w->run->options, OPT_BEYOND) == READER_STOP &&
        (int64_t)(count + added) > reader_room(w->reader))
        fail("--prompt: %zu tokens, the model has %lld positions", count + added,
             (long long)w->run->setup.positions);
    if (w->unread) reader_read(w->reader, w->next, w->logits);
    w->unread = false;
    read_tokens(w, beginning, before);
    read_tokens(w, tokens, count);
    for (int s = 0; s < w->count; s++) {
        growing_text_add(&w->samples[s].text, tokens, count);
        growing_text_finish(&w->samples[s].text);
        growing_text_begin(&w->samples[s].text);
    }
    free(tokens);
}

static void show(Sample *sample) {
    const GrowingText *g = &sample->text;
    if (g->end > sample->shown) streams_show(g->text.data + sample->shown, g->end - sample->shown);
    if (g->end > sample->shown) sample->shown = g->end;
    log_flush();
}

static void draw(Writer *w, int s) {
    const int64_t V = w->run->setup.vocabulary;
    Sample *sample = &w->samples[s];
    real *logits = w->logits + (size_t)s * (size_t)V;
    sampler_penalise(logits, sample->seen, V, w->penalty);
    generation_forbid(&w->generation, logits);
    if (w->blank) generation_keep_blanks(w->run->dataset, logits);
    w->next[s] = sampler_draw(&w->settings, logits, V, &sample->random);
    sample->seen[w->next[s]] = true;
    sample->written++;
    sample->ended = generation_ends(&w->generation, w->next[s]);
    if (!sample->ended) growing_text_add(&sample->text, &w->next[s], 1);
}

// Draws a token for each unfinished text, in parallel. Returns false if no text continues.
static bool draw_all(Writer *w) {
    bool any = false;
#pragma omp parallel for schedule(static) reduction(|| : any) if (w->count > 1)
    for (int s = 0; s < w->count; s++) {
        const Sample *sample = &w->samples[s];
        if (sample->text.stopped || sample->ended) continue;
        draw(w, s);
        any = any || !(sample->text.stopped || sample->ended);
    }
    w->blank = false;
    return any;
}

// Writes up to `tokens` tokens; with `shown`, prints the first text as it is generated.
static void write_tokens(Writer *w, int64_t tokens, bool shown) {
    for (int s = 0; s < w->count; s++) w->samples[s].text.stopped = w->samples[s].ended = false;
    if (shown) show(&w->samples[0]);
    w->ending = ENDED_LENGTH;
    for (int64_t i = 0; i < tokens; i++) {
        if (w->unread && reader_full(w->reader)) w->ending = ENDED_POSITIONS;
        if (stop_requested()) w->ending = ENDED_SIGNAL;
        if (w->ending != ENDED_LENGTH) break;
        if (w->unread) reader_read(w->reader, w->next, w->logits);
        w->unread = true;
        const bool goes_on = draw_all(w);
        if (shown) show(&w->samples[0]);
        if (!goes_on) break;
    }
    for (int s = 0; s < w->count; s++) growing_text_finish(&w->samples[s].text);
    if (shown) show(&w->samples[0]);
}

static Ending ending_of(const Writer *w, const Sample *sample) {
    return sample->text.stopped ? ENDED_STOP : sample->ended ? ENDED_END : w->ending;
}

// ---- output -----------------------------------------------------------------
// Prints why a text ended early; nothing if it did not.
static void say_ending(const Writer *w, const Sample *sample, int64_t wanted) {
    const Ending ending = ending_of(w, sample);
    if (ending == ENDED_LENGTH) return;
    fprintf(stderr, "[ended after %lld of %lld tokens: ", (long long)sample->written,
            (long long)wanted);
    if (ending == ENDED_POSITIONS)
        fprintf(stderr, "the model has %lld positions (--beyond stop)]\n",
                (long long)w->run->setup.positions);
    else
        fprintf(stderr, "%s]\n",
                ending == ENDED_STOP  ? "--stop came up"
                : ending == ENDED_END ? "the text ends"
                                      : "a signal");
}

static void write_json(const Writer *w, const Sample *sample) {
    const GrowingText *g = &sample->text;
    JsonWriter out = {0};
    json_begin(&out, '{');
    json_add_text(&out, "prompt", g->text.data, g->begin);
    json_add_text(&out, "text", g->text.data + g->begin, g->end > g->begin ? g->end - g->begin : 0);
    json_add_integer(&out, "tokens", sample->written);
    json_add_string(&out, "ended", ending_names[ending_of(w, sample)]);
    json_add_integer(&out, "seed", (int64_t)w->seed);
    json_end(&out, '}');
    puts(out.text);
    json_writer_free(&out);
}

// Prints all texts after they were written.
static void show_samples(Writer *w, int64_t wanted) {
    const bool json = options_flag(w->run->options, OPT_JSON);
    for (int s = 0; s < w->count; s++) {
        Sample *sample = &w->samples[s];
        if (json) {
            write_json(w, sample);
            continue;
        }
        if (w->count > 1) printf("%s--- sample %d of %d\n", s > 0 ? "\n" : "", s + 1, w->count);
        show(sample);
        putchar('\n');
        log_flush();
        say_ending(w, sample, wanted);
    }
    log_flush();
}

// On a terminal: appends each line that the user types to the text, and lets the model continue it,
// until the input ends.
static void converse(Writer *w, int64_t wanted) {
    char *line = NULL;
    size_t size = 0;
    fputs("Type a text; the model continues it, then you. Ctrl-D ends.\n", stderr);
    while (!stop_requested()) {
        fputs("> ", stderr);
        stop_interrupts(true);
        const ssize_t length = getline(&line, &size, stdin);
        stop_interrupts(false);
        if (length < 0) break;
        if (length > 0 && line[length - 1] == '\n') line[length - 1] = '\0';
        const Text typed = unescaped(line);
        Sample *sample = &w->samples[0];
        if (typed.size > 0 || w->unread || w->run->dataset->end >= 0) {
            read_prompt(w, typed);
            sample->shown = sample->text.begin; // already on the terminal
            sample->written = 0;
            write_tokens(w, wanted, true);
            putchar('\n');
            log_flush();
            say_ending(w, sample, wanted);
        }
        free((char *)typed.data);
    }
    fputc('\n', stderr);
    free(line);
}

// ---- public functions -------------------------------------------------------

void generate_sample(const Run *run, int64_t step) {
    const int64_t wanted = options_integer(run->options, OPT_SAMPLE_TOKENS);
    Writer w =
        writer_create(run, 1, (uint64_t)options_integer(run->options, OPT_SEED), (uint32_t)step);
    read_prompt(&w, (Text){"", 0});
    write_tokens(&w, wanted, true);
    putchar('\n');
    log_flush();
    say_ending(&w, &w.samples[0], wanted);
    writer_free(&w);
}

char *sample_text(const Run *run, uint32_t number) {
    if (!run->dataset->tokenizer || run->dataset->end < 0) return NULL;
    Writer w = writer_create(run, 1, (uint64_t)options_integer(run->options, OPT_SEED), number);
    read_prompt(&w, (Text){"", 0});
    write_tokens(&w, options_integer(run->options, OPT_SAMPLE_TOKENS), false);
    const GrowingText *g = &w.samples[0].text;
    char *text = format_string("%.*s", (int)g->end, g->end ? g->text.data : "");
    writer_free(&w);
    return text;
}

// Prints the seed, which reproduces the texts, and the speed.
static void say_speed(const Writer *w, double elapsed) {
    int64_t tokens = 0;
    for (int s = 0; s < w->count; s++) tokens += w->samples[s].written;
    fprintf(stderr, "[%lld tokens, %.0f per second, --seed %llu]\n", (long long)tokens,
            (double)tokens / (elapsed > 1e-9 ? elapsed : 1e-9), (unsigned long long)w->seed);
}

static void continue_prompt(Writer *w, Text prompt, int64_t wanted) {
    const bool json = options_flag(w->run->options, OPT_JSON);
    read_prompt(w, prompt);
    const double start = clock_seconds();
    write_tokens(w, wanted, w->count == 1 && !json);
    const double elapsed = clock_seconds() - start;
    show_samples(w, wanted);
    if (!json) say_speed(w, elapsed);
}

void generate(Run *run) {
    const Options *o = run->options;
    const char *text = options_text(o, OPT_PROMPT), *path = options_text(o, OPT_PROMPT_FILE);
    const int count = (int)options_integer(o, OPT_SAMPLES);
    const int64_t wanted = options_integer(o, OPT_SAMPLE_TOKENS);
    const bool json = options_flag(o, OPT_JSON), from_input = text && strcmp(text, "-") == 0;
    const bool typed = from_input && isatty(STDIN_FILENO);
    if (typed && (count > 1 || json))
        fail_usage("--prompt -: on a terminal one text is written: drop --samples and --json");
    Writer w = writer_create(
        run, count,
        options_given(o, OPT_SEED) ? (uint64_t)options_integer(o, OPT_SEED) : any_seed(), 0);
    if (typed) {
        converse(&w, wanted);
    } else {
        const Text prompt = text && !from_input ? unescaped(text)
                            : path              ? read_prompt_file(path)
                                                : read_standard_input();
        if (!stop_requested()) continue_prompt(&w, prompt, wanted);
        free((char *)prompt.data);
    }
    writer_free(&w);
}
