#!/bin/sh
# Three language models on WikiText-2 with the same budget: the Fastformer with every layer global, with windows that grow
# from layer to layer, and GPT-2.
#
#   scripts/run_wikitext2.sh [--quick | --epochs N] [--seeds N] [--output DIR] [--keep DIR] [-- OPTION...]
#
# writes results.md and validation_perplexity.png, .svg into DIR. It says first how long it will take. After an
# interruption the same command goes on. OPTIONs are the trainers', for another comparison than the published one
# (-t 8192, -l 1e-3).
set -eu
start=$PWD
cd "$(dirname "$0")/.."
. scripts/common.sh

arms=$language_models

usage() {
    cat >&2 <<'END'
usage: run_wikitext2.sh [--quick | --epochs N] [--seeds N] [--output DIR] [--keep DIR] [-- OPTION...]
  --quick       one epoch, one seed, about a quarter of an hour
  --epochs N    passes over the data (25)
  --seeds N     runs of each model (3; --quick 1)
  --output DIR  results and runs (runs/wikitext2, runs/wikitext2-quick)
  --keep DIR    results and logs of finished runs go there, too; a run whose log is there is not made again
  OPTION        of the trainers, e.g. -t 8192 -l 1e-3
END
    exit 2
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

# machines: the processors and products of all finished runs, each once.
machines() {
    for arm in $arms; do
        runs_of "$arm" | while read -r run; do
            echo "$(log_text processor "$run"), $(log_text products "$run" | sed 's/, peak.*//')"
        done
    done | sort -u | awk '{ printf "%s%s", (NR > 1 ? "; " : ""), $0 }'
}

report() {
    for arm in $arms; do sample=$(runs_of "$arm" | sed -n '1p;q'); [ -z "$sample" ] || break; done
    echo '# WikiText-2'
    echo
    table
    echo
    echo "\`$options -x $steps\`; $(machines)."
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

mode=full
epochs=
seed_count=
out=
while [ $# -gt 0 ]; do
    case $1 in
    --quick)
        mode=quick
        shift
        ;;
    --epochs | --seeds | --output | --keep)
        [ $# -gt 1 ] || usage
        case $1-$2 in
        --epochs-*[!0-9]* | --epochs- | --epochs-0* | --seeds-*[!0-9]* | --seeds- | --seeds-0*) usage ;;
        --epochs-*) epochs=$2 ;;
        --seeds-*) seed_count=$2 ;;
        --output- | --keep-) usage ;;
        --output-*) out=$(from_start "$2") ;;
        --keep-*) keep=$(from_start "$2") ;;
        esac
        shift 2
        ;;
    --)
        shift
        break
        ;;
    *) usage ;;
    esac
done

[ "$mode" = full ] || [ -z "$epochs" ] || usage

require train_fastformer train_gpt2 tokenize
has_data data/wikitext2 || make data/wikitext2 || fail 'data/wikitext2 cannot be made'
tokens=$(tokens_of wikitext2 train)
options="-i data/wikitext2 $published -t 2048 -b 2"
case $mode in
full)
    out=${out:-runs/wikitext2}
    seed_count=${seed_count:-3}
    evaluations=${epochs:-25}
    every=$((tokens / 4096))
    ;;
quick)
    out=${out:-runs/wikitext2-quick}
    seed_count=${seed_count:-1}
    evaluations=5
    every=$((tokens / 4096 / evaluations))
    options="$options -m 10"
    ;;
esac
steps=$((every * evaluations))
options="$options -v $every${*:+ $*}"
seeds=$(awk "BEGIN { for (i = 1; i <= $seed_count; i++) print i }")

echo "$options -x $steps, data $(cksum <data/wikitext2/meta.json)" | open_runs
echo "measuring what a run costs ($steps updates)"
plan >"$tmp/plan"
train_all "$tmp/plan"
# shellcheck disable=SC2046
choose_machine $(for arm in $arms; do runs_of "$arm"; done)
report >"$tmp/results.md"
mv "$tmp/results.md" "$out/"
plot
keep_results
echo "$out/results.md"
[ "$failures" -eq 0 ] || fail "$failures runs failed and are not in the table"
