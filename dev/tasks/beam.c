#include "beam.h"

#include "error.h"
#include "memory.h"
#include "sampler.h"
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_BEAMS = 64, MAX_CANDIDATES = 2 * MAX_BEAMS, LOOKED_AT = 128 }; // logits compared at once

// A continuation: a stream, its next token, and log p of the whole sequence.
typedef struct {
    size_t stream;
    int32_t token;
    double log_p;
} Candidate;

typedef struct {
    const BeamSettings *settings;
    size_t vocabulary, candidates; // V; candidates per step
    size_t longest;                // most tokens of any translation
    size_t count;                  // unfinished sentences
    size_t *sentences;             // (count) their indices in the batch
    size_t *live, *finished;       // (count) hypotheses
    double *log_p;                 // (count, beams) of the live hypotheses
    int32_t *tokens, *next_tokens; // (count, beams, longest) written so far
    size_t length;                 // of these sequences
    size_t *from;                  // (count, beams) streams to continue
    real *logits;                  // (count, beams, V)
    Candidate *best_of_stream;     // (count, beams, candidates)
    Hypothesis *best;              // (B, settings->best)
} Search;

// Inserts a candidate into the list of the best so far, best first; equal candidates keep their
// order of arrival. Returns the new length of the list.
static size_t insert(Candidate *best, size_t count, size_t most, Candidate candidate) {
    size_t rank = count;
    while (rank > 0 && candidate.log_p > best[rank - 1].log_p) rank--;
    if (rank == most) return count;
    if (count < most) count++;
    memmove(best + rank + 1, best + rank, (count - 1 - rank) * sizeof(*best));
    best[rank] = candidate;
    return count;
}

// Returns whether any x is above the limit.
static bool any_above(const real *x, size_t count, real limit) {
    int above = 0;
#pragma omp simd reduction(+ : above)
    for (size_t i = 0; i < count; i++) above += x[i] > limit;
    return above > 0;
}

// Returns whether the token would complete a forbidden sequence.
static bool is_bad(const Search *s, size_t stream, int32_t token) {
    const int32_t *end = s->tokens + stream * s->longest + s->length;
    for (size_t i = 0; i < s->settings->bad_count; i++) {
        const TokenList *bad = &s->settings->bad[i];
        const size_t before = bad->count - 1;
        if (bad->tokens[before] == token && before <= s->length &&
            memcmp(end - before, bad->tokens, before * sizeof(int32_t)) == 0)
            return true;
    }
    return false;
}

static int64_t longest_of(const Search *s, size_t i) {
    return s->settings->longest[s->sentences[i]];
}

// Finds the best continuations of one stream; skips NaN.
static void continue_stream(const Search *s, size_t stream, double log_p) {
    const real *logits = s->logits + stream * s->vocabulary;
    Candidate *best = s->best_of_stream + stream * s->candidates;
    const size_t sentence = stream / (size_t)s->settings->beams;
    const bool forced =
        s->settings->forces_end && (int64_t)s->length + 1 >= longest_of(s, sentence);
    double largest = -INFINITY; // of all logits that may be among the best
    size_t count = 0;
    for (size_t first = 0, end; first < s->vocabulary && !forced; first = end) {
        end = first + LOOKED_AT < s->vocabulary ? first + LOOKED_AT : s->vocabulary;
        // Most blocks contain no better logit.
        if (count == s->candidates &&
            !any_above(logits + first, end - first, (real)best[count - 1].log_p))
            continue;
        for (size_t v = first; v < end; v++) {
            const double logit = (double)logits[v];
            if (count == s->candidates && !(logit > best[count - 1].log_p)) continue;
            if (isnan(logit)) continue;
            if (logit > largest) largest = logit;
            if (!is_bad(s, stream, (int32_t)v))
                count = insert(best, count, s->candidates, (Candidate){stream, (int32_t)v, logit});
        }
    }
    const double sum = count > 0 ? sampler_log_sum(logits, s->vocabulary, (real)largest) : 0;
    for (size_t i = 0; i < count; i++) best[i].log_p += log_p - sum;
    if (forced) best[count++] = (Candidate){stream, s->settings->end, log_p};
    for (size_t i = count; i < s->candidates; i++) best[i] = (Candidate){stream, -1, -INFINITY};
}

