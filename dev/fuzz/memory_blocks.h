// What a fuzz target allocates: blocks in one large piece of memory, none of which is used twice by
// the same input, so that all of them are freed at once, whatever fail() left.
// AddressSanitizer is told which bytes are a block's; its own allocator would take several times as
// long. The linker puts malloc(), free() and so on of this file in the place of the C library's
// (--wrap).
#ifndef FUZZ_MEMORY_BLOCKS_H
#define FUZZ_MEMORY_BLOCKS_H

#include <stdbool.h>
#include <stddef.h>

// Whether memory is taken here, or where it would be without this file. Blocks are known as such in
// any case.
void memory_blocks_use(bool use);

// All blocks there are at this moment stay, and memory_blocks_restore() puts them back as they are
// now; later ones go.
void memory_blocks_keep(void);
void memory_blocks_restore(void);

#endif
