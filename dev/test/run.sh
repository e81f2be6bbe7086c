#!/bin/sh
# Runs test programs one after the other and adds up their last lines, "N passed, N failed".
# usage: dev/test/run.sh PROGRAM...
passed=0
failed=0
output=$(mktemp) || exit 1
trap 'rm -f "$output"' EXIT
for program in "$@"; do
    start=$(date +%s)
    "$program" >"$output" 2>&1
    code=$?
    counts=$(sed -n 's/^\([0-9][0-9]*\) passed, \([0-9][0-9]*\) failed.*$/\1 \2/p' "$output" | tail -n 1)
    good=${counts% *}
    bad=${counts#* }
    if [ -z "$counts" ] || { [ "$code" -ne 0 ] && [ "$bad" -eq 0 ]; }; then # it died before its last line
        good=${good:-0}
        bad=1
    fi
    passed=$((passed + good))
    failed=$((failed + bad))
    printf '%-60s %3d passed, %d failed  (%d s)\n' "$program" "$good" "$bad" $(($(date +%s) - start))
    if [ "$bad" -ne 0 ]; then sed 's/^/    /' "$output"; else grep '^skipped:' "$output" | sed 's/^/    /'; fi
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
