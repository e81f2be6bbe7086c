#!/bin/sh
# Builds the CUDA programs, tests them on the GPU and compares their speed with PyTorch's; see usage
# below. Each part has a time limit, so that one that hangs does not stop the others. A part that
# cannot run prints the reason. Measurements are printed immediately, and the report is rewritten
# after each part, so that they survive an early end of the script. The report is gpu_check.md,
# gpu_check.json and, with the output of the parts, gpu_check.tar.gz.
set -u
export LC_ALL=C PYTHONDONTWRITEBYTECODE=1
cd "$(dirname "$0")/.." || exit 1

usage() {
    cat <<'END'
usage: scripts/gpu_check.sh [-o DIR] [-t SECONDS] [-p PYTHON] [-b DIR] [-l PROGRAM]... [PART...]

  -o DIR      the report; default: runs/gpu_check
  -t SECONDS  of all parts together; default: 530. Parts for which no time is left are skipped
  -p PYTHON   that has torch; default: python3
  -b DIR      CUDA programs that were built elsewhere, with `make ARCH=x86-64-v3`; nothing is built then
  -l PROGRAM  llm.c's train_gpt2cu, for llmc-gpt2, maybe with options of its own; any number. In a clone of karpathy/llm.c:
              make train_gpt2cu NO_MULTI_GPU=1 NO_USE_MPI=1 GPU_COMPUTE_CAPABILITY=90 [USE_CUDNN=1]
  PART...     only parts whose names begin so

These calls, of nine minutes at most, do everything; each is of use alone:

  scripts/gpu_check.sh -o runs/gpu_check_1 build test gpu lengths
  scripts/gpu_check.sh -o runs/gpu_check_2 seed b32
  scripts/gpu_check.sh -o runs/gpu_check_3 124m long memcheck racecheck
  scripts/gpu_check.sh -o runs/gpu_check_4 build decode output windows
  scripts/gpu_check.sh -o runs/gpu_check_5 -l llm.c/train_gpt2cu build llmc
END
}

die() {
    printf 'gpu_check.sh: %s\n' "$1" >&2
    exit 2
}

output=runs/gpu_check
seconds=530
python=python3
programs=
llmc= # one per line
[ "${1-}" != --help ] || { usage && exit 0; }
while getopts o:t:p:b:l:h option; do
    case $option in
    o) output=$OPTARG ;;
    t) seconds=$OPTARG ;;
    p) python=$OPTARG ;;
    b) programs=$OPTARG ;;
    l)
        llmc="$llmc$OPTARG
"
        ;;
    h) usage && exit 0 ;;
    *) usage >&2 && exit 2 ;;
    esac
done
shift $((OPTIND - 1))
chosen=$*
case $seconds in '' | *[!0-9]*) die "-t $seconds: expected seconds" ;; esac
[ -z "$programs" ] || programs=$(cd "$programs" && pwd) || die "-b: no such directory"
mkdir -p "$output" || die "$output: cannot be made"
output=$(cd "$output" && pwd)
said=$(mktemp -d) # NAME.txt, NAME.json of every part
trap 'rm -rf "$said"' EXIT
trap 'exit 130' HUP INT TERM
exec 4>&1 # where rows are shown

now() { # seconds since the machine started
    cut -d. -f1 /proc/uptime
}
start=$(now)

# ---- what is available: empty, or the reason why not

PATH=$PATH:/usr/local/cuda/bin
no_nvcc=
if [ -n "$programs" ]; then
    no_nvcc="programs of $programs"
else
    programs=$PWD
    command -v nvcc >/dev/null || no_nvcc='there is no nvcc'
fi
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

# Succeeds if the toolkit, or this system, has cuBLASLt to link with.
has_cublas() {
    cuda=$(command -v nvcc) && cuda=${cuda%/bin/nvcc}
    [ -e "${cuda:-/usr/local/cuda}/lib64/libcublasLt.so" ] && [ -e "${cuda:-/usr/local/cuda}/include/cublasLt.h" ]
}

# Otherwise uses cuBLASLt of PyTorch's wheels, under the names that compilers look for.
if ! has_cublas; then
    wheel=$("$python" -c 'import nvidia; print("\n".join(nvidia.__path__))' 2>/dev/null | while read -r root; do
        find "$root" -name 'libcublasLt.so.[0-9]*' | sort | tail -n 1
    done | tail -n 1)
    if [ -n "$wheel" ]; then
        mkdir "$said/lib"
        ln -s "$wheel" "$said/lib/libcublasLt.so"
        headers=$(find "${wheel%/lib/*}" -name cublasLt.h -exec dirname {} \; | head -n 1)
        export LIBRARY_PATH="$said/lib${LIBRARY_PATH:+:$LIBRARY_PATH}" CPATH="$headers${CPATH:+:$CPATH}"
        export LD_LIBRARY_PATH="${wheel%/*}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
        echo "cuBLASLt of PyTorch: $wheel"
    fi
fi

# first TEXT...: prints the first text that is not empty.
first() {
    for text in "$@"; do
        if [ -n "$text" ]; then
            echo "$text"
            return
        fi
    done
}

