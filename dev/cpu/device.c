#include "device.h"

#include "error.h"
#include "threads.h"
#include "tile.h"
#include <stdio.h>
#include <string.h>

Precision cpu_precision(const ModelSetup *setup) {
    const char *name = options_text(setup->options, OPT_PRECISION);
    if (setup->float32 || strcmp(name, "fp32") == 0) return PRECISION_FLOAT32;
    if (strcmp(name, "tf32") == 0) fail("--precision tf32: only a GPU has it; use fp32 or bf16");
    if (strcmp(name, "auto") == 0)
        return gemm_bf16_is_fast() ? PRECISION_BFLOAT16 : PRECISION_FLOAT32;
    if (!gemm_supports(PRECISION_BFLOAT16))
        fail(
            "--precision bf16: this processor or build has no bf16 products (they need oneDNN, and "
            "AVX512-BF16, AMX or an Arm equivalent); use --precision fp32");
    return PRECISION_BFLOAT16;
}

Precision cpu_decode_precision(const char *name) {
    const bool bf16 = strcmp(name, "bf16") == 0 ||
                      (strcmp(name, "auto") == 0 && gemm_supports(PRECISION_BFLOAT16));
    return bf16 ? PRECISION_BFLOAT16 : PRECISION_FLOAT32;
}

// The processor's name as Linux tells it, else its architecture.
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
             tile_multiplier_name(tile_multiplier(bf16)));
    info->precision = bf16 ? "bf16" : sizeof(real) == 8 ? "fp64" : "fp32";
    info->threads = thread_limit();
    info->peak_flops = gemm_measure_peak(gemm);
}
