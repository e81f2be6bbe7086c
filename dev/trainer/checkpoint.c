#include "checkpoint.h"

#include "error.h"
#include "file.h"
#include "huggingface.h"
#include "memory.h"
#include "run_data.h"
#include "run_page.h"
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ID_KEY "checkpoint_id"
#define BEST_NAME "best.safetensors"

// Bounds of a state's progress, to which a run can add without overflow.
static const int64_t MOST_STEPS = INT64_C(1) << 50, MOST_SEQUENCES = INT64_C(1) << 60;

// Fills one source per parameter: its name after `prefix`, and its values in `array`.
static void add_sources(const ParameterTable *table, const char *prefix, const real *array,
                        TensorSource *sources) {
    for (int i = 0; i < table->count; i++) {
        const Parameter *p = &table->items[i];
        sources[i] = (TensorSource){format_string("%s%s", prefix, p->name), p->rank, p->shape,
                                    array + p->offset};
    }
}

static void sources_free(TensorSource *sources, int count) {
    for (int i = 0; i < count; i++) free((char *)sources[i].name);
    free(sources);
}

void checkpoint_describe(const Run *run, Metadata **rows, int *count) {
    metadata_add(rows, count, "model", copy_string(run->type->name));
    metadata_add(rows, count, "vocab_size",
                 format_string("%lld", (long long)run->setup.vocabulary));
    metadata_add(rows, count, "n_positions",
                 format_string("%lld", (long long)run->setup.positions));
    run_data_describe(run->dataset, rows, count);
    options_to_metadata(run->options, OPTION_MODEL, rows, count);
    if (run->type->describe) run->type->describe(run->model, rows, count);
}

// id: that of the file's pair; NULL: none. validation: the result of an evaluation; NULL: none.
static void write_weights(const Run *run, const char *path, const real *values, int64_t step,
                          const char *id, const Evaluation *validation) {
    const ParameterTable *table = run->type->parameters(run->model);
    Metadata *rows = NULL;
    int count = 0;
    metadata_add(&rows, &count, "format", copy_string("pt"));
    checkpoint_describe(run, &rows, &count);
    metadata_add(&rows, &count, "step", format_string("%lld", (long long)step));
    if (id) metadata_add(&rows, &count, ID_KEY, copy_string(id));
    if (validation) {
        metadata_add(&rows, &count, "val_loss", format_string("%.17g", validation->loss));
        metadata_add(&rows, &count, "val_tokens",
                     format_string("%lld", (long long)validation->tokens));
        metadata_add(&rows, &count, "val_id", run_data_validation_id(run->dataset));
    }

    TensorSource *sources = allocate((size_t)table->count, sizeof(TensorSource), "checkpoint");
    add_sources(table, "", values, sources);
    safetensors_write(path, sources, table->count, rows, count);
    sources_free(sources, table->count);
    metadata_free(rows, count);
}

static void write_state(const Run *run, const char *path, const real *first, const real *second,
                        const Progress *progress, const char *id) {
    const ParameterTable *table = run->type->parameters(run->model);
    Metadata *rows = NULL;
    int count = 0;
    metadata_add(&rows, &count, "model", copy_string(run->type->name));
    metadata_add(&rows, &count, "step", format_string("%lld", (long long)progress->step));
    metadata_add(&rows, &count, ID_KEY, copy_string(id));
    metadata_add(&rows, &count, "sequences", format_string("%lld", (long long)progress->sequences));
    metadata_add(&rows, &count, "sequences_per_update",
                 format_string("%.17g", progress->sequences_per_update));
    if (progress->extra_steps != 0)
        metadata_add(&rows, &count, "extra_steps",
                     format_string("%lld", (long long)progress->extra_steps));
    metadata_add(&rows, &count, "skipped", format_string("%lld", (long long)progress->skipped));
    run_data_describe_shards(run->dataset, &rows, &count);
    // Values that depend on the clock are stored only if an option uses them, so that other states
    // are the same bytes each time.
    if (options_integer(run->options, OPT_PATIENCE) > 0)
        metadata_add(&rows, &count, "stale", format_string("%lld", (long long)progress->stale));
    if (options_number(run->options, OPT_MINUTES) > 0)
        metadata_add(&rows, &count, "seconds", format_string("%.17g", progress->seconds));
    if (progress->evaluation_due) metadata_add(&rows, &count, "evaluation_due", copy_string("1"));
    options_to_metadata(run->options, OPTION_TRAINING, &rows, &count);
    options_to_metadata(run->options, OPTION_LENGTH, &rows, &count);
    options_to_metadata(run->options, OPTION_HABIT, &rows, &count);

    TensorSource *sources = allocate(2 * (size_t)table->count, sizeof(TensorSource), "checkpoint");
    add_sources(table, "first_moment.", first, sources);
    add_sources(table, "second_moment.", second, sources + table->count);
    safetensors_write(path, sources, 2 * table->count, rows, count);
    sources_free(sources, 2 * table->count);
    metadata_free(rows, count);
}

