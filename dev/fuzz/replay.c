// Runs a fuzz target on the files of a corpus, each in a process of its own: none may crash or
// hang, and those whose name begins with "valid" must be accepted. The last line is "N passed, N
// failed". usage: NAME [DIR], from the top directory; DIR is dev/fuzz/corpus/NAME where it is not
// given
#include "file.h"
#include "harness.h"
#include <dirent.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SECONDS = 60, LARGEST = 1 << 20 };

// In a child process: exit code 0: accepted, 1: refused.
static void replay(const char *path) {
    static uint8_t input[LARGEST];
    FILE *file = fopen(path, "rb");
    if (!file) {
        perror(path);
        _exit(2);
    }
    const size_t size = fread(input, 1, sizeof(input), file);
    fclose(file);
    uint8_t *exact = malloc(size); // AddressSanitizer sees a read beyond its end
    if (size > 0 && !exact) _exit(2);
    if (size > 0) memcpy(exact, input, size);
    if (!freopen("/dev/null", "w", stdout)) _exit(2);
    alarm(SECONDS);
    LLVMFuzzerTestOneInput(exact, size);
    _exit(fuzz_accepted() ? 0 : 1);
}

static bool passes(const char *path, const char *name) {
    const bool valid = strncmp(name, "valid", 5) == 0;
    int status;
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) replay(path);
    if (child < 0 || waitpid(child, &status, 0) != child) {
        perror("replay");
        return false;
    }
    if (WIFSIGNALED(status)) printf("FAIL %s: signal %d\n", path, WTERMSIG(status));
    if (WIFSIGNALED(status)) return false;
    const int code = WEXITSTATUS(status);
    if (code > 1) printf("FAIL %s: exit status %d\n", path, code);
    if (code == 1 && valid) printf("FAIL %s: refused\n", path);
    return code == 0 || (code == 1 && !valid);
}

int main(int argc, char **argv) {
    struct dirent **entries;
    int passed = 0, failed = 0;
    LLVMFuzzerInitialize(&argc, &argv);
    char directory[2048];
    if (argc > 1)
        snprintf(directory, sizeof(directory), "%s", argv[1]);
    else
        snprintf(directory, sizeof(directory), "dev/fuzz/corpus/%s", path_name(argv[0]));
    const int count = scandir(directory, &entries, NULL, alphasort);
    if (count < 0) {
        perror(directory);
        return 2;
    }
    for (int i = 0; i < count; i++) {
        char path[4096];
        snprintf(path, sizeof(path), "%s/%s", directory, entries[i]->d_name);
        if (*entries[i]->d_name != '.') {
            if (passes(path, entries[i]->d_name))
                passed++;
            else
                failed++;
        }
        free(entries[i]);
    }
    free(entries);
    printf("%d passed, %d failed\n", passed, failed);
    return failed > 0;
}
