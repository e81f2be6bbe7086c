# shellcheck shell=sh
# What the scripts share that train several models, several times, and compare them; with what is in common.sh. They source it from
# the project's root, with where they were called in `start`. A script says which runs there are (`plan`), and may say anew: own_option
# and its variables, last_line, finished, excused.
# shellcheck source=scripts/common.sh
. scripts/common.sh

# ---- options of several scripts

quick_is='small models, one seed, about a quarter of an hour' # what --quick does, where a script does not say something else
quick_seeds=1
own_usage=    # lines about options that a script has beside these, each after a newline
keeps=1       # empty: a script without --keep
jobs=1        # runs side by side
gpu=          # "cu": the programs of that name train, on a GPU
keep=         # where logs of finished runs are kept, thinned; those that lie there are not made again. Empty: nowhere
report_only=  # not empty: nothing is trained

# own_option ARGUMENT...: takes those of the script itself that come first, and sets `taken` to how many these are. A script says it
# anew.
own_option() {
    taken=0
}

# usage: of the script, whose results go to $default_out.
usage() {
    cat >&2 <<END
usage: ${0##*/} [OPTION...]
  --quick       $quick_is
  --seeds N     runs that differ in nothing else (3; --quick $quick_seeds)$own_usage
  --jobs N      runs side by side, which share out the cores (1)
  --gpu         on a GPU
  --report      table and plots of what is finished; trains nothing
  --output DIR  results and runs ($default_out, $default_out-quick)
END
    [ -z "$keeps" ] || cat >&2 <<END
  --keep DIR    results and logs of finished runs go there, too; a run whose log is there is not made again
END
    exit 2
}

# whole_number TEXT: whether it is one, above 0.
whole_number() {
    case $1 in
    '' | 0* | *[!0-9]*) return 1 ;;
    esac
}

# comparison_options DEFAULT_OUT ARGUMENT...: those of usage.
comparison_options() {
    default_out=$1 seed_count='' quick='' given=''
    shift
    while [ $# -gt 0 ]; do
        own_option "$@"
        [ "$taken" -eq 0 ] || {
            shift "$taken"
            continue
        }
        case $1 in
        --quick) quick=1 ;;
        --report) report_only=1 ;;
        --gpu) gpu=cu ;;
        --seeds | --jobs | --output | --keep)
            [ $# -gt 1 ] && [ -n "$2" ] || usage
            case $1 in
            --seeds) seed_count=$2 ;;
            --jobs) jobs=$2 ;;
            --output) given=$(from_start "$2") ;;
            --keep) keep=$(from_start "$2") ;;
            esac
            shift
            ;;
        *) usage ;;
        esac
        shift
    done
    out=${given:-$default_out${quick:+-quick}}
    seed_count=${seed_count:-$(if [ -n "$quick" ]; then echo "$quick_seeds"; else echo 3; fi)}
    if ! whole_number "$seed_count" || ! whole_number "$jobs"; then usage; fi
    [ -n "$keeps" ] || [ -z "$keep" ] || usage
    seeds=$(awk "BEGIN { for (i = 1; i <= $seed_count; i++) print i }")
    share_cores
}

# require PROGRAM...: these, trainers for the device that trains.
require() {
    for program in "$@"; do
        case $program in train_*) program=$program$gpu ;; esac
        build "$program"
    done
}

# share_cores: how many threads each of $jobs runs has. nproc goes by OMP_NUM_THREADS where the user sets it.
share_cores() {
    [ "$jobs" -gt 1 ] || return 0
    cores=$(nproc)
    [ "$jobs" -le "$cores" ] || fail "--jobs $jobs: there are $cores cores"
    OMP_NUM_THREADS=$((cores / jobs))
    export OMP_NUM_THREADS
}

# ---- runs that another machine finished

# open_runs [SUBDIRECTORY]: makes it in $out and $keep (or these), for runs of the settings on stdin, and takes over what $keep has.
open_runs() {
    mkdir -p "$out/${1-}"
    cat >"$tmp/settings"
    keep_settings "$out/${1:+$1/}settings" <"$tmp/settings"
    [ -n "$keep" ] || return 0
    mkdir -p "$keep/${1-}"
    keep_settings "$keep/${1:+$1/}settings" <"$tmp/settings"
    for log in "$keep/${1:+$1/}"*-seed-*.jsonl; do
        run=$out/${1:+$1/}$(basename "$log" .jsonl)
        [ -f "$log" ] && [ ! -f "$run/log.jsonl" ] || continue
        mkdir -p "$run"
        [ ! -f "${log%.jsonl}.diverged" ] || : >"$run/diverged"
        cp "$log" "$run/log.jsonl.new"
        mv "$run/log.jsonl.new" "$run/log.jsonl"
    done
}

