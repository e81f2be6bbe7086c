# Sourced by faults.sh, kill.sh and power.sh: a tiny training run, undisturbed and disturbed, in a
# fresh directory. TRAINER and TOKENIZE are the programs (default: those in the root directory); CC
# compiles the library that disturbs calls (faults.c).
# shellcheck shell=sh disable=SC2034,SC2154
case ${1-} in -h | --help)
    sed -n '2,/^$/{/shellcheck/!s/^# \{0,1\}//p; }' "$0" # the comment at its top
    exit
    ;;
esac
root=$(realpath "$(dirname "$0")/../..")
trainer=$(realpath "${TRAINER:-$root/train_fastformer}") || exit 1
tokenize=$(realpath "${TOKENIZE:-$root/tokenize}") || exit 1
library=$(mktemp -d) || exit 1 # nothing in memory may be executed, on some machines
# In memory if there is a file system for it: on a disk, thousands of fsync() calls take most time.
[ -n "${TMPDIR-}" ] || { [ -w /dev/shm ] && export TMPDIR=/dev/shm; }
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir" "$library"' EXIT
trap 'exit 130' INT TERM
cd "$dir" && mkdir tried || exit
${CC:-cc} -std=c17 -D_GNU_SOURCE -O1 -shared -fPIC "$root/dev/test/faults.c" -o "$library/faults.so" -ldl || exit 1
export OMP_NUM_THREADS=1          # the n-th call is the same one in each run
export OMP_WAIT_POLICY=passive    # so that a trainer does not restart itself, without the library
export ASAN_OPTIONS=detect_leaks=0:verify_asan_link_order=0:allocator_may_return_null=1
# shellcheck source=dev/test/count.sh
. "$root/dev/test/count.sh"

pass() { passed=$((passed + 1)); }
wrong() { # WHAT: and what the program said
    failed=$((failed + 1))
    echo "FAIL $1"
    [ -s err ] && sed 's/^/    /' err | head -n 20
}

# disturbed CALLS MODE NUMBER COMMAND...: runs it with a library that disturbs one call; leaves
# `report`, `out`, `err` and its exit status in `status` (124: it hung; 137: killed)
disturbed() {
    calls=$1 mode=$2 at=$3
    shift 3
    rm -f report
    timeout 60 env LD_PRELOAD="$library/faults.so" FAULT_CALLS="$calls" FAULT_MODE="$mode" FAULT_AT="$at" \
        FAULT_REPORT="$dir/report" "$@" >out 2>err </dev/null
    status=$?
}

# ---- the commands: each runs its program by "$@" and writes to $output
text=$dir/text
head -c 30000 "$root/dev/test/texts/shakespeare.txt" >text
tokenize_word() { "$@" "$tokenize" -o "$output" --tokenizer word --shard-tokens 2000 "$text"; }
tokenize_spm() { "$@" "$tokenize" -o "$output" --tokenizer spm --vocab-size 400 "$text"; }
tokenize_bpe() { "$@" "$tokenize" -o "$output" --tokenizer bpe --vocab-size 400 "$text"; }
tokenize_again() { tokenize_word "$@"; }
options="-i data --preset published -L 1 -C 16 -H 2 -b 2 -t 32 -p fp32 -k constant -n 2 -v 2 -m 1 -g 5 -s 3 --optimizer muon"
# shellcheck disable=SC2086
{
    train() { "$@" "$trainer" $options -o "$output" -x 8; }
    resume() { "$@" "$trainer" $options -o "$output" -x 8 $([ ! -e "$output/lock" ] || echo -y); }
    half_run() { "$@" "$trainer" $options -o "$output" -x 4; }
}
eval_val() { "$@" "$trainer" -i data -e whole/best.safetensors --eval val; }
prompt() { "$@" "$trainer" -i data -e whole/best.safetensors --prompt 'The king' -g 20 -S 1; }
plainly() { "$@" >out 2>err </dev/null; }

# ---- the results of an undisturbed run; times are not compared
without_times() { sed -E 's/,"(ms|tokens_per_s|peak_fraction|seconds|val_ms|test_ms)":[^,}]*//g; s/peak [0-9]+ //'; }
steps_of_log() { # of a directory: without times and the events of each start
    grep -v '"event"' "$1/log.jsonl" | without_times
}
same_run() { # A B
    [ "$(ls -A "$1")" = "$(ls -A "$2")" ] || { ls -A "$1" "$2" >err; return 1; }
    for file in "$2"/*.safetensors; do cmp "$1/${file##*/}" "$file" >err 2>&1 || return 1; done
    steps_of_log "$1" >log_a
    steps_of_log "$2" >log_b
    diff log_a log_b >err 2>&1
}
same_output() { # A B: what the user sees, without times
    sed 's/ in [0-9.]*s//' "$1" >out_a && sed 's/ in [0-9.]*s//' "$2" >out_b && cmp out_a out_b >err 2>&1
}
same_data() { diff -r "$1" "$2" >err 2>&1; }

