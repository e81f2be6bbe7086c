#!/bin/sh
# What the denominator of attention does: GPT-2 with softmax, softmax1 and cosine attention, and the Fastformer with a sink
# of 0, 1e-5 and 1, on two data sets, the same seeds in each.
#
#   scripts/run_ablation.sh [OPTION...]     (--help)
#
# writes results.md, results.csv (an arm a line), runs.csv (a run a line), layers.csv and the plots into DIR. It says first
# how long it will take. After an interruption the same command goes on.
set -eu
start=$PWD
cd "$(dirname "$0")/.."
. scripts/compare.sh

arms='gpt2-softmax gpt2-softmax1 gpt2-cosine fastformer-sink-0 fastformer-sink-1e-5 fastformer-sink-1'
last_line='"tensor":'

quick_is='small models, a quarter of an hour'
quick_seeds=3
own_usage='
  --data NAME   tinyshakespeare or wikitext2; without: both'
datasets='tinyshakespeare wikitext2'

own_option() {
    taken=0
    case $1 in
    --data)
        case ${2-} in
        tinyshakespeare | wikitext2) datasets=$2 taken=2 ;;
        *) usage ;;
        esac
        ;;
    esac
}

# settings DATA: sets the trainers' options, the number of updates and how many evaluations there are on the way.
settings() {
    case ${quick:+quick-}$1 in
    tinyshakespeare) # as nanoGPT's train_shakespeare_char
        options='-L 6 -H 6 -C 384 -t 256 -b 16 -d 16384 --dropout 0.2 -l 1e-3 -k cosine -q 0.1 -u 100 --beta2 0.99'
        options="$options --stats 8"
        steps=8000
        evaluations=20
        ;;
    wikitext2) # the published configuration of the Fastformer
        options='-L 6 -H 4 -C 128 -t 2048 -b 2 --dropout 0.1 -l 5e-4 -k linear --stats 8'
        tokens=$(tokens_of wikitext2 train)
        evaluations=25
        steps=$((evaluations * (tokens / 4096)))
        ;;
    quick-tinyshakespeare)
        options='-L 3 -H 4 -C 128 -t 256 -b 8 --dropout 0.1 -l 3e-3 -k cosine -q 0.1 -u 50 --beta2 0.99 --stats 8'
        steps=800
        evaluations=5
        ;;
    quick-wikitext2)
        options='-L 3 -H 4 -C 64 -t 256 -b 4 --dropout 0.1 -l 3e-3 -k cosine -q 0.1 -u 50 -m 20 --stats 16'
        steps=500
        evaluations=5
        ;;
    esac
    options="-i data/$1 $options -v $((steps / evaluations))"
}

# command_of ARM: the trainer and the option that makes the arm.
command_of() {
    case $1 in
    gpt2-*) echo "./train_gpt2 --attention ${1#gpt2-}" ;;
    fastformer-sink-*) echo "./train_fastformer --sink ${1#fastformer-sink-}" ;;
    esac
}

# cost_of DATA ARM: the file with its cost, which a sink does not change.
cost_of() {
    case $2 in
    gpt2-cosine) echo "$out/$1/gpt2-cosine.cost" ;;
    *) echo "$out/$1/${2%%-*}.cost" ;;
    esac
}

# ---- training

prepare() {
    require train_gpt2 train_fastformer tokenize
    for data in $datasets; do
        has_data "data/$data" || make "data/$data" || fail "data/$data cannot be made"
        settings "$data"
        echo "$options -x $steps, data $(cksum <"data/$data/meta.json")" | open_runs "$data"
    done
    case $datasets in
    *tinyshakespeare*)
        grep -q '"tokenizer" *: *"byte"' data/tinyshakespeare/meta.json ||
            fail 'data/tinyshakespeare: is not by characters; TOKENIZER=byte make data/tinyshakespeare'
        ;;
    esac
}

# plan: a line for each run (train_all).
plan() {
    for data in $datasets; do
        settings "$data"
        for seed in $seeds; do
            for arm in $arms; do
                run=$data/$arm-seed-$seed
                # shellcheck disable=SC2046,SC2086
                finished "$out/$run" || probe "$(cost_of "$data" "$arm")" $(command_of "$arm") $options
                seconds=$(time_left "$(cost_of "$data" "$arm")" "$steps" "$evaluations" "$out/$run")
                echo "$seconds $run $(command_of "$arm") $options -x $steps -S $seed"
            done
        done
    done
}

# ---- collecting

