#!/bin/sh
# Three language models on WikiText-2 with the same budget: the Fastformer with every layer global, with windows that grow
# from layer to layer, and GPT-2.
#
#   scripts/run_wikitext2.sh [--quick | --epochs N] [--output DIR]
#
# writes results.md and validation_perplexity.png, .svg into DIR. It says first how long it will take. After an
# interruption the same command goes on.
set -eu
start=$PWD
cd "$(dirname "$0")/.."
. scripts/common.sh

arms='fastformer-global fastformer-windowed gpt2-softmax'

usage() {
    cat >&2 <<'END'
usage: run_wikitext2.sh [--quick | --epochs N] [--output DIR]
  --quick       one epoch, about ten minutes
  --epochs N    passes over the data (25)
  --output DIR  results and runs (runs/wikitext2, runs/wikitext2-quick)
END
    exit 2
}

# command_of ARM: the trainer and the options that make the arm.
command_of() {
    case $1 in
    fastformer-global) echo './train_fastformer --windows global' ;;
    fastformer-windowed) echo './train_fastformer --windows auto' ;;
    gpt2-softmax) echo './train_gpt2 --attention softmax' ;;
    esac
}

# table: a line for each arm.
table() {
    echo '| model | parameters | val ppl | test ppl | test ppl per word | test bits per byte | tokens/s | time |'
    echo '|---|---|---|---|---|---|---|---|'
    for arm in $arms; do
        run=$out/$arm
        finished "$run" || continue
        val=$(awk "$json_number"'
            number("val_ppl") != "" && (best == "" || number("val_ppl") < best) { best = number("val_ppl") }
            END { print best }' "$run/log.jsonl")
        parameters=$(log_text model "$run" | sed 's/.*, \([0-9]*\) .*/\1/')
        awk -v arm="$arm" -v parameters="$parameters" -v val="$val" -v test="$(log_number test_ppl "$run")" \
            -v word="$(log_number test_word_ppl "$run")" -v bits="$(log_number test_bpb "$run")" \
            -v speed="$(median_speed "$run")" -v time="$(duration "$(log_number seconds "$run")")" "$show_number"'
            BEGIN {
                print "| " arm " | " parameters " | " show(val) " | " show(test) " | " show(word) " | " show(bits) " | " \
                    show(speed) " | " time " |"
            }'
    done
}

report() {
    for arm in $arms; do
        sample=$out/$arm
        if finished "$sample"; then break; fi
    done
    echo '# WikiText-2'
    echo
    table
    echo
    echo "\`$options -x $steps\`; $(log_text processor "$sample"), $(log_text products "$sample" | sed 's/, peak.*//')."
    echo "Perplexities are per token unless it says otherwise: validation (the best) over $(log_number val_tokens "$sample") of" \
        "$(tokens_of wikitext2 val) tokens, test over $(log_number test_tokens "$sample"). Time includes evaluations."
    echo
    echo '![validation perplexity](validation_perplexity.png)'
}

# validation_of RUN: epoch, seconds and perplexity of its evaluations.
validation_of() {
    awk "$json_number"'
        number("epoch") != "" { epoch = number("epoch") }
        number("val_ppl") != "" { print epoch, number("seconds"), number("val_ppl") }' "$1/log.jsonl"
}

plot() {
    count=0
    set --
    for arm in $arms; do
        finished "$out/$arm" || continue
        count=$((count + 1))
        set -- "$@" "$arm"
        validation_of "$out/$arm" >"$tmp/$count"
    done
    cat "$tmp"/[1-9] | awk '
        $2 > longest { longest = $2 }
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
set ytics ($(awk 'BEGIN { for (x = 1; x < 1e5; x *= 10) printf "%d,%g,%d,%d,%d,%d,", x, 1.5 * x, 2 * x, 3 * x, 5 * x, 7 * x }')100000)
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

# ---- main

mode=full
epochs=
out=
while [ $# -gt 0 ]; do
    case $1 in
    --quick)
        mode=quick
        shift
        ;;
    --epochs | --output)
        [ $# -gt 1 ] || usage
        case $1-$2 in
        --epochs-*[!0-9]* | --epochs- | --epochs-0*) usage ;;
        --epochs-*) epochs=$2 ;;
        --output-) usage ;;
        --output-/*) out=$2 ;;
        --output-*) out=$start/$2 ;;
        esac
        shift 2
        ;;
    *) usage ;;
    esac
done

[ "$mode" = full ] || [ -z "$epochs" ] || usage

require train_fastformer train_gpt2 tokenize
[ -f data/wikitext2/meta.json ] || make data/wikitext2 || fail 'data/wikitext2 cannot be made'
tokens=$(tokens_of wikitext2 train)
# The published configuration of the Fastformer, and GPT-2 of the same size.
options='-i data/wikitext2 -L 6 -C 128 -H 4 -t 2048 -b 2 --dropout 0.1 -l 5e-4 -k linear'
case $mode in
full)
    out=${out:-runs/wikitext2}
    evaluations=${epochs:-25}
    every=$((tokens / 4096))
    ;;
quick)
    out=${out:-runs/wikitext2-quick}
    evaluations=5
    every=$((tokens / 4096 / evaluations))
    options="$options -m 10"
    ;;
esac
steps=$((every * evaluations))
options="$options -v $every"

mkdir -p "$out"
echo "$options -x $steps, data $(cksum <data/wikitext2/meta.json)" | keep_settings "$out/settings"
echo 'measuring what a run costs'
for arm in $arms; do
    # shellcheck disable=SC2046,SC2086
    probe "$out/$arm.cost" $(command_of "$arm") $options
    time_left "$out/$arm.cost" "$steps" "$evaluations" "$out/$arm"
done >"$tmp/left"
echo "$steps updates of each model; about $(duration "$(awk '{ s += $1 } END { print s }' "$tmp/left")") to go"

failures=0
for arm in $arms; do
    if finished "$out/$arm"; then continue; fi
    printf '%-20s ' "$arm"
    # shellcheck disable=SC2046,SC2086
    if train "$out/$arm" $(command_of "$arm") $options -x "$steps"; then
        printf 'test perplexity %.2f in %s\n' "$(log_number test_ppl "$out/$arm")" \
            "$(duration "$(log_number seconds "$out/$arm")")"
    else
        failures=$((failures + 1))
        printf 'failed: %s\n' "$(tail -n 1 "$out/$arm/output.txt")"
    fi
done
[ "$failures" -lt 3 ] || fail 'no run to report'
report >"$tmp/results.md"
mv "$tmp/results.md" "$out/"
plot
echo "$out/results.md"
echo
cat "$out/results.md"
[ "$failures" -eq 0 ] || fail "$failures runs failed and are not in the table"
