#!/bin/bash
# Tests on arm64: built with Debian's cross compiler, without oneDNN, run under qemu-user. Needs
# gcc-aarch64-linux-gnu, libc6-dev-arm64-cross and qemu-user, and skips everything without them.
# Takes about a minute of CPU time to run, and more to compile (BUILD, build/arm64, is kept).
#
# Tests the code that is specific to a processor (vectors, bf16, random numbers of dropout), and two
# complete models. Skips what takes minutes in the emulator (the double builds, gradients by
# differences, attention of all shapes, and the scripts, which start one program from another) and
# what is the same on any processor: files, text, options, threads, accumulation, statistics. The
# last line is "N passed, N failed".
set -u
cd "$(realpath "$(dirname "$0")/../..")" || exit 1
build=$(realpath -m "${BUILD:-build/arm64}")
for tool in aarch64-linux-gnu-gcc qemu-aarch64; do
    command -v $tool >/dev/null && continue
    echo "skipped: $tool is missing; install gcc-aarch64-linux-gnu, libc6-dev-arm64-cross and qemu-user"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
done

# One test per line: a program, or a program and a text that selects its cases by name.
tests='test/test_layers
test/test_gemm
test/test_classifier
test/test_tile
test/test_decode
test/test_dropout
test/test_random
test/test_attention sink
test/test_attention softmax with dropout
test/test_attention softmax in bf16
test/test_attention powers of
test/test_attention published examples
test/test_attention scores
test/test_attention padding
test/test_attention NaN
test/test_attention zero vector
test/test_attention decoding
test/test_attention batch
test/test_attention dropout by row
test/test_attention y in bf16
test/test_attention lanes
bin/test_fastformer window
bin/test_fastformer pool
bin/test_fastformer extreme scores
bin/test_fastformer decoding
bin/test_gpt2 reference
bin/test_gpt2 decoding
bin/test_gpt2 padding'
programs=$(cut -d ' ' -f 1 <<<"$tests" | sort -u | sed "s|^|$build/float/|")
# shellcheck disable=SC2086
make -s CC=aarch64-linux-gnu-gcc ARCH=armv8-a CFLAGS=-g1 ONEDNN=0 CPLUSPLUS=0 CUDA= BUILD="$build" $programs ||
    { echo "0 passed, 1 failed"; exit 1; }

# run.sh takes programs without arguments, so each line becomes a script.
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
scripts=()
while read -r program name; do
    script="$dir/$(basename "$program")${name:+, $name}"
    printf '#!/bin/sh\nexec qemu-aarch64 "%s" %s\n' "$build/float/$program" "${name:+"\"$name\""}" >"$script"
    chmod +x "$script"
    scripts+=("$script")
done <<<"$tests"
export QEMU_LD_PREFIX=/usr/aarch64-linux-gnu OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive
dev/test/run.sh "${scripts[@]}" | sed "s|$dir/||"
exit "${PIPESTATUS[0]}"
