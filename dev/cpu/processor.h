// Checks whether the processor has the instructions that this build was compiled for (-march).
#ifndef CPU_PROCESSOR_H
#define CPU_PROCESSOR_H

// For functions that run before the check: they must not use any instruction that processor_lacks()
// checks.
#ifdef __x86_64__
#define FOR_ANY_PROCESSOR __attribute__((target("no-avx,no-bmi,no-bmi2,no-popcnt")))
#else
#define FOR_ANY_PROCESSOR
#endif

// Returns the newest instruction set that the processor lacks, or NULL if it has all. Checks only
// x86-64.
const char *processor_lacks(void) FOR_ANY_PROCESSOR;

#endif
