#!/bin/sh
# The long version of the tests that CI runs: every fault, a kill at every call and at 1,000 random
# moments, every crash, and each fuzz target for HOURS divided by their number (default: 8 hours in
# all; 10^8 executions take 20 minutes to 2 hours of a core, depending on the target; fuzz targets
# resume where an earlier call stopped).
# Needs ./train_fastformer and ./tokenize, and clang. The last line is "N passed, N failed";
# dev/test/README.md has the figures of such a run.
# usage: dev/test/endurance.sh [HOURS]
cd "$(dirname "$0")/../.." || exit 1
hours=${1:-8}
targets=$(find dev/fuzz/corpus -mindepth 1 -maxdepth 1 | wc -l)
passed=0
failed=0
output=$(mktemp) || exit 1
trap 'rm -f "$output"' EXIT
part() { # COMMAND...: adds up its last line
    "$@" >"$output" 2>&1
    cat "$output"
    counts=$(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed$/\1 \2/p' "$output" | tail -n 1)
    counts=${counts:-0 1}
    passed=$((passed + ${counts% *}))
    failed=$((failed + ${counts#* }))
}
part dev/test/faults.sh --all
part dev/test/kill.sh --all
part dev/test/power.sh --all
part dev/fuzz/run.sh $((hours * 3600 / targets))
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
