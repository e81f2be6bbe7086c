// Embeds a file in the program at build time.
//
//   EMBED(corpus, "build/corpus.txt");     Text text = EMBEDDED(corpus);
//
// The path is relative to the directory make runs in. The Makefile lists which object depends on
// which file.
#ifndef BASE_EMBED_H
#define BASE_EMBED_H

#include <stdint.h>

#ifdef __APPLE__
#define EMBED_SECTION ".section __TEXT,__const"
#define EMBED_END ".text"
#else
#define EMBED_SECTION ".pushsection .rodata"
#define EMBED_END ".popsection"
#endif

#define EMBED(name, path)                                                                          \
    __asm__(EMBED_SECTION "\n"                                                                     \
                          ".globl " #name "_size, " #name "_bytes\n"                               \
                          ".balign 8\n" #name "_size: .quad 1f - 0f\n" #name "_bytes:\n"           \
                          "0: .incbin \"" path "\"\n"                                              \
                          "1:\n" EMBED_END);                                                       \
    extern const uint64_t name##_size __asm__(#name "_size")                                       \
        __attribute__((visibility("hidden")));                                                     \
    extern const char name##_bytes[] __asm__(#name "_bytes") __attribute__((visibility("hidden")))

#define EMBEDDED(name) ((Text){name##_bytes, (size_t)name##_size})

#endif
