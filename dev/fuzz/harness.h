// What a fuzz target is: one function that reads one hostile input. The harness comes back from
// fail(), which ends a program everywhere else, and frees what the input left: memory, maps, open
// files.
//
// A target is linked with libFuzzer (run.sh) or with replay.c (`make test`).
#ifndef FUZZ_HARNESS_H
#define FUZZ_HARNESS_H

#include <stddef.h>
#include <stdint.h>

// Of the target. A wrong answer, where it can be seen, ends the program by abort().
void fuzz_one(const uint8_t *data, size_t size);

// Of the target: what it does once before the first input.
void fuzz_start(void);

// A directory in memory (memory_files.h), the same for all inputs.
const char *fuzz_directory(void);

// Puts NAME there and returns the path, which stays valid until the same name is written again.
const char *fuzz_file(const char *name, const void *data, size_t size);

// What libFuzzer calls. replay.c asks whether the last input was accepted: it came to the end
// without fail().
int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int fuzz_accepted(void);

#endif
