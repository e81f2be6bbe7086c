// Runs a fuzz target on the files of a corpus, each in its own process. None may crash or hang, and
// files whose name begins with "valid" must be accepted. The last line of output is "N passed, N
// failed".
//
//   NAME [DIR]     run from the top directory; the default of DIR is dev/fuzz/corpus/NAME
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

// Runs in a child process. The exit status is 0 if the input is accepted and 1 if it is refused.
static void replay(const char *path) {
    static uint8_t input[LARGEST];
    FILE *file = fopen(path, "rb");
    if (!file) {
        perror(path);
        _exit(2);
    }
    const size_t size = fread(input, 1, sizeof(input), file);
    fclose(file);
    uint8_t *exact = malloc(size); // AddressSanitizer detects reads beyond its end
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
