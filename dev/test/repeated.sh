#!/usr/bin/env bash
# How many lines of a model are word for word in another: what two of them need belongs into dev/cpu, dev/cuda or
# dev/trainer. Comments, includes and lines of only punctuation do not count. Fails where more than 40 lines are: a plan's
# parameters, the way through its blocks and the row of a model look alike.
set -euo pipefail
cd "$(dirname "$0")/../.."

code() { # FILE: its lines of code
    sed -E 's://.*::; s/^[[:space:]]+//; s/[[:space:]]+$//' "$1" | grep -vE '^(#include|extern "C" \{)' | grep '[[:alnum:]]'
}

failed=0
compare() { # MODEL OTHER
    local all repeated
    all=$(code "$1" | wc -l)
    repeated=$(code "$1" | grep -cxFf <(code "$2") || true)
    printf '%3d of %3d lines of %s are in %s\n' "$repeated" "$all" "$1" "$2"
    [ "$repeated" -le 40 ] || failed=$((failed + 1))
}

models=(train_fastformer.c dev/gpt2/train_gpt2.c dev/llama/train_llama.c dev/bert/train_bert.c dev/translate/train_translate.c)
for model in "${models[@]}"; do
    for other in "${models[@]}"; do
        [ "$model" = "$other" ] || compare "$model" "$other"
    done
done
[ $failed -eq 0 ]
