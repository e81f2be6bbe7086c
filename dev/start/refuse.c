// Prints an error message if a program built for one processor (-march=native) runs on another one
// that lacks its instructions, instead of dying at the first such instruction. Linked into every
// program, and called before main().
#include "processor.h"

#include <stddef.h>
#include <string.h>
#include <unistd.h>

static void FOR_ANY_PROCESSOR say(const char *text) {
    if (write(STDERR_FILENO, text, strlen(text)) < 0) _exit(1);
}

static void __attribute__((constructor)) FOR_ANY_PROCESSOR refuse(void) {
    const char *feature = processor_lacks();
    if (!feature) return;
    say("error: this program was built for a processor with ");
    say(feature);
    say(", which this one lacks: build it on this machine (make), or for any (make "
        "ARCH=portable)\n");
    _exit(1);
}
