#!/bin/sh
# Runs programs built for this machine's processor on a lesser one: they must print a one-line
# error, with no illegal instruction. Needs TRAINER and TOKENIZE, the programs, and Debian's package
# qemu-user. Skipped with QUICK. The last line is "N passed, N failed".
case $(uname -m):${QUICK:+quick} in
x86_64:) ;;
x86_64:*) echo "skipped: sanitizers do not run under qemu, and QUICK is set" && echo "0 passed, 0 failed" && exit ;;
*) echo "skipped: only on x86-64" && echo "0 passed, 0 failed" && exit ;;
esac
if ! command -v qemu-x86_64 >/dev/null; then
    echo "skipped: qemu-x86_64 was not found"
    echo "0 passed, 0 failed"
    exit
fi
# shellcheck source=dev/test/count.sh
. "$(dirname "$0")/count.sh"
for program in "${TRAINER:?}" "${TOKENIZE:?}"; do
    for processor in Nehalem max; do
        # The message names one of the missing features. A program for any processor runs.
        said=$(qemu-x86_64 -cpu "$processor" "$program" --help 2>&1)
        code=$?
        [ $code -eq 0 ] || { [ $code -eq 1 ] && [ "$(printf '%s\n' "$said" | grep -v '^qemu-' | wc -l)" -eq 1 ] &&
            printf '%s\n' "$said" | grep -q 'error: this program was built for a processor with .*, which this one lacks'; }
        ok "$program on $processor: exit status $code: $said"
    done
done
finish
