#include "processor.h"

#include <stddef.h>

const char *processor_lacks(void) {
#ifdef __x86_64__
    __builtin_cpu_init();
#endif
#ifdef __AVX512BF16__
    if (!__builtin_cpu_supports("avx512bf16")) return "AVX512-BF16";
#endif
#ifdef __AVX512VBMI2__
    if (!__builtin_cpu_supports("avx512vbmi2")) return "AVX512-VBMI2";
#endif
#ifdef __AVX512VNNI__
    if (!__builtin_cpu_supports("avx512vnni")) return "AVX512-VNNI";
#endif
#ifdef __AVX512VBMI__
    if (!__builtin_cpu_supports("avx512vbmi")) return "AVX512-VBMI";
#endif
#ifdef __AVX512VL__
    if (!__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512cd"))
        return "AVX-512 (VL, BW, DQ, CD)";
#endif
#ifdef __AVX512F__
    if (!__builtin_cpu_supports("avx512f")) return "AVX-512";
#endif
#ifdef __AVX2__
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
        !__builtin_cpu_supports("bmi") || !__builtin_cpu_supports("bmi2"))
        return "AVX2, FMA and BMI";
#endif
#ifdef __AVX__
    if (!__builtin_cpu_supports("avx")) return "AVX";
#endif
#ifdef __SSE4_2__
    if (!__builtin_cpu_supports("sse4.2") || !__builtin_cpu_supports("popcnt")) return "SSE4.2";
#endif
    return NULL;
}