# collect_run DATA ARM SEED: prints its line of runs.csv, and appends its layers to $tmp/layers.csv.
collect_run() {
    run=$out/$1/$2-seed-$3
    awk -v key="$1,$2,$3" -v speed="$(log_median tokens_per_s "$run")" -v layers_csv="$tmp/layers.csv" "$json_number"'
        function mean(sum, n) { return n ? sum / n : "" }
        number("val_loss") != "" && (val == "" || number("val_loss") < val) { val = number("val_loss") }
        number("test_loss") != "" { test = number("test_loss") }
        # Matrices of layers have the number in their names.
        /"tensor":"/ {
            match($0, /\.[0-9]+\./)
            layer = substr($0, RSTART + 1, RLENGTH - 2) + 1
            weights[layer] += number("kurtosis"); matrices[layer]++
            all_weights += number("kurtosis"); all_matrices++
        }
        # The residual stream that enters a layer is what the one before gave; a value is written anew where a run
        # measured twice.
        /"place":"residual"/ && number("layer") > 0 {
            layer = number("layer")
            if (layer > layers) layers = layer
            activations[layer] = number("kurtosis"); largest[layer] = number("max_abs")
        }
        number("sink_share") != "" { share[($0 ~ /"place":"key_weights"/), number("layer")] = number("sink_share") }
        END {
            for (i = 1; i <= layers; i++) {
                print key "," i "," mean(weights[i], matrices[i]) "," activations[i] "," largest[i] >>layers_csv
                sum += activations[i]
                if (largest[i] > top) top = largest[i]
            }
            for (i in share) { shares += share[i]; places++ }
            print key, val, exp(val), test, exp(test), mean(all_weights, all_matrices), mean(sum, layers), top, \
                mean(shares, places), speed
        }' OFS=, OFMT=%.8g CONVFMT=%.8g "$run/log.jsonl"
}

collect() {
    echo 'data,arm,seed,layer,weight_kurtosis,activation_kurtosis,largest_activation' >"$tmp/layers.csv"
    echo "data,arm,seed,$measures" >"$tmp/runs.csv"
    for data in $datasets; do
        for arm in $arms; do
            for seed in $seeds; do
                if finished "$out/$data/$arm-seed-$seed"; then collect_run "$data" "$arm" "$seed" >>"$tmp/runs.csv"; fi
            done
        done
    done
    mv "$tmp/layers.csv" "$tmp/runs.csv" "$out/"
}

# summarise: results.csv from runs.csv: mean and standard deviation over the seeds of each column, and of the differences from
# the baseline of the same family and seed.
summarise() {
    awk -F, -v columns="$measures" "$show_number$awk_statistics"'
        function baseline(arm) { return arm ~ /^gpt2/ ? "gpt2-softmax" : "fastformer-sink-1e-5" }
        BEGIN {
            n = split(columns, names, ",")
            line = "data,arm,seeds"
            for (i = 1; i <= n; i++) line = line "," names[i] "_mean," names[i] "_sd"
            print line ",baseline,test_loss_difference_mean,test_loss_difference_sd,test_ppl_difference_mean," \
                "test_ppl_difference_sd,beyond_spread"
        }
        NR > 1 {
            arm = $1 "," $2
            if (!(arm in seeds)) order[++arms] = arm
            seeds[arm]++
            loss[arm, $3] = $6; ppl[arm, $3] = $7
            for (i = 1; i <= n; i++) add(arm SUBSEP names[i], $(i + 3))
            seed[++runs] = $3; arm_of[runs] = arm
        }
        END {
            for (r = 1; r <= runs; r++) {
                split(arm_of[r], part, ",")
                base = part[1] "," baseline(part[2])
                if (base == arm_of[r] || !((base, seed[r]) in loss)) continue
                add(arm_of[r] SUBSEP "loss difference", loss[arm_of[r], seed[r]] - loss[base, seed[r]])
                add(arm_of[r] SUBSEP "ppl difference", ppl[arm_of[r], seed[r]] - ppl[base, seed[r]])
            }
            for (a = 1; a <= arms; a++) {
                arm = order[a]
                split(arm, part, ",")
                line = arm "," seeds[arm]
                for (i = 1; i <= n; i++) line = line "," mean(arm SUBSEP names[i]) "," spread(arm SUBSEP names[i])
                name = arm SUBSEP "loss difference"
                x = mean(name); s = spread(name)
                beyond = x == "" || s == "" ? "" : (x < 0 ? -x : x) > s ? "yes" : "no"
                line = line "," (part[2] == baseline(part[2]) ? "" : baseline(part[2])) "," x "," s
                name = arm SUBSEP "ppl difference"
                print line "," mean(name) "," spread(name) "," beyond
            }
        }' OFMT=%.8g CONVFMT=%.8g "$out/runs.csv" >"$tmp/results.csv"
    mv "$tmp/results.csv" "$out/"
}

