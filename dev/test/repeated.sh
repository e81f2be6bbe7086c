#!/usr/bin/env bash
# How many lines of a model are word for word in another: what two of them need belongs into dev/cpu, dev/cuda or
# dev/trainer. Comments, includes and lines of only punctuation do not count. Fails where a share is 15% or more on the
# CPU, 20% on the GPU.
set -euo pipefail
cd "$(dirname "$0")/../.."

code() { # FILE: its lines of code
    sed -E 's://.*::; s/^[[:space:]]+//; s/[[:space:]]+$//' "$1" | grep -vE '^(#include|extern "C" \{)' | grep '[[:alnum:]]'
}

failed=0
compare() { # LIMIT MODEL OTHER
    local all repeated
    all=$(code "$2" | wc -l)
    repeated=$(code "$2" | grep -cxFf <(code "$3") || true)
    local share=$((100 * repeated / all))
    printf '%3d%%  %3d of %3d lines of %s are in %s\n' $share "$repeated" "$all" "$2" "$3"
    [ $share -lt "$1" ] || failed=$((failed + 1))
}

models=(train_fastformer.c dev/gpt2/train_gpt2.c dev/bert/train_bert.c dev/translate/train_translate.c)
for model in "${models[@]}"; do
    for other in "${models[@]}"; do
        [ "$model" = "$other" ] || compare 15 "$model" "$other"
    done
done
on_gpu=(train_fastformer.cu dev/gpt2/train_gpt2.cu dev/bert/train_bert.cu dev/translate/train_translate.cu)
for model in "${on_gpu[@]}"; do
    for other in "${on_gpu[@]}"; do
        [ "$model" = "$other" ] || compare 20 "$model" "$other"
    done
done
[ $failed -eq 0 ]
