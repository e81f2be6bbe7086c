// A program run as a child, fed and read through pipes, never through a shell.
#ifndef BASE_PROCESS_H
#define BASE_PROCESS_H

#include "bytes.h"
#include "text.h"

typedef struct {
    int start_error; // errno if the program could not be started, else 0
    int exit_code;   // 128 + number of the signal that ended it
    Bytes output;    // what it wrote to standard output
    Bytes errors;    // the end of what it wrote to standard error
} ProcessResult;

// Runs arguments[0], looked up in PATH, with `input` on its standard input until it ends.
// `arguments` ends in NULL. If this program ends first, however it ends, the child is killed.
ProcessResult process_run(const char *const *arguments, Text input);
void process_result_free(ProcessResult *result);

#endif
