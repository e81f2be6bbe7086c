#!/bin/sh
# BERT with softmax attention, and with cosine attention whose sum is divided by a power of the number of tokens: 0, 0.5, 1
# or learned; each at five learning rates. Which of them diverge, and at which rate?
#
#   scripts/run_cosine.sh [--quick] [--seeds N] [--output DIR]
#
# writes into DIR runs.csv (a run a line), attention.csv (an evaluation a line), results.md, loss_by_rate.png and
# attention_by_step.png. It says first how long it will take. After an interruption the same command goes on. A run has
# diverged if updates were not finite, or if it ends a tenth above its best validation loss: it is marked.
set -eu
start=$PWD
cd "$(dirname "$0")/.."
. scripts/common.sh

arms='softmax cosine-0 cosine-0.5 cosine-1 cosine-learned'
rates='1e-5 1e-4 3e-4 1e-3 3e-3'
largest_rate=${rates##* }
evaluations=8 # of a run
last_line='"event":"statistics"'
data=data/wikitext2

usage() {
    cat >&2 <<'END'
usage: run_cosine.sh [--quick] [--seeds N] [--output DIR]
  --quick       small models, one seed, about a quarter of an hour
  --seeds N     runs of each arm and rate (3; --quick 1)
  --output DIR  results and runs (runs/cosine, runs/cosine-quick)
END
    exit 2
}

command_of() {
    case $1 in
    softmax) echo './train_bert --attention softmax' ;;
    cosine-*) echo "./train_bert --attention cosine --cosine-power ${1#cosine-}" ;;
    esac
}

prepare() {
    require train_bert tokenize
    made='TOKENIZER=bpe RESERVE=mask,padding make data/wikitext2'
    [ -f "$data/meta.json" ] || TOKENIZER=bpe RESERVE=mask,padding make data/wikitext2 || fail "$data cannot be made"
    grep -q '"mask":[0-9]' "$data/meta.json" || fail "$data: has no mask token; $made"
    mkdir -p "$out"
    echo "$options -x $steps, data $(cksum <"$data/meta.json")" | keep_settings "$out/settings"
}

# What diverged is a result, and not made again.
finished() {
    [ -f "$1/diverged" ] || grep -qsF -e "$last_line" "$1/log.jsonl"
}

excused() {
    grep -q 'not finite' "$1/output.txt" || return 1
    printf 'diverged'
    : >"$1/diverged"
}

# plan: a line for each run (train_all).
plan() {
    for seed in $seeds; do
        for rate in $rates; do
            for arm in $arms; do
                run=$arm-$rate-seed-$seed
                # shellcheck disable=SC2046,SC2086
                probe "$out/${arm%%-*}.cost" $(command_of "$arm") $options
                seconds=$(time_left "$out/${arm%%-*}.cost" "$steps" "$evaluations" "$out/$run")
                echo "$seconds $run $(command_of "$arm") $options -x $steps -S $seed -l $rate"
            done
        done
    done
}

collect() {
    echo 'arm,rate,seed,val_loss,last_val_loss,largest_attention_output,diverged' >"$tmp/runs.csv"
    echo 'arm,rate,seed,step,largest_attention_output' >"$tmp/attention.csv"
    while read -r _ name _; do
        run=$out/$name
        key=$(echo "$name" | sed -E 's/^(.*)-([0-9]+e-[0-9]+)-seed-([0-9]+)$/\1,\2,\3/')
        diverged=0
        [ ! -f "$run/diverged" ] || diverged=1
        awk -v key="$key" -v diverged="$diverged" "$json_number"'
            number("val_loss") != "" { last = number("val_loss"); if (best == "" || last < best) best = last }
            number("val_attention_max_abs") > largest { largest = number("val_attention_max_abs") }
            END { print key "," best "," last "," largest "," (diverged || last > 1.1 * best ? 1 : 0) }' \
            "$run/log.jsonl" >>"$tmp/runs.csv"
        awk -v key="$key" "$json_number"'
            number("val_attention_max_abs") != "" { print key "," number("step") "," number("val_attention_max_abs") }' \
            "$run/log.jsonl" >>"$tmp/attention.csv"
    done <"$1"
    mv "$tmp/runs.csv" "$tmp/attention.csv" "$out/"
}

