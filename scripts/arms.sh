# shellcheck shell=sh
# What run_cosine.sh, run_rescale.sh, run_lengths.sh and run_words.sh share: arms of a comparison, each at several values of something
# else (learning rates, lengths) and several seeds. Sourced behind compare.sh. The script sets: data, arms, values and value_name,
# evaluations (of a run), last_line; command_of ARM and value_options VALUE, the command that trains it and the options that make the
# value; cost_of ARM VALUE, a name for what a step costs.

# What diverged is a result, and not made again.
finished() {
    [ -f "$1/diverged" ] || grep -qsF -e "$last_line" "$1/log.jsonl"
}

excused() {
    grep -q 'not finite' "$1/output.txt" || return 1
    printf 'diverged'
    : >"$1/diverged"
}

# plan: a line for each run (train_all).
plan() {
    for seed in $seeds; do
        for value in $values; do
            for arm in $arms; do
                run=$arm-$value-seed-$seed
                cost=$out/$(cost_of "$arm" "$value").cost
                # shellcheck disable=SC2046,SC2086
                finished "$out/$run" || probe "$cost" $(command_of "$arm") $options $(value_options "$value")
                echo "$(time_left "$cost" "$steps" "$evaluations" "$out/$run") $run $(command_of "$arm")" \
                    "$options -x $steps -S $seed $(value_options "$value")"
            done
        done
    done
}

# train_arms: all of them.
train_arms() {
    # shellcheck disable=SC2154 # data: the script's
    echo "$options -x $steps, data $(cksum <"$data/meta.json")" | open_runs
    train_all
}

# collect KEY...: $out/runs.csv, a line a finished run: best and last validation loss, for each key the largest and the last number of
# that name in its log, and whether it diverged: updates were not finite, or it ended a tenth above its best.
collect() {
    {
        printf '%s' "arm,$value_name,seed,val_loss,last_val_loss"
        for key in "$@"; do printf ',largest_%s,last_%s' "$key" "$key"; done
        echo ,diverged
    } >"$tmp/runs.csv"
    while read -r _ name _; do
        finished "$out/$name" || continue
        diverged=0
        [ ! -f "$out/$name/diverged" ] || diverged=1
        awk -v run="$(arm_key "$name")" -v diverged="$diverged" -v keys="$*" "$json_number"'
            BEGIN { count = split(keys, key, " ") }
            number("val_loss") != "" { last = number("val_loss"); if (best == "" || last < best) best = last }
            {
                for (i = 1; i <= count; i++) {
                    x = number(key[i])
                    if (x == "") continue
                    end[i] = x
                    if (largest[i] == "" || x > largest[i]) largest[i] = x
                }
            }
            END {
                printf "%s,%s,%s", run, best, last
                for (i = 1; i <= count; i++) printf ",%s,%s", largest[i], end[i]
                print "," (diverged || last > 1.1 * best ? 1 : 0)
            }' "$out/$name/log.jsonl" >>"$tmp/runs.csv"
    done <"$tmp/plan"
    mv "$tmp/runs.csv" "$out/"
}

# collect_steps KEY FILE: $out/FILE.csv, a line for each time that a finished run logged the key.
collect_steps() {
    echo "arm,$value_name,seed,step,$1" >"$tmp/steps.csv"
    while read -r _ name _; do
        finished "$out/$name" || continue
        awk -v run="$(arm_key "$name")" -v key="$1" "$json_number"'
            number(key) != "" { print run "," number("step") "," number(key) }' "$out/$name/log.jsonl" >>"$tmp/steps.csv"
    done <"$tmp/plan"
    mv "$tmp/steps.csv" "$out/$2.csv"
}

# largest_by_step FILE VALUE ARM...: of the numbers of $out/FILE.csv, for each arm at VALUE a file $tmp/FILE.N, N from 1, with a line a
# step: it and the largest number of all seeds. Sets `count`, how many.
largest_by_step() {
    file=$1 value=$2 count=0
    shift 2
    for arm in "$@"; do
        count=$((count + 1))
        awk -F, -v arm="$arm" -v value="$value" '
            NR > 1 && $1 == arm && $2 == value && (!($4 in largest) || $5 > largest[$4]) { largest[$4] = $5 }
            END { for (step in largest) print step, largest[step] }' "$out/$file.csv" | sort -g >"$tmp/$file.$count"
    done
}

# arm_key RUN: its arm, value and seed.
arm_key() {
    echo "$1" | sed -E "s/^(.*)-($(echo "$values" | tr ' ' '|'))-seed-([0-9]+)$/\1,\2,\3/"
}

# table READ HEAD CELL: runs.csv in Markdown, a row an arm, with the columns of each value. All are awk: READ takes what is in the
# line of a run of arm and value i, HEAD (from `value`) and CELL (from i) make the columns, with a bar between two. mark(i) says
# whether a run of i diverged.
table() {
    # shellcheck disable=SC2154 # show_number, awk_statistics: compare.sh's
    awk -F, -v arms="$arms" -v values="$values" "$show_number$awk_statistics"'
        function mark(i) { return bad[i] ? " x" : "" }
        NR > 1 {
            i = $1 SUBSEP $2
            bad[i] += $NF
            '"$1"'
        }
        END {
            count_arms = split(arms, arm, " "); count_values = split(values, value_of, " ")
            line = "| |"
            for (j = 1; j <= count_values; j++) { value = value_of[j]; line = line " " '"$2"' " |" }
            print line
            gsub(/[^|]+/, "---", line)
            print line
            for (k = 1; k <= count_arms; k++) {
                line = "| " arm[k] " |"
                for (j = 1; j <= count_values; j++) { i = arm[k] SUBSEP value_of[j]; line = line " " '"$3"' " |" }
                print line
            }
        }' "$out/runs.csv"
}

# draw FILE DATA: FILE.png and FILE.svg by the gnuplot commands on stdin, with names and colours of the arms, from the files
# $tmp/DATA.*; nothing where these are empty, as no run of them is finished.
draw() {
    cat >"$tmp/plot"
    [ -n "$(cat "$tmp/$2".*)" ] || return 0
    {
        # shellcheck disable=SC2086
        plot_names $arms
        for format in png svg; do
            plot_style "$format" "$1" 900 520
            echo 'set key outside right top'
            cat "$tmp/plot"
        done
    } >"$tmp/commands"
    plot_draw "$out" "$1"
}
