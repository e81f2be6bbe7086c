#!/bin/sh
# Every training run behind the README's tables: one comparison after the other, each with its logs, tables and plots in
# dev/bench/results/NAME, where runs that are there are not made again. What is measured in tokens a second is dev/bench/run.sh's
# and scripts/gpu_check.sh's.
#
#   scripts/run_claims.sh [OPTION...]
#
# takes the options that all comparisons have: --jobs N, --gpu, --report, --seeds N. After an interruption the same command goes on.
# On two cores everything takes weeks. Several processes use a GPU better than one, best under NVIDIA's MPS.
set -eu
cd "$(dirname "$0")/.."
. scripts/compare.sh

# comparison NAME OPTION...: `failures` counts those that failed.
comparison() {
    name=$1
    shift
    echo "== $name"
    "scripts/run_$name.sh" --keep "dev/bench/results/$name" "$@" &
    child=$!
    status=0
    await "$child" || status=$?
    child=
    case $status in
    0) ;;
    2 | 130) exit "$status" ;; # no option of theirs; a signal
    *) failures=$((failures + 1)) ;;
    esac
}

for name in wikitext2 speedrun lengths rescale words; do comparison "$name" "$@"; done
comparison ablation --data wikitext2 "$@"
[ "$failures" -eq 0 ] || fail "$failures comparisons failed"
