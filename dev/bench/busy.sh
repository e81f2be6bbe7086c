#!/bin/sh
# How long a training step takes while other programs want the cores: idle, with one busy process in all, with one and
# two per core, and another run of the same; for the trainer as it is and for other ways in which OpenMP's threads may
# wait, or run on any core; the library is gcc's, or LLVM's where the trainer was built with clang. Writes OUTPUT
# (dev/results/busy/gcc.md): medians in milliseconds, and their ratios. About 9 minutes; leave the machine alone meanwhile.
#
#   dev/bench/busy.sh [OUTPUT]      TRAINER (./train_fastformer), OPTIONS (those of make run), ROUNDS (3), SECONDS_EACH (5)
set -eu
cd "$(dirname "$0")/../.."
# shellcheck source=scripts/common.sh
. scripts/common.sh
case ${1-} in
-h | --help)
    sed -n '2,8s/^# *//p' "dev/bench/${0##*/}"
    exit 0
    ;;
esac
output=${1:-dev/results/busy/gcc.md}
trainer=${TRAINER:-./train_fastformer}
options=${OPTIONS:--L 4 -C 128 -H 4 -b 8 -t 256}
rounds=${ROUNDS:-3}
seconds=${SECONDS_EACH:-5}
[ -x "$trainer" ] || fail "$trainer is missing: make train_fastformer"
cores=$(nproc)
unset GOMP_SPINCOUNT OMP_WAIT_POLICY KMP_BLOCKTIME KMP_USE_YIELD KMP_LIBRARY OMP_PROC_BIND OMP_PLACES
# Behind as_it_is the library's own default.
if ldd "$trainer" | grep -q libomp; then
    default=KMP_BLOCKTIME=200
    settings="as_it_is OMP_PROC_BIND=false $default KMP_BLOCKTIME=1 KMP_BLOCKTIME=0"
else
    default=GOMP_SPINCOUNT=300000
    settings="as_it_is OMP_PROC_BIND=false $default GOMP_SPINCOUNT=10000 GOMP_SPINCOUNT=1000"
fi

hogs=
rest() {
    for hog in $hogs; do kill "$hog" 2>/dev/null && wait "$hog" 2>/dev/null; done || :
    hogs=
}
trap 'rest; rm -rf "$tmp"' EXIT
trap 'exit 130' INT TERM
# busy LOAD SETTING: so many processes that do nothing else than run, or another run
busy() {
    rest
    if [ "$1" = run ]; then
        rm -rf "$tmp/other"
        train "$2" other &
        hogs=$!
        return
    fi
    while [ "$(echo "$hogs" | wc -w)" -lt "$1" ]; do
        sh -c 'while :; do :; done' &
        hogs="$hogs $!"
    done
}

# train SETTING DIRECTORY: in place of this shell
train() {
    # shellcheck disable=SC2086
    exec env "$1" "$trainer" $options -o "$tmp/$2" -x 100000 -v 100000 >"$tmp/$2.out" 2>&1 </dev/null
}

# wait_for N: until the run has taken N steps, or ended
wait_for() {
    while kill -0 $run 2>/dev/null && [ "0$(grep -sc '"ms"' "$tmp/run/log.jsonl")" -lt "$1" ]; do
        sleep 0.1
    done
}

# steps SETTING: the milliseconds of each step but the first, one number per line, for `seconds` and at least 4 steps
steps() {
    rm -rf "$tmp/run"
    train "$1" run &
    run=$!
    wait_for 1
    sleep "$seconds"
    wait_for 5
    kill -KILL $run 2>/dev/null || { cat "$tmp/run.out" >&2; fail "$trainer ended"; }
    wait $run 2>/dev/null || :
    awk "$json_number"' { ms = number("ms") } ms != "" && n++ { print ms }' "$tmp/run/log.jsonl"
}

# median FILE
median() {
    sort -n "$1" | awk '{ x[NR] = $1 } END { print (x[int((NR + 1) / 2)] + x[int(NR / 2) + 1]) / 2 }'
}

# Rounds of all settings, one after the other: what changes on the machine meets all of them.
loads="0 1 $cores $((2 * cores)) run"
for load in $loads; do
    round=0
    while [ $round -lt "$rounds" ]; do
        for setting in $settings; do
            if [ "$setting" = as_it_is ]; then variable=A=1; else variable=$setting; fi
            busy "$load" "$variable"
            steps "$variable" >>"$tmp/$setting.$load"
        done
        round=$((round + 1))
    done
done
rest

processor=$(sed -n 's/^model name[[:space:]]*: //p' /proc/cpuinfo | head -n 1)
first=$(head -n 1 "$tmp/run/log.jsonl" | sed -n 's/.*"products":"\([^"]*\)".*/\1/p')
{
    echo "# Training next to other programs"
    echo
    echo "\`dev/bench/busy.sh\` on ${processor:-an unknown processor}, $cores cores: \`$(basename "$trainer") $options\`, $first."
    echo "Medians of the steps of $rounds rounds, in milliseconds; in brackets, how many times as long as that setting's idle step."
    echo "With N busy processes per core a fair share is N + 1 times, next to another run 2."
    echo
    echo "| threads | idle | one busy process | one per core | two per core | another run | idle, against $default |"
    echo "|---|---|---|---|---|---|---|"
    base=$(median "$tmp/$default.0")
    for setting in $settings; do
        case $setting in
        as_it_is) name='as the trainer has them' ;;
        OMP_PROC_BIND=false) name="\`$setting\`, on any core" ;;
        "$default") name="\`$setting\`, the library's default" ;;
        *) name="\`$setting\`" ;;
        esac
        for load in $loads; do median "$tmp/$setting.$load"; done |
            awk -v name="$name" -v base="$base" "$show_number"' { ms[NR] = $1 }
                END { printf "| %s | %s |", name, show(ms[1])
                for (i = 2; i <= NR; i++) printf " %s (%.1f) |", show(ms[i]), ms[i] / ms[1]
                printf " %+.1f%% |\n", 100 * (ms[1] / base - 1) }'
    done
} >"$tmp/report"
mv "$tmp/report" "$output"
cat "$output"
