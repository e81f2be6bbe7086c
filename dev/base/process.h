// Runs a program as a child process, with input and output through pipes and without a shell.
#ifndef BASE_PROCESS_H
#define BASE_PROCESS_H

#include "bytes.h"
#include "text.h"

typedef struct {
    int start_error; // errno if the program could not be started, else 0
    int exit_code;   // 128 + signal number if a signal ended it
    Bytes output;    // its standard output
    Bytes errors;    // the end of its standard error
} ProcessResult;

// Runs arguments[0], looked up in PATH, with `input` on its standard input and waits until it ends.
// `arguments` ends in NULL. If this program ends first, for any reason, the child is killed.
ProcessResult process_run(const char *const *arguments, Text input);
void process_result_free(ProcessResult *result);

#endif
