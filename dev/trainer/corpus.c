#include "corpus.h"

#ifdef __APPLE__
#define SECTION ".section __TEXT,__const"
#define SECTION_END ".text"
#else
#define SECTION ".pushsection .rodata"
#define SECTION_END ".popsection"
#endif

// The assembler takes in the file that make has put together.
__asm__(SECTION "\n"
                ".globl corpus_size, corpus_bytes\n"
                ".balign 8\n"
                "corpus_size: .quad 1f - 0f\n"
                "corpus_bytes:\n"
                "0: .incbin \"" CORPUS_FILE "\"\n"
                "1:\n" SECTION_END);

extern const uint64_t corpus_size __asm__("corpus_size") __attribute__((visibility("hidden")));
extern const char corpus_bytes[] __asm__("corpus_bytes") __attribute__((visibility("hidden")));

Text corpus_text(void) {
    return (Text){corpus_bytes, (size_t)corpus_size};
}
