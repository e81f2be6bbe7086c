#!/usr/bin/env bash
# Counts the lines of each model that another model contains verbatim: code that two models need
# belongs in dev/model, dev/cpu, dev/cuda or dev/trainer. Comments, includes and lines of only
# punctuation do not count. Fails if there are more than 24 lines on the CPU or more than 5 on the
# GPU. The limit is in lines, not a share, because the files of models are short: shared code has
# moved out of them.
set -euo pipefail
cd "$(dirname "$0")/../.."

code() { # FILE: its lines of code
    sed -E 's://.*::; s/^[[:space:]]+//; s/[[:space:]]+$//' "$1" | grep -vE '^(#include|extern "C" \{)' | grep '[[:alnum:]]'
}

failed=0
compare() { # LIMIT MODEL...: each with each
    local limit=$1 model other all repeated
    shift
    for model; do
        all=$(code "$model" | wc -l)
        for other; do
            [ "$model" != "$other" ] || continue
            repeated=$(code "$model" | grep -cxFf <(code "$other") || true)
            printf '%3d of %3d lines of %s are in %s\n' "$repeated" "$all" "$model" "$other"
            [ "$repeated" -le "$limit" ] || failed=$((failed + 1))
        done
    done
}

compare 24 train_fastformer.c dev/gpt2/train_gpt2.c dev/llama/train_llama.c dev/bert/train_bert.c dev/translate/train_translate.c
compare 5 train_fastformer.cu dev/gpt2/train_gpt2.cu dev/bert/train_bert.cu dev/translate/train_translate.cu
[ $failed -eq 0 ]
