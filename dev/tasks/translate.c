#include "attention_view.h"
#include "beam.h"
#include "bytes.h"
#include "error.h"
#include "memory.h"
#include "run.h"
#include "sizes.h"
#include "stop.h"
#include "streams.h"
#include "terminal.h"
#include "translation.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Lines to read before the first is translated, unless the input is a terminal.
enum { LINES_AT_ONCE = 4096 };

typedef struct {
    int32_t *tokens; // (count) with the end token
    size_t count;    // 0: an empty line
    char **outputs;  // (best) its translations, NULL after the last one; NULL: none
    double *scores;  // (best) their scores
} Sentence;

typedef struct {
    const Run *run;
    BeamSettings settings;
    Generation generation;
    TokenList *bad;         // (settings.bad_count) forbidden sequences
    int64_t longest;        // tokens per translation; 0: depends on the source
    size_t positions, rows; // most tokens of a source, and of a batch with its padding
    size_t most;            // most sentences in a batch
    Room logits;            // for searches
    int64_t cut;            // sources that were too long
    int64_t done;           // lines translated
    bool shows_progress;
    bool keeps;      // keep the best translation of the only sentence
    Hypothesis kept; // that translation
} Translator;

// ---- text -------------------------------------------------------------------
// Returns the tokens of a sentence (text_sentence) with the end token.
static Sentence encode_sentence(Translator *t, Text line) {
    const Dataset *dataset = t->run->dataset;
    const Text source = text_sentence(line);
    Sentence sentence = {0};
    if (source.size == 0) return sentence;
    int32_t *encoded;
    size_t count = tokenizer_encode(dataset->tokenizer, source.data, source.size, 0, &encoded);
    t->cut += count >= t->positions;
    if (count >= t->positions) count = t->positions - 1;
    sentence.tokens = allocate(count + 1, sizeof(int32_t), "a sentence");
    memcpy(sentence.tokens, encoded, count * sizeof(int32_t));
    sentence.tokens[count] = dataset->end;
    sentence.count = count + 1;
    free(encoded);
    return sentence;
}

// Reads the source in a line. Returns false if there is no line.
static bool read_sentence(Translator *t, Sentence *sentence) {
    char *line = NULL;
    size_t room = 0;
    stop_interrupts(true);
    ssize_t size = getline(&line, &room, stdin);
    stop_interrupts(false);
    if (size < 0 && ferror(stdin) && !stop_requested())
        fail("standard input: cannot read: %s", strerror(errno));
    if (size > 0 && line[size - 1] == '\n') size--;
    *sentence = encode_sentence(t, (Text){line, size > 0 ? (size_t)size : 0});
    free(line);
    return size >= 0;
}

static void sentence_free(const Translator *t, Sentence *sentence) {
    free(sentence->tokens);
    for (int n = 0; sentence->outputs && n < t->settings.best; n++) free(sentence->outputs[n]);
    free(sentence->outputs);
    free(sentence->scores);
}

// Returns the text of a translation as one line.
static char *text_of(const Dataset *dataset, const Hypothesis *translation) {
    size_t count = translation->count, size;
    if (count > 0 && translation->tokens[count - 1] == dataset->end) count--;
    char *text = tokenizer_decode(dataset->tokenizer, translation->tokens, count, &size);
    for (size_t i = 0; i < size; i++)
        if (text[i] == '\n' || text[i] == '\0') text[i] = ' ';
    return text;
}

// ---- batches ----------------------------------------------------------------
// A sentence's index and its length.
typedef struct {
    size_t number, count;
} TranslationPlace;

static int compare_lengths(const void *a, const void *b) {
    const TranslationPlace *x = a, *y = b;
    if (x->count != y->count) return x->count < y->count ? -1 : 1;
    return x->number < y->number ? -1 : x->number > y->number;
}

