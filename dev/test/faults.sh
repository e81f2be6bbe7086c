#!/bin/sh
# One call after the other is made to fail: write, fsync, rename, open, mmap, malloc, readdir, ... (faults.c), while
# text is tokenized and a tiny model is trained, resumed, evaluated and sampled. What must come of it: an error of one
# line and exit status 1, or success with the right result; and a directory from which the next run makes the same
# bytes as an undisturbed one.
#
#   dev/test/faults.sh          some of the faults, about a minute
#   dev/test/faults.sh --all    every one; the commands to disturb (train resume) may follow
#
# Needs TRAINER and TOKENIZE, the programs, or takes those at the top. The last line is "N passed, N failed".
# shellcheck source=dev/test/tiny_run.sh
. "$(dirname "$0")/tiny_run.sh"

# one_line: stderr holds one error and nothing else
one_line() { { read -r line && ! read -r more && [ -z "$more" ]; } <err && [ "${line#error: ?}" != "$line" ]; }

# judge WHAT SAME: after a disturbed command; SAME is the comparison that holds if it succeeded. Where it warned (an old
# checkpoint that cannot be removed), the next run is the one that is compared.
judge() {
    what=$1
    shift
    if [ "$status" -eq 0 ]; then
        grep -q '^warning: .' err || "$@" || { wrong "$what: success, but another result"; return 1; }
    elif [ "$status" -ne 1 ]; then
        wrong "$what: exit status $status"
        return 1
    elif ! one_line; then
        wrong "$what: expected one line of error"
        return 1
    fi
}

for command in ${chosen:-$commands eval_val prompt}; do
    case $command in train | resume | tokenize_spm) some=10 ;; *) some=20 ;; esac
    each "$command" files fail "$some"
    each "$command" memory fail "$some"
    each "$command" files half 5
    each "$command" files interrupt 5
    # A directory that cannot be read must not look like an empty one.
    case $command in train | resume) each "$command" readdir fail 10 ;; esac
    # A checkpoint of which a half cannot be removed stays whole, or goes with the next run.
    [ "$command" != train ] || each train unlink fail 40
    # What was to be renamed does not stay.
    [ "$command" != resume ] || each resume rename fail 40
done
finish
