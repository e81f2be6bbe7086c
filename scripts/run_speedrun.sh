#!/bin/sh
# Time to quality: the test perplexity a word that the published recipe has after 25 epochs of WikiText-2 (run_wikitext2.sh, growing
# windows), in as few minutes as the best recipe found takes. It has words as tokens, three layers, Muon, 20 times the
# learning rate, a quarter of the tokens an update, short contexts and no dropout.
#
#   scripts/run_speedrun.sh [OPTION...]     (--help)
#
# writes results.md and word_perplexity_by_time.png, .svg into DIR. After an interruption the same command goes on.
set -eu
start=$PWD
cd "$(dirname "$0")/.."
. scripts/compare.sh
. data/common.sh

recipe='--windows auto -L 3 -C 128 -H 4 -t 256 -b 4 --dropout 0 --optimizer muon -l 1e-2 -k linear -u 200'
steps=4800
published_runs=dev/bench/results/wikitext2/fastformer-windowed-seed-*.jsonl

# runs_of ARM: those that are finished.
runs_of() {
    for run in "$out/$1"-seed-*; do
        if finished "$run"; then echo "$run"; fi
    done
}

# measures: a line for each run: arm, parameters, updates, minutes of them, perplexity a word of the best validation and of the test,
# bits a byte of the test.
measures() {
    for arm in published speedrun; do
        for run in $(runs_of $arm); do
            step=$(log_number step "$run")
            echo "$arm $(log_text model "$run" | sed 's/.*, \([0-9]*\) .*/\1/') $step" \
                "$(of_a_step ms "$run" | awk -v step="$step" '{ print ($1 == "-" ? "-" : step * $1 / 60000) }')" \
                "$(log_least val_word_ppl "$run") $(log_number test_word_ppl "$run") $(log_number test_bpb "$run")"
        done
    done
}

report() {
    echo '# Time to quality: WikiText-2'
    echo
    say_unfinished
    echo '| recipe | parameters | seeds | updates | minutes | val ppl per word | test ppl per word | test bits per byte |'
    echo '|---|---|---|---|---|---|---|---|'
    measures | awk "$show_number$awk_statistics"'
        !($1 in parameters) { order[++arms] = $1 }
        {
            parameters[$1] = $2; updates[$1] = $3
            for (i = 4; i <= 7; i++) add($1 SUBSEP i, $i)
        }
        END {
            for (a = 1; a <= arms; a++) {
                arm = order[a]
                line = "| " arm " | " parameters[arm] " | " count[arm SUBSEP 5] " | " updates[arm] " |"
                for (i = 4; i <= 7; i++) line = line " " both(arm SUBSEP i) " |"
                print line
            }
        }'
    echo
    echo "\`$options -x $steps\`, words as tokens; $(runs_of speedrun | machines_of)."
    echo "Minutes are those of all updates at the middle one's speed, of the runs on $machine; with start, evaluations and test a run took, on the clock," \
        "$(for run in $(runs_of speedrun); do log_number seconds "$run"; done |
            awk '{ printf "%s%.1f", (NR > 1 ? ", " : ""), $1 / 60 }')."
    echo 'The validation is the best one; the test is of its weights.'
    echo 'Where there is more than one seed: mean ± standard deviation.'
    echo
    echo '![validation perplexity](word_perplexity_by_time.png)'
}

plot() {
    # shellcheck disable=SC2046
    for arm in published speedrun; do validation_of val_word_ppl $(runs_of $arm) >"$tmp/$arm"; done
    {
        plot_names published speedrun
        for format in png svg; do
            plot_style "$format" word_perplexity_by_time 900 520
            cat <<'END'
set logscale xy
set xlabel 'minutes of updates'
set ylabel 'validation perplexity, a word'
set key inside right top
plot for [i=1:2] names[i] using ($2/60):3 with linespoints lw 2 pt 7 ps 0.7 lc rgb colours[i] title names[i]
unset logscale
END
        done
    } >"$tmp/commands"
    plot_draw "$out" word_perplexity_by_time
}

# plan: a line for each run (train_all).
plan() {
    for seed in $seeds; do
        run=speedrun-seed-$seed
        # shellcheck disable=SC2086
        finished "$out/$run" || probe "$out/speedrun.cost" ./train_fastformer -i "$out/data" $options
        echo "$(time_left "$out/speedrun.cost" "$steps" "$evaluations" "$out/$run") $run" \
            "./train_fastformer -i $out/data $options -x $steps -S $seed"
    done
}

# ---- main

quick_is='60 updates, one seed, a minute: far from the mark'
comparison_options runs/speedrun "$@"
[ -z "$quick" ] || steps=60
evaluations=6
options="$recipe -v $((steps / evaluations))"

require train_fastformer tokenize
mkdir -p "$out"
words_of_wikitext2 "$out/data"
for log in $published_runs; do
    run=$out/$(basename "$log" .jsonl | sed 's/.*-seed-/published-seed-/')
    mkdir -p "$run"
    cp "$log" "$run/log.jsonl"
done

echo "$options -x $steps, data $(cksum <"$out/data/meta.json")" | open_runs
train_all
# shellcheck disable=SC2046
choose_machine $(runs_of published) $(runs_of speedrun)
report >"$tmp/results.md"
mv "$tmp/results.md" "$out/"
plot
end_comparison
