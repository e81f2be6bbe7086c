// Input: an options file (--config), which is also read as the log of a run to make a page from.
#include "harness.h"
#include "memory.h"
#include "run.h"
#include "run_page.h"
#include "written_options.h"
#include <stdlib.h>

extern const ModelType fastformer;

static Options *options;

void fuzz_start(void) {
    options = trainer_options_create(&fastformer);
}

void fuzz_one(const uint8_t *data, size_t size) {
    const char *path = fuzz_file("log.jsonl", data, size);
    char *page = format_string("%s/" RUN_PAGE_NAME, fuzz_directory());
    run_page_write(page, fuzz_directory(), NULL, NULL, 0);
    free(page);
    options_read_config(options, path);
    check_written_options(options);
    options_free(options);
}
