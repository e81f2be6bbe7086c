#!/bin/bash
# Tests one program for any x86-64 processor (make ARCH=portable). On this machine a trainer uses
# the best level that runs here, and its weights equal those of the program built for that level
# alone. It also runs on two lesser processors, emulated by qemu-user, which refuse the programs of
# better levels. Needs oneDNN. Built without optimisation in BUILD (build/portable), which is kept.
# The last line is "N passed, N failed".
set -u
cd "$(realpath "$(dirname "$0")/../..")" || exit 1
build=$(realpath -m "${BUILD:-build/portable}")
if [ "$(uname -m)" != x86_64 ]; then
    echo "skipped: only on x86-64"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
fi
programs=$build/float-onednn
levels="avx512_bf16 avx512 avx2"
# shellcheck disable=SC2046,SC2086
make -s ARCH=portable CFLAGS="${CFLAGS--O0 -g0}" ONEDNN=1 CPLUSPLUS=0 CUDA= BUILD="$build" "$programs/bin/train_fastformer" \
    $(printf "$programs/%s/bin/train_fastformer\n" $levels) || { echo "0 passed, 1 failed"; exit 1; }

dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive # so that a trainer does not restart itself, without qemu
shown=$dir/out
# shellcheck source=dev/test/count.sh
. dev/test/count.sh

# best COMMAND...: prints the first level whose program runs under COMMAND
best() {
    local level
    for level in $levels; do
        "$@" "$programs/$level/bin/train_fastformer" --help >/dev/null 2>&1 && echo "$level" && return
    done
    echo baseline
}

# trains NAME PROGRAM: trains a few steps, in bf16 if $level has it: -p auto uses it only if fast
trains() {
    local precision=auto
    [ "$level" != avx512_bf16 ] || precision=bf16
    mkdir "$dir/$1" && (cd "$dir/$1" && "$2" -o run -p $precision -L 1 -C 64 -H 2 -b 2 -t 64 -x 3 -m 1 --no-test) >"$dir/out" 2>&1
}

# Code that a program contains once (all but dev/cpu and the models) must not call functions of
# dev/cpu directly: it would call those for any processor.
nm -u "$programs"/dev/{base,text,data,model,trainer,tasks,ranks}/*.o 2>/dev/null | awk '$1 == "U" { print $2 }' | sort -u >"$dir/called"
nm --defined-only -g "$programs"/dev/cpu/*.o | awk 'NF == 3 { print $3 }' | sort -u | comm -12 - "$dir/called" >"$dir/out"
[ -s "$dir/called" ] && [ ! -s "$dir/out" ]
ok "what is in a program once calls the levels' functions by tables alone"

level=$(best env)
declare -A tiles=([avx512_bf16]='\(AMX\|AVX512-BF16\)' [avx512]=AVX-512 [avx2]=AVX [baseline]=SSE) # as the start table names them
trains any "$programs/bin/train_fastformer" && grep -q "tiles by ${tiles[$level]}," "$dir/any/run/log.jsonl"
ok "this processor: $level"
if [ "$level" != baseline ]; then
    trains alone "$programs/$level/bin/train_fastformer" &&
        cmp "$dir/any/run/best.safetensors" "$dir/alone/run/best.safetensors" >"$dir/out"
    ok "the weights of the program for $level alone"
fi
for processor in Nehalem:baseline max:avx2; do
    command -v qemu-x86_64 >/dev/null || { echo "skipped: $processor: qemu-x86_64 was not found" && continue; }
    qemu=(qemu-x86_64 -cpu "${processor%:*}")
    [ "$(best "${qemu[@]}")" = "${processor#*:}" ] && "${qemu[@]}" "$programs/bin/train_fastformer" --help >"$dir/out" 2>&1
    ok "$processor"
done
finish
