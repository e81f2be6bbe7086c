// A fuzz target is a function that reads one hostile input. In all other programs fail() ends the
// process; here it returns to the harness, which then frees everything the input left behind:
// memory, maps, open files.
//
// A target is linked with libFuzzer (run.sh) or with replay.c (`make test`).
#ifndef FUZZ_HARNESS_H
#define FUZZ_HARNESS_H

#include <stddef.h>
#include <stdint.h>

// Defined by the target: reads one input. Calls abort() if it detects a wrong result.
void fuzz_one(const uint8_t *data, size_t size);

// Defined by the target: called once, before the first input.
void fuzz_start(void);

// A directory in memory (memory_files.h), the same for all inputs.
const char *fuzz_directory(void);

// Writes file NAME to that directory. Returns its path, which is valid until the next call.
const char *fuzz_file(const char *name, const void *data, size_t size);

// The first two are called by libFuzzer. fuzz_accepted() returns whether the last input was read to
// its end without fail(); replay.c calls it.
int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int fuzz_accepted(void);

#endif
