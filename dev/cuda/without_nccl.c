// A program that NCCL has no part in.
#include "error.h"
#include "transport.h"

Ranks *ranks_open_file(const char *file, double timeout) {
    (void)timeout;
    fail("--ranks-file %s: is for programs on GPUs, built with NCCL; start several processes with "
         "mpirun",
         file);
}