# keep_run RUN: its finished log.
keep_run() {
    [ -n "$keep" ] && [ ! -f "$keep/$1.jsonl" ] || return 0
    [ ! -f "$out/$1/diverged" ] || : >"$keep/$1.diverged"
    scripts/thin_log.sh "$out/$1/log.jsonl" >"$keep/$1.new"
    mv "$keep/$1.new" "$keep/$1.jsonl"
}

# keep_results [SUBDIRECTORY]: its tables and plots; what has a line a step is made of the logs again.
keep_results() {
    [ -n "$keep" ] || return 0
    from=$out/${1:+$1/}
    for file in "$from"*.md "$from"runs.csv "$from"results.csv "$from"layers.csv "$from"*.png; do
        [ ! -f "$file" ] || cp "$file" "$keep/${1-}"
    done
}

# ---- language models

language_models='fastformer-global fastformer-windowed gpt2-softmax'

# The published configuration of the Fastformer, and GPT-2 of the same size.
published='-L 6 -C 128 -H 4 --dropout 0.1 -l 5e-4 -k linear'

# language_model NAME: the trainer and the options that make it.
language_model() {
    case $1 in
    fastformer-global) echo './train_fastformer --windows global' ;;
    fastformer-windowed) echo './train_fastformer --windows auto' ;;
    gpt2-softmax) echo './train_gpt2 --attention softmax' ;;
    esac
}

# ---- training

child=  # processes that run in the background
worker= # not empty: this is one of those that train_all started
stopped=

# A signal ends trainers first, which save a checkpoint. A terminal sends SIGINT to a trainer as well; SIGTERM after
# that does not make it a second SIGINT, which would end it at once, as a second SIGTERM would.
stop() {
    [ -z "$stopped" ] || return 0
    stopped=1
    [ -n "$child" ] || exit 130
    # shellcheck disable=SC2086
    kill -TERM $child 2>/dev/null || :
}
trap stop HUP INT TERM

# await PROCESS: until it has ended; its exit status.
await() {
    while :; do # a signal ends `wait` before the process has ended
        status=0
        wait "$1" || status=$?
        kill -0 "$1" 2>/dev/null || return "$status"
    done
}

# end_stopped: ends this process as stopped by a signal, which the others of train_all hear of.
end_stopped() {
    if [ -n "$worker" ]; then
        kill -TERM $$ 2>/dev/null || :
    else
        echo "stopped; the same command goes on" >&2
    fi
    exit 130
}

# train DIR PROGRAM OPTION...: trains in DIR, or goes on where an earlier call stopped. What the trainer says goes to
# DIR/output.txt. Returns its exit status; ends the process where a signal stopped it.
train() {
    directory=$1 program=$2
    case $program in ./train_*) program=$program$gpu ;; esac
    shift 2
    mkdir -p "$directory"
    "$program" "$@" -o "$directory" -y >"$directory/output.txt" 2>&1 </dev/null &
    child=$!
    status=0
    await "$child" || status=$?
    child=
    # 130, 143: the trainer was stopped by a signal that did not come here.
    if [ -n "$stopped" ] || [ "$status" -eq 130 ] || [ "$status" -eq 143 ]; then end_stopped; fi
    return "$status"
}

# Part of what a trainer writes last into its log. A script whose runs do more sets it anew.
last_line='"test_loss"'

# finished DIR: whether its log is complete.
finished() {
    grep -qsF -e "$last_line" "$1/log.jsonl"
}

# excused RUN: whether a run that ended with an error is a result; it says of which kind. A script says it anew.
excused() {
    return 1
}

# to_go: ", about 1h 02m to go" for the runs of $tmp/plan that are not finished, which take longer than planned by as much as those
# did that are. Nothing where nobody measured what they cost, and none is finished.
to_go() {
    awk -v jobs="$jobs" -v gpu="$gpu" '
        FILENAME ~ /took$/ { planned += $1; spent += $2; next }
        { all += $1 }
        END {
            if (planned > 0) print (all - planned) * spent / planned / jobs
            else if (gpu == "") print all / jobs
        }' "$tmp/took" "$tmp/plan" | while read -r seconds; do echo ", about $(duration "$seconds") to go"; done
}

