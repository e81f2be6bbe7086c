#!/bin/sh
# BERT with softmax attention, and with cosine attention whose sum is divided by a power of the number of tokens: 0, 0.5, 1
# or learned; each at five learning rates. Which of them diverge, and at which rate?
#
#   scripts/run_cosine.sh [OPTION...]     (--help)
#
# writes into DIR runs.csv (a run a line), attention.csv (an evaluation a line), results.md, loss_by_rate.png and
# attention_by_step.png. It says first how long it will take. After an interruption the same command goes on. A run has
# diverged if updates were not finite, or if it ends a tenth above its best validation loss: it is marked.
set -eu
start=$PWD
cd "$(dirname "$0")/.."
. scripts/compare.sh
. scripts/arms.sh

arms='softmax cosine-0 cosine-0.5 cosine-1 cosine-learned'
rates='1e-5 1e-4 3e-4 1e-3 3e-3'
values=$rates value_name=rate
largest_rate=${rates##* }
evaluations=8 # of a run
last_line='"event":"statistics"'
data=data/wikitext2

command_of() {
    case $1 in
    softmax) echo './train_bert --attention softmax' ;;
    cosine-*) echo "./train_bert --attention cosine --cosine-power ${1#cosine-}" ;;
    esac
}

value_options() {
    echo "-l $1"
}

cost_of() {
    echo "${1%%-*}"
}

prepare() {
    require train_bert tokenize
    made='TOKENIZER=bpe RESERVE=mask,padding make data/wikitext2'
    has_data "$data" || TOKENIZER=bpe RESERVE=mask,padding make data/wikitext2 || fail "$data cannot be made"
    grep -q '"mask":[0-9]' "$data/meta.json" || fail "$data: has no mask token; $made"
}

report() {
    echo '# Cosine attention in BERT: the power of its divisor'
    echo
    say_unfinished
    echo "\`$options -x $steps\`. Best validation loss, mean ± standard deviation over seeds; in brackets"
    echo 'the largest |attention output| of all evaluations and seeds; x: a run diverged, or ended a tenth above its best.'
    echo
    # shellcheck disable=SC2016 # awk's
    table 'add(i, $4); if ($6 > largest[i]) largest[i] = $6' 'value' \
        'both(i) (largest[i] ? sprintf(" (%.3g)", largest[i]) : "") mark(i)'
}

loss_by_rate() {
    count=0
    for arm in $arms; do
        count=$((count + 1))
        awk -F, -v arm="$arm" '$1 == arm && $4 != "" { n[$2]++; s[$2] += $4; bad[$2] += $8 }
            END { for (r in n) print r, s[r] / n[r], (bad[r] > 0) }' "$out/runs.csv" | sort -g >"$tmp/rates.$count"
    done
    draw loss_by_rate rates <<END
set logscale x
set format x '%.0e'
set xlabel 'learning rate'
set ylabel 'validation loss'
plot for [i=1:$count] sprintf('rates.%d', i) using 1:2 with linespoints lw 2 pt 7 lc rgb colours[i] title names[i], \
    for [i=1:$count] sprintf('rates.%d', i) using (\$3 > 0 ? \$1 : 1/0):2 with points pt 2 ps 2.5 lw 3 lc rgb colours[i] notitle
END
}

attention_by_step() {
    # shellcheck disable=SC2086
    largest_by_step attention "$largest_rate" $arms
    draw attention_by_step attention <<END
set logscale y
set xlabel 'step, learning rate $largest_rate'
set ylabel 'largest |attention output|'
plot for [i=1:$count] sprintf('attention.%d', i) using 1:2 with linespoints lw 2 pt 7 lc rgb colours[i] title names[i]
END
}

comparison_options runs/cosine "$@"
if [ -n "$quick" ]; then
    options="-i $data -L 3 -C 64 -H 2 -b 8 -t 128 -u 50 -m 20 --stats 4"
    steps=600
else
    options="-i $data -L 6 -C 128 -H 4 -b 16 -t 512 -u 200 --stats 8"
    steps=5000
fi
options="$options -v $((steps / evaluations))"

prepare
train_arms
collect val_attention_max_abs
collect_steps val_attention_max_abs attention
report >"$tmp/results.md"
mv "$tmp/results.md" "$out/"
loss_by_rate
attention_by_step
end_comparison