// Collects the best continuations over all streams of sentence i; returns their number.
static size_t continue_sentence(const Search *s, size_t i, Candidate best[MAX_CANDIDATES]) {
    const size_t first = i * (size_t)s->settings->beams;
    size_t count = 0;
    for (size_t stream = first; stream < first + s->live[i]; stream++) {
        const Candidate *of_stream = s->best_of_stream + stream * s->candidates;
        for (size_t k = 0; k < s->candidates && of_stream[k].token >= 0; k++)
            count = insert(best, count, s->candidates, of_stream[k]);
    }
    return count;
}

static double score_of(const BeamSettings *settings, double log_p, int64_t length) {
    return log_p / pow((double)length, settings->alpha);
}

// Adds a complete hypothesis of sentence i: `count` tokens, followed by `last` unless it is
// negative.
static void finish(const Search *s, size_t i, const int32_t *tokens, size_t count, int32_t last,
                   double score) {
    const size_t most = (size_t)s->settings->best;
    Hypothesis *best = s->best + s->sentences[i] * most;
    size_t rank = most;
    while (rank > 0 && (!best[rank - 1].tokens || score > best[rank - 1].score)) rank--;
    if (rank == most) return;
    free(best[most - 1].tokens);
    memmove(best + rank + 1, best + rank, (most - 1 - rank) * sizeof(*best));
    best[rank] = (Hypothesis){allocate(count + 1, sizeof(int32_t), "translation"),
                              count + (last >= 0), score};
    memcpy(best[rank].tokens, tokens, count * sizeof(int32_t));
    if (last >= 0) best[rank].tokens[count] = last;
}

// Splits the continuations of sentence i into finished and live ones. Stores the live ones, at most
// `beams`, at index `to`.
static void sort_out(Search *s, size_t i, size_t to, const Candidate *candidates, size_t count) {
    const BeamSettings *settings = s->settings;
    const size_t beams = (size_t)settings->beams, longest = s->longest;
    size_t live = 0, finished = s->finished[i];
    for (size_t k = 0; k < count && live < beams; k++) {
        const Candidate *c = &candidates[k];
        const int32_t *before = s->tokens + c->stream * longest;
        if (c->token == settings->end) {
            if (k >= beams) continue;
            finish(s, i, before, s->length, c->token,
                   score_of(settings, c->log_p, (int64_t)s->length + 1));
            finished++;
            continue;
        }
        int32_t *after = s->next_tokens + (to * beams + live) * longest;
        memcpy(after, before, s->length * sizeof(int32_t));
        after[s->length] = c->token;
        s->from[to * beams + live] = c->stream;
        s->log_p[to * beams + live] = c->log_p;
        live++;
    }
    for (size_t k = live; k < beams && live > 0; k++) { // unused streams
        s->from[to * beams + k] = s->from[to * beams];
        s->next_tokens[(to * beams + k) * longest + s->length] = settings->end;
    }
    s->live[to] = live;
    s->finished[to] = finished;
    s->sentences[to] = s->sentences[i];
}

// Adds the live hypotheses of sentence i to the complete ones.
static void finish_live(Search *s, size_t i) {
    const size_t beams = (size_t)s->settings->beams, length = s->length + 1;
    for (size_t k = 0; k < s->live[i]; k++)
        finish(s, i, s->next_tokens + (i * beams + k) * s->longest, length, -1,
               score_of(s->settings, s->log_p[i * beams + k], (int64_t)length));
}

// Returns whether sentence i, which was just extended by one token, is done.
static bool is_done(const Search *s, size_t i) {
    const BeamSettings *settings = s->settings;
    const size_t beams = (size_t)settings->beams;
    if (s->live[i] == 0 || (int64_t)s->length + 1 >= longest_of(s, i)) return true;
    if (s->finished[i] < beams) return false;
    return s->best[s->sentences[i] * (size_t)settings->best].score >=
           score_of(settings, s->log_p[i * beams], longest_of(s, i));
}