# train_run NUMBER SECONDS NAME COMMAND: one run of train_all, unless it is finished.
train_run() {
    run=$out/$3
    if finished "$run"; then return; fi
    title=$(printf '%3d/%d  %-32s' "$1" "$total" "$3")
    echo "$title  starts"
    begin=$(clock)
    # shellcheck disable=SC2086
    if train "$run" $4; then
        result=$(log_number test_loss "$run")
        if [ -n "$result" ]; then
            result=$(awk "BEGIN { printf \"test perplexity %.2f\", exp($result) }")
        else
            result="validation loss $(log_number val_loss "$run")"
        fi
    elif ! result=$(excused "$run"); then
        result="failed: $(tail -n 1 "$run/output.txt")"
        echo "$3" >>"$tmp/failed"
    fi
    if finished "$run"; then keep_run "$3"; fi
    took=$(awk "BEGIN { print $(clock) - $begin }")
    echo "$2 $took" >>"$tmp/took"
    echo "$title  $result in $(duration "$took")$(to_go)"
}

# work: trains the runs that nobody else of train_all has taken.
work() {
    worker=1
    child=
    trap stop HUP INT TERM # what traps there were are not a background process's
    number=0
    while read -r seconds name command <&3; do
        number=$((number + 1))
        mkdir "$tmp/taken.$number" 2>/dev/null || continue
        train_run "$number" "$seconds" "$name" "$command"
    done 3<"$tmp/plan"
}

failures=0
unfinished=0

# train_others: the runs of $tmp/plan, $jobs at a time; `failures` says how many failed.
train_others() {
    : >"$tmp/took"
    : >"$tmp/failed"
    echo "$total runs, of which $(grep -c '^0 ' "$tmp/plan") are finished$(to_go)"
    workers=
    while [ "$(echo "$workers" | wc -w)" -lt "$jobs" ]; do
        work &
        workers="$workers $!"
        child=$workers
    done
    broken=
    for process in $workers; do
        await "$process" || broken=$?
    done
    child=
    if [ -n "$stopped" ]; then end_stopped; fi
    [ -z "$broken" ] || fail 'cannot go on'
    failures=$(wc -l <"$tmp/failed")
}

# train_all: trains every run of the plan that is not finished; with --report nothing. Sets `failures` and `unfinished`. The script's
# function `plan` prints a line for each run: the seconds that it still takes (time_left), its directory below $out, its command.
# They are in $tmp/plan afterwards.
train_all() {
    [ -n "$report_only$gpu" ] || echo 'measuring what a run costs'
    plan >"$tmp/plan"
    total=$(awk 'END { print NR }' "$tmp/plan")
    while read -r _ name _; do
        if finished "$out/$name"; then keep_run "$name"; fi
    done <"$tmp/plan"
    if [ -z "$report_only" ]; then train_others; fi
    while read -r _ name _; do
        if ! finished "$out/$name"; then unfinished=$((unfinished + 1)); fi
    done <"$tmp/plan"
    [ "$unfinished" -lt "$total" ] || fail "$out: no run is finished"
}

# say_unfinished: a paragraph for the table, where runs are missing.
say_unfinished() {
    [ "$unfinished" -gt 0 ] || return 0
    echo "**$((total - unfinished)) of $total runs are finished so far.**"
    echo
}

# end_comparison: keeps and shows what came out; ends the script with an error where runs failed.
end_comparison() {
    keep_results
    cat "$out/results.md"
    [ "$failures" -eq 0 ] || fail "$failures runs failed and are not in the table; the same command tries them again"
}

# ---- what a run costs

# probe FILE COMMAND...: measures what a run costs by training for a few steps; FILE then has the seconds of a step, of an
# evaluation, and of all that a run does once. Nothing is done where FILE is there, where nothing is to be trained, and on a GPU,
# where starting takes as long as many steps.
probe() {
    cost=$1
    shift
    [ ! -f "$cost" ] && [ -z "$report_only$gpu" ] || return 0
    rm -rf "$cost.tmp"
    begin=$(clock)
    train "$cost.tmp" "$@" -x 5 || fail "$(tail -n 1 "$cost.tmp/output.txt")"
    awk -v wall="$(clock)" -v begin="$begin" "$json_number"'
        number("ms") != "" {
            all += number("ms")
            for (i = ++n; i > 1 && ms[i - 1] > number("ms"); i--) ms[i] = ms[i - 1]
            ms[i] = number("ms")
        }
        number("val_ms") != "" { evaluation = number("val_ms") }
        # Of the steps the middle one: the first is slow, kernels are made for it.
        END { print ms[int((n + 1) / 2)] / 1000, evaluation / 1000, wall - begin - (all + evaluation) / 1000 }
        ' "$cost.tmp/log.jsonl" >"$cost.new"
    mv "$cost.new" "$cost"
    rm -rf "$cost.tmp"
}

