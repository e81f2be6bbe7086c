#!/bin/sh
# Sends SIGKILL at the system calls that change files (before, after, and in the middle of a write;
# faults.c) and at random moments, while text is tokenized and a tiny model is trained and resumed.
# The next run must resume and write the same bytes as an undisturbed one.
#
#   dev/test/kill.sh          some of the kills, about a minute
#   dev/test/kill.sh --all    every call, and 1,000 random moments
#
# TRAINER and TOKENIZE are the programs (default: those in the root directory). SEED selects the
# moments. The last line is "N passed, N failed".
# shellcheck source=dev/test/tiny_run.sh
. "$(dirname "$0")/tiny_run.sh"

judge() { # WHAT ...
    [ "$status" -eq 137 ] || { wrong "$1: exit status $status, expected a kill"; return 1; }
}

# Kills a run at random moments and resumes it until it completes; counts the kills.
seed=${SEED:-1}
random_moment() { # into `moment`: seconds, below $1
    seed=$(((seed * 1103515245 + 12345) % 2147483648))
    moment=$(awk "BEGIN { print $seed / 2147483648 * $1 }")
}
arrived() { # SAME A B: a run is through
    if "$1" "$2" "$3"; then pass; else wrong "another result after $kills kills at random moments"; fi
    rm -rf disturbed
}
at_random() { # COMMAND SECONDS COUNT SAME A B
    output=disturbed
    kills=0
    before=$failed
    rm -rf disturbed
    while [ $kills -lt "$3" ]; do
        random_moment "$2"
        $1 timeout --foreground --preserve-status -s KILL "$moment" >out 2>err </dev/null
        status=$?
        case $status in
        137) kills=$((kills + 1)) ;;
        0) arrived "$4" "$5" "$6" ;;
        *) wrong "$1, killed at random moments: exit status $status after $kills kills" && rm -rf disturbed ;;
        esac
    done
    $1 plainly
    arrived "$4" "$5" "$6"
    printf '%-16s at random moments    %5d kills  %d failed\n' "$1" $kills $((failed - before))
}

for command in ${chosen:-$commands}; do
    case $command in train | resume | tokenize_spm) some=10 ;; *) some=15 ;; esac
    each "$command" changes kill-before "$some"
    each "$command" changes kill-after "$some"
    each "$command" files kill-half $((some / 2))
done
many=30
[ -z "$all" ] || many=1000
# shellcheck disable=SC2086
long_run() { "$@" "$trainer" $options -o "$output" -x 60 $([ ! -e "$output/lock" ] || echo -y); }
output=long long_run plainly || wrong "the undisturbed long run"
at_random long_run 0.35 $many same_run disturbed long
at_random tokenize_word 0.01 $many same_data disturbed data
finish
