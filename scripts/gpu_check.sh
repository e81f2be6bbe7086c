#!/bin/sh
# Builds the CUDA programs, tests them on the GPU and measures them beside PyTorch; see usage below. Every part has a time
# limit, so that one that hangs costs no other, and what cannot run says why. The report is two files: gpu_check.md and
# gpu_check.json.
set -u
export LC_ALL=C PYTHONDONTWRITEBYTECODE=1
cd "$(dirname "$0")/.." || exit 1

usage() {
    cat <<'END'
usage: scripts/gpu_check.sh [-o DIR] [-t SECONDS] [-p PYTHON] [PART...]

  -o DIR      the report and what each part said; default: runs/gpu_check
  -t SECONDS  of all parts together; default: 530. Parts for which no time is left are skipped
  -p PYTHON   that has torch; default: python3
  PART...     only parts whose names begin so, such as: build test- bench-seed
END
}

die() {
    printf 'gpu_check.sh: %s\n' "$1" >&2
    exit 2
}

output=runs/gpu_check
seconds=530
python=python3
while getopts o:t:p:h option; do
    case $option in
    o) output=$OPTARG ;;
    t) seconds=$OPTARG ;;
    p) python=$OPTARG ;;
    h) usage && exit 0 ;;
    *) usage >&2 && exit 2 ;;
    esac
done
shift $((OPTIND - 1))
chosen=$*
case $seconds in '' | *[!0-9]*) die "-t $seconds: expected seconds" ;; esac
mkdir -p "$output" || die "$output: cannot be made"
output=$(cd "$output" && pwd)
rm -f "$output"/*.txt "$output"/*.json "$output"/gpu_check.md

now() { # seconds since the machine started
    cut -d. -f1 /proc/uptime
}
start=$(now)

# ---- what is there: empty, or why not

PATH=$PATH:/usr/local/cuda/bin
no_nvcc=
command -v nvcc >/dev/null || no_nvcc='there is no nvcc'
no_gpu=
gpu=$(nvidia-smi --query-gpu=name,driver_version,compute_cap,memory.total --format=csv,noheader 2>/dev/null | head -n 1)
[ -n "$gpu" ] || no_gpu='there is no GPU (nvidia-smi finds none)'
no_torch=
"$python" -c 'import torch' 2>/dev/null || no_torch="$python has no torch"
no_torch_gpu=$no_torch
[ -n "$no_torch" ] || "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null ||
    no_torch_gpu="$python's torch finds no GPU"
no_sanitizer=
command -v compute-sanitizer >/dev/null || no_sanitizer='there is no compute-sanitizer'

# first TEXT...: the first that is not empty.
first() {
    for text in "$@"; do
        if [ -n "$text" ]; then
            echo "$text"
            return
        fi
    done
}

# missing PROGRAM: why it cannot be run.
missing() {
    [ -x "$1" ] || echo "$1 is not built"
}

# ---- parts

json_text() { # a string of JSON, on one line
    printf '"%s"' "$(printf '%s' "$1" | tr '\n\t' '  ' | tr -d '\000-\037' | sed 's/\\/\\\\/g; s/"/\\"/g')"
}

failed=0
parts= # JSON objects, with commas between them
table= # rows of Markdown

# report NAME RESULT SECONDS DETAIL
report() {
    printf '%-24s %-8s %4d s  %s\n' "$1" "$2" "$3" "$4"
    parts="$parts${parts:+,
  }{\"name\": \"$1\", \"result\": \"$2\", \"seconds\": $3, \"detail\": $(json_text "$4")}"
    table="$table| $1 | $2 | $3 | $(printf '%s' "$4" | tr '|' '/') |
"
}

# What a part's output says in short: why it was skipped, the counts of a test program, or its last line.
summary() {
    first "$(sed -n 's/^skipped: *//p' "$1" | head -n 1)" \
        "$(grep '^[0-9][0-9]* passed, [0-9][0-9]* failed' "$1" | tail -n 1)" \
        "$(grep -v -e '^ *$' -e '^[#|]' "$1" | tail -n 1 | cut -c 1-200)"
}