// ---- names ------------------------------------------------------------------

static char *weights_name(int64_t step) {
    return format_string("step_%08lld.safetensors", (long long)step);
}

static char *state_name(int64_t step) {
    return format_string("step_%08lld.state.safetensors", (long long)step);
}

static char *weights_path(const char *directory, int64_t step) {
    char *name = weights_name(step), *path = path_in(directory, name);
    free(name);
    return path;
}

char *checkpoint_best_path(const char *directory) {
    return path_in(directory, BEST_NAME);
}

// Returns the step for which name_of() makes this name; -1: another file.
static int64_t step_of_name(const char *name, char *(*name_of)(int64_t)) {
    long long step;
    if (sscanf(name, "step_%lld", &step) != 1 || step < 0) return -1;
    char *expected = name_of(step);
    const bool same = strcmp(name, expected) == 0;
    free(expected);
    return same ? step : -1;
}

// ---- the contents of a directory --------------------------------------------

typedef struct {
    char **names; // in order
    size_t count;
    int64_t *complete; // steps whose pair is complete, newest first
    size_t complete_count;
} Listing;

static int compare_names(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int descending(const void *a, const void *b) {
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x < y) - (x > y);
}

// Takes ownership of `name`.
static bool listed(const Listing *listing, char *name) {
    const bool found = listing->count && bsearch(&name, listing->names, listing->count,
                                                 sizeof(char *), compare_names);
    free(name);
    return found;
}

static Listing listing_create(const char *directory) {
    Listing listing = {0};
    listing.names = directory_list(directory, &listing.count);
    listing.complete = allocate(listing.count, sizeof(int64_t), "a list of checkpoints");
    for (size_t i = 0; i < listing.count; i++) {
        const int64_t step = step_of_name(listing.names[i], weights_name);
        if (step >= 0 && listed(&listing, state_name(step)))
            listing.complete[listing.complete_count++] = step;
    }
    qsort(listing.complete, listing.complete_count, sizeof(int64_t), descending);
    return listing;
}

static void listing_free(Listing *listing) {
    directory_list_free(listing->names, listing->count);
    free(listing->complete);
}

// Takes ownership of `name`. Returns false, after a warning, if the file still exists.
static bool remove_file(const char *directory, char *name) {
    char *path = path_in(directory, name);
    const bool gone = unlink(path) == 0 || errno == ENOENT;
    if (!gone)
        warn("%s: cannot be removed: %s", path, strerror(errno));
    else
        file_sync_name(path); // after a power failure, the half removed first is the missing one
    free(path);
    free(name);
    return gone;
}

// Removes all complete pairs but the newest `keep`.
static void remove_pairs(const char *directory, const Listing *listing, int64_t keep) {
    for (size_t i = (size_t)keep; i < listing->complete_count; i++) {
        // Removes the weights first: an interruption leaves a state alone, which is not taken for a
        // checkpoint. Weights that cannot be removed keep their state: the next run removes both.
        if (remove_file(directory, weights_name(listing->complete[i])))
            remove_file(directory, state_name(listing->complete[i]));
    }
}

// Returns whether a killed run of such a model may have left a file of that name partially written.
static bool is_temporary(const ModelType *type, const char *name) {
    if (!path_ends_in(name, ".tmp")) return false;
    char *base = format_string("%.*s", (int)(strlen(name) - strlen(".tmp")), name);
    const char *const names[] = {BEST_NAME, "log.jsonl", RUN_PAGE_NAME};
    bool ours = step_of_name(base, weights_name) >= 0 || step_of_name(base, state_name) >= 0 ||
                tokenizer_has_file(base) || huggingface_has_file(type, base);
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
        ours = ours || strcmp(base, names[i]) == 0;
    free(base);
    return ours;
}

