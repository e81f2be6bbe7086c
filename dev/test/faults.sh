#!/bin/sh
# Makes one call after the other fail (write, fsync, rename, open, mmap, malloc, readdir, ...;
# faults.c) while text is tokenized and a tiny model is trained, resumed, evaluated and sampled. The
# program must print a one-line error and exit with status 1, or succeed with the right result. The
# next run in the same directory must write the same bytes as an undisturbed one.
#
#   dev/test/faults.sh          some of the faults, about a minute
#   dev/test/faults.sh --all    all faults; commands to disturb may follow (train resume)
#
# TRAINER and TOKENIZE are the programs (default: those in the root directory).
# The last line is "N passed, N failed".
# shellcheck source=dev/test/tiny_run.sh
. "$(dirname "$0")/tiny_run.sh"

# one_line: succeeds if stderr is one error line and nothing else
one_line() { { read -r line && ! read -r more && [ -z "$more" ]; } <err && [ "${line#error: ?}" != "$line" ]; }

# judge WHAT SAME: checks a disturbed command. If it succeeded, the comparison SAME must hold. If it
# warned (an old checkpoint that cannot be removed), only the next run is compared.
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
    # A checkpoint of which one file cannot be removed stays complete, or the next run removes it.
    [ "$command" != train ] || each train unlink fail 40
    # A file that could not be renamed does not remain.
    [ "$command" != resume ] || each resume rename fail 40
done
finish
