// Input: a command line of the trainer, one argument per line.
#include "harness.h"
#include "memory.h"
#include "run.h"
#include "written_options.h"
#include <stdlib.h>
#include <string.h>

enum { MOST_ARGUMENTS = 64 };

extern const ModelType fastformer;

static Options *options;

void fuzz_start(void) {
    options = trainer_options_create(&fastformer);
}

void fuzz_one(const uint8_t *data, size_t size) {
    char *arguments[MOST_ARGUMENTS + 2] = {(char *)"train_fastformer"},
                                     *line = allocate(size + 1, 1, "arguments");
    int count = 1;
    if (size > 0) memcpy(line, data, size);
    for (char *rest = line; rest && count <= MOST_ARGUMENTS;)
        arguments[count++] = strsep(&rest, "\n");
    options_parse(options, count, arguments, NULL, NULL);
    check_written_options(options);
    options_free(options);
    free(line);
}
