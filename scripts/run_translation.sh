#!/bin/sh
# The Transformer of "Attention Is All You Need" in its published tiny configuration, English to German on Multi30k: BLEU of
# the test sentences, with normalisation behind or before each sublayer, and with or without a warm-up of the learning rate.
#
#   scripts/run_translation.sh [--quick | --one] [--updates N] [--output DIR]
#
# writes runs.csv (a run a line), results.md, and for each run the translations (test.de), into DIR. Needs sacrebleu, which only scores. After an
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
        --output-*) out=$(from_start "$2") ;;
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
has_data data/multi30k || make data/multi30k || fail 'data/multi30k cannot be made'

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

# measures ARM SEED: of what its run left, a line: arm, seed, test loss, BLEU, BLEU in lower case, seconds until a step's loss was below
# 4 (- where none was), seconds in all.
measures() {
    run=$out/$1-$2
    below=$(awk "$json_number"'
        number("lr") != "" && number("loss") != "" && number("loss") < 4 { print number("seconds"); exit }' "$run/log.jsonl")
    echo "$1,$2,$(log_number test_loss "$run"),$(score "$run"),$(score "$run" -lc),${below:--},$(log_number seconds "$run")"
}

# table: a line for each arm; mean and standard deviation over the seeds.
table() {
    echo '| norm, warm-up | seeds | test loss | BLEU | BLEU, lower case | training loss below 4 after, s | minutes |'
    echo '|---|---|---|---|---|---|---|'
    awk -F, -v arms="$arms" "$show_number$awk_statistics"'
        NR > 1 {
            for (i = 3; i <= 7; i++) if ($i != "-") add($1 SUBSEP i, i == 7 ? $i / 60 : $i)
        }
        END {
            n = split(arms, arm, " ")
            for (a = 1; a <= n; a++) {
                line = "| " arm[a] " | " count[arm[a] SUBSEP 3] + 0 " |"
                for (i = 3; i <= 7; i++) line = line " " both(arm[a] SUBSEP i) " |"
                print line
            }
        }' "$out/runs.csv"
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
echo 'arm,seed,test_loss,bleu,bleu_lowercase,below_4_seconds,seconds' >"$tmp/runs.csv"
for seed in $seeds; do
    for arm in $arms; do
        run=$out/$arm-$seed
        finished "$run" || continue
        last=$run
        if ! [ -f "$run/test.de" ]; then
            ./train_translate -e "$run" --average 5 --translate --beam 5 --alpha 1 <"$text/test_2016_flickr.en" \
                >"$run/test.de.tmp"
            mv "$run/test.de.tmp" "$run/test.de"
        fi
        measures "$arm" "$seed" >>"$tmp/runs.csv"
    done
done
[ -n "$last" ] || fail 'no run is finished'
mv "$tmp/runs.csv" "$out/"
run=$last
{
    echo '# Multi30k, English to German, test_2016_flickr'
    echo
    table
    echo
    echo "\`$(printf '%s' "$options -x $updates" | tr -s ' \n' ' ')\`; $(log_text processor "$run"), $(log_text products "$run")."
    echo 'The mean of the last five checkpoints translates, beam 5, alpha 1. Losses are a token, without smoothing. Mean ± standard' \
        'deviation over seeds.'
    echo "Signature of the BLEU: \`$(sacrebleu "$text/test_2016_flickr.de" -i "$run/test.de" -m bleu --format text |
        sed 's/^BLEU|//; s/ =.*//')\`"
} >"$tmp/results.md"
mv "$tmp/results.md" "$out/"
echo "$out/results.md"
[ "$failures" -eq 0 ] || fail "$failures runs failed and are not in the table"