void checkpoint_tidy(const ModelType *type, const char *directory, int64_t keep) {
    Listing listing = listing_create(directory);
    for (size_t i = 0; i < listing.count; i++) {
        const int64_t step = step_of_name(listing.names[i], state_name);
        const bool orphan = step >= 0 && !listed(&listing, weights_name(step));
        if (orphan || is_temporary(type, listing.names[i]))
            remove_file(directory, copy_string(listing.names[i]));
    }
    remove_pairs(directory, &listing, keep);
    listing_free(&listing);
}

void checkpoint_refuse_used(const char *directory, bool restarts) {
    Listing listing = listing_create(directory);
    if (listing.complete_count && !restarts)
        fail("%s: holds a run at step %lld; continue it with --resume or choose another --output",
             directory, (long long)listing.complete[0]);
    for (size_t i = 0; i < listing.count; i++) {
        const char *name = listing.names[i];
        if (step_of_name(name, weights_name) >= 0 &&
            !listed(&listing, state_name(step_of_name(name, weights_name))))
            fail("%s: has weights without their state (%s), so their run cannot be resumed; start "
                 "one from them with -e and another --output",
                 directory, name);
        if (!restarts && strcmp(name, BEST_NAME) == 0)
            fail("%s: holds %s of an earlier run; choose another --output", directory, name);
    }
    listing_free(&listing);
}

void checkpoint_count(const char *directory, size_t *pairs, bool *best) {
    Listing listing = listing_create(directory);
    *pairs = listing.complete_count;
    *best = listed(&listing, copy_string(BEST_NAME));
    listing_free(&listing);
}

// ---- saving -----------------------------------------------------------------
// Exits with an error instead of saving weights that are not finite.
static void refuse_non_finite(const Run *run, const real *values, int64_t step) {
    const ParameterTable *table = run->type->parameters(run->model);
    for (int i = 0; i < table->count; i++)
        for (size_t j = 0; j < table->items[i].size; j++)
            if (!isfinite(values[table->items[i].offset + j]))
                fail("step %lld: %s has become %g; nothing is saved, and the checkpoint before "
                     "stays; start from it with -e and a lower --lr",
                     (long long)step, table->items[i].name,
                     (double)values[table->items[i].offset + j]);
}

// Adds numbers to a hash, 64 bits at a time; the arrays are whole cache lines.
static uint64_t hash_array(uint64_t hash, const real *values, size_t count) {
    for (size_t i = 0; i < count * sizeof(real); i += sizeof(uint64_t)) {
        uint64_t word;
        memcpy(&word, (const char *)values + i, sizeof(word));
        hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 32;
    }
    return hash;
}

// Writes the pair of a step, and removes old ones.
static void write_pair(const Run *run, const char *directory, const Progress *progress,
                       int64_t keep, const real *values, const real *first, const real *second,
                       const char *id) {
    char *name = weights_name(progress->step), *other = state_name(progress->step);
    char *weights = path_in(directory, name), *state = path_in(directory, other);
    write_state(run, state, first, second, progress, id);
    write_weights(run, weights, values, progress->step, id, NULL);
    char *best = checkpoint_best_path(directory);
    if (!file_exists(best)) huggingface_export(run, directory, name);
    Listing listing = listing_create(directory);
    remove_pairs(directory, &listing, keep);
    listing_free(&listing);
    char *strings[] = {name, other, weights, state, best};
    for (size_t i = 0; i < sizeof(strings) / sizeof(*strings); i++) free(strings[i]);
}

void checkpoint_save(const Run *run, const char *directory, const Progress *progress,
                     int64_t keep) {
    const size_t total = run->type->parameters(run->model)->total;
    real *copies[3];
    const real *values = model_view(run->type, run->model, MODEL_VALUES, &copies[0]),
               *first = model_view(run->type, run->model, MODEL_FIRST_MOMENT, &copies[1]),
               *second = model_view(run->type, run->model, MODEL_SECOND_MOMENT, &copies[2]);
    refuse_non_finite(run, values, progress->step);
    uint64_t hash = hash_array((uint64_t)progress->step, values, total);
    hash = hash_array(hash_array(hash, first, total), second, total);
    char *id = format_string("%016llx", (unsigned long long)hash);
    ranks_compare(
        run->ranks, id,
        "the parameters are no longer those of rank 0, this processor computes otherwise");
    if (ranks_rank(run->ranks) == 0)
        write_pair(run, directory, progress, keep, values, first, second, id);
    free(id);
    for (size_t i = 0; i < sizeof(copies) / sizeof(*copies); i++) free(copies[i]);
}