# table DATA: its rows of results.csv as a Markdown table.
table() {
    awk -F, -v data="$1" "$show_number"'
        function both(name,    m, s) {
            m = $(column[name "_mean"]); s = $(column[name "_sd"])
            return m == "" ? "-" : show(m) (s == "" ? "" : sprintf(" ± %.*f", decimals(m), s))
        }
        function difference(name,    m, s) {
            m = $(column[name "_mean"]); s = $(column[name "_sd"])
            return m == "" ? "-" : sprintf("%+.4f", m) (s == "" ? "" : sprintf(" ± %.4f", s))
        }
        NR == 1 {
            for (i = 1; i <= NF; i++) column[$i] = i
            print "| arm | seeds | val ppl | test ppl | weight kurtosis | activation kurtosis | largest activation | sink share" \
                " | tokens/s | test loss - baseline | test ppl - baseline | beyond spread |"
            print "|---|---|---|---|---|---|---|---|---|---|---|---|"
        }
        $1 == data {
            beyond = $(column["beyond_spread"])
            print "| " $2 " | " $3 " | " both("val_ppl") " | " both("test_ppl") " | " both("weight_kurtosis") " | " \
                both("activation_kurtosis") " | " both("largest_activation") " | " both("sink_share") " | " \
                both("tokens_per_s") " | " difference("test_loss_difference") " | " difference("test_ppl_difference") \
                " | " (beyond == "" ? "-" : beyond) " |"
        }' "$out/results.csv"
}

# ---- report

# runs_of DATA: those in the table.
runs_of() {
    while IFS=, read -r data_of_run arm seed _; do
        if [ "$data_of_run" = "$1" ]; then echo "$out/$1/$arm-seed-$seed"; fi
    done <"$out/runs.csv"
}

report() {
    echo '# Ablation: the denominator of attention'
    echo
    say_unfinished
    for data in $datasets; do
        settings "$data"
        sample=$(runs_of "$data" | head -n 1)
        echo "## $data"
        echo
        table "$data"
        echo
        echo "\`$options -x $steps\`; $(runs_of "$data" | machines_of)."
        echo "Perplexities are per token: validation over $(log_number val_tokens "$sample") of" \
            "$(tokens_of "$data" val) tokens, test over $(log_number test_tokens "$sample")."
        echo
        echo "![kurtosis by layer]($data/kurtosis_by_layer.png)"
        echo "![kurtosis by step]($data/kurtosis_by_step.png)"
        echo "![loss by step]($data/loss_by_step.png)"
        echo
    done
    cat <<'END'
Numbers are mean ± standard deviation over the seeds.

- weight kurtosis: excess kurtosis (0 for a normal distribution), mean over the weight matrices of the layers of the best
  checkpoint; embeddings, norms and biases are left out.
- activation kurtosis, largest activation: of the residual stream behind each layer on validation data; mean and maximum over
  the layers.
- sink share: the part of the attention's mass that the sink in the denominator takes, mean over layers (and both poolings).
- baseline: gpt2-softmax for GPT-2, fastformer-sink-1e-5 for the Fastformer. The difference is taken seed by seed; it is
  beyond the spread where its mean is larger than its standard deviation. That is a weak test: with three seeds, 95%
  confidence takes 2.5 times the deviation.
END
}

# mean_log RUN...: a log.jsonl that is the mean of theirs, for the loss curves.
mean_log() {
    for run in "$@"; do cat "$run/log.jsonl"; done | awk "$json_number"'
        {
            step = number("step"); loss = number("loss"); val = number("val_loss")
            if (step == "") next
            kind = loss != "" ? "loss" : val != "" ? "val_loss" : ""
            if (kind == "") next
            n[step, kind]++
            sum[step, kind] += loss + val
            seconds[step, kind] += number("seconds")
            if (step > last) last = step
        }
        function line(step, kind) {
            if ((step, kind) in n)
                printf "{\"step\":%d,\"%s\":%.8g,\"seconds\":%.8g}\n", step, kind, sum[step, kind] / n[step, kind], \
                    seconds[step, kind] / n[step, kind]
        }
        END { for (step = 1; step <= last; step++) { line(step, "loss"); line(step, "val_loss") } }'
}

