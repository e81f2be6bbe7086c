#!/bin/sh
# Three language models on WikiText-2, trained with contexts of 512, 2,048 and 8,192 tokens and 8,192 tokens an update, so that all
# learn from the same tokens. How much is a longer context worth to each?
#
#   scripts/run_lengths.sh [OPTION...]     (--help)
#
# writes into DIR runs.csv (a run a line), results.md and perplexity_by_length.png. It says first how long it will take. After an
# interruption the same command goes on. How fast they are by length is dev/bench/run.sh's.
set -eu
start=$PWD
cd "$(dirname "$0")/.."
. scripts/compare.sh
. scripts/arms.sh

arms=$language_models
values='512 2048 8192' value_name=length
update=8192 # tokens
evaluations=5
data=data/wikitext2

command_of() {
    language_model "$1"
}

value_options() {
    echo "-t $1 -b $((update / $1))"
}

cost_of() {
    echo "$1-$2"
}

# runs.csv: arm, length, seed, best and last validation loss, largest and last test loss and test perplexity a word, diverged.
report() {
    echo '# WikiText-2, by the length of the context'
    echo
    say_unfinished
    echo "\`$options -x $steps\`, $update tokens an update. Test perplexity a token; a word in brackets; mean ± standard deviation over"
    echo 'seeds; x: a run diverged, or ended a tenth above its best validation loss.'
    echo
    # shellcheck disable=SC2016 # awk's
    table 'if ($7 != "") add(i, exp($7)); add(i SUBSEP "word", $9)' '"T " value' \
        'both(i) " (" show(mean(i SUBSEP "word")) ")" mark(i)'
}

perplexity_by_length() {
    count=0
    for arm in $arms; do
        count=$((count + 1))
        for length in $values; do
            awk -F, -v arm="$arm" -v length_of="$length" "$show_number$awk_statistics"'
                $1 == arm && $2 == length_of && $7 != "" { add("test", exp($7)) }
                END { if (count["test"]) print length_of, mean("test"), spread("test") + 0 }' "$out/runs.csv"
        done >"$tmp/lengths.$count"
    done
    draw perplexity_by_length lengths <<END
set logscale x 2
set xtics ($(echo "$values" | tr ' ' ','))
set xrange [400:10500]
set xlabel 'tokens of context'
set ylabel 'test perplexity, a token'
plot for [i=1:$count] sprintf('lengths.%d', i) using 1:2:3 with yerrorlines lw 2 pt 7 lc rgb colours[i] title names[i]
END
}

comparison_options runs/lengths "$@"
require train_fastformer train_gpt2 tokenize
has_data "$data" || make data/wikitext2 || fail "$data cannot be made"
if [ -n "$quick" ]; then
    options="-i $data -L 4 -C 64 -H 2 -m 4"
    steps=60
else
    # Five epochs.
    options="-i $data $published"
    tokens=$(tokens_of wikitext2 train)
    steps=$((5 * tokens / update))
fi
options="$options -v $((steps / evaluations))"
train_arms
collect test_loss test_word_ppl
report >"$tmp/results.md"
mv "$tmp/results.md" "$out/"
perplexity_by_length
end_comparison
