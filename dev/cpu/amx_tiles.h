// AMX instructions as inline assembly, for the files that multiply with them (amx.h says which
// processors have them). Compiler intrinsics do not declare that they read and write memory, and
// need AMX enabled at compile time, while its presence is known only at run time.
#ifndef CPU_AMX_TILES_H
#define CPU_AMX_TILES_H

#ifdef AMX_IN_C
#include "amx_in_c.h" // for tests
#else

#define AMX_CONFIGURE(configuration)                                                               \
    __asm__ volatile("ldtilecfg %0" ::"m"(*(configuration)) : "memory")
#define AMX_RELEASE() __asm__ volatile("tilerelease" ::: "memory")
#define AMX_BYTES(row) ((row) * sizeof(float))
// 16 rows of 64 bytes, `row` floats apart.
#define AMX_LOAD(tile, from, row)                                                                  \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile ::"r"(from), "r"(AMX_BYTES(row))           \
                     : "memor"                                                                     \
                       "y")
#define AMX_STORE(tile, to, row)                                                                   \
    __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)" ::"r"(to), "r"(AMX_BYTES(row))         \
                     : "memory")
#define AMX_ZERO(tile) __asm__ volatile("tilezero %tmm" #tile)
// sum += a b
#define AMX_MULTIPLY_ADD(sum, a, b) __asm__ volatile("tdpbf16ps %tmm" #b ", %tmm" #a ", %tmm" #sum)

#endif
#endif
