#!/usr/bin/env bash
# Runs test programs in parallel, reports them in the order given and adds up the counts in their
# last lines ("N passed, N failed"). At the end it lists the slowest. With TOOK it first prints how
# long this may take: the seconds of the last run, which FILE holds, or without them the time of
# make test on two cores.
# usage: [JOBS=N] [TOOK=FILE] dev/test/run.sh PROGRAM...     N at a time (all cores)
jobs=${JOBS:-$(env -u OMP_NUM_THREADS nproc)}
if [ -n "${TOOK-}" ]; then
    read -r expected 2>/dev/null <"$TOOK" || expected=$((480 / jobs))
    echo "$# tests, $jobs at a time, take about $(((expected + 30) / 60)) minutes"
fi
results=$(mktemp -d) || exit 1
trap 'rm -rf "$results"' EXIT
trap 'kill $(jobs -p) 2>/dev/null; exit 1' INT TERM
if [ "$jobs" -gt 1 ]; then
    export OMP_NUM_THREADS="${OMP_NUM_THREADS:-2}" OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}" # they share the cores
fi

run() { # NUMBER PROGRAM: what it says, its exit status and its seconds, in files
    local start=$SECONDS
    "$2" >"$results/$1.output" 2>&1
    echo "$? $((SECONDS - start))" >"$results/$1.ending"
    mv "$results/$1.ending" "$results/$1.end"
}

passed=0
failed=0
report() { # NUMBER PROGRAM
    local code seconds counts good bad output=$results/$1.output
    read -r code seconds <"$results/$1.end"
    counts=$(sed -n 's/^\([0-9][0-9]*\) passed, \([0-9][0-9]*\) failed.*$/\1 \2/p' "$output" | tail -n 1)
    good=${counts% *}
    bad=${counts#* }
    if [ -z "$counts" ] || { [ "$code" -ne 0 ] && [ "$bad" -eq 0 ]; }; then # it died before its last line
        good=${good:-0}
        bad=1
    fi
    passed=$((passed + good))
    failed=$((failed + bad))
    printf '%-60s %3d passed, %d failed  (%d s)\n' "$2" "$good" "$bad" "$seconds"
    echo "$seconds s $2" >>"$results/seconds"
    if [ "$bad" -ne 0 ]; then sed 's/^/    /' "$output"; else grep '^skipped:' "$output" | sed 's/^/    /'; fi
}

programs=("$@")
started=0
reported=0
while [ "$reported" -lt $# ]; do
    if [ "$started" -lt $# ] && [ "$(jobs -rp | wc -l)" -lt "$jobs" ]; then
        run "$started" "${programs[started]}" 2>/dev/null &
        started=$((started + 1))
    else
        wait -n
    fi
    while [ -f "$results/$reported.end" ]; do
        report "$reported" "${programs[reported]}"
        reported=$((reported + 1))
    done
done
if [ $# -gt 5 ]; then
    echo "the slowest: $(sort -rn "$results/seconds" | head -n 5 | paste -sd, | sed 's/,/, /g')"
fi
[ -z "${TOOK-}" ] || echo "$SECONDS" >"$TOOK"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
