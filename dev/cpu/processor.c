// A program that was built for one processor and copied to another (-march=native) says so, where it would
// die of the first instruction that is not there. Linked into every program, and called before main.
#ifdef __x86_64__

#include <stddef.h>
#include <string.h>
#include <unistd.h>

// Nothing that is asked for here may be used here.
#define FOR_ANY_PROCESSOR __attribute__((target("no-avx,no-bmi,no-bmi2,no-popcnt")))

static void FOR_ANY_PROCESSOR say(const char *text) {
    if (write(STDERR_FILENO, text, strlen(text)) < 0) _exit(1);
}

static void FOR_ANY_PROCESSOR need(int has, const char *feature) {
    if (has) return;
    say("error: this program was built for a processor with ");
    say(feature);
    say(", which this one lacks: build it on this machine (make), or for any (make ARCH=x86-64-v2)\n");
    _exit(1);
}

static void __attribute__((constructor)) FOR_ANY_PROCESSOR check_processor(void) {
    __builtin_cpu_init();
#ifdef __AVX512BF16__
    need(__builtin_cpu_supports("avx512bf16"), "AVX512-BF16");
#endif
#ifdef __AVX512VBMI2__
    need(__builtin_cpu_supports("avx512vbmi2"), "AVX512-VBMI2");
#endif
#ifdef __AVX512VNNI__
    need(__builtin_cpu_supports("avx512vnni"), "AVX512-VNNI");
#endif
#ifdef __AVX512VBMI__
    need(__builtin_cpu_supports("avx512vbmi"), "AVX512-VBMI");
#endif
#ifdef __AVX512VL__
    need(__builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512cd"),
         "AVX-512 (VL, BW, DQ, CD)");
#endif
#ifdef __AVX512F__
    need(__builtin_cpu_supports("avx512f"), "AVX-512");
#endif
#ifdef __AVX2__
    need(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
             __builtin_cpu_supports("bmi2"),
         "AVX2, FMA and BMI");
#endif
#ifdef __AVX__
    need(__builtin_cpu_supports("avx"), "AVX");
#endif
#ifdef __SSE4_2__
    need(__builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("popcnt"), "SSE4.2");
#endif
}

#endif