undisturbed() {
    output=data_bpe tokenize_bpe plainly && output=data tokenize_word plainly || return 1
    # A SentencePiece model contains the name of its file, so it is that of the disturbed one.
    if command -v spm_train >/dev/null; then
        output=disturbed tokenize_spm plainly || return 1
        mv disturbed data_spm
    fi
    output=whole train plainly && output=half half_run plainly || return 1
    cp -r half resumed && output=resumed resume plainly || return 1
    eval_val plainly && mv out eval_out && prompt plainly && mv out prompt_out
}
undisturbed || { wrong "the undisturbed run"; finish; }
commands="tokenize_word tokenize_bpe tokenize_again train resume"
command -v spm_train >/dev/null && commands="$commands tokenize_spm"

# ---- one disturbance at a time. Each script defines judge WHAT SAME...: it checks how the
# disturbed command ended; if it succeeded, the comparison SAME must hold.

# Prepares, disturbs and judges one command, then runs it again undisturbed: the result must be that
# of an undisturbed run.
once() { # COMMAND CALLS MODE NUMBER
    command=$1
    rm -rf disturbed
    output=disturbed
    case $command in
    tokenize_word) same="same_data disturbed data" ;;
    tokenize_bpe) same="same_data disturbed data_bpe" ;;
    tokenize_spm) same="same_data disturbed data_spm" ;;
    tokenize_again) same="same_data disturbed data" && cp -r data_bpe disturbed ;;
    train) same="same_run disturbed whole" ;;
    resume) same="same_run disturbed resumed" && cp -r half disturbed ;;
    eval_val) same="same_output out eval_out" ;;
    prompt) same="same_output out prompt_out" ;;
    esac
    $command disturbed "$2" "$3" "$4"
    fired=
    [ ! -s report ] || read -r fired <report
    what="$1, $2 $3, call $4 (${fired#fired })"
    # shellcheck disable=SC2086
    judge "$what" $same || return
    case $command in
    tokenize_* | train | resume) goes_on "$command" || return ;;
    esac
    pass
}

# Prints what a command left: names and bytes, without times and the owner of the lock.
files_left() {
    [ ! -d disturbed ] || find disturbed ! -type f -printf '%p %l\n' -o \
        ! -name lock ! -name log.jsonl ! -name run.html -exec md5sum {} + -o -print | sort
    [ ! -e disturbed/log.jsonl ] || without_times <disturbed/log.jsonl
}

# Checks that the next, undisturbed run works and has the undisturbed result. It depends on the
# directory alone, so each distinct directory is tried once: most of the thousands of failing calls
# leave the same one. After a kill it is always tried, as the program may still be exiting.
goes_on() { # COMMAND
    found=tried/$1-$(files_left | md5sum)
    case $mode in
    kill-*) ;;
    *) [ ! -e "$found" ] || return 0 ;;
    esac
    case $1 in
    tokenize_*) $1 plainly ;;
    *) resume plainly ;;
    esac || { wrong "$what: the next run does not work"; return 1; }
    if [ "$1" = resume ] && grep -q 'starting a new run' err; then
        wrong "$what: the checkpoint was lost"
        return 1
    fi
    $same || { wrong "$what: the next run has another result"; return 1; }
    : >"$found"
}

# Disturbs one command in one way: at every call, or at $4 calls, spread evenly.
each() { # COMMAND CALLS MODE SOME
    output=counted
    rm -rf counted
    [ "$1" != resume ] || cp -r half counted
    [ "$1" != tokenize_again ] || cp -r data_bpe counted
    $1 disturbed "$2" "$3" 0
    count=$(sed -n 's/^calls //p' report)
    if [ "$status" -ne 0 ] || [ -z "$count" ]; then
        wrong "$1: cannot be counted"
        return
    fi
    some=$4
    { [ -n "$all" ] || [ "$some" -gt "$count" ]; } && some=$count
    i=0
    before=$failed
    while [ $i -lt "$some" ]; do
        once "$1" "$2" "$3" $((1 + i * count / some))
        i=$((i + 1))
    done
    printf '%-16s %-7s %-11s %5d of %5d  %d failed\n' "$1" "$2" "$3" "$some" "$count" $((failed - before))
}

all=
[ "${1-}" != --all ] || { all=1 && shift; }
chosen=$*
for command in $chosen; do
    case " $commands eval_val prompt " in
    *" $command "*) ;;
    *)
        echo "usage: $0 [--all] [COMMAND...]: $commands eval_val prompt" >&2
        exit 2
        ;;
    esac
done
