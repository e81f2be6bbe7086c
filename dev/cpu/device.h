// What the CPU models run on.
#ifndef CPU_DEVICE_H
#define CPU_DEVICE_H

#include "gemm.h"
#include "model.h"

// Of products, from --precision: "auto" is bf16 where that is faster (gemm_bf16_is_fast); "bf16"
// where there are no such products ends the program.
Precision cpu_precision(const ModelSetup *setup);

// What decoding reads weights in. Any processor reads bf16 twice as fast, so "bf16" is as good
// everywhere.
Precision cpu_decode_precision(const char *name);

// Processor, threads, GEMM library and its measured peak, what multiplies in tile.h.
void cpu_device(Gemm *gemm, DeviceInfo *info);

char *cpu_build(const char *processes); // ModelType.build

#endif
