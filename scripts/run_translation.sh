#!/bin/sh
# The Transformer of "Attention Is All You Need" in its published tiny configuration, English to German on Multi30k: BLEU of
# the test sentences, with normalisation behind or before each sublayer, and with or without a warm-up of the learning rate.
#
#   scripts/run_translation.sh [--quick | --one] [--epochs N] [--output DIR]
#
# writes results.md, and for each run the translations (test.de), into DIR. Needs sacrebleu, which only scores. After an
# interruption the same command goes on.
set -eu
start=$PWD
cd "$(dirname "$0")/.."
. scripts/common.sh

usage() {
    cat >&2 <<'END'
usage: run_translation.sh [--quick | --one] [--epochs N] [--output DIR]
  --quick       one seed instead of three
  --one         only the published configuration, one seed
  --epochs N    passes over the data (60)
  --output DIR  results and runs (runs/translation)
END
    exit 2
}

seeds='42 43 44'
arms='post-warmup post pre-warmup pre'
epochs=60
out=runs/translation
while [ $# -gt 0 ]; do
    case $1 in
    --quick) seeds=42 ;;
    --one) seeds=42 arms=post-warmup ;;
    --epochs | --output)
        [ $# -gt 1 ] || usage
        case $1-$2 in
        --output-) usage ;;
        --epochs-*[!0-9]* | --epochs-0*) usage ;;
        --epochs-*) epochs=$2 ;;
        --output-/*) out=$2 ;;
        --output-*) out=$start/$2 ;;
        esac
        shift
        ;;
    *) usage ;;
    esac
    shift
done
build train_translate tokenize
command -v sacrebleu >/dev/null || fail 'sacrebleu is missing: pip install sacrebleu'
text=${MULTI30K_DIR:-../shared/data/multi30k}
[ -d "$text" ] || text=data/download/multi30k
[ -f data/multi30k/meta.json ] || make data/multi30k || fail 'data/multi30k cannot be made'

# Wu et al. 2021: 4 + 4 layers, 128 channels, FFN 256, 4 heads, dropout 0.3, smoothing 0.1; 5e-3 at the end of the warm-up.
options="-i data/multi30k -L 4 -D 4 -C 128 --ffn 256 -H 4 --dropout 0.3 --label-smoothing 0.1 -b 4096 --beta2 0.98
    --weight-decay 0 -l 5e-3 -k cosine -E $epochs --keep 5"

# options_of ARM
options_of() {
    case $1 in
    *-warmup) echo "--norm ${1%-warmup} -u 1000" ;;
    *) echo "--norm $1" ;;
    esac
}

# score DIR OPTIONS...: BLEU of its translations.
score() {
    directory=$1
    shift
    sacrebleu "$text/test_2016_flickr.de" -i "$directory/test.de" -m bleu -b -w 2 "$@"
}

mkdir -p "$out"
echo "$options, data $(cksum <data/multi30k/meta.json)" | keep_settings "$out/settings"
{
    echo '# Multi30k, English to German, test_2016_flickr'
    echo
    echo '| norm, warm-up | seed | test loss | BLEU | BLEU, lower case | loss below 4 after | time |'
    echo '|---|---|---|---|---|---|---|'
} >"$tmp/results.md"
for seed in $seeds; do
    for arm in $arms; do
        run=$out/$arm-$seed
        # shellcheck disable=SC2046,SC2086
        finished "$run" || train "$run" ./train_translate $options $(options_of "$arm") -S "$seed" || {
            echo "| $arm | $seed | failed: $(tail -n 1 "$run/output.txt") | | | | |" | tee -a "$tmp/results.md"
            continue
        }
        [ -f "$run/test.de" ] || {
            ./train_translate -e "$run" --average 5 --translate --beam 5 --alpha 1 <"$text/test_2016_flickr.en" >"$run/test.de.tmp"
            mv "$run/test.de.tmp" "$run/test.de"
        }
        below=$(awk "$json_number"'number("lr") != "" && number("loss") < 4 { print number("seconds"); exit }' "$run/log.jsonl")
        echo "| $arm | $seed | $(log_number test_loss "$run") | $(score "$run") | $(score "$run" -lc) |" \
            "$(duration "${below:-0}") | $(duration "$(log_number seconds "$run")") |" | tee -a "$tmp/results.md"
    done
done
{
    cat "$tmp/results.md"
    echo
    echo "\`$(echo "$options" | tr -s ' \n' ' ')\`; the mean of the last five checkpoints, beam 5, alpha 1."
    echo "Signature of the BLEU: $(sacrebleu "$text/test_2016_flickr.de" -i "$run/test.de" -m bleu --format text | sed 's/ =.*//')"
} >"$out/results.md"
echo "$out/results.md"