# missing PROGRAM: prints why it cannot run, or nothing.
missing() {
    [ -x "$programs/$1" ] || echo "$1 is not built"
}

# ---- the report

json_text() { # a string of JSON, on one line
    printf '"%s"' "$(printf '%s' "$1" | tr '\n\t' '  ' | tr -d '\000-\037' | sed 's/\\/\\\\/g; s/"/\\"/g')"
}

failed=0
parts= # JSON objects, with commas between them
table= # rows of Markdown

markdown() {
    printf '# GPU check\n\n%s\n\n' "$(first "$gpu" "$no_gpu")"
    [ ! -f "$said/gpu.txt" ] || sed 's/^/    /' "$said/gpu.txt"
    printf '\n| part | result | s | |\n|---|---|---|---|\n%s\n' "$table"
    for file in "$said"/*.txt; do
        [ ! -f "$file" ] || sed -n 's/^###.*/\n&\n/p; /^|/p' "$file"
    done
}

json() {
    printf '{"gpu": %s,\n "machine": ' "$(json_text "$gpu")"
    if [ -f "$said/gpu.json" ]; then cat "$said/gpu.json"; else printf null; fi
    printf ',\n "parts": [\n  %s],\n "benchmarks": [' "$parts"
    comma=
    for file in "$said"/*.json; do
        case $file in */gpu.json | *'*'*) continue ;; esac
        printf '%s' "$comma" && sed '1s/^\[//; $s/\]$//' "$file" && comma=,
    done
    printf ']}\n'
}

# replace FILE COMMAND...: replaces FILE by the command's output, completely or not at all.
replace() {
    replaced=$1
    shift
    "$@" >"$replaced.new" && mv "$replaced.new" "$replaced"
}

write_report() {
    replace "$output/gpu_check.md" markdown
    replace "$output/gpu_check.json" json
    replace "$output/gpu_check.tar.gz" tar -C "$said" --exclude lib -czf - .
}

# report NAME RESULT SECONDS DETAIL
report() {
    printf '%-24s %-8s %4d s  %s\n' "$1" "$2" "$3" "$4"
    parts="$parts${parts:+,
  }{\"name\": \"$1\", \"result\": \"$2\", \"seconds\": $3, \"detail\": $(json_text "$4")}"
    table="$table| $1 | $2 | $3 | $(printf '%s' "$4" | tr '|' '/') |
"
    write_report
}

# ---- parts

# Prints a part's output in short: why it was skipped, a test program's counts, or its last line.
summary() {
    first "$(sed -n 's/^skipped: *//p' "$1" | head -n 1)" \
        "$(grep '^[0-9][0-9]* passed, [0-9][0-9]* failed' "$1" | tail -n 1)" \
        "$(grep -v -e '^ *$' -e '^[#|]' "$1" | tail -n 1 | cut -c 1-200)"
}

# part NAME SECONDS WHY_NOT COMMAND...: runs the command for at most that time, unless WHY_NOT says
# why it cannot run. Its output goes to NAME.txt; headings and table rows are also printed.
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
    code=$({
        { timeout -k 5 "$limit" "$@" 2>&1 </dev/null 3>&- 4>&- || echo $? >&3; } |
            tee "$said/$name.txt" | sed -u -n '/^###/p; /^|/p' >&4
    } 3>&1)
    code=${code:-0}
    took=$(($(now) - begin))
    detail=$(summary "$said/$name.txt")
    case $code in
    0)
        result=passed
        ! grep -q '^skipped:' "$said/$name.txt" || result=skipped
        report "$name" "$result" "$took" "$detail"
        ;;
    124 | 137)
        failed=$((failed + 1))
        report "$name" timeout "$took" "stopped after $limit s: $detail"
        ;;
    *)
        failed=$((failed + 1))
        report "$name" failed "$took" "exit code $code: $detail"
        ;;
    esac
}

# peers NAME SECONDS WHY_NOT MODEL MODES OPTION...: compares our trainer with PyTorch.
peers() {
    peers_name=$1 peers_limit=$2 peers_why=$3 model=$4 modes=$5
    shift 5
    part "$peers_name" "$peers_limit" "$(first "$no_gpu" "$no_torch_gpu" "$(missing "train_${model}cu")" "$peers_why")" \
        "$python" dev/bench/pytorch_peer.py measure "$model" --build "$programs" --modes "$modes" --json "$said/$peers_name.json" "$@"
}

# bench NAME SECONDS MODEL MODES CONFIG...: the same comparison in these sizes.
bench() {
    bench_name=$1 bench_limit=$2 model=$3 modes=$4
    shift 4
    for config in "$@"; do
        shift
        set -- "$@" --config "$config"
    done
    peers "$bench_name" "$bench_limit" '' "$model" "$modes" "$@"
}

# sanitize TOOL SECONDS NAME
sanitize() {
    part "$1-$3" "$2" "$(first "$no_gpu" "$no_sanitizer" "$(missing "test_${3}cu")")" \
        compute-sanitizer --tool "$1" --target-processes all --error-exitcode 9 "$programs/test_${3}cu"
}