// Returns whether DIR/best.safetensors, left by an attempt that ended before its first checkpoint,
// is at least as good as the result. Losses on different texts are not comparable: then the weights
// of the later step are kept.
static bool is_no_better(const Run *run, const char *directory, int64_t step,
                         const Evaluation *result) {
    char *id = run_data_validation_id(run->dataset);
    int64_t best_step;
    const BestLoss best = checkpoint_best(directory, INT64_MAX, id, &best_step);
    free(id);
    const bool comparable = best.tokens == 0 || best.tokens == result->tokens;
    return comparable && isfinite(best.loss) ? best.loss <= result->loss : best_step > step;
}

void checkpoint_save_best(const Run *run, const char *directory, int64_t step,
                          const Evaluation *result) {
    if (is_no_better(run, directory, step, result)) return;
    char *path = checkpoint_best_path(directory);
    real *copy;
    const real *values = model_view(run->type, run->model, MODEL_VALUES, &copy);
    refuse_non_finite(run, values, step);
    write_weights(run, path, values, step, NULL, result);
    huggingface_export(run, directory, BEST_NAME);
    free(copy);
    free(path);
}

// ---- loading ----------------------------------------------------------------
// Exits with an error if the files of a pair were not saved together. Files from versions without
// ids are compared by step only.
static void check_pair(const Checkpoint *pair) {
    const char *weights = safetensors_metadata(pair->weights, ID_KEY);
    const char *state = safetensors_metadata(pair->state, ID_KEY);
    const bool same = weights && state ? strcmp(weights, state) == 0 : weights == state;
    if (!same || safetensors_integer(pair->state, "step", 0, INT64_MAX) !=
                     safetensors_integer(pair->weights, "step", 0, INT64_MAX))
        fail("%s: does not belong to the weights next to it: the two were not saved together; "
             "remove both to resume from an older checkpoint, or start from the weights with -e "
             "and another --output",
             pair->state->file.path);
}

void checkpoint_check_pair(const char *weights) {
    char *name = state_name(step_of_name(path_name(weights), weights_name)),
         *state = path_beside(weights, name);
    const Checkpoint pair = {safetensors_open(weights), safetensors_open(state)};
    check_pair(&pair);
    safetensors_close(pair.weights);
    safetensors_close(pair.state);
    free(state);
    free(name);
}

// Returns the complete step that has `newer` newer ones; -1: none.
static int64_t complete_step(const char *directory, size_t newer) {
    Listing listing = listing_create(directory);
    const int64_t step = listing.complete_count > newer ? listing.complete[newer] : -1;
    listing_free(&listing);
    return step;
}

// Adds to error messages, until error_advise(NULL), how to resume from the pair before that of
// `step`.
static void advise_older(const char *directory, int64_t step) {
    Listing listing = listing_create(directory);
    size_t i = 0;
    while (i < listing.complete_count && listing.complete[i] >= step) i++;
    if (i > 0 && i < listing.complete_count)
        error_advise("; to resume from step %lld, which is complete, remove %s/step_%08lld.*",
                     (long long)listing.complete[i], directory, (long long)step);
    listing_free(&listing);
}

// Takes ownership of `name`. Returns NULL if there is no such file.
static Safetensors *try_open(const char *directory, char *name) {
    char *path = path_in(directory, name);
    Safetensors *file = safetensors_try_open(path);
    free(path);
    free(name);
    return file;
}

// Opens the newest complete pair in DIR, or only its weights. Returns false if there is none. A run
// that resumes in DIR may save a newer pair and remove this one before it is open here.
static bool open_newest(const char *directory, bool state, Checkpoint *pair) {
    for (int64_t step, before = -1; (step = complete_step(directory, 0)) >= 0; before = step) {
        if (step == before)
            fail("%s: step %lld is listed and cannot be opened", directory, (long long)step);
        advise_older(directory, step);
        pair->weights = try_open(directory, weights_name(step));
        pair->state = state ? try_open(directory, state_name(step)) : NULL;
        error_advise(NULL);
        if (pair->weights && (pair->state || !state)) return true;
        safetensors_close(pair->weights);
        safetensors_close(pair->state);
    }
    *pair = (Checkpoint){0};
    return false;
}

