// Whether the processor has the instructions that this file's like were compiled with (-march).
#ifndef CPU_PROCESSOR_H
#define CPU_PROCESSOR_H

// For functions that run before that is known: nothing that processor_lacks() asks for may be used
// in them.
#ifdef __x86_64__
#define FOR_ANY_PROCESSOR __attribute__((target("no-avx,no-bmi,no-bmi2,no-popcnt")))
#else
#define FOR_ANY_PROCESSOR
#endif

// Instructions that the processor lacks, the newest of them first; NULL where it has all. Not asked
// but on x86-64.
const char *processor_lacks(void) FOR_ANY_PROCESSOR;

#endif
