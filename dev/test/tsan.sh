#!/bin/sh
# Runs ThreadSanitizer on tiny runs of the trainers with two threads: it must report nothing.
# Archer, a part of LLVM's libomp, tells it the order that OpenMP's regions and barriers enforce.
# Built without oneDNN, whose code is not instrumented. Needs clang, libclang-rt-14-dev and
# libomp-dev, and skips everything without them. Takes about two minutes on two cores, most of them
# to compile (BUILD, build/tsan, is kept). The last line is "N passed, N failed".
set -u
cd "$(realpath "$(dirname "$0")/../..")" || exit 1
clang=${CLANG:-clang}
build=$(realpath -m "${BUILD:-build/tsan}")
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
skip() {
    echo "skipped: $1; install clang, libclang-rt-14-dev and libomp-dev"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
}
command -v "$clang" >/dev/null || skip "$clang is missing"
archer=$(realpath -m "$("$clang" -print-resource-dir)/../../libarcher.so")
[ -f "$archer" ] || skip "$archer is missing"
# The second loop reads what the other thread wrote in the first.
cat >"$dir/race.c" <<END
int main(void) {
    int numbers[64] = {0}, sum = 0;
#pragma omp parallel
    {
#pragma omp for ORDER
        for (int i = 0; i < 64; i++) numbers[i] = i;
#pragma omp for reduction(+ : sum)
        for (int i = 0; i < 64; i++) sum += numbers[63 - i];
    }
    return sum < 0;
}
END
for order in '' nowait; do
    "$clang" -g -fopenmp -fsanitize=thread -DORDER=$order "$dir/race.c" -o "$dir/race$order" 2>"$dir/out" ||
        skip "$(tail -n 1 "$dir/out")"
done

export OMP_NUM_THREADS=2 KMP_BLOCKTIME=0 OMP_TOOL_LIBRARIES="$archer" TSAN_OPTIONS=ignore_noninstrumented_modules=1
shown=$dir/out
# shellcheck source=dev/test/count.sh
. dev/test/count.sh
# check NAME EXPECTED COMMAND...: checks the exit status: 0, or ThreadSanitizer's 66
check() {
    name=$1
    expected=$2
    shift 2
    "$@" >"$dir/out" 2>&1 </dev/null
    status=$?
    [ $status -eq "$expected" ]
    ok "$name: exit status $status, expected $expected"
}

# Checks that a race is found and a barrier is recognised.
check "a race" 66 "$dir/racenowait"
check "a barrier" 0 "$dir/race"

bin=$build/float/bin
# -O3 would take three times as long to compile. At -O1 some loops that ask for vectorisation are
# not vectorised (-Wno-pass-failed).
make -s CC="$clang" CFLAGS='-fsanitize=thread -O1 -Wno-pass-failed' ONEDNN=0 CPLUSPLUS=0 CUDA= BUILD="$build" \
    "$bin/tokenize" "$bin/train_fastformer" "$bin/train_gpt2" "$bin/train_bert" || { false; ok "make"; finish; }
head -c 20000 dev/test/texts/shakespeare.txt >"$dir/text"
cd "$dir" || exit 1
check "tokenize" 0 "$bin/tokenize" -o data --tokenizer bpe --vocab-size 300 --reserve mask text
size='-L 2 -C 64 -H 4'
# trains NAME TRAINER OPTION...: trains and resumes a run with evaluations, two sequences at a time
trains() {
    name=$1
    trainer=$2
    shift 2
    rm -rf run
    for steps in 3 5; do
        resume=$([ $steps -eq 3 ] || echo -y)
        # shellcheck disable=SC2086
        check "$name, $steps steps" 0 "$bin/$trainer" -i data -o run $resume $size "$@" -b 2 -t 96 -d 384 -x $steps -v 2 -k constant --stats 1 \
            --profile
    done
}
# writes NAME TRAINER: generates text with the weights of the last run
writes() {
    check "$1, text" 0 "$bin/$2" -i data -e run/best.safetensors --prompt 'static void ' -g 40
}
trains fastformer train_fastformer
writes fastformer train_fastformer
trains "fastformer, global" train_fastformer --windows global --sink 1 -s 2 -g 8
trains gpt2 train_gpt2
writes gpt2 train_gpt2
trains "gpt2, cosine" train_gpt2 --attention cosine -s 2 -g 8
trains bert train_bert
trains "bert, cosine" train_bert --attention cosine
finish
