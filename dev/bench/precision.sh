#!/bin/sh
# Whether bf16 products train as well as float32 ones: 500 updates of WikiText-2 (published configuration, dropout on) with
# each, from the same seeds, and the losses at the end.
#
#   dev/bench/precision.sh [--model fastformer|gpt2] [--seeds 'N ...'] [--output DIR]
#
# writes DIR/MODEL.md and the logs it is made of (DIR: dev/bench/results/precision). Takes 17 minutes for three seeds on two
# cores, 22 for GPT-2. After an interruption the same command goes on.
set -eu
cd "$(dirname "$0")/../.."
. scripts/compare.sh

usage() {
    sed -n '5s/^# *//p' "$0" >&2
    exit 2
}

model=fastformer seeds='42 43 44' out=dev/bench/results/precision steps=500
while [ $# -gt 0 ]; do
    [ -n "${2-}" ] || usage
    case $1 in
    --model) model=$2 ;;
    --seeds) seeds=$2 ;;
    --output) out=$2 ;;
    *) usage ;;
    esac
    shift 2
done
case $model in fastformer | gpt2) ;; *) usage ;; esac
runs=runs/precision
mkdir -p "$out"

# run_of PRECISION SEED: where the trainer works; its log is kept in $out.
run_of() {
    echo "$runs/$model-$1-$2"
}

# last_losses DIR: the mean training loss of the last 100 steps.
last_losses() {
    awk "$json_number"' number("grad_norm") != "" { loss[number("step")] = number("loss") }
        END { for (i = '$((steps - 99))'; i <= '$steps'; i++) sum += loss[i]; printf "%.4f\n", sum / 100 }' "$1/log.jsonl"
}

# rows: seed, and of each precision train, val and test loss.
rows() {
    for seed in $seeds; do
        set -- "$seed"
        for precision in fp32 bf16; do
            run=$(run_of $precision "$seed")
            set -- "$@" "$(last_losses "$run")" "$(log_number val_loss "$run")" "$(log_number test_loss "$run")"
        done
        echo "$@"
    done
}

# table: a line for each seed, then the spread over seeds and the mean difference.
table() {
    echo '| seed | train, fp32 | train, bf16 | val, fp32 | val, bf16 | test, fp32 | test, bf16 |'
    echo '|---|---|---|---|---|---|---|'
    awk '
        # Of column c: its mean, and the standard deviation over seeds.
        function mean(c,    i, sum) { for (i = 1; i <= n; i++) sum += x[i, c]; return sum / n }
        function spread(c,    i, sum) {
            for (i = 1; i <= n; i++) sum += (x[i, c] - mean(c)) ^ 2
            return n > 1 ? sqrt(sum / (n - 1)) : 0
        }
        {
            n++
            for (c = 2; c <= NF; c++) x[n, c] = $c
            for (c = 2; c <= 4; c++) x[n, c + 6] = $(c + 3) - $c
            printf "| %s", $1
            for (c = 2; c <= 4; c++) printf " | %.4f | %.4f", $c, $(c + 3)
            print " |"
        }
        END {
            printf "| standard deviation over seeds"
            for (c = 2; c <= 4; c++) printf " | %.4f | %.4f", spread(c), spread(c + 3)
            printf " |\n| bf16 - fp32, mean"
            for (c = 2; c <= 4; c++) printf " | | %+.4f ± %.4f", mean(c + 6), spread(c + 6)
            print " |"
        }'
}

[ -x "./train_$model" ] || make "train_$model"
for seed in $seeds; do
    for precision in fp32 bf16; do
        run=$(run_of $precision "$seed")
        finished "$run" || train "$run" "./train_$model" -i data/wikitext2 -p $precision --seed "$seed" -x $steps ||
            fail "$(tail -n 1 "$run/output.txt")"
        scripts/thin_log.sh "$run/log.jsonl" >"$out/$model-$precision-$seed.jsonl"
    done
done
{
    echo "# bf16 beside float32: train_$model"
    echo
    echo "Loss (nats a token) after $steps updates of WikiText-2; train: the mean of the last 100 steps, with dropout." \
        "$(log_text processor "$run"), $(log_text products "$run" | sed 's/,.*//')."
    echo
    rows | table
} >"$out/$model.md"
cat "$out/$model.md"