# part NAME SECONDS WHY_NOT COMMAND...: runs the command for at most that long, unless WHY_NOT says why it cannot run. What
# it says goes to NAME.txt.
part() {
    name=$1 limit=$2 why=$3
    shift 3
    if [ -n "$chosen" ]; then
        wanted=
        for prefix in $chosen; do
            case $name in "$prefix"*) wanted=1 ;; esac
        done
        [ -n "$wanted" ] || return 0
    fi
    begin=$(now)
    left=$((start + seconds - begin))
    [ -n "$why" ] || [ "$left" -ge 5 ] || why='no time is left'
    if [ -n "$why" ]; then
        report "$name" skipped 0 "$why"
        return 0
    fi
    [ "$limit" -le "$left" ] || limit=$left
    timeout -k 5 "$limit" "$@" >"$output/$name.txt" 2>&1 </dev/null
    code=$?
    took=$(($(now) - begin))
    said=$(summary "$output/$name.txt")
    case $code in
    0)
        result=passed
        ! grep -q '^skipped:' "$output/$name.txt" || result=skipped
        report "$name" "$result" "$took" "$said"
        ;;
    124 | 137)
        failed=$((failed + 1))
        report "$name" timeout "$took" "stopped after $limit s: $said"
        ;;
    *)
        failed=$((failed + 1))
        report "$name" failed "$took" "exit code $code: $said"
        ;;
    esac
}

# bench NAME SECONDS MODEL MODES CONFIG...: our trainer beside PyTorch.
bench() {
    bench_name=bench-$1 bench_limit=$2 model=$3 modes=$4
    shift 4
    for config in "$@"; do
        shift
        set -- "$@" --config "$config"
    done
    part "$bench_name" "$bench_limit" "$(first "$no_gpu" "$no_torch_gpu" "$(missing "./train_${model}cu")")" \
        "$python" dev/bench/pytorch_peer.py measure "$model" --modes "$modes" --json "$output/$bench_name.json" "$@"
}

# sanitize TOOL SECONDS PROGRAM [CASE]
sanitize() {
    sanitizer_tool=$1 sanitizer_limit=$2
    shift 2
    part "$sanitizer_tool-$(basename "$1" cu)" "$sanitizer_limit" "$(first "$no_gpu" "$no_sanitizer" "$(missing "$1")")" \
        compute-sanitizer --tool "$sanitizer_tool" --target-processes all --error-exitcode 9 "$@"
}

echo "${gpu:-$no_gpu}"
architecture=$(printf '%s' "$gpu" | cut -d, -f3 | tr -cd 0-9)
part build 200 "$no_nvcc" make -j"$(nproc)" CUDA_ARCHS="${architecture:-90}" train_fastformercu train_gpt2cu test_fastformercu test_gpt2cu test_layerscu test_attentioncu
for name in layers attention fastformer gpt2; do
    part "test-$name" 60 "$(first "$no_gpu" "$(missing "./test_${name}cu")")" "./test_${name}cu"
done
device=cuda
[ -z "$no_torch_gpu" ] || device=cpu
part pytorch-check 40 "$no_torch" "$python" dev/bench/pytorch_peer.py check --device "$device"
part gpu 30 "$(first "$no_gpu" "$no_torch_gpu")" "$python" dev/bench/pytorch_peer.py gpu --json "$output/gpu.json"
for model in fastformer gpt2; do
    bench "seed-$model" 90 "$model" eager-bf16,compile-bf16,graphs-bf16 B=2,T=2048
done
bench 124m-gpt2 90 gpt2 eager-bf16,compile-bf16 B=16,T=1024,C=768,H=12,L=12,V=50257
for model in fastformer gpt2; do # the same number of tokens a step at each length
    bench "lengths-$model" 60 "$model" '' B=128,T=512 B=32,T=2048 B=8,T=8192 B=2,T=32768 B=1,T=65536
done
for model in fastformer gpt2; do
    bench "b32-$model" 90 "$model" compile-bf16 B=32,T=2048
done
for name in layers attention; do
    sanitize memcheck 40 "./test_${name}cu"
    sanitize racecheck 40 "./test_${name}cu"
done
bench long-fastformer 90 fastformer eager-bf16,compile-bf16 B=1,T=65536

# ---- the report

{
    printf '# GPU check\n\n%s\n\n' "$(first "$gpu" "$no_gpu")"
    [ ! -f "$output/gpu.txt" ] || sed 's/^/    /' "$output/gpu.txt"
    printf '\n| part | result | s | |\n|---|---|---|---|\n%s\n' "$table"
    for file in "$output"/bench-*.txt; do
        [ ! -f "$file" ] || sed -n 's/^###.*/\n&\n/p; /^|/p' "$file"
    done
} >"$output/gpu_check.md"
{
    printf '{"gpu": %s,\n "machine": ' "$(json_text "$gpu")"
    if [ -f "$output/gpu.json" ]; then cat "$output/gpu.json"; else printf null; fi
    printf ',\n "parts": [\n  %s],\n "benchmarks": [' "$parts"
    comma=
    for file in "$output"/bench-*.json; do
        [ ! -f "$file" ] || { printf '%s' "$comma" && sed '1s/^\[//; $s/\]$//' "$file" && comma=,; }
    done
    printf ']}\n'
} >"$output/gpu_check.json"
echo "$output/gpu_check.md"
echo "$output/gpu_check.json"
[ "$failed" -eq 0 ]