// Extends all sentences by one token, and drops those that are done.
static void advance(Search *s) {
    const size_t beams = (size_t)s->settings->beams;
#pragma omp parallel for schedule(dynamic)
    for (size_t stream = 0; stream < s->count * beams; stream++)
        if (stream % beams < s->live[stream / beams]) continue_stream(s, stream, s->log_p[stream]);
    size_t left = 0;
    for (size_t i = 0; i < s->count; i++) {
        Candidate candidates[MAX_CANDIDATES];
        const size_t count = continue_sentence(s, i, candidates);
        sort_out(s, i, left, candidates, count);
        const bool done = is_done(s, left);
        if (done && s->finished[left] == 0) finish_live(s, left);
        left += !done;
    }
    s->count = left;
    s->length++;
    int32_t *tokens = s->tokens;
    s->tokens = s->next_tokens;
    s->next_tokens = tokens;
}

static Search search_create(const BeamSettings *settings, size_t sentences, Room *logits,
                            Hypothesis *best) {
    const size_t beams = (size_t)settings->beams, streams = sentences * beams,
                 vocabulary = (size_t)settings->vocabulary, candidates = beams == 1 ? 1 : 2 * beams;
    if (beams > MAX_BEAMS)
        fail("a search with %zu beams, at most %d are possible", beams, MAX_BEAMS);
    Search s = {.settings = settings,
                .vocabulary = vocabulary,
                .candidates = candidates,
                .count = sentences};
    const char *what = "search";
    for (size_t i = 0; i < sentences; i++)
        if ((size_t)settings->longest[i] > s.longest) s.longest = (size_t)settings->longest[i];
    s.sentences = allocate(sentences, sizeof(size_t), what);
    s.live = allocate(sentences, sizeof(size_t), what);
    s.finished = allocate(sentences, sizeof(size_t), what);
    s.log_p = allocate(streams, sizeof(double), what);
    s.tokens = allocate(streams * s.longest, sizeof(int32_t), what);
    s.next_tokens = allocate(streams * s.longest, sizeof(int32_t), what);
    s.from = allocate(streams, sizeof(size_t), what);
    s.logits = room_for(logits, streams * vocabulary, sizeof(real), what);
    s.best_of_stream = allocate(streams * candidates, sizeof(Candidate), what);
    s.best = best;
    for (size_t i = 0; i < sentences; i++) {
        s.sentences[i] = i;
        s.live[i] = 1;
    }
    for (size_t i = 0; i < sentences * (size_t)settings->best; i++) best[i] = (Hypothesis){0};
    return s;
}

static void search_free(Search *s) {
    void *const arrays[] = {s->sentences, s->live,        s->finished, s->log_p,
                            s->tokens,    s->next_tokens, s->from,     s->best_of_stream};
    for (size_t i = 0; i < sizeof(arrays) / sizeof(*arrays); i++) free(arrays[i]);
}

void beam_search(const ModelType *type, void *model, const BeamSettings *settings,
                 const Batch *batch, Room *logits, Hypothesis *best) {
    const size_t B = (size_t)batch->batch, beams = (size_t)settings->beams;
    Search s = search_create(settings, B, logits, best);
    int32_t *read = allocate(B * beams, sizeof(int32_t), "search");
    for (size_t i = 0; i < B * beams; i++) read[i] = settings->start;
    void *decoder = type->translator_create(model, batch, settings->beams, (int64_t)s.longest);
    while (s.count > 0) {
        type->decode(decoder, read, s.logits);
        advance(&s);
        type->translator_select(decoder, s.from, s.count * beams);
        for (size_t i = 0; i < s.count * beams; i++)
            read[i] = s.tokens[i * s.longest + s.length - 1];
    }
    type->decoder_destroy(decoder);
    search_free(&s);
    free(read);
}
