#!/bin/sh
# Fuzzes each target in dev/fuzz with libFuzzer, AddressSanitizer and UBSan for SECONDS (default 5).
# Needs clang and its runtime libraries: Debian's libclang-rt-dev. build/fuzz/learned keeps the
# inputs found, build/fuzz/executed the number of executions per target in all calls so far. An
# input that crashes or hangs a target is left in build/fuzz. The last line is "N passed, N failed",
# counting targets.
# usage: dev/fuzz/run.sh [SECONDS [TARGET...]]
cd "$(dirname "$0")/../.." || exit 1
seconds=${1:-5}
[ $# -gt 0 ] && shift
# shellcheck disable=SC2046
[ $# -gt 0 ] || set -- $(ls dev/fuzz/corpus)
# Leaks: an input that fail() ends may leave a few bytes in the C library. Quarantine: within an
# input, memory of the target is never reused (memory_blocks.c), so AddressSanitizer need not hold
# it back.
export ASAN_OPTIONS=detect_leaks=0:malloc_context_size=0:quarantine_size_mb=1:thread_local_quarantine_size_kb=64
passed=0
failed=0
build=build/fuzz
programs=$(for target in "$@"; do echo "$build/float-fuzz-serial/fuzz/$target"; done)
# shellcheck disable=SC2086
make -s CC="${CLANG:-clang}" FUZZ=1 OPENMP=0 ONEDNN=0 CPLUSPLUS=0 BUILD=$build $programs || exit 1
for target in "$@"; do
    learned=$build/learned/$target
    mkdir -p "$learned" $build/executed
    start=$(date +%s)
    if $build/float-fuzz-serial/fuzz/"$target" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 \
        -malloc_limit_mb=512 -close_fd_mask=1 -print_final_stats=1 -artifact_prefix="$build/$target-" \
        "$learned" "dev/fuzz/corpus/$target" >"$build/$target.log" 2>&1; then
        passed=$((passed + 1))
        verdict=ok
    else
        failed=$((failed + 1))
        verdict=FAIL
    fi
    executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$build/$target.log" | tail -n 1)
    before=$(cat "$build/executed/$target" 2>/dev/null)
    echo $((${before:-0} + ${executions:-0})) >"$build/executed/$target"
    printf '%-4s  %-14s %12s executions  %5d s  %12s in all calls\n' $verdict "$target" "${executions:-?}" \
        $(($(date +%s) - start)) "$(cat "$build/executed/$target")"
    [ $verdict = ok ] || grep -aE 'ERROR|SUMMARY|runtime error|Test unit written|#[0-9]+ .* in ' "$build/$target.log" |
        head -n 30
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
