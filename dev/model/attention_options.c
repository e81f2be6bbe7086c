#include "attention_options.h"

#include "error.h"
#include "memory.h"
#include "model_options.h"
#include "text.h"
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

// ---- windows ----------------------------------------------------------------
// Parses a number of at least 1, or "global". *window is 0 for global and for a window that spans
// all positions. Returns false if the text is neither.
static bool read_window(const char *text, size_t length, size_t positions, size_t *window) {
    *window = 0;
    if (length == 6 && strncmp(text, "global", 6) == 0) return true;
    for (size_t i = 0; i < length; i++) {
        if (!isdigit((unsigned char)text[i]) || *window > SIZE_MAX / 100) return false;
        *window = *window * 10 + (size_t)(text[i] - '0');
    }
    if (*window == 0) return false;
    if (*window >= positions) *window = 0;
    return true;
}

static size_t parse_window(const char *text, size_t length, size_t positions, const char *list) {
    size_t window;
    if (!read_window(text, length, positions, &window))
        fail("--windows %s: expected auto, global, or a list of whole numbers from 1 such as "
             "4,8,16,global",
             list);
    return window;
}

// Parses a list separated by commas or spaces, optionally in brackets (as in the published
// checkpoints).
static void parse_windows(AttentionPlan *plans, const char *list, size_t layers, size_t positions) {
    if (strcmp(list, "global") == 0) return;
    if (strcmp(list, "auto") == 0) {
        for (size_t l = 0; l + 1 < layers; l++)
            plans[l].window = l < 40 && ((size_t)4 << l) < positions ? (size_t)4 << l : 0;
        return;
    }
    size_t count = 0;
    for (const char *p = list;;) {
        p += strspn(p, "[], ");
        if (!*p) break;
        const size_t length = strcspn(p, "[], ");
        const size_t window = parse_window(p, length, positions, list);
        if (count < layers) plans[count].window = window;
        count++;
        p += length;
    }
    if (count != layers) fail("--windows %s: %zu windows for %zu layers", list, count, layers);
}

// Returns --attention with "global" for each window that spans all `old` positions, allocated.
static char *extended_attention(const char *text, size_t old) {
    char *extended = copy_string("");
    for (const char *p = text; *p;) {
        const size_t length = strcspn(p, ":,+*");
        size_t window;
        const bool spans =
            p > text && p[-1] == ':' && read_window(p, length, old, &window) && window == 0;
        append_format(&extended, "%.*s%.1s", spans ? 6 : (int)length, spans ? "global" : p,
                      p + length);
        p += length + (p[length] != '\0');
    }
    return extended;
}

// Rewrites the windows that the model describes, one per layer.
static void extend_sizes(Safetensors *file, const char *sizes, size_t old, int64_t positions) {
    char *windows = copy_string(""), *new_sizes = copy_string("");
    for (const char *p = sizes; *(p += strspn(p, "[], "));) {
        const size_t length = strcspn(p, "[], "), window = parse_window(p, length, old, sizes);
        const char *comma = *windows ? ", " : "";
        append_format(&new_sizes, "%s%zu", comma, window ? window : (size_t)positions);
        if (window)
            append_format(&windows, "%s%zu", comma, window);
        else
            append_format(&windows, "%sglobal", comma);
        p += length;
    }
    metadata_set(&file->metadata, &file->metadata_count, "windows", windows);
    metadata_set(&file->metadata, &file->metadata_count, "window_sizes", new_sizes);
}

void attention_extend(Safetensors *file, int64_t positions) {
    const char *sizes = safetensors_metadata(file, "window_sizes"),
               *attention = safetensors_metadata(file, "attention");
    const size_t old = (size_t)safetensors_integer(file, "n_positions", 1, 1 << 28);
    if (attention)
        metadata_set(&file->metadata, &file->metadata_count, "attention",
                     extended_attention(attention, old));
    if (sizes)
        extend_sizes(file, sizes, old, positions);
    else if (safetensors_metadata(file, "windows")) // no layer has one that is shorter
        metadata_set(&file->metadata, &file->metadata_count, "windows", copy_string("global"));
}

// ---- kinds ------------------------------------------------------------------

// The text to parse, for error messages.
typedef struct {
    const char *text; // the whole option
    size_t layers, positions;
    bool causal;
} AttentionText;

// Returns the kinds that support a direction, "softmax|softmax1|cosine", allocated.
static char *kind_names(bool causal) {
    char *names = copy_string("");
    for (int kind = 0; kind < ATTENTION_KINDS; kind++) {
        const AttentionType *type = &attention_types[kind];
        if (causal ? type->causal : type->both)
            append_format(&names, "%s%s", *names ? "|" : "", type->name);
    }
    return names;
}

