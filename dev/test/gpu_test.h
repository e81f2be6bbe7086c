// main() for GPU tests: like test_main(), but prints "skipped" if there is no GPU.
#ifndef TEST_GPU_TEST_H
#define TEST_GPU_TEST_H

#include "device.cuh"
#include <stdlib.h>
extern "C" {
#include "test.h"
}

// Looks for the GPU in a child process, because CUDA does not survive fork() and each case runs in
// a forked process. Exits with a one-line error if no GPU is available.
static void gpu_test_probe(void *) {
    char why[512];
    if (!device_available(why, sizeof(why))) fail("%s", why);
}

// Returns whether the tests are skipped; if so, prints the reason and a test program's last line.
static inline bool gpu_test_skipped(int count) {
    char text[1024];
    if (test_child(gpu_test_probe, NULL, text, sizeof(text)) == 0) return false;
    const char *prefix = "error: ";
    const char *why = strncmp(text, prefix, strlen(prefix)) == 0 ? text + strlen(prefix) : text;
    printf("skipped: %.*s\n0 passed, 0 failed, %d skipped\n", (int)strcspn(why, "\n"), why, count);
    return true;
}

static inline int gpu_test_main(int argc, char **argv, const char *suite, const TestCase *cases,
                                int count) {
    return gpu_test_skipped(count) ? 0 : test_main(argc, argv, suite, cases, count);
}

#endif
