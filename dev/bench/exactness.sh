#!/bin/sh
# Does the Fastformer train with the published windowed sums, cumsum(i) - cumsum(i-k), in float32? The published class in PyTorch with
# its own sums, the same with sums that nothing cancels in (the same weights, batches and dropout), and train_fastformer: each with a
# rescale of 10 and of 15, at two constant learning rates.
#
#   dev/bench/exactness.sh --python PYTHON [OPTION...]     (--help)
#
# writes into DIR runs.csv (a run a line), results.md and grad_norm_by_step.png. PYTHON has PyTorch. It says first how long it will
# take. After an interruption the same command goes on with the run that it stopped at.
set -eu
start=$PWD
cd "$(dirname "$0")/../.."
. scripts/compare.sh
. scripts/arms.sh

arms='published-10 doubling-10 train_fastformer-10 published-15 doubling-15 train_fastformer-15'
rates='5e-4 2e-3'
values=$rates value_name=rate
evaluations=1 # of a run
last_line='"val_loss"'
data=data/wikitext2
python=python3

quick_is='50 updates instead of 400, about a quarter of an hour'
own_usage='
  --python FILE the Python that has PyTorch (python3)'

own_option() {
    taken=0
    [ "$1" = --python ] || return 0
    [ $# -gt 1 ] && [ -n "$2" ] || usage
    python=$2 taken=2
}

command_of() {
    case $1 in
    train_fastformer-*) echo "./train_fastformer -k constant -v $steps --no-test --rescale ${1#*-}" ;;
    *) echo "$python dev/bench/published_training.py --sums ${1%-*} --rescale ${1#*-}" ;;
    esac
}

value_options() {
    echo "-l $1"
}

cost_of() {
    echo "${1%-*}"
}

# runs.csv: arm, rate, seed, best and last validation loss, largest and last gradient norm, diverged.
report() {
    echo '# Training with the published sums in float32'
    echo
    say_unfinished
    echo "\`$options -x $steps\`, constant rates. For each: validation loss at the end, mean ± standard deviation over seeds, and the"
    echo 'largest norm that the gradient had, before it was clipped to 1.'
    echo
    # shellcheck disable=SC2016 # awk's
    table 'add(i, $5); if ($6 > norm[i]) norm[i] = $6' '"loss, " value " | largest norm"' \
        'both(i) " | " (norm[i] ? sprintf("%.3g", norm[i]) : "-")'
}

# At the larger rate, the largest norm of all seeds at a step.
grad_norm_by_step() {
    # shellcheck disable=SC2086
    largest_by_step grad_norm "${rates##* }" $arms
    draw grad_norm_by_step grad_norm <<END
set logscale y
set format y '%.0e'
set xlabel 'step, learning rate ${rates##* }'
set ylabel 'largest gradient norm of the seeds'
plot for [i=1:$count] sprintf('grad_norm.%d', i) using 1:2 with lines lw 1.5 lc rgb colours[i] title names[i]
END
}

comparison_options runs/exactness "$@"
steps=400
[ -z "$quick" ] || steps=50
options="-i $data -t 2048 -b 2 -m 20"

require train_fastformer tokenize
has_data "$data" || make data/wikitext2 || fail "$data cannot be made"
"$python" -c 'import torch' 2>/dev/null || fail "$python has no PyTorch: --python FILE names one that has"
# Memory that stays with the process, on huge pages: half of PyTorch's time, otherwise.
export GLIBC_TUNABLES=glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=34359738368:glibc.malloc.trim_threshold=34359738368
train_arms
collect grad_norm
collect_steps grad_norm grad_norm
report >"$tmp/results.md"
mv "$tmp/results.md" "$out/"
grad_norm_by_step
end_comparison