# loss_curves DATA: the mean over the seeds of each arm.
loss_curves() {
    data=$1
    rm -rf "$tmp/mean"
    for arm in $arms; do
        set --
        for seed in $seeds; do
            run=$out/$data/$arm-seed-$seed
            if finished "$run"; then set -- "$@" "$run"; fi
        done
        [ $# -gt 0 ] || continue
        mkdir -p "$tmp/mean/$arm"
        mean_log "$@" >"$tmp/mean/$arm/log.jsonl"
    done
    set --
    for arm in $arms; do [ ! -d "$tmp/mean/$arm" ] || set -- "$@" "$tmp/mean/$arm"; done
    [ $# -eq 0 ] || scripts/plot.sh -o "$out/$data" "$@"
}

# layers_of DATA ARM COLUMN: layer, mean and standard deviation over the seeds.
layers_of() {
    awk -F, -v data="$1" -v arm="$2" -v column="$3" '
        $1 == data && $2 == arm {
            if (!n[$4]++) first[$4] = $column
            sum[$4] += $column - first[$4]
            squares[$4] += ($column - first[$4]) ^ 2
            if ($4 > layers) layers = $4
        }
        END {
            for (i = 1; i <= layers; i++) {
                if (!n[i]) continue
                variance = n[i] > 1 ? (squares[i] - sum[i] * sum[i] / n[i]) / (n[i] - 1) : 0
                print i, first[i] + sum[i] / n[i], sqrt(variance > 0 ? variance : 0)
            }
        }' "$out/layers.csv"
}

# by_step DATA ARM KEY: step, mean and standard deviation over the seeds of what evaluations say.
by_step() {
    for seed in $seeds; do
        run=$out/$1/$2-seed-$seed
        if finished "$run"; then cat "$run/log.jsonl"; fi
    done | awk -v key="$3" "$json_number$show_number$awk_statistics"'
        number(key) != "" { add(number("step"), number(key)) }
        END { for (step in count) print step, mean(step), spread(step) + 0 }' | sort -g
}

# two_panels DATA FILE AXIS WEIGHTS ACTIVATIONS: FILE.png, FILE.svg: what $tmp/weights.N has of each arm on the left, of
# $tmp/activations.N on the right. AXIS: gnuplot's commands.
two_panels() {
    {
        # shellcheck disable=SC2086
        plot_names $arms
        for format in png svg; do
            plot_style "$format" "$2" 1300 500
            cat <<END
set autoscale xfix
$3
set multiplot layout 1,2 title '$1: mean and standard deviation over seeds' margins 0.08,0.77,0.15,0.83 spacing 0.06
# Shifted a little, so that bars do not hide each other.
place(x, i) = x + (i - ($arm_count + 1) / 2.0) * shift
unset key
set ylabel 'excess kurtosis' offset 1
set title '$4'
plot for [i=1:$arm_count] sprintf('weights.%d', i) using (place(\$1, i)):2:3 with yerrorlines lw 2 pt 7 ps 0.7 \
    lc rgb colours[i]
unset ylabel
set title '$5'
set key at screen 0.99, 0.83 right top samplen 2 spacing 1.3
plot for [i=1:$arm_count] sprintf('activations.%d', i) using (place(\$1, i)):2:3 with yerrorlines lw 2 pt 7 ps 0.7 \
    lc rgb colours[i] title names[i]
unset multiplot
END
        done
    } >"$tmp/commands"
    plot_draw "$out/$1" "$2"
}

# kurtosis DATA: of the weights and of the residual stream, by layer at the end, and by step.
kurtosis() {
    arm_count=0
    for arm in $arms; do
        arm_count=$((arm_count + 1))
        layers_of "$1" "$arm" 5 >"$tmp/weights.$arm_count"
        layers_of "$1" "$arm" 6 >"$tmp/activations.$arm_count"
    done
    two_panels "$1" kurtosis_by_layer "set offsets 0.3, 0.3, 0, 0
set xtics 1
set xlabel 'layer'
shift = 0.04" 'weight matrices' 'residual stream behind the layer'
    arm_count=0
    for arm in $arms; do
        arm_count=$((arm_count + 1))
        by_step "$1" "$arm" val_weight_kurtosis >"$tmp/weights.$arm_count"
        by_step "$1" "$arm" val_activation_kurtosis >"$tmp/activations.$arm_count"
    done
    two_panels "$1" kurtosis_by_step "set xlabel 'step'
shift = 0" 'weight matrices, mean of the layers' 'residual stream, mean of the layers'
}

# ---- main

comparison_options runs/ablation "$@"
[ "$seed_count" -gt 1 ] || usage # there is a spread
measures='val_loss,val_ppl,test_loss,test_ppl,weight_kurtosis,activation_kurtosis,largest_activation,sink_share,tokens_per_s'

prepare
train_all
collect
datasets=$(awk -F, 'NR > 1 && !seen[$1]++ { print $1 }' "$out/runs.csv")
summarise
report >"$tmp/results.md"
mv "$tmp/results.md" "$out/"
for data in $datasets; do
    loss_curves "$data"
    kurtosis "$data"
    keep_results "$data"
done
end_comparison
