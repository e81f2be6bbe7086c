// The page of a run: one HTML file that shows the log, and in which the model itself reads and
// writes. It loads nothing from elsewhere.
//
// Everything that a user, a text or a model has written is embedded as JSON, which the page's
// script shows as text, so none of it can become markup. A nonce allows only this script to run.
#ifndef TRAINER_RUN_PAGE_H
#define TRAINER_RUN_PAGE_H

#include "bytes.h"

#define RUN_PAGE_NAME "run.html"
enum { RUN_PAGE_SAMPLES = 3 };

// A file that the decoder in the page opens: its weights, or one of its tokenizer's.
typedef struct {
    char *name;
    Bytes data;
} PageFile;

typedef struct {
    PageFile *files; // (count)
    size_t count;
    const char *format;        // of the weights: "float32", "int8"
    double loss, rounded_loss; // validation loss of the weights, and of those in the page;
                               // NaN: unknown
    const char *obstacle;      // why the page has no model, in words; NULL: it has one
} PageModel;

// Writes a page to a path, which it replaces atomically, from DIR/log.jsonl. samples (count):
// texts, UTF-8 or not. Writes nothing if the log has no step and there is no model.
void run_page_write(const char *path, const char *directory, const PageModel *model,
                    char *const *samples, int count);

#endif
