#include "generation.h"

#include "error.h"
#include "file.h"
#include "huggingface.h"
#include "json.h"
#include "memory.h"
#include <math.h>
#include <stdlib.h>

// Reads a token, or a list of tokens in the order of the file; skips values that are not tokens.
static TokenList read_tokens(const Json *value, int64_t vocabulary) {
    TokenList list = {0};
    const bool many = value && value->kind == JSON_ARRAY;
    const size_t count = many ? value->count : value != NULL;
    list.tokens = allocate(count, sizeof(int32_t), "tokens");
    for (size_t i = 0; i < count; i++) {
        const Json *item = many ? &value->items[i] : value;
        if (item->kind == JSON_NUMBER && item->number >= 0 && item->number < (double)vocabulary)
            list.tokens[list.count++] = (int32_t)item->number;
    }
    return list;
}

// Returns the value from the first file in which it is present and not null.
static const Json *find(Json *const files[2], const char *key) {
    for (int i = 0; i < 2; i++) {
        const Json *value = files[i] ? json_find(files[i], key) : NULL;
        if (value && value->kind != JSON_NULL) return value;
    }
    return NULL;
}

static void read_bad(Generation *g, const Json *bad, int64_t vocabulary) {
    if (!bad || bad->kind != JSON_ARRAY) return;
    g->bad = allocate(bad->count, sizeof(TokenList), "tokens");
    for (size_t i = 0; i < bad->count; i++) {
        TokenList list = read_tokens(&bad->items[i], vocabulary);
        if (list.count > 0 && list.count == bad->items[i].count)
            g->bad[g->bad_count++] = list;
        else
            free(list.tokens);
    }
}

static Json *read_file(const Safetensors *weights, const char *name) {
    char *path = path_beside(weights->file.path, name);
    Json *root = file_exists(path) ? json_read(path) : NULL;
    free(path);
    return root;
}

static TokenList unused_tokens(const Dataset *dataset, int64_t vocabulary) {
    TokenList list = {0};
    for (int64_t token = 0; dataset->tokenizer && token < vocabulary; token++) {
        if (token < dataset->vocabulary && !tokenizer_is_unused(dataset->tokenizer, (int32_t)token))
            continue;
        list.tokens = grow_list(list.tokens, list.count, sizeof(int32_t), "tokens");
        list.tokens[list.count++] = (int32_t)token;
    }
    return list;
}

Generation generation_open(const Safetensors *weights, const Dataset *dataset, int64_t vocabulary) {
    Generation g = {.unused = unused_tokens(dataset, vocabulary), .forced_end = -1};
    if (weights && safetensors_metadata(weights, HUGGINGFACE_ORIGIN)) {
        Json *const files[] = {read_file(weights, "generation_config.json"),
                               read_file(weights, "config.json")};
        g.ends = read_tokens(find(files, "eos_token_id"), vocabulary);
        read_bad(&g, find(files, "bad_words_ids"), vocabulary);
        TokenList forced = read_tokens(find(files, "forced_eos_token_id"), vocabulary);
        if (forced.count > 0) g.forced_end = forced.tokens[0];
        free(forced.tokens);
        for (int i = 0; i < 2; i++) json_free(files[i]);
    } else if (dataset->tokenizer && dataset->end >= 0 &&
               tokenizer_is_special(dataset->tokenizer, dataset->end)) {
        g.ends.tokens = allocate(1, sizeof(int32_t), "tokens");
        g.ends.tokens[g.ends.count++] = dataset->end;
    }
    return g;
}

void generation_free(Generation *generation) {
    for (size_t i = 0; i < generation->bad_count; i++) free(generation->bad[i].tokens);
    free(generation->bad);
    free(generation->unused.tokens);
    free(generation->ends.tokens);
}

bool generation_ends(const Generation *generation, int32_t token) {
    for (size_t i = 0; i < generation->ends.count; i++)
        if (generation->ends.tokens[i] == token) return true;
    return false;
}

void generation_forbid(const Generation *generation, real *logits) {
    for (size_t i = 0; i < generation->unused.count; i++)
        logits[generation->unused.tokens[i]] = -(real)INFINITY;
}

bool generation_take_blank(const Dataset *dataset, Text *prompt) {
    const bool blank = tokenizer_kind(dataset->tokenizer) == TOKENIZER_BPE && prompt->size > 1 &&
                       prompt->data[prompt->size - 1] == ' ';
    prompt->size -= blank;
    return blank;
}

void generation_keep_blanks(const Dataset *dataset, real *logits) {
    for (int32_t token = 0; token < dataset->vocabulary; token++) {
        if (tokenizer_is_unused(dataset->tokenizer, token)) continue;
        size_t size;
        char *text = tokenizer_decode(dataset->tokenizer, &token, 1, &size);
        if (*text != ' ') logits[token] = -(real)INFINITY;
        free(text);
    }
}

const int32_t *generation_before(const Dataset *dataset, size_t *count) {
    *count = 1;
    return dataset->end >= 0 ? &dataset->end : tokenizer_before(dataset->tokenizer, count);
}