// Translates the sentences at `places` (count), of which the last is the longest.
static void translate_batch(Translator *t, Sentence *sentences, const TranslationPlace *places,
                            size_t count) {
    const Dataset *dataset = t->run->dataset;
    const size_t S = places[count - 1].count;
    int32_t *tokens = allocate(count * S, sizeof(int32_t), "batch");
    uint8_t *mask = allocate(count * S, 1, "batch");
    int64_t *longest = allocate(count, sizeof(int64_t), "batch");
    const size_t N = (size_t)t->settings.best;
    Hypothesis *best = allocate(count * N, sizeof(Hypothesis), "batch");
    for (size_t i = 0; i < count * S; i++) {
        const Sentence *sentence = &sentences[places[i / S].number];
        mask[i] = i % S < sentence->count;
        tokens[i] = mask[i] ? sentence->tokens[i % S] : dataset->padding;
    }
    for (size_t i = 0; i < count; i++) {
        longest[i] = t->longest > 0 ? t->longest : 2 * (int64_t)places[i].count + 20;
        if (longest[i] > (int64_t)t->positions) longest[i] = (int64_t)t->positions;
    }
    const Batch batch = {.batch = (int64_t)count, .source = {(int64_t)S, tokens, mask}};
    t->settings.longest = longest;
    beam_search(t->run->type, t->run->model, &t->settings, &batch, &t->logits, best);
    for (size_t i = 0; i < count; i++) {
        Sentence *sentence = &sentences[places[i].number];
        sentence->outputs = allocate(N, sizeof(char *), "sentences");
        sentence->scores = allocate(N, sizeof(double), "sentences");
        for (size_t n = 0; n < N && best[i * N + n].tokens; n++) {
            sentence->outputs[n] = text_of(dataset, &best[i * N + n]);
            sentence->scores[n] = best[i * N + n].score;
            if (n == 0 && t->keeps)
                t->kept = best[i * N];
            else
                free(best[i * N + n].tokens);
        }
    }
    free(best);
    free(longest);
    free(tokens);
    free(mask);
}

static void show_progress(const Translator *t, size_t more) {
    if (t->shows_progress) fprintf(stderr, "\r%lld lines", (long long)t->done + (long long)more);
}

// Translates all sentences, those of similar length together; skips empty ones.
static void translate_sentences(Translator *t, Sentence *sentences, size_t count) {
    TranslationPlace *order = allocate(count, sizeof(TranslationPlace), "sentences");
    size_t left = 0;
    for (size_t i = 0; i < count; i++)
        if (sentences[i].count > 0) order[left++] = (TranslationPlace){i, sentences[i].count};
    qsort(order, left, sizeof(TranslationPlace), compare_lengths);
    // The longest come first: their memory suffices for all others.
    for (size_t n, done = 0; done < left && !stop_requested(); done += n) {
        const size_t end = left - done;
        for (n = 1; n < end && n < t->most && (n + 1) * order[end - 1].count <= t->rows; n++) {
        }
        translate_batch(t, sentences, order + end - n, n);
        show_progress(t, done + n);
    }
    free(order);
}

// ---- the program ------------------------------------------------------------
// Prints {"text": BEST}, with --nbest {"text": BEST, "best": [{"text": "...", "score": -0.5},
// ...]}.
static void print_json(const Run *run, const Sentence *sentence, size_t count) {
    JsonWriter w = {0};
    json_begin(&w, '{');
    json_add_string(&w, "text", count > 0 ? sentence->outputs[0] : "");
    if (options_integer(run->options, OPT_NBEST) > 0) {
        json_open(&w, "best", '[');
        for (size_t n = 0; n < count; n++) {
            json_begin(&w, '{');
            json_add_string(&w, "text", sentence->outputs[n]);
            json_add_number(&w, "score", sentence->scores[n]);
            json_end(&w, '}');
        }
        json_end(&w, ']');
    }
    json_end(&w, '}');
    puts(w.text);
    json_writer_free(&w);
}

// Prints a line with the best translation, empty for an empty line; with --nbest a line for each
// translation: NUMBER ||| TEXT ||| SCORE. `number` counts lines from 0.
static void print_translations(const Translator *t, const Sentence *sentence, int64_t number) {
    const Run *run = t->run;
    size_t count = 0;
    while (sentence->outputs && count < (size_t)t->settings.best && sentence->outputs[count])
        count++;
    if (options_flag(run->options, OPT_JSON)) {
        print_json(run, sentence, count);
        return;
    }
    const bool list = options_integer(run->options, OPT_NBEST) > 0;
    for (size_t n = 0; n < count; n++) {
        if (list) printf("%lld ||| ", (long long)number);
        streams_show(sentence->outputs[n], strlen(sentence->outputs[n]));
        if (list) printf(" ||| %.6f", sentence->scores[n]);
        putchar('\n');
    }
    if (count == 0 && !list) putchar('\n');
}

// Forbids what a translation never contains: padding, rows of the model without a token, and
// sequences listed in the model's files.
static void forbid(Translator *t) {
    const Dataset *dataset = t->run->dataset;
    const Generation *g = &t->generation;
    t->bad = allocate(g->unused.count + 1 + g->bad_count, sizeof(TokenList), "tokens");
    size_t count = 0;
    t->bad[count++] = (TokenList){(int32_t *)&dataset->padding, 1};
    for (size_t i = 0; i < g->unused.count; i++)
        if (g->unused.tokens[i] != dataset->padding)
            t->bad[count++] = (TokenList){&g->unused.tokens[i], 1};
    for (size_t i = 0; i < g->bad_count; i++) t->bad[count++] = g->bad[i];
    t->settings.bad = t->bad;
    t->settings.bad_count = count;
    if (g->forced_end >= 0 && g->forced_end != dataset->end)
        fail("%s: \"forced_eos_token_id\" is %d, but \"eos_token_id\" %d",
             t->run->weights->file.path, g->forced_end, dataset->end);
    t->settings.forces_end = g->forced_end >= 0;
}

