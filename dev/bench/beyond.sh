#!/usr/bin/env bash
# Perplexity by position beyond the last one: both models, each way that --beyond names, on WikiText-2 after a
# short training. Prints a table.
# usage: dev/bench/beyond.sh [--steps N] [--positions T] [-o DIR]     DATA=DIR, default data/wikitext2
set -euo pipefail
cd "$(dirname "$0")/../.."
steps=3000 positions=128 output=runs/beyond
while [ $# -gt 0 ]; do
    case $1 in
    --steps) steps=$2; shift 2 ;;
    --positions) positions=$2; shift 2 ;;
    -o) output=$2; shift 2 ;;
    *) sed -n '2,4s/^# //p' "$0"; [ "$1" = --help ]; exit ;;
    esac
done
data=${DATA:-data/wikitext2}
make -s train_fastformer train_gpt2 bench >&2
beyond=$(ls -t build/*/bench/beyond | head -n 1)
train() { # MODEL NAME OPTIONS...
    ./train_"$1" -i "$data" -o "$output/$2" $([ ! -e "$output/$2/lock" ] || echo -y) -L 3 -C 64 -H 2 -b 8 -t "$positions" -x "$steps" -l 2e-3 -u 100 \
        -k cosine -v "$steps" -m 100 --no-test "${@:3}" >&2
}
echo "| model | --beyond | tokens 0 .. T-1 $(for i in 2 3 4 5 6 7 8; do printf '| to %dT ' $i; done)|"
echo "|---|---|$(printf -- '---|%.0s' 1 2 3 4 5 6 7 8)"
for model in fastformer fastformer-global gpt2; do
    case $model in
    fastformer) train fastformer $model ;;
    fastformer-global) train fastformer $model --windows global ;;
    gpt2) train gpt2 $model ;;
    esac
    for how in slide repeat; do
        $beyond --type "${model%-global}" -e "$output/$model" -i "$data" --beyond $how |
            sed "s/^| ${model%-global} /| $model /"
    done
done
