#include "device.h"

#include "error.h"
#include "memory.h"
#include "threads.h"
#include "tile.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void refuse_tf32(const char *name) {
    if (strcmp(name, "tf32") == 0) fail("--precision tf32: only a GPU has it; use fp32 or bf16");
}

Precision cpu_precision(const ModelSetup *setup) {
    const char *name = options_text(setup->options, OPT_PRECISION);
    if (setup->float32 || strcmp(name, "fp32") == 0) return PRECISION_FLOAT32;
    refuse_tf32(name);
    if (strcmp(name, "auto") == 0)
        return gemm_bf16_is_fast() ? PRECISION_BFLOAT16 : PRECISION_FLOAT32;
    if (!gemm_supports(PRECISION_BFLOAT16))
        fail(
            "--precision bf16: this processor or build has no bf16 products (they need oneDNN, and "
            "AVX512-BF16, AMX or an Arm equivalent); use --precision fp32");
    return PRECISION_BFLOAT16;
}

Precision cpu_decode_precision(const char *name) {
    refuse_tf32(name);
    const bool bf16 = strcmp(name, "bf16") == 0 ||
                      (strcmp(name, "auto") == 0 && gemm_supports(PRECISION_BFLOAT16));
    return bf16 ? PRECISION_BFLOAT16 : PRECISION_FLOAT32;
}

// Copies the processor's name from Linux, or else its architecture.
static void processor_name(char *name, size_t size) {
#if defined(__aarch64__)
    snprintf(name, size, "arm64");
#else
    snprintf(name, size, "x86-64");
#endif
    FILE *file = fopen("/proc/cpuinfo", "r");
    if (!file) return;
    char line[256];
    while (fgets(line, sizeof(line), file)) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) == 0 && colon) {
            snprintf(name, size, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
            break;
        }
    }
    fclose(file);
}

void cpu_device(Gemm *gemm, DeviceInfo *info) {
    processor_name(info->processor, sizeof(info->processor));
    const bool bf16 = gemm_precision(gemm) == PRECISION_BFLOAT16;
    snprintf(info->library, sizeof(info->library), "%s, tiles by %s", gemm_library(gemm),
             tile_engines[tile_multiplier(bf16)].name);
    info->precision = bf16 ? "bf16" : sizeof(real) == 8 ? "fp64" : "fp32";
    info->threads = thread_limit();
    info->peak_flops = gemm_measure_peak(gemm);
}

// The instruction set that this file was compiled for, named as in dev/build/portable.mk.
#if defined(__AVX512BF16__)
#define INSTRUCTIONS "avx512_bf16"
#elif defined(__AVX512F__)
#define INSTRUCTIONS "avx512"
#elif defined(__AVX2__)
#define INSTRUCTIONS "avx2"
#elif defined(__x86_64__)
#define INSTRUCTIONS "any x86-64"
#elif defined(__aarch64__)
#define INSTRUCTIONS "arm64"
#else
#define INSTRUCTIONS "any"
#endif

char *cpu_build(const char *processes) {
    char *name = gemm_library_name();
    char *text = format_string("\nlibraries: %s", name);
    free(name);
#ifdef _OPENMP
    append_format(&text, ", OpenMP");
#endif
    if (processes) append_format(&text, ", %s", processes);
    append_format(&text, "\ninstructions: " INSTRUCTIONS);
#ifdef INSTRUCTION_LEVELS
    append_format(&text, ", chosen from: " INSTRUCTION_LEVELS ", any x86-64");
#endif
    return text;
}