# time_left FILE STEPS EVALUATIONS DIR: the seconds that a run in DIR still takes, from what `probe` wrote into FILE; where it wrote
# nothing, the same for each.
time_left() {
    if finished "$4" || [ -n "$report_only" ]; then
        echo 0
        return
    fi
    if [ ! -f "$1" ]; then
        echo 1
        return
    fi
    passed=0
    [ ! -f "$4/log.jsonl" ] || passed=$(log_number step "$4")
    awk -v steps="$2" -v evaluations="$3" -v passed="${passed:-0}" '
        { print (1 - passed / steps) * (steps * $1 + evaluations * $2) + $3 }' "$1"
}

# ---- what several runs say

# Runs that several machines share out have the same losses, and times that do not belong side by side: those of the processor (and
# number of threads) that most runs had count. Empty: all do.
machine=

# choose_machine RUN...
choose_machine() {
    machine=$(for run in "$@"; do log_text processor "$run"; done | sort | uniq -c | sort -rn | sed -n '1s/^ *[0-9]* //p')
}

# of_a_step KEY RUN: the middle one of a time or speed of the run's steps; "-" where another machine made it.
of_a_step() {
    if [ -z "$machine" ] || [ "$(log_text processor "$2")" = "$machine" ]; then log_median "$1" "$2"; else echo -; fi
}

# machines_of: of the runs on stdin, a line each: "5 runs on NVIDIA H200, 132 SMs, 1 threads, cuBLASLt 13.1, bf16; 1 run on ...".
machines_of() {
    while read -r run; do
        echo "$(log_text processor "$run"), $(log_text products "$run" | sed 's/, peak.*//')"
    done | sort | uniq -c | sort -rn | awk '
        {
            count = $1
            sub(/^ *[0-9]+ /, "")
            text = text (text == "" ? "" : "; ") count (count == 1 ? " run on " : " runs on ") $0
        }
        END { print text }'
}

# validation_of KEY RUN...: of the evaluations of runs that differ in their seeds: epoch, seconds (of the updates before, each
# the middle one's; nan where no run counts) and the geometric mean of the perplexity of that name.
validation_of() {
    key=$1
    shift
    for run in "$@"; do
        echo "of_a_step $(of_a_step ms "$run")"
        cat "$run/log.jsonl"
    done | awk -v key="$key" "$json_number"'
        $1 == "of_a_step" { ms = $2 }
        number("epoch") != "" { epochs_of_a_step = number("epoch") / number("step") }
        number(key) != "" {
            step = number("step")
            if (!n[step]++) order[++steps] = step
            at[step] = step * epochs_of_a_step; sum[step] += log(number(key))
            if (ms != "-") { timed[step]++; seconds[step] += step * ms / 1000 }
        }
        END {
            for (i = 1; i <= steps; i++) {
                step = order[i]
                print at[step], (timed[step] ? seconds[step] / timed[step] : "nan"), exp(sum[step] / n[step])
            }
        }'
}

# ---- tables

# Awk functions, behind show_number, for means and standard deviations: add(name, x), "" and "-" being unknown; mean(name),
# spread(name); both(name): "mean ± deviation".
# shellcheck disable=SC2034
awk_statistics='
    function add(name, x) {
        if (x == "" || x == "-") return
        # From values less the first one, so that nothing cancels.
        if (!count[name]++) first[name] = x
        sum[name] += x - first[name]
        squares[name] += (x - first[name]) ^ 2
    }
    function mean(name) { return count[name] ? first[name] + sum[name] / count[name] : "" }
    function spread(name,    n, rest) {
        n = count[name]
        if (n < 2) return ""
        rest = squares[name] - sum[name] * sum[name] / n
        return sqrt((rest > 0 ? rest : 0) / (n - 1))
    }
    function both(name,    m, s) {
        m = mean(name); s = spread(name)
        return show(m) (s == "" ? "" : sprintf(" ± %.*f", decimals(m), s))
    }'