echo "${gpu:-$no_gpu}"
architecture=$(printf '%s' "$gpu" | cut -d, -f3 | tr -cd 0-9)

# The limits of each call add up to 530 s. Those of the first add up to 695 s, more than its parts
# take unless one hangs.
part build 200 "$no_nvcc" make -j"$(nproc)" CUDA_ARCHS="${architecture:-90}" train_fastformercu train_gpt2cu \
    train_llamacu test_layerscu test_attentioncu test_fastformercu test_gpt2cu test_llamacu test_bertcu test_translatecu
for name in layers attention fastformer gpt2 llama bert translate; do
    part "test-$name" 45 "$(first "$no_gpu" "$(missing "test_${name}cu")")" "$programs/test_${name}cu"
done
device=cuda
[ -z "$no_torch_gpu" ] || device=cpu
part test-pytorch 30 "$no_torch" "$python" dev/bench/pytorch_peer.py check --device "$device"
part gpu 20 "$(first "$no_gpu" "$no_torch_gpu")" "$python" dev/bench/pytorch_peer.py gpu --json "$said/gpu.json"
for model in fastformer gpt2; do # the same number of tokens per step at each length
    bench "lengths-$model" 65 "$model" '' B=128,T=512 B=32,T=2048 B=8,T=8192 B=2,T=32768 B=1,T=65536
done

for model in fastformer gpt2; do
    bench "seed-$model" 165 "$model" eager-bf16,compile-bf16,graphs-bf16 B=2,T=2048
done
# steps NAME SECONDS WHY_NOT PROGRAM OPTION...: prints the tokens/s of a trainer on the embedded
# corpus.
steps() {
    steps_name=$1 steps_limit=$2 steps_why=$3
    shift 3
    # shellcheck disable=SC2016
    part "$steps_name" "$steps_limit" "$(first "$no_gpu" "$steps_why")" sh -c 'run=$0; "$@" -o "$run" &&
        echo "tokens/s: $(grep -o "\"tokens_per_s\":[0-9.]*" "$run/log.jsonl" | tail -n 1)"' "$said/run-$steps_name" "$@"
    rm -rf "$said/run-$steps_name"
}
for optimizer in adamw muon; do
    steps "seed-$optimizer" 10 "$(missing train_fastformercu)" "$programs/train_fastformercu" -t 2048 -x 200 --optimizer $optimizer
done
steps seed-llama 10 "$(missing train_llamacu)" "$programs/train_llamacu" -t 2048 -x 200 --kv-heads 2
# Two evaluations that also measure activations.
steps decode-stats 15 "$(missing train_gpt2cu)" "$programs/train_gpt2cu" -t 2048 -x 20 -v 10 -m 4 --stats 4
# Softmax in windows, compared with FlexAttention, which has no dropout of attention weights.
peers windows-gpt2 100 '' gpt2 compile-bf16 --config B=8,T=8192 --config B=1,T=65536 --window 256 --dropout 0
# The output layer with logits in memory and without.
peers output-chunks 25 '' fastformer '' --config B=32,T=2048
peers output-fused 25 '' fastformer '' --config B=32,T=2048 --options=--fused-output
peers output-chunks-256 25 '' fastformer '' --config B=32,T=2048,C=256
peers output-fused-256 25 '' fastformer '' --config B=32,T=2048,C=256 --options=--fused-output
# Generates texts in parallel with an untrained model.
# shellcheck disable=SC2016
part decode 30 "$(first "$no_gpu" "$(missing train_fastformercu)")" sh -c '
    "$1" -t 2048 -x 1 -m 1 -o "$0" >/dev/null || exit 1
    printf "### Decoding, %s\n\n| texts side by side | tokens/s |\n|---|---|\n" "${1##*/}"
    for texts in 1 64 1024; do
        "$1" -e "$0" --prompt int -g 1000 --temperature 0 --samples $texts 2>&1 >/dev/null |
            sed -n "s/.* tokens, \([0-9]*\) per second.*/| $texts | \1 |/p"
    done' "$said/run-decode" "$programs/train_fastformercu"
rm -rf "$said/run-decode"
for model in fastformer gpt2; do
    bench "b32-$model" 85 "$model" compile-bf16 B=32,T=2048
done

gpt2_124m=B=32,T=1024,C=768,H=12,L=12,V=50257
bench 124m-gpt2 150 gpt2 compile-bf16,eager-bf16 $gpt2_124m
bench long-fastformer 100 fastformer compile-bf16,eager-bf16 B=1,T=65536
for tool in memcheck racecheck; do
    for name in layers attention; do
        sanitize "$tool" 70 "$name"
    done
done

# Compares llm.c with our trainer and PyTorch, without dropout, which llm.c does not have.
no_llmc=
[ -n "$llmc" ] || no_llmc="no program of llm.c's is named (-l)"
set --
while read -r program; do
    [ -z "$program" ] || set -- "$@" --llmc "$program"
done <<END
$llmc
END
peers llmc-gpt2 200 "$no_llmc" gpt2 compile-bf16 --dropout 0 --config $gpt2_124m "$@"

write_report
for file in md json tar.gz; do echo "$output/gpu_check.$file"; done
[ "$failed" -eq 0 ]