bool checkpoint_open_latest(const char *directory, Checkpoint *pair) {
    const bool found = open_newest(directory, true, pair);
    if (found) check_pair(pair);
    return found;
}

// Opens the weights in a directory: the best ones of a run, else its newest, else those of a
// Hugging Face model.
static Safetensors *open_weights_in(const char *directory) {
    Checkpoint newest = {0};
    Safetensors *found = try_open(directory, copy_string(BEST_NAME));
    if (!found && open_newest(directory, false, &newest)) found = newest.weights;
    if (!found) found = try_open(directory, copy_string(HUGGINGFACE_WEIGHTS));
    if (!found) found = try_open(directory, copy_string(HUGGINGFACE_INDEX));
    if (!found)
        fail("%s: holds no weights: neither %s nor step_N.safetensors nor %s nor %s", directory,
             BEST_NAME, HUGGINGFACE_WEIGHTS, HUGGINGFACE_INDEX);
    return found;
}

Safetensors *checkpoint_open_weights(const char *path) {
    struct stat status;
    const bool directory = stat(path, &status) == 0 && S_ISDIR(status.st_mode);
    if (directory) return open_weights_in(path);
    char *index = path_beside(path, HUGGINGFACE_INDEX);
    if (strncmp(path_name(path), "model-", 6) == 0 && file_exists(index))
        fail("%s: is one of several files of a model; give %s", path, index);
    free(index);
    return safetensors_open(path);
}

char *checkpoint_path(const char *directory, size_t newer) {
    const int64_t step = complete_step(directory, newer);
    return step < 0 ? NULL : weights_path(directory, step);
}

void checkpoint_check_type(const Safetensors *file, const ModelType *type) {
    const char *model = safetensors_metadata(file, "model");
    if (!model)
        fail("%s: its metadata names no model, expected \"%s\"", file->file.path, type->name);
    if (strcmp(model, type->name) != 0)
        fail("%s: holds a model of type %s, this program trains %s", file->file.path, model,
             type->name);
}

static void shape_text(int rank, const int64_t *shape, char *text, size_t size) {
    size_t used = (size_t)snprintf(text, size, "(");
    for (int i = 0; i < rank && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%lld", i ? ", " : "",
                                 (long long)shape[i]);
    if (used < size) snprintf(text + used, size - used, ")");
}

// Finds tensor prefix+name of a parameter, which must have its shape. Returns its index in the
// file.
static int find_tensor(const Safetensors *file, const Parameter *p, const char *prefix) {
    char *name = format_string("%s%s", prefix, p->name);
    const Tensor *tensor = safetensors_find(file, name);
    if (!tensor) fail("%s: tensor %s is missing", file->file.path, name);
    if (tensor->rank != p->rank ||
        memcmp(tensor->shape, p->shape, (size_t)p->rank * sizeof(int64_t)) != 0) {
        char found[128], expected[128];
        shape_text(tensor->rank, tensor->shape, found, sizeof(found));
        shape_text(p->rank, p->shape, expected, sizeof(expected));
        fail("%s: tensor %s has shape %s, expected %s", file->file.path, name, found, expected);
    }
    free(name);
    return (int)(tensor - file->tensors);
}

// Reads tensor prefix+name of every parameter into `array`.
static void read_parameters(const Safetensors *file, const ParameterTable *table,
                            const char *prefix, real *array) {
    char *directory = path_directory(file->file.path);
    const char *name = path_name(file->file.path);
    long long step;
    if (sscanf(name, "step_%lld", &step) == 1) advise_older(directory, step);
    free(directory);
    for (int i = 0; i < table->count; i++) {
        const Parameter *p = &table->items[i];
        const Tensor *tensor = &file->tensors[find_tensor(file, p, prefix)];
        tensor_read_real(file, tensor, array + p->offset);
        for (size_t j = 0; j < p->size; j++)
            if (!isfinite(array[p->offset + j]))
                fail("%s: tensor %s: element %zu is %g, expected a finite number", file->file.path,
                     tensor->name, j, (double)array[p->offset + j]);
    }
    error_advise(NULL);
}

void checkpoint_check_tensors(const Safetensors *file, const ModelType *type,
                              const ParameterTable *table) {
    bool *known = allocate((size_t)file->tensor_count, sizeof(bool), "checkpoint");
    for (int i = 0; i < table->count; i++) known[find_tensor(file, &table->items[i], "")] = true;
    for (int i = 0; i < file->tensor_count; i++)
        if (!known[i])
            fail("%s: tensor %s is not part of this %s model", file->file.path,
                 file->tensors[i].name, type->name);
    free(known);
}

