#!/bin/sh
# The Transformer of "Attention Is All You Need" in its published tiny configuration, English to German on Multi30k: BLEU of
# the test sentences, with normalisation behind or before each sublayer, and with or without a warm-up of the learning rate.
#
#   scripts/run_translation.sh [OPTION...]     (--help)
#
# writes runs.csv (a run a line), results.md, and for each run the translations (test.de), into DIR. Needs sacrebleu, which only scores. After an
# interruption the same command goes on.
set -eu
start=$PWD
cd "$(dirname "$0")/.."
. scripts/compare.sh

quick_is='one seed'
own_usage='
  --one         only the published configuration, one seed
  --updates N   of each run (9000)'
keeps= # a run is scored by its weights
arms='post-warmup post pre-warmup pre'
updates=9000

own_option() {
    taken=0
    case $1 in
    --one) quick=1 arms=post-warmup taken=1 ;;
    --updates)
        [ $# -gt 1 ] && whole_number "$2" || usage
        updates=$2 taken=2
        ;;
    esac
}

comparison_options runs/translation "$@"
seeds=$(for seed in $seeds; do echo $((seed + 41)); done) # those of dev/bench/results/multi30k
build train_translate "train_translate$gpu" tokenize
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
    run=$out/$1-seed-$2
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

# plan: a line for each run (train_all).
plan() {
    # shellcheck disable=SC2086
    probe "$out/cost" ./train_translate $options
    for seed in $seeds; do
        for arm in $arms; do
            run=$arm-seed-$seed
            # shellcheck disable=SC2086
            echo "$(time_left "$out/cost" "$updates" "$evaluations" "$out/$run") $run ./train_translate" \
                $options "$(options_of "$arm") -x $updates -S $seed"
        done
    done
}

echo "$options -x $updates, data $(cksum <data/multi30k/meta.json)" | open_runs
train_all

last=
echo 'arm,seed,test_loss,bleu,bleu_lowercase,below_4_seconds,seconds' >"$tmp/runs.csv"
for seed in $seeds; do
    for arm in $arms; do
        run=$out/$arm-seed-$seed
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
mv "$tmp/runs.csv" "$out/"
run=$last
{
    echo '# Multi30k, English to German, test_2016_flickr'
    echo
    say_unfinished
    table
    echo
    echo "\`$(printf '%s' "$options -x $updates" | tr -s ' \n' ' ')\`; $(log_text processor "$run"), $(log_text products "$run")."
    echo 'The mean of the last five checkpoints translates, beam 5, alpha 1. Losses are a token, without smoothing. Mean ± standard' \
        'deviation over seeds.'
    echo "Signature of the BLEU: \`$(sacrebleu "$text/test_2016_flickr.de" -i "$run/test.de" -m bleu --format text |
        sed 's/^BLEU|//; s/ =.*//')\`"
} >"$tmp/results.md"
mv "$tmp/results.md" "$out/"
end_comparison
