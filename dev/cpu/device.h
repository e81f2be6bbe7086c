// The processor that CPU models run on.
#ifndef CPU_DEVICE_H
#define CPU_DEVICE_H

#include "gemm.h"
#include "model.h"

// Returns the precision of products for --precision: "auto" is bf16 if that is faster
// (gemm_bf16_is_fast). Exits with an error for "bf16" if bf16 products are not available, and for
// "tf32".
Precision cpu_precision(const ModelSetup *setup);

// Returns the precision of the weights for decoding. Any processor reads bf16 twice as fast, so
// "bf16" is useful everywhere. Exits with an error for "tf32".
Precision cpu_decode_precision(const char *name);

// Fills in processor, threads, GEMM library and its measured peak, and what multiplies in tile.h.
void cpu_device(Gemm *gemm, DeviceInfo *info);

char *cpu_build(const char *processes); // ModelType.build

#endif