// Returns whether two texts are equal word by word, with numbers compared by value ("[4, 8]" and
// "4,8", "1e-05" and "0.00001").
static bool same_values(const char *a, const char *b) {
    static const char gaps[] = "[], ";
    for (;;) {
        a += strspn(a, gaps);
        b += strspn(b, gaps);
        if (!*a || !*b) return !*a && !*b;
        const size_t m = strcspn(a, gaps), n = strcspn(b, gaps);
        char *end_a, *end_b;
        const double x = strtod(a, &end_a), y = strtod(b, &end_b);
        const bool numbers = end_a == a + m && end_b == b + n;
        if (numbers ? x != y : m != n || memcmp(a, b, n) != 0) return false;
        a += m;
        b += n;
    }
}

// Properties of the model that no option sets (activation, epsilon, windows) must match the file.
static void check_description(const Safetensors *file, const Run *run) {
    Metadata *rows = NULL;
    int count = 0;
    if (run->type->describe) run->type->describe(run->model, &rows, &count);
    for (int i = 0; i < count; i++) {
        const char *stored = safetensors_metadata(file, rows[i].key);
        if (stored && !options_read_metadata(run->options, rows[i].key, file) &&
            !same_values(stored, rows[i].value))
            fail("%s: metadata %s is \"%s\", this program computes \"%s\"", file->file.path,
                 rows[i].key, stored, rows[i].value);
    }
    metadata_free(rows, count);
}

// Checks the weights of a file and returns them, newly allocated.
static real *read_weights(const Safetensors *file, const Run *run) {
    const ParameterTable *table = run->type->parameters(run->model);
    check_description(file, run);
    checkpoint_check_tensors(file, run->type, table);
    real *values = allocate(table->total, sizeof(real), "checkpoint");
    read_parameters(file, table, "", values);
    return values;
}

void checkpoint_load_weights(const Safetensors *file, const Run *run) {
    real *values = read_weights(file, run);
    run->type->write(run->model, MODEL_VALUES, values);
    free(values);
}

// Interpolates rows (P, C) of an embedding linearly to (positions, C), newly allocated: row i is
// taken at i * (P - 1) / (positions - 1).
static real *interpolated(const real *rows, size_t P, size_t C, size_t positions) {
    real *out = allocate(positions * C, sizeof(real), "positions");
    for (size_t i = 0; i < positions; i++) {
        const double place =
            positions > 1 ? (double)i * (double)(P - 1) / (double)(positions - 1) : 0;
        const size_t low = (size_t)place, high = low + 1 < P ? low + 1 : low;
        const double share = place - (double)low;
        for (size_t c = 0; c < C; c++)
            out[i * C + c] = (real)((1 - share) * (double)rows[low * C + c] +
                                    share * (double)rows[high * C + c]);
    }
    return out;
}

// Interpolates the embedding `name` (old, C) to (positions, C).
static void interpolate_embedding(Safetensors *file, const char *name, int64_t old,
                                  int64_t positions) {
    const Tensor *found = safetensors_find(file, name);
    if (!found || found->rank != 2 || found->shape[0] != old)
        fail("%s: tensor %s is missing or has not %lld rows", file->file.path, name,
             (long long)old);
    Tensor *tensor = &file->tensors[found - file->tensors];
    const size_t C = (size_t)tensor->shape[1];
    real *rows = allocate(tensor->count, sizeof(real), "positions");
    tensor_read_real(file, tensor, rows);
    tensor_replace(tensor, positions, interpolated(rows, (size_t)old, C, (size_t)positions));
    free(rows);
}

void checkpoint_extend_positions(Safetensors *file, const ModelType *type, int64_t positions) {
    const int64_t old = safetensors_integer(file, "n_positions", 1, 1 << 28);
    if (type->position_embedding && safetensors_find(file, type->position_embedding))
        interpolate_embedding(file, type->position_embedding, old, positions);
    if (type->extend) type->extend(file, positions);
    metadata_set(&file->metadata, &file->metadata_count, "n_positions",
                 format_string("%lld", (long long)positions));
}