// Parses KIND or KIND:WINDOW.
static AttentionPlan parse_kind(const AttentionText *from, const char *entry, size_t length) {
    const char *colon = memchr(entry, ':', length);
    const size_t name = colon ? (size_t)(colon - entry) : length;
    AttentionPlan plan = attention_plan(attention_find(entry, name, from->causal), from->causal);
    plan.window = SIZE_MAX; // the one of --windows
    if (plan.kind == ATTENTION_KINDS)
        fail_usage("--attention %s: \"%.*s\" is no %s attention; expected %s", from->text,
                   (int)name, entry, from->causal ? "causal" : "bidirectional",
                   kind_names(from->causal));
    if (!colon) return plan;
    if (!from->causal) fail_usage("--attention %s: only causal attention has windows", from->text);
    if (!read_window(colon + 1, length - name - 1, from->positions, &plan.window))
        fail_usage("--attention %s: the window after ':' is a whole number from 1, or global",
                   from->text);
    return plan;
}

// Parses an entry, KIND or KIND*N, into the N plans from plans[count] on; plans after the last
// layer are not stored. Returns N.
static size_t parse_entry(const AttentionText *from, AttentionPlan *plans, size_t count,
                          const char *entry, size_t length) {
    const char *star = memchr(entry, '*', length);
    const size_t kind = star ? (size_t)(star - entry) : length;
    const AttentionPlan plan = parse_kind(from, entry, kind);
    size_t times = star ? 0 : 1;
    for (const char *p = entry + kind + 1; p < entry + length && times <= MAX_LAYERS; p++)
        times = isdigit((unsigned char)*p) ? times * 10 + (size_t)(*p - '0') : SIZE_MAX;
    if (times == 0 || times > MAX_LAYERS)
        fail_usage("--attention %s: '*' is followed by a whole number from 1 to %d", from->text,
                   MAX_LAYERS);
    for (size_t i = count; i < count + times && i < from->layers; i++) plans[i] = plan;
    return times;
}

// Parses entries separated by `separator`. Returns the number of layers that they describe.
static size_t parse_entries(const AttentionText *from, AttentionPlan *plans,
                            const char *separator) {
    size_t count = 0;
    for (const char *p = from->text;; p++) {
        const size_t length = strcspn(p, separator);
        count += parse_entry(from, plans, count < from->layers ? count : from->layers, p, length);
        p += length;
        if (!*p) return count;
    }
}

static void parse_attention(const AttentionText *from, AttentionPlan *plans) {
    const bool list = strchr(from->text, ',');
    if (list && strpbrk(from->text, "+*"))
        fail_usage("--attention %s: either a list (,) or a pattern (+ and *)", from->text);
    const size_t count = parse_entries(from, plans, list ? "," : "+");
    if (list && count != from->layers)
        fail_usage("--attention %s: %zu entries for %zu layers", from->text, count, from->layers);
    if (from->layers % count != 0)
        fail_usage("--attention %s: a pattern of %zu layers does not divide %zu", from->text, count,
                   from->layers);
    for (size_t l = count; l < from->layers; l++) plans[l] = plans[l - count];
}

// Checks the options of all kinds, including those that no layer uses.
static void check_options(const Options *options, bool causal) {
    for (size_t kind = 0; kind < ATTENTION_KINDS; kind++) {
        const AttentionType *type = &attention_types[kind];
        AttentionPlan plan = {0};
        if (type->configure && (causal ? type->causal : type->both))
            type->configure(&plan, options);
    }
}

AttentionPlan *attention_plans(const Options *options, size_t layers, size_t positions,
                               bool causal) {
    AttentionPlan *plans = allocate(layers, sizeof(AttentionPlan), "layers"),
                  *windows = allocate(layers, sizeof(AttentionPlan), "layers");
    const AttentionText from = {options_text(options, OPT_ATTENTION), layers, positions, causal};
    parse_attention(&from, plans);
    if (causal) parse_windows(windows, options_text(options, OPT_WINDOWS), layers, positions);
    check_options(options, causal);
    for (size_t l = 0; l < layers; l++) {
        if (plans[l].window == SIZE_MAX) plans[l].window = windows[l].window;
        const AttentionType *type = &attention_types[plans[l].kind];
        if (type->configure) type->configure(&plans[l], options);
    }
    free(windows);
    return plans;
}
