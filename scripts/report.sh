#!/bin/sh
# Sets runs side by side, a column each, from the log.jsonl of each: what was trained, on what, how fast, with which result.
#
#   scripts/report.sh RUN... >REPORT.md
set -eu
usage() {
    echo 'usage: report.sh RUN...   (directories that hold a log.jsonl)'
    exit "$1"
}
[ $# -gt 0 ] || usage 2 >&2
case $1 in
-h | --help) usage 0 ;;
esac
. "$(dirname "$0")/common.sh"

for run in "$@"; do
    [ -f "$run/log.jsonl" ] || fail "$run/log.jsonl: no such file"
    grep -q '"grad_norm":' "$run/log.jsonl" || fail "$run/log.jsonl: no training step in it"
done

# cell_text TEXT: as a cell has it, in one line and without a bar of its own.
cell_text() { printf '%s' "$1" | tr -d '\n' | sed 's/|/\\|/g'; }

# row NAME FUNCTION ARGUMENT RUN...: a row of the table, unless no run has anything to say.
row() {
    name=$1 function=$2 argument=$3
    shift 3
    line="| $name |" any=
    for run in "$@"; do
        cell=$(cell_text "$($function "$argument" "$run")")
        [ -z "$cell" ] || any=1
        line="$line ${cell:--} |"
    done
    [ -z "$any" ] || printf '%s\n' "$line"
}

# Each is called with an argument and a run.
# shellcheck disable=SC2317,SC2329
last_of() { log_number "$@"; } # of numbers
# shellcheck disable=SC2317,SC2329
option() { # of the last start
    sed -n 's/.*"options":{\(.*\)}.*/\1/p' "$2/log.jsonl" | tail -n 1 | sed -n "s/.*\"$1\":\"\{0,1\}\([^,\"}]*\).*/\1/p"
}
# shellcheck disable=SC2317,SC2329
best() { # of the best evaluation
    sed -n "/\"best\":true/s/.*\"val_$1\":\([^,}]*\).*/\1/p" "$2/log.jsonl" | tail -n 1 | shorten
}
# shellcheck disable=SC2317,SC2329
tested() { log_number "test_$1" "$2" | shorten; }
# shellcheck disable=SC2317,SC2329
speed() { log_median tokens_per_s "$2" | awk '{ printf "%.0f", $1 }'; }
# shellcheck disable=SC2317,SC2329
trained() { duration "$(log_number seconds "$2")"; }
shorten() { awk "$show_number { print show(\$1) }"; }

printf '| |'
for run in "$@"; do printf ' %s |' "$(cell_text "${run%/}")"; done
printf '\n|---|'
for run in "$@"; do printf -- '---|'; done
echo
for key in model data plan processor products; do row "$key" log_text "$key" "$@"; done
for key in optimizer lr schedule warmup weight-decay dropout seed; do row "$key" option "$key" "$@"; done
row steps last_of step "$@"
row epochs last_of epoch "$@"
row time trained - "$@"
row 'tokens/s, median' speed - "$@"
for unit in 'loss:loss, nats a token' 'ppl:perplexity a token' 'bpb:bits a byte' 'word_ppl:perplexity a word' \
    'pseudo_ppl:pseudo-perplexity' 'accuracy:accuracy'; do
    row "best validation ${unit#*:}" best "${unit%%:*}" "$@"
    row "test ${unit#*:}" tested "${unit%%:*}" "$@"
done