report() {
    echo '# Cosine attention in BERT: the power of its divisor'
    echo
    echo "\`$options -x $steps\`. Best validation loss, mean ± standard deviation over seeds; in brackets"
    echo 'the largest |attention output| of all evaluations and seeds; x: a run diverged, or ended a tenth above its best.'
    echo
    awk -F, -v arms="$arms" -v rates="$rates" "$show_number$awk_statistics"'
        NR > 1 {
            i = $1 SUBSEP $2
            add(i, $4)
            if ($6 > largest[i]) largest[i] = $6
            bad[i] += $7
        }
        END {
            a = split(arms, arm, " "); r = split(rates, rate, " ")
            line = "| attention |"; rule = "|---|"
            for (j = 1; j <= r; j++) { line = line " " rate[j] " |"; rule = rule "---|" }
            print line "\n" rule
            for (k = 1; k <= a; k++) {
                line = "| " arm[k] " |"
                for (j = 1; j <= r; j++) {
                    i = arm[k] SUBSEP rate[j]
                    line = line " " (count[i] ? both(i) : "-") \
                        (largest[i] ? sprintf(" (%.3g)", largest[i]) : "") (bad[i] ? " x" : "") " |"
                }
                print line
            }
        }' "$out/runs.csv"
}

# draw FILE: FILE.png and FILE.svg by the gnuplot commands on stdin, with names and colours of the arms.
draw() {
    cat >"$tmp/plot"
    {
        # shellcheck disable=SC2086
        plot_names $arms
        for format in png svg; do
            plot_style "$format" "$1" 900 520
            echo 'set key outside right top'
            cat "$tmp/plot"
        done
    } >"$tmp/commands"
    plot_draw "$out" "$1"
}

loss_by_rate() {
    count=0
    for arm in $arms; do
        count=$((count + 1))
        awk -F, -v arm="$arm" '$1 == arm && $4 != "" { n[$2]++; s[$2] += $4; bad[$2] += $7 }
            END { for (r in n) print r, s[r] / n[r], (bad[r] > 0) }' "$out/runs.csv" | sort -g >"$tmp/rates.$count"
    done
    draw loss_by_rate <<END
set logscale x
set format x '%.0e'
set xlabel 'learning rate'
set ylabel 'validation loss'
plot for [i=1:$count] sprintf('rates.%d', i) using 1:2 with linespoints lw 2 pt 7 lc rgb colours[i] title names[i], \
    for [i=1:$count] sprintf('rates.%d', i) using (\$3 > 0 ? \$1 : 1/0):2 with points pt 2 ps 2.5 lw 3 lc rgb colours[i] notitle
END
}

attention_by_step() {
    count=0
    for arm in $arms; do
        count=$((count + 1))
        awk -F, -v arm="$arm" -v rate="$largest_rate" '$1 == arm && $2 == rate && $5 > largest[$4] { largest[$4] = $5 }
            END { for (step in largest) print step, largest[step] }' "$out/attention.csv" | sort -g >"$tmp/steps.$count"
    done
    draw attention_by_step <<END
set logscale y
set xlabel 'step, learning rate $largest_rate'
set ylabel 'largest |attention output|'
plot for [i=1:$count] sprintf('steps.%d', i) using 1:2 with linespoints lw 2 pt 7 lc rgb colours[i] title names[i]
END
}

quick=
seed_count=
out=
while [ $# -gt 0 ]; do
    case $1 in
    --quick) quick=1 ;;
    --seeds | --output)
        [ $# -gt 1 ] || usage
        case $1-$2 in
        --seeds-*[!0-9]* | --seeds- | --seeds-0* | --output-) usage ;;
        --seeds-*) seed_count=$2 ;;
        --output-/*) out=$2 ;;
        --output-*) out=$start/$2 ;;
        esac
        shift
        ;;
    *) usage ;;
    esac
    shift
done
if [ -n "$quick" ]; then
    options="-i $data -L 3 -C 64 -H 2 -b 8 -t 128 -u 50 -m 20 --stats 4"
    steps=600
else
    options="-i $data -L 6 -C 128 -H 4 -b 16 -t 512 -u 200 --stats 8"
    steps=5000
fi
options="$options -v $((steps / evaluations))"
[ -n "$seed_count" ] || seed_count=$(if [ -n "$quick" ]; then echo 1; else echo 3; fi)
out=${out:-runs/cosine${quick:+-quick}}
seeds=$(awk "BEGIN { for (i = 1; i <= $seed_count; i++) print i }")

prepare
echo 'measuring what a run costs'
plan >"$tmp/plan"
train_all "$tmp/plan"
[ "$failures" -eq 0 ] || fail "$failures runs failed; the same command tries them again"
collect "$tmp/plan"
report >"$tmp/results.md"
mv "$tmp/results.md" "$out/"
loss_by_rate
attention_by_step
cat "$out/results.md"
