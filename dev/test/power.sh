#!/bin/sh
# Simulates power loss. Records the disk operations of tokenizing a text and of training and
# resuming a tiny model (record.c), and replays what a crash after each event may leave (power.c):
# bytes and names that were not synced are lost, torn or reordered. The next run must find the
# newest checkpoint that was complete on the disk, --verify must name it, and the run must write the
# same bytes as an undisturbed one.
#
#   dev/test/power.sh          some of the crashes, about a minute
#   dev/test/power.sh --all    all crashes
#
# TRAINER and TOKENIZE are the programs (default: those in the root directory).
# The last line is "N passed, N failed".
# shellcheck source=dev/test/tiny_run.sh
. "$(dirname "$0")/tiny_run.sh"

${CC:-cc} -std=c17 -D_GNU_SOURCE -O1 -shared -fPIC "$root/dev/test/record.c" -o "$library/record.so" -ldl &&
    ${CC:-cc} -std=c17 -D_GNU_SOURCE -O1 "$root/dev/test/power.c" -o "$library/power" || exit 1
recorded() { env LD_PRELOAD="$library/record.so" RECORD_DIR="$output" RECORD_TO="$dir/journal" "$@" >out 2>err </dev/null; }
mode=power
start_of() { # COMMAND: what `disturbed` holds before it
    rm -rf disturbed
    case $1 in
    tokenize_again) cp -r data_bpe disturbed ;;
    resume) cp -r half disturbed ;;
    esac
}
# Checks that the newest good checkpoint of --verify is not older than the one complete on the disk.
is_named() { # WHAT
    [ -s newest ] || return 0
    "$trainer" --verify disturbed >out 2>err
    named=$(sed -n 's/^newest good checkpoint: //p' out)
    [ "$(printf '%s\n' "$(cat newest)" "$named" | sort | tail -n 1)" = "$named" ] && [ -n "$named" ] ||
        { cat out >>err && wrong "$1: --verify names '$named', complete was $(cat newest)"; return 1; }
}

crash() { # COMMAND EVENTS MODE
    what="$1, power lost after event $2, $3"
    output=disturbed
    start_of "$1"
    "$library/power" journal "$2" "$3" disturbed >newest 2>err || { wrong "$what"; return; }
    case $1 in
    train | resume)
        is_named "$what" || return
        same="same_run disturbed whole"
        [ "$1" = train ] || same="same_run disturbed resumed"
        ;;
    tokenize_bpe) same="same_data disturbed data_bpe" ;;
    *) same="same_data disturbed data" ;;
    esac
    goes_on "$1" && pass
}

for command in ${chosen:-$commands}; do
    [ "$command" != tokenize_spm ] || continue # its files are written by others
    output=disturbed
    start_of "$command"
    $command recorded || { wrong "$command: cannot be recorded"; continue; }
    count=$("$library/power" journal)
    for left in lost names zeros torn data last; do
        before=$failed
        some=4
        { [ -n "$all" ] || [ "$some" -gt "$count" ]; } && some=$count
        i=1
        while [ $i -le "$some" ]; do
            crash "$command" $((i * count / some)) $left
            i=$((i + 1))
        done
        printf '%-16s %-6s %5d of %5d events  %d failed\n' "$command" $left "$some" "$count" $((failed - before))
    done
done
finish