// Adds `factor` times the weights of a step to `sum`.
static void add_checkpoint(const char *directory, int64_t step, double factor, const Run *run,
                           real *sum) {
    char *path = weights_path(directory, step);
    Safetensors *file = safetensors_open(path);
    const size_t total = run->type->parameters(run->model)->total;
    real *values = read_weights(file, run);
    for (size_t i = 0; i < total; i++) sum[i] += (real)factor * values[i];
    free(values);
    safetensors_close(file);
    free(path);
}

void checkpoint_load_average(const Safetensors *file, int64_t count, const Run *run) {
    char *directory = path_directory(file->file.path);
    Listing listing = listing_create(directory);
    const char *init = options_text(run->options, OPT_INIT);
    const int64_t step = step_of_name(path_name(file->file.path), weights_name);
    size_t first = 0;                         // of the steps, newest first
    if (strcmp(init, file->file.path) == 0) { // else --init names a directory
        while (first < listing.complete_count && listing.complete[first] != step) first++;
        if (first == listing.complete_count)
            fail("--average: %s is no step_N.safetensors with its state next to it; name the last "
                 "of them to take, or their directory",
                 init);
    }
    if ((int64_t)(listing.complete_count - first) < count)
        fail("--average %lld: %s holds %zu checkpoints%s; train with a larger --keep",
             (long long)count, directory, listing.complete_count - first,
             first > 0 ? " up to that" : "");
    real *sum = allocate(run->type->parameters(run->model)->total, sizeof(real), "checkpoint");
    for (size_t i = first; i < first + (size_t)count; i++)
        add_checkpoint(directory, listing.complete[i], 1 / (double)count, run, sum);
    run->type->write(run->model, MODEL_VALUES, sum);
    free(sum);
    listing_free(&listing);
    free(directory);
}

BestLoss checkpoint_best(const char *directory, int64_t last, const char *validation,
                         int64_t *step) {
    char *path = checkpoint_best_path(directory);
    error_advise("; to continue without these weights, remove the file");
    Safetensors *best = safetensors_try_open(path);
    error_advise(NULL);
    BestLoss found = {INFINITY, 0};
    const char *theirs = best ? safetensors_metadata(best, "val_id") : NULL;
    *step = best ? safetensors_integer(best, "step", 0, INT64_MAX) : -1;
    if (best && *step <= last && (!theirs || strcmp(theirs, validation) == 0)) {
        found.loss = safetensors_number(best, "val_loss");
        if (safetensors_metadata(best, "val_tokens"))
            found.tokens = safetensors_integer(best, "val_tokens", 0, INT64_MAX);
    }
    safetensors_close(best);
    free(path);
    return found;
}

void checkpoint_load_state(const Safetensors *file, const Run *run, Progress *progress) {
    progress->step = safetensors_integer(file, "step", 0, MOST_STEPS);
    progress->sequences = safetensors_integer(file, "sequences", 0, MOST_SEQUENCES);
    progress->skipped = safetensors_integer(file, "skipped", 0, progress->step);
    if (safetensors_metadata(file, "sequences_per_update"))
        progress->sequences_per_update = safetensors_number(file, "sequences_per_update");
    if (safetensors_metadata(file, "extra_steps"))
        progress->extra_steps =
            safetensors_integer(file, "extra_steps", -progress->sequences, progress->step);
    if (safetensors_metadata(file, "stale"))
        progress->stale = safetensors_integer(file, "stale", 0, progress->step);
    progress->evaluation_due = safetensors_metadata(file, "evaluation_due") &&
                               safetensors_integer(file, "evaluation_due", 0, 1) == 1;
    if (safetensors_metadata(file, "seconds"))
        progress->seconds = safetensors_number(file, "seconds");
    if (progress->seconds < 0)
        fail("%s: metadata seconds is %g, expected at least 0", file->file.path, progress->seconds);
    ranks_broadcast(run->ranks, progress, sizeof(*progress));
    const ParameterTable *table = run->type->parameters(run->model);
    real *values = allocate(table->total, sizeof(real), "checkpoint");
    const size_t size = table->total * sizeof(real);
    read_parameters(file, table, "first_moment.", values);
    ranks_broadcast(run->ranks, values, size);
    run->type->write(run->model, MODEL_FIRST_MOMENT, values);
    read_parameters(file, table, "second_moment.", values);
    ranks_broadcast(run->ranks, values, size);
    run->type->write(run->model, MODEL_SECOND_MOMENT, values);
    free(values);
}
