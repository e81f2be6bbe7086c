#!/bin/sh
# WikiText-2 by words, 33,278 types, as AWD-LSTM (Merity et al. 2017, "Regularizing and Optimizing LSTM Language Models") counts
# them: its test perplexity of 65.8 is of a word, the published Fastformer's is of a piece of one. The Fastformer with 128 and 256
# channels, each with three dropouts, for 20 epochs: a night of two cores.
#
#   scripts/run_words.sh [OPTION...]     (--help)
#
# writes into DIR runs.csv (a run a line), results.md and perplexity_by_epoch.png. It says first how long it will take. After an
# interruption the same command goes on.
set -eu
start=$PWD
cd "$(dirname "$0")/.."
. scripts/compare.sh
. scripts/arms.sh
. data/common.sh

arms='channels-128 channels-256'
values='0.1 0.3 0.5' value_name=dropout
update=1024 # tokens
awd_lstm=65.8

command_of() {
    echo "./train_fastformer -i $data -C ${1#channels-}"
}

value_options() {
    echo "--dropout $1"
}

cost_of() {
    echo "$1"
}

finished_runs() {
    for run in "$out"/channels-*-seed-*; do
        if finished "$run"; then echo "$run"; fi
    done
}

# runs.csv: arm, dropout, seed, best and last validation loss, largest and last test perplexity and bits a byte, diverged.
report() {
    echo '# WikiText-2 by words'
    echo
    say_unfinished
    echo "\`$options -x $steps\`, words as tokens; $(finished_runs | machines_of)."
    echo 'Perplexity of the best validation, and of the test by its weights; x: the run ended a tenth above its best validation loss.'
    echo "AWD-LSTM's test perplexity is $awd_lstm."
    echo
    # shellcheck disable=SC2016 # awk's
    table 'add(i, $4 == "" ? "" : exp($4)); add(i SUBSEP "test", $7)' '"dropout " value ": val | test"' \
        'both(i) mark(i) " | " both(i SUBSEP "test")'
    echo
    echo '![validation perplexity](perplexity_by_epoch.png)'
}

# A curve for each run of the first seed that is finished.
perplexity_by_epoch() {
    count=0
    set --
    for arm in $arms; do
        for dropout in $values; do
            run=$out/$arm-$dropout-seed-1
            finished "$run" || continue
            count=$((count + 1))
            set -- "$@" "$(echo "$arm, dropout $dropout" | tr - ' ')"
            validation_of val_word_ppl "$run" >"$tmp/epochs.$count"
        done
    done
    [ "$count" -gt 0 ] || return 0
    {
        plot_names "$@"
        cat <<END
set key inside right top
set xlabel 'epoch'
set ylabel 'validation perplexity, a word'
plot for [i=1:$count] sprintf('epochs.%d', i) using 1:3 with linespoints lw 2 pt 7 ps 0.7 lc rgb colours[i] title names[i]
END
    } | draw perplexity_by_epoch epochs
}

# ---- main

quick_is='60 updates of a small model, one seed, two minutes'
comparison_options runs/words "$@"
data=$out/data
options="--windows auto -H 4 -t 256 -b 4 --optimizer muon -l 1e-2 -k linear -u 200"
if [ -n "$quick" ]; then
    options="$options -L 1 -m 4"
    steps=60 evaluations=2
else
    options="$options -L 4"
    evaluations=20
    steps=$((evaluations * 2088628 / update))
fi
options="$options -v $((steps / evaluations))"

require train_fastformer tokenize
words_of_wikitext2 "$data"
train_arms
collect test_word_ppl
report >"$tmp/results.md"
mv "$tmp/results.md" "$out/"
perplexity_by_epoch
end_comparison
