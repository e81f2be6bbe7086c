#!/bin/sh
# Measures every speed that README.md reports on this machine and writes a report.
#
#   dev/bench/run.sh [--quick] [--output DIR] [--python PYTHON] [--lock COMMAND] [--again] [PART...]
#
# Parts: peak products steps threads layers decoding fastformer gpt2 lengths hybrids models large
# (default: all; with --quick all but large). Each part writes DIR/parts/PART*.json (default DIR:
# runs/speed). Existing parts are not measured again, so an interrupted call resumes; --again
# measures them again. DIR/report.md, DIR/results.json and the plots are then made from all existing
# parts. --quick takes 12 minutes on two Zen 5 cores and half an hour on two Zen 4 cores. PYTHON
# needs torch, and transformers for GPT-2; without them only our own programs are measured. COMMAND,
# such as 'flock FILE', is put before each measurement, for machines that several people share.
set -eu
start=$PWD
cd "$(dirname "$0")/../.."
# shellcheck source=scripts/common.sh
. scripts/common.sh

usage() {
    sed -n '4s/^# *//p' "dev/bench/${0##*/}" >&2
    exit 2
}
case ${1-} in
-h | --help)
    sed -n '2,/^set/s/^# \{0,1\}//p' "dev/bench/${0##*/}"
    exit 0
    ;;
esac

all='peak products steps threads layers decoding fastformer gpt2 lengths hybrids models large'
full=1
quick=
out=runs/speed
python=python3
lock=
again=
while [ $# -gt 0 ]; do
    case $1 in
    --quick) full='' quick=1 ;;
    --again) again=1 ;;
    --output | --python | --lock)
        [ -n "${2-}" ] || usage
        case $1 in
        --output) out=$(from_start "$2") ;;
        --python) python=$(from_start "$(command -v "$2" || echo "$2")") ;;
        --lock) lock=$2 ;;
        esac
        shift
        ;;
    -*) usage ;;
    *) break ;;
    esac
    shift
done
# In quick mode GPT-2 124M alone would take half as long as everything else.
# shellcheck disable=SC2086 # one word a part
[ $# -gt 0 ] || set -- ${full:+$all}${quick:+${all% large}}
for part in "$@"; do
    case " $all " in
    *" $part "*) ;;
    *) usage ;;
    esac
done

# due NAME: succeeds and prints NAME if that file is still to be measured.
due() {
    case " $fresh " in *" $1 "*) return 1 ;; esac
    [ -n "$again" ] || [ ! -s "$out/parts/$1" ] || return 1
    fresh="$fresh $1"
    echo "$1" >&2
}
fresh=

# keep NAME COMMAND...: writes the command's standard output to that file if it succeeds.
keep() {
    name=$1
    shift
    "$@" >"$out/parts/$name.tmp" || fail "$name: ended with exit code $?"
    mv "$out/parts/$name.tmp" "$out/parts/$name"
}

# ours NAME PROGRAM ARGUMENT...: runs a program of `make bench`, which prints a line of JSON per
# measurement.
ours() {
    due "$1" || return 0
    name=$1 program=$2
    shift 2
    # shellcheck disable=SC2086 # a command with its arguments
    keep "$name" $lock "$build/bench/$program" "$@"
}

# a_step NAME ARGUMENT...: measures one trainer alone.
a_step() {
    due "$1" || return 0
    name=$1
    shift
    keep "$name" "$python" -B dev/bench/step.py --build "$build/bin" --lock "$lock" "$@"
}

# peers NAME CONTENDERS ARGUMENT...: compares with PyTorch.
peers() {
    due "$1" || return 0
    name=$1 contenders=$2
    shift 2
    "$python" -B dev/bench/peers.py --build "$build/bin" --built-in "$built_in/bin" --lock "$lock" \
        --contenders "$contenders" --json "$out/parts/$name.tmp" --rounds "$rounds" --seconds "$seconds" "$@" >&2 || fail "$name: ended with exit code $?"
    mv "$out/parts/$name.tmp" "$out/parts/$name"
}

# offered PATTERN,...: prints the contenders, without bf16 if this processor has no bf16 products.
offered() {
    case $precisions in
    *bf16*) echo "$1" ;;
    *) echo "$1" | tr , '\n' | grep -v bf16 | paste -sd, - ;;
    esac
}

# ---- the parts

measure_peak() {
    ours peak.json peak
}

measure_products() {
    ours products.json gemm "${full:+20}${quick:+5}"
}

measure_steps() {
    steps=${full:+30}${quick:+10}
    for model in fastformer gpt2; do
        for precision in $precisions; do
            a_step "steps-$model-$precision.json" --model $model --precision $precision --steps "$steps"
        done
    done
    [ ! -f data/wikitext2/meta.json ] || a_step steps-wikitext2.json --input data/wikitext2 --precision $fast --steps "$steps"
}

# Both models with 1, 2, 4, ... threads, up to one per core.
measure_threads() {
    cores=$(nproc) threads=1
    while [ "$threads" -lt $((2 * cores)) ]; do
        [ "$threads" -le "$cores" ] || threads=$cores
        for model in fastformer gpt2; do
            a_step "threads-$model-$(printf %03d "$threads").json" --model $model --precision $fast --threads "$threads" \
                --steps "${full:+10}${quick:+5}"
        done
        threads=$((2 * threads))
    done
}

