// The allocator of fuzz targets. Blocks are parts of one large piece of memory and are not reused
// while an input is read. After the input all of them are freed at once, including those that
// fail() left behind. AddressSanitizer is told which bytes belong to blocks; its own allocator
// would take several times as long. The linker replaces the C library's malloc(), free() and so on
// with those of this file (--wrap).
#ifndef FUZZ_MEMORY_BLOCKS_H
#define FUZZ_MEMORY_BLOCKS_H

#include <stdbool.h>
#include <stddef.h>

// Selects whether memory is allocated here or by the C library. Blocks of this allocator are freed
// correctly in both cases.
void memory_blocks_use(bool use);

// memory_blocks_keep() saves all current blocks and their contents. memory_blocks_restore()
// restores them and frees all later blocks.
void memory_blocks_keep(void);
void memory_blocks_restore(void);

#endif
