// The page of a run: one HTML file that shows what the log says, and in which the model itself
// reads and writes. It loads nothing, from nowhere.
//
// Everything that a user, a text or a model has written is JSON in it, which the page's script
// shows as text: none of it can become markup. The script is the only one that may run (a nonce).
#ifndef TRAINER_RUN_PAGE_H
#define TRAINER_RUN_PAGE_H

#include "bytes.h"

#define RUN_PAGE_NAME "run.html"
enum { RUN_PAGE_SAMPLES = 3 };

// A file that the decoder in the page opens: its weights, or one of its tokenizer.
typedef struct {
    char *name;
    Bytes data;
} PageFile;

typedef struct {
    PageFile *files; // (count)
    size_t count;
    const char *format;        // of the weights: "float32", "int8"
    double loss, rounded_loss; // on the validation split, of the weights and of those in the page;
                               // NaN: not known
    const char *obstacle;      // why there are none, in words; NULL: there are
} PageModel;

// Writes a page to a path, which is replaced whole, from DIR/log.jsonl. samples (count): texts,
// UTF-8 or not. Without a step in the log, and without model, none is written.
void run_page_write(const char *path, const char *directory, const PageModel *model,
                    char *const *samples, int count);

#endif
