#!/bin/sh
# The Fastformer's rescale s, which bounds its scores: 5, 10, 15, 20 and 30, each at two learning rates. Is 15 unstable, as the
# published report says? And at s = 10: pooling the raw q and k instead of the normalised ones, and other sinks.
#
#   scripts/run_rescale.sh [OPTION...]     (--help)
#
# writes into DIR runs.csv (a run a line), grad_norm.csv (a logged step a line), results.md, loss_by_rescale.png and
# grad_norm_by_step.png. It says first how long it will take. After an interruption the same command goes on. A run has
# diverged if updates were not finite, or if it ends a tenth above its best validation loss: it is marked.
set -eu
start=$PWD
cd "$(dirname "$0")/.."
. scripts/compare.sh
. scripts/arms.sh

rescales='5 10 15 20 30'
arms='rescale-5 rescale-10 rescale-15 rescale-20 rescale-30 raw sink-0 sink-1'
rates='5e-4 2e-3'
values=$rates value_name=rate
evaluations=5 # of a run
last_line='"event":"statistics"'
data=data/wikitext2

# As published but for one thing; the sink of 1e-5 is rescale-10.
command_of() {
    case $1 in
    rescale-*) echo "./train_fastformer --rescale ${1#rescale-}" ;;
    raw) echo './train_fastformer --pool raw' ;;
    sink-*) echo "./train_fastformer --sink ${1#sink-}" ;;
    esac
}

value_options() {
    echo "-l $1"
}

cost_of() {
    echo fastformer
}

prepare() {
    require train_fastformer tokenize
    has_data "$data" || make data/wikitext2 || fail "$data cannot be made"
}

# runs.csv: arm, rate, seed, best and last validation loss, largest and last gradient norm, largest and last share of
# saturated scores, diverged.
report() {
    echo "# The Fastformer's rescale, what it pools, its sink"
    echo
    say_unfinished
    echo "\`$options -x $steps\`. For each learning rate: best validation loss, mean ± standard deviation over seeds, x where a run"
    echo 'diverged or ended a tenth above its best; the largest gradient norm of all steps; the share of scores beyond 0.9 s at the end.'
    echo
    # shellcheck disable=SC2016 # awk's
    table 'add(i, $4); add(i SUBSEP "saturated", $9); if ($6 > norm[i]) norm[i] = $6' \
        '"loss, " value " | norm | saturated"' \
        'both(i) mark(i) " | " show(norm[i]) " | " (count[i] ? sprintf("%.2f%%", 100 * mean(i SUBSEP "saturated")) : "-")'
}

loss_by_rescale() {
    count=0
    for rate in $rates; do
        count=$((count + 1))
        for rescale in $rescales; do
            awk -F, -v arm="rescale-$rescale" -v rate="$rate" -v x="$rescale" "$show_number$awk_statistics"'
                $1 == arm && $2 == rate { add("loss", $4); bad += $NF }
                END { if (count["loss"]) print x, mean("loss"), spread("loss") + 0, (bad > 0) }' "$out/runs.csv"
        done >"$tmp/rescale.$count"
    done
    draw loss_by_rescale rescale <<END
set xlabel 'rescale s'
set ylabel 'validation loss'
rates = "$rates"
plot for [i=1:$count] sprintf('rescale.%d', i) using 1:2:3 with yerrorlines lw 2 pt 7 lc rgb colours[i] \
    title 'learning rate '.word(rates, i), \
    for [i=1:$count] sprintf('rescale.%d', i) using (\$4 > 0 ? \$1 : 1/0):2 with points pt 2 ps 2.5 lw 3 lc rgb colours[i] notitle
END
}

# Of each rescale at the larger rate, the largest norm of all seeds at a step.
grad_norm_by_step() {
    # shellcheck disable=SC2046,SC2086
    largest_by_step grad_norm "${rates##* }" $(printf 'rescale-%s ' $rescales)
    draw grad_norm_by_step grad_norm <<END
set logscale xy
set xlabel 'step, learning rate ${rates##* }'
set ylabel 'largest gradient norm of the seeds'
plot for [i=$count:1:-1] sprintf('grad_norm.%d', i) using 1:2 with lines lw 2 lc rgb colours[i] title names[i]
END
}

comparison_options runs/rescale "$@"
prepare
if [ -n "$quick" ]; then
    options="-i $data -L 4 -C 64 -H 2 -b 2 -t 512 -m 20 --stats 2 --no-test"
    steps=500
else
    # Five epochs of 4,096 tokens a step.
    options="-i $data --stats 2 --no-test"
    tokens=$(tokens_of wikitext2 train)
    steps=$((5 * tokens / 4096))
fi
options="$options -v $((steps / evaluations))"
train_arms
collect grad_norm val_saturated_share
collect_steps grad_norm grad_norm
report >"$tmp/results.md"
mv "$tmp/results.md" "$out/"
loss_by_rescale
grad_norm_by_step
end_comparison