static Translator translator_create(const Run *run) {
    const Options *o = run->options;
    const TaskPlan *plan = run->type->task->plan(run->task);
    const Dataset *dataset = run->dataset;
    dataset_need_tokenizer(dataset, "read");
    Translator t = {.run = run,
                    .settings = {.beams = (int)options_integer(o, OPT_BEAM),
                                 .best = (int)options_integer(o, OPT_NBEST),
                                 .alpha = options_number(o, OPT_ALPHA),
                                 .vocabulary = run->setup.vocabulary,
                                 .start = dataset->padding,
                                 .end = dataset->end},
                    .generation = generation_open(run->weights, dataset, run->setup.vocabulary),
                    .longest = options_integer(o, OPT_LONGEST),
                    .positions = (size_t)plan->length,
                    .rows = (size_t)plan->rows,
                    .most = (size_t)plan->batch,
                    .shows_progress = isatty(STDERR_FILENO) && !isatty(STDIN_FILENO)};
    const size_t streams = t.rows / (size_t)t.settings.beams;
    if (streams == 0 || t.settings.beams > plan->length)
        fail_usage("--beam %d: takes a larger --batch-tokens or --max-length", t.settings.beams);
    if (t.settings.best > t.settings.beams)
        fail_usage("--nbest %d: takes a --beam as large", t.settings.best);
    if (t.settings.best == 0) t.settings.best = 1;
    if (t.most > streams) t.most = streams;
    forbid(&t);
    return t;
}

static void translator_free(Translator *t) {
    if (t->cut > 0)
        warn("%lld lines are longer than %zu tokens and were cut", (long long)t->cut, t->positions);
    free(t->bad);
    generation_free(&t->generation);
    free(t->logits.memory);
}

Hypothesis translate_text(const Run *run, Text text, TokenList *source) {
    Translator t = translator_create(run);
    t.keeps = true;
    Sentence sentence = encode_sentence(&t, text);
    translate_sentences(&t, &sentence, 1);
    *source = (TokenList){sentence.tokens, sentence.count};
    sentence.tokens = NULL;
    sentence_free(&t, &sentence);
    translator_free(&t);
    return t.kept;
}

// At each position the decoder reads the token before the one that it writes there.
void show_translation_attention(Run *run) {
    const char *text = options_text(run->options, OPT_SHOW_ATTENTION);
    TokenList source;
    const Hypothesis translation = translate_text(run, (Text){text, strlen(text)}, &source);
    const size_t count = translation.count;
    if (count == 0) fail("--show-attention: nothing to translate, expected a sentence");
    int32_t *inputs = allocate(count, sizeof(int32_t), "a translation");
    inputs[0] = run->dataset->padding;
    memcpy(inputs + 1, translation.tokens, (count - 1) * sizeof(int32_t));
    const Batch batch = {.batch = 1,
                         .length = (int64_t)count,
                         .inputs = inputs,
                         .source = {.length = (int64_t)source.count, .tokens = source.tokens}};
    const size_t first = (size_t)options_integer(run->options, OPT_ENCODER_LAYERS);
    AttentionView *view = attention_view_create(run, larger(count, source.count));
    for (size_t i = 0; i < count; i++)
        attention_view_print(run, view, &batch, i, first, translation.tokens[i]);
    attention_view_free(view);
    free(inputs);
    free(source.tokens);
    free(translation.tokens);
}

void translate_lines(Run *run) {
    Translator t = translator_create(run);
    const bool asked = isatty(STDIN_FILENO);
    const size_t most = asked ? 1 : LINES_AT_ONCE;
    Sentence *sentences = allocate(most, sizeof(*sentences), "sentences");
    size_t count;
    do {
        for (count = 0; count < most && !stop_requested() && read_sentence(&t, &sentences[count]);)
            count++;
        translate_sentences(&t, sentences, count);
        for (size_t i = 0; i < count && !stop_requested(); i++)
            print_translations(&t, &sentences[i], t.done + (int64_t)i);
        log_flush();
        for (size_t i = 0; i < count; i++) sentence_free(&t, &sentences[i]);
        t.done += (int64_t)count;
    } while (count == most && !stop_requested());
    if (t.shows_progress) terminal_clear_line(stderr);
    translator_free(&t);
    free(sentences);
}
