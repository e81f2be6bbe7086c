#!/bin/sh
# Detects the compilers and libraries of this machine and prints make variables, which the Makefile
# keeps in BUILD/config-*.mk. Reads from the environment CC, CXX, MARCH, CFLAGS and MPICC, and the
# user's settings: ONEDNN, OPENMP, MPI, CPLUSPLUS, NCCL and WASM are 1, 0, or unset to detect them;
# ONEDNN_ROOT, CUDA and NCCL_ROOT are directories.

# compiles COMPILER LIBRARIES LINE...: prints 1 if these lines compile and link
compiles() {
    compiler=$1 libraries=$2
    shift 2
    printf '%s\n' "$@" | eval "$compiler - -o /dev/null $libraries" >/dev/null 2>&1 && echo 1
}

# only PATTERN WORD...: prints the words that start with -PATTERN
only() {
    pattern=$1
    shift
    printf '%s\n' "$@" | grep "^-\($pattern\)" | tr '\n' ' '
}

# Prints the flags that mpicc adds to a command line: asked by Open MPI's FLAG, then by MPICH's.
mpicc_says() { # FLAG FLAG
    $MPICC "$1" 2>/dev/null || $MPICC "$2" 2>/dev/null | cut -d' ' -f2-
}

onednn_flags=${ONEDNN_ROOT:+-I$ONEDNN_ROOT/include}
onednn_libs="${ONEDNN_ROOT:+-L$ONEDNN_ROOT/lib -Wl,-rpath,$ONEDNN_ROOT/lib }-ldnnl"
: "${ONEDNN=$(compiles "$CC $onednn_flags -x c" "$onednn_libs" '#include <dnnl.h>' \
    'int main(void) { return !dnnl_version(); }')}"
: "${OPENMP=$(compiles "$CC -fopenmp -x c" '' '#include <omp.h>' \
    'int main(void) { return !omp_get_max_threads(); }')}"
# shellcheck disable=SC2046 # words
mpi_flags="$(only I $(mpicc_says --showme:compile -compile_info))-pthread"
# shellcheck disable=SC2046
mpi_libs="$(only 'L\|l\|Wl' $(mpicc_says --showme:link -link_info))-pthread"
: "${MPI=$(compiles "$CC $mpi_flags -x c" "$mpi_libs" '#include <mpi.h>' \
    'int main(void) { return MPI_Finalize(); }')}"
# With a C++ compiler, tests run the CUDA sources on the CPU.
: "${CPLUSPLUS=$(compiles "$CXX -std=c++17 -x c++" '' '#include <tuple>' \
    'int main() { return 0; }')}"
# WebAssembly, for the model in a run's page.
: "${WASM=$(compiles 'clang --target=wasm32-wasi -msimd128 -x c' '' '#include <stdio.h>' \
    'int main(void) { return puts(""); }')}"
amx=$(compiles "$CC $MARCH $CFLAGS -x c" '' '#ifndef __AVX512BF16__' '#error' '#endif' \
    'int main(void) { return 0; }')
nvcc=$(command -v nvcc)
for found in /usr/local/cuda/bin/nvcc /opt/cuda/bin/nvcc; do
    [ ! -x "$found" ] || : "${nvcc:=$found}"
done
: "${CUDA=${nvcc%/bin/nvcc}}"
# NCCL sums the gradients of several GPUs; in the emulator MPI replaces it.
: "${NCCL_ROOT=$CUDA}"
nccl_flags=-I$NCCL_ROOT/include
nccl_libs="-L$NCCL_ROOT/lib -Wl,-rpath,$NCCL_ROOT/lib -lnccl"
emulated_nccl=${NCCL:-1} quick=
[ -n "$CUDA" ] || NCCL=
: "${NCCL=$(compiles "$CXX -I$CUDA/include $nccl_flags -x c++" "$nccl_libs" '#include <nccl.h>' \
    'int main() { return ncclGroupStart(); }')}"
if [ -n "$CUDA" ] && "$CUDA/bin/nvcc" --help 2>/dev/null | grep -q Ofast-compile; then
    quick='-Ofc mid' # older toolkits have none
fi

yes() { # VALUE TEXT OTHERWISE
    if [ "$1" = 1 ]; then echo "$2"; else echo "$3"; fi
}
detected="compiler $CC, $(yes "$OPENMP" OpenMP 'no OpenMP: one thread'), $(yes "$ONEDNN" oneDNN \
    'no oneDNN: built-in float32 GEMM (install libdnnl-dev for bf16)'), $(yes "$MPI" MPI \
    'no MPI: one process'), ${CUDA:+CUDA in $CUDA$(yes "$NCCL" ' with NCCL' '')}"
detected=$detected$([ -n "$CUDA" ] || echo 'no CUDA')$(yes "$CPLUSPLUS" '' \
    ', no C++ compiler: tests of the CUDA sources are skipped')$(yes "$WASM" '' \
    ', no WebAssembly: pages without the model (install clang, lld, wasi-libc, libclang-rt-dev-wasm32)')

# Escapes $ and #, which are special in make.
sed 's/\$/$$/g; s/#/\\#/g' <<END
USE_ONEDNN := $(yes "$ONEDNN" 1)
ONEDNN_FLAGS := $onednn_flags
ONEDNN_LIBS := $onednn_libs
USE_OPENMP := $(yes "$OPENMP" 1)
USE_MPI := $(yes "$MPI" 1)
MPI_FLAGS := $mpi_flags
MPI_LIBS := $mpi_libs
USE_CPLUSPLUS := $(yes "$CPLUSPLUS" 1)
USE_WASM := $(yes "$WASM" 1)
USE_AMX := $amx
CUDA := $CUDA
NVCC_QUICK := -O1 $quick
USE_NCCL := $(yes "$NCCL" 1)
NCCL_FLAGS := $nccl_flags
NCCL_LIBS := $nccl_libs
NCCL_EMULATED := $(yes "$emulated_nccl" 1)
MACHINE := $($CC -dumpmachine)
DETECTED := $detected
END
