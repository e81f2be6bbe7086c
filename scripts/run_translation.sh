#!/bin/sh
# The Transformer of "Attention Is All You Need" in its published tiny configuration, English to German on Multi30k: BLEU of
# the test sentences, with normalisation behind or before each sublayer, and with or without a warm-up of the learning rate.
#
#   scripts/run_translation.sh [--quick | --one] [--updates N] [--output DIR]
#
# writes results.md, and for each run the translations (test.de), into DIR. Needs sacrebleu, which only scores. After an
# interruption the same command goes on.
set -eu
start=$PWD
cd "$(dirname "$0")/.."
. scripts/common.sh

usage() {
    cat >&2 <<'END'
usage: run_translation.sh [--quick | --one] [--updates N] [--output DIR]
  --quick       one seed instead of three
  --one         only the published configuration, one seed
  --updates N   of each run (9000)
  --output DIR  results and runs (runs/translation)
END
    exit 2
}

seeds='42 43 44'
arms='post-warmup post pre-warmup pre'
updates=9000
out=runs/translation
while [ $# -gt 0 ]; do
    case $1 in
    --quick) seeds=42 ;;
    --one) seeds=42 arms=post-warmup ;;
    --updates | --output)
        [ $# -gt 1 ] || usage
        case $1-$2 in
        --output-) usage ;;
        --updates-*[!0-9]* | --updates- | --updates-0*) usage ;;
        --updates-*) updates=$2 ;;
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

# Wu et al. 2021: 4 + 4 layers, 128 channels, FFN 256, 4 heads, dropout 0.3, smoothing 0.1.
evaluations=30
options="-i data/multi30k -L 4 -D 4 -C 128 --ffn 256 -H 4 --dropout 0.3 --label-smoothing 0.1 -b 2048 --beta2 0.98
    --weight-decay 0 --optimizer muon -l 5e-3 -k cosine -v $(((updates + evaluations - 1) / evaluations)) --keep 5"

# options_of ARM
options_of() {
    case $1 in
    *-warmup) echo "--norm ${1%-warmup} -u $((updates / 20))" ;;
    *) echo "--norm $1" ;;
    esac
}

# score DIR OPTIONS...: BLEU of its translations.
score() {
    directory=$1
    shift
    sacrebleu "$text/test_2016_flickr.de" -i "$directory/test.de" -m bleu -b -w 2 "$@"
}

# row ARM SEED: of the table, from what its run left.
row() {
    run=$out/$1-$2
    if ! [ -f "$run/test.de" ]; then
        echo "| $1 | $2 | failed: $(tail -n 1 "$run/output.txt") | | | | |"
        return
    fi
    below=$(awk "$json_number"'number("lr") != "" && number("loss") < 4 { print number("seconds"); exit }' "$run/log.jsonl")
    if [ -n "$below" ]; then below=$(duration "$below"); fi
    echo "| $1 | $2 | $(log_number test_loss "$run") | $(score "$run") | $(score "$run" -lc) | ${below:--} |" \
        "$(duration "$(log_number seconds "$run")") |"
}

mkdir -p "$out"
echo "$options -x $updates, data $(cksum <data/multi30k/meta.json)" | keep_settings "$out/settings"
echo 'measuring what a run costs'
# shellcheck disable=SC2086
probe "$out/cost" ./train_translate $options
for seed in $seeds; do
    for arm in $arms; do
        # shellcheck disable=SC2086
        echo "$(time_left "$out/cost" "$updates" "$evaluations" "$out/$arm-$seed") $arm-$seed ./train_translate" \
            $options "$(options_of "$arm") -x $updates -S $seed"
    done
done >"$tmp/plan"
train_all "$tmp/plan"

last=
for seed in $seeds; do
    for arm in $arms; do
        run=$out/$arm-$seed
        if finished "$run"; then
            last=$run
            if ! [ -f "$run/test.de" ]; then
                ./train_translate -e "$run" --average 5 --translate --beam 5 --alpha 1 <"$text/test_2016_flickr.en" \
                    >"$run/test.de.tmp"
                mv "$run/test.de.tmp" "$run/test.de"
            fi
        fi
        row "$arm" "$seed" | tee -a "$tmp/rows.md"
    done
done
[ -n "$last" ] || fail 'no run is finished'
run=$last
{
    echo '# Multi30k, English to German, test_2016_flickr'
    echo
    echo '| norm, warm-up | seed | test loss | BLEU | BLEU, lower case | training loss below 4 after | time |'
    echo '|---|---|---|---|---|---|---|'
    cat "$tmp/rows.md"
    echo
    echo "\`$(echo "$options -x $updates" | tr -s ' \n' ' ')\`; $(log_text processor "$run"), $(log_text products "$run")."
    echo 'The mean of the last five checkpoints translates, beam 5, alpha 1. Losses are a token, without smoothing.'
    echo "Signature of the BLEU: \`$(sacrebleu "$text/test_2016_flickr.de" -i "$run/test.de" -m bleu --format text |
        sed 's/^BLEU|//; s/ =.*//')\`"
} >"$tmp/results.md"
mv "$tmp/results.md" "$out/"
echo "$out/results.md"
[ "$failures" -eq 0 ] || fail "$failures runs failed and are not in the table"
