// Input: the log.jsonl of a run that is resumed after step 3, its last step. The part that remains
// must be readable and must not change when the log is opened again.
#include "file.h"
#include "harness.h"
#include "log.h"
#include "memory.h"
#include <stdlib.h>
#include <string.h>

void fuzz_start(void) {}

void fuzz_one(const uint8_t *data, size_t size) {
    const char *path = fuzz_file("log.jsonl", data, size);
    log_close(log_open(fuzz_directory(), 3, LOG_END | LOG_EVALUATION));
    FileMap first = file_map(path);
    log_close(log_open(fuzz_directory(), 3, LOG_END | LOG_EVALUATION));
    FileMap second = file_map(path);
    if (first.size != second.size || memcmp(first.data, second.data, first.size) != 0) abort();
    file_unmap(&first);
    file_unmap(&second);
}
