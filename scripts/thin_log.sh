#!/bin/sh
# What plots and tables need of a run's log: every 50th step, those with a larger gradient norm than all before, and all that is
# not a step.
#
#   scripts/thin_log.sh RUN/log.jsonl [EVERY] >THIN.jsonl
set -eu
[ $# -ge 1 ] && [ $# -le 2 ] && [ -f "$1" ] || {
    sed -n '5s/^# *//p' "$0" >&2
    exit 2
}
awk -v every="${2:-50}" '
    /^\{"step":[0-9]+,"epoch":/ {
        split($0, part, /[:,]/)
        norm = $0
        sub(/.*"grad_norm":/, "", norm)
        if (norm + 0 > largest) largest = norm + 0
        else if (part[2] % every != 0 && part[2] != 1) next
    }
    { print }' "$1"
