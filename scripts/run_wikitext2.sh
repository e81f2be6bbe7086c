#!/bin/sh
# Three language models on WikiText-2 with the same budget: the Fastformer with every layer global, with windows that grow
# from layer to layer, and GPT-2.
#
#   scripts/run_wikitext2.sh [OPTION...] [-- OPTION OF THE TRAINERS...]
#
# writes results.md and validation_perplexity.png, .svg into DIR. It says first how long it will take. After an
# interruption the same command goes on. Options of the trainers make another comparison than the published one
# (-t 8192, -l 1e-3).
set -eu
start=$PWD
cd "$(dirname "$0")/.."
. scripts/compare.sh

arms=$language_models

quick_is='one epoch, one seed, about a quarter of an hour'
own_usage='
  --epochs N    passes over the data (25)
  -- OPTION...  of the trainers, behind all others: -- -t 8192 -l 1e-3'
epochs=
trainer_options=

own_option() {
    taken=0
    case $1 in
    --epochs)
        [ $# -gt 1 ] && whole_number "$2" || usage
        epochs=$2 taken=2
        ;;
    --)
        taken=$#
        shift
        trainer_options=$*
        ;;
    esac
}

# runs_of ARM: those that are finished.
runs_of() {
    for seed in $seeds; do
        run=$out/$1-seed-$seed
        if finished "$run"; then echo "$run"; fi
    done
}

# measures: a line for each run: arm, parameters, validation perplexity, and of the test perplexity, that of a word, bits a
# byte; tokens a second, milliseconds a step.
measures() {
    for arm in $arms; do
        runs_of "$arm" | while read -r run; do
            parameters=$(log_text model "$run" | sed 's/.*, \([0-9]*\) .*/\1/')
            echo "$arm $parameters $(log_least val_ppl "$run") $(log_number test_ppl "$run") $(log_number test_word_ppl "$run")" \
                "$(log_number test_bpb "$run") $(of_a_step tokens_per_s "$run") $(of_a_step ms "$run")"
        done
    done
}

# table: a line for each arm; mean and standard deviation over the seeds.
table() {
    echo '| model | parameters | seeds | val ppl | test ppl | test ppl per word | test bits per byte | tokens/s | minutes |'
    echo '|---|---|---|---|---|---|---|---|---|'
    measures | awk -v steps="$steps" "$show_number$awk_statistics"'
        !($1 in parameters) { order[++arms] = $1 }
        {
            parameters[$1] = $2
            for (i = 3; i <= 8; i++) add($1 SUBSEP i, i == 8 && $i != "-" ? $i * steps / 60000 : $i)
        }
        END {
            for (a = 1; a <= arms; a++) {
                arm = order[a]
                line = "| " arm " | " parameters[arm] " | " count[arm SUBSEP 3] " |"
                for (i = 3; i <= 8; i++) line = line " " both(arm SUBSEP i) " |"
                print line
            }
        }'
}

report() {
    for arm in $arms; do sample=$(runs_of "$arm" | sed -n '1p;q'); [ -z "$sample" ] || break; done
    echo '# WikiText-2'
    echo
    say_unfinished
    table
    echo
    echo "\`$options -x $steps\`; $(for arm in $arms; do runs_of "$arm"; done | machines_of)."
    echo "Perplexities are per token unless it says otherwise: validation (the best) over $(log_number val_tokens "$sample") of" \
        "$(tokens_of wikitext2 val) tokens, test over $(log_number test_tokens "$sample"). Minutes are those of all updates" \
        "at the middle one's speed, without evaluations; they and tokens/s are of the runs on $machine." \
        'Where there is more than one seed: mean ± standard deviation.'
    echo
    echo '![validation perplexity](validation_perplexity.png)'
}

plot() {
    count=0
    set --
    for arm in $arms; do
        [ -n "$(runs_of "$arm")" ] || continue
        count=$((count + 1))
        set -- "$@" "$arm"
        # shellcheck disable=SC2046
        validation_of val_ppl $(runs_of "$arm") >"$tmp/$count"
    done
    cat "$tmp"/[1-9] | awk '
        $2 != "nan" && $2 > longest { longest = $2 }
        $3 > top { top = $3 }
        !low || $3 < low { low = $3 }
        END { print int(longest), 0.95 * low, 1.05 * top }' >"$tmp/ranges"
    read -r longest low top <"$tmp/ranges"
    unit='minutes 60'
    [ "$longest" -lt 10800 ] || unit='hours 3600'
    {
        plot_names "$@"
        for format in png svg; do
            plot_style "$format" validation_perplexity 1300 500
            cat <<END
set multiplot layout 1,2 margins 0.08,0.77,0.15,0.95 spacing 0.06
set logscale y
set yrange [$low:$top]
set ytics ($(awk 'BEGIN { for (x = 1; x < 1e5; x *= 10) printf "%d,%g,%d,%g,%d,%d,%d,%d,%d,", x, 1.5 * x, 2 * x, 2.5 * x, 3 * x, 4 * x, 5 * x, 6 * x, 8 * x }')100000)
set xrange [0:*]
set autoscale xfixmax
set ylabel 'validation perplexity, a token'
set xlabel 'epoch'
unset key
plot for [i=1:$count] sprintf('%d', i) using 1:3 with linespoints lw 2 pt 7 ps 0.7 lc rgb colours[i]
unset ylabel
set xlabel '${unit% *}'
set key at screen 0.99, 0.95 right top samplen 2 spacing 1.3
plot for [i=1:$count] sprintf('%d', i) using (\$2/${unit#* }):3 with linespoints lw 2 pt 7 ps 0.7 lc rgb colours[i] \\
    title names[i]
unset multiplot
unset logscale
END
        done
    } >"$tmp/commands"
    plot_draw "$out" validation_perplexity
}

# plan: a line for each run (train_all).
plan() {
    for seed in $seeds; do
        for arm in $arms; do
            run=$arm-seed-$seed
            # shellcheck disable=SC2046,SC2086
            finished "$out/$run" || probe "$out/$arm.cost" $(language_model "$arm") $options
            seconds=$(time_left "$out/$arm.cost" "$steps" "$evaluations" "$out/$run")
            echo "$seconds $run $(language_model "$arm") $options -x $steps -S $seed"
        done
    done
}

# ---- main

comparison_options runs/wikitext2 "$@"
[ -z "$quick" ] || [ -z "$epochs" ] || usage

require train_fastformer train_gpt2 tokenize
has_data data/wikitext2 || make data/wikitext2 || fail 'data/wikitext2 cannot be made'
tokens=$(tokens_of wikitext2 train)
options="-i data/wikitext2 $published -t 2048 -b 2"
if [ -z "$quick" ]; then
    evaluations=${epochs:-25}
    every=$((tokens / 4096))
else
    evaluations=5
    every=$((tokens / 4096 / evaluations))
    options="$options -m 10"
fi
steps=$((every * evaluations))
options="$options -v $every${trainer_options:+ $trainer_options}"

echo "$options -x $steps, data $(cksum <data/wikitext2/meta.json)" | open_runs
train_all
# shellcheck disable=SC2046
choose_machine $(for arm in $arms; do runs_of "$arm"; done)
report >"$tmp/results.md"
mv "$tmp/results.md" "$out/"
plot
end_comparison