measure_layers() {
    for precision in $precisions; do
        ours layers-$precision.json layers -p $precision
    done
}

measure_decoding() {
    far=${full:+1000000}${quick:+100000}
    for windows in auto global; do
        for streams in 1 4; do
            for position in 100 "$far"; do
                ours "decoding-$windows-$streams-$position.json" decode \
                    --windows $windows --streams $streams --at "$position"
            done
        done
    done
    for streams in 1 4; do # weights that no cache holds
        ours "decoding-large-$streams.json" decode --streams $streams --tokens 50 \
            -L 12 -C 768 -H 12 --vocabulary 50304
    done
}

measure_fastformer() {
    modes="fastformer/published/eager-fp32,fastformer/*/compile-fp32,fastformer/*/compile-bf16"
    peers fastformer.json "$(offered "fastformer/c*/fp32,fastformer/c*/bf16,$modes")${full:+,fastformer/ours/eager-*}"
}

measure_gpt2() {
    modes="gpt2/ours/compile-fp32,gpt2/flash/compile-fp32,gpt2/ours/compile-bf16,gpt2/flash/compile-bf16"
    peers gpt2.json "$(offered "gpt2/c/fp32,gpt2/c/bf16,$modes")${full:+,gpt2/huggingface/compile-*,gpt2/*/eager-*}"
}

# The same number of tokens per step at each length: 16,384 compared with PyTorch, 65,536 alone.
measure_lengths() {
    peers lengths-peers.json "fastformer/c/$fast,fastformer/*/compile-$fast,gpt2/c/$fast,gpt2/flash/compile-$fast" \
        --config T=16384,B=1 --lengths "${full:+512,2048,8192,}16384" --rounds "$few_rounds"
    peers lengths-ours.json "fastformer/c/$fast" --config T=65536,B=1 \
        --lengths "512,${full:+2048,}8192,${full:+16384,32768,}65536" --rounds "$few_rounds"
}

# Models that mix attention kinds, at the size of scripts/run_fair.sh and in layers as wide as GPT-2
# 124M's, where attention over all tokens is a smaller part of the work.
measure_hybrids() {
    for size in narrow:L=4,C=128,H=4,V=8192 ${full:+wide:L=4,C=768,H=12,V=8192}; do
        peers "hybrids-${size%%:*}.json" 'hybrid*/c/auto,windows*/c/auto,softmax/c/auto' --config "T=8192,B=1,${size#*:}" \
            --lengths 512,8192 --rounds "$few_rounds"
    done
}

# Our two models in the default precision. A step of GPT-2 with 65,536 tokens takes minutes.
measure_models() {
    peers models.json 'fastformer/c/auto,gpt2/c/auto' --config T=16384,B=1 --lengths 512,2048,8192,16384 --rounds "$few_rounds"
    for T in ${full:+32768 65536}; do
        peers "models-$T.json" 'fastformer/c/auto,gpt2/c/auto' --config "T=$T,B=1" --rounds "$few_rounds"
    done
}

# GPT-2 124M, which needs 16 GB.
measure_large() {
    peers large.json "gpt2/c/$fast,gpt2/ours/compile-$fast,gpt2/flash/compile-$fast" \
        --config B=4,T=1024,C=768,H=12,L=12,V=50304 --rounds "$few_rounds"
}

# ---- the report

report() {
    "$python" -B dev/bench/report.py "$out/parts" --json "$out/results.json" --plot "$out" >"$out/report.md"
    echo "$out/report.md"
    echo "$out/results.json"
}

# ---- main

rounds=${full:+5}${quick:+3} few_rounds=${full:+3}${quick:+2} seconds=${full:+3}${quick:+1}
mkdir -p "$out/parts"
# shellcheck disable=SC2016 # make's variable
build=$(make -s --eval='where:;@echo $(FLOAT)' where) built_in=$(make -s ONEDNN=0 --eval='where:;@echo $(FLOAT)' where)
make "$build/bin/train_fastformer" "$build/bin/train_gpt2" bench >&2
make ONEDNN=0 "$built_in/bin/train_fastformer" "$built_in/bin/train_gpt2" >&2
# The trainers refuse bf16 if the processor has no bf16 products.
precisions='bf16 fp32' fast=bf16
if ! "$build/bin/train_fastformer" -p bf16 -x 1 -b 1 -t 8 -C 8 -L 1 --no-test -o "$tmp/bf16" >"$tmp/bf16.txt" 2>&1; then
    grep -q 'no bf16 products' "$tmp/bf16.txt" || fail "train_fastformer -p bf16: $(tail -1 "$tmp/bf16.txt")"
    precisions=fp32 fast=fp32
    echo 'this processor has no bf16 products: float32 alone is measured' >&2
fi
# Keeps PyTorch's compiled code for the next call.
export TORCHINDUCTOR_CACHE_DIR="${TORCHINDUCTOR_CACHE_DIR:-$PWD/build/pytorch}"
for part in "$@"; do "measure_$part"; done
report
