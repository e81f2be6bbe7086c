// A file of options (--config), and the log of a run that a report is made from.
#include "harness.h"
#include "memory.h"
#include "report.h"
#include "run.h"
#include "written_options.h"

extern const ModelType fastformer;

static Options *options;

void fuzz_start(void) {
    options = trainer_options_create(&fastformer);
}

void fuzz_one(const uint8_t *data, size_t size) {
    const char *path = fuzz_file("log.jsonl", data, size);
    report_write(fuzz_directory(), NULL, 0);
    options_read_config(options, path);
    check_written_options(options);
    options_free(options);
}
