#!/bin/sh
# Trains a model that writes like a text, in about three minutes on two cores, and makes its page.
# Default text: Tiny Shakespeare (TINYSHAKESPEARE_DIR, ../shared/data/tinyshakespeare or network).
#
#   scripts/run_demo.sh [-f FILE] [-m MINUTES] [-o DIR]
#   scripts/run_demo.sh -n [-m MINUTES] [-o DIR]
#     -f FILE      train on this text
#     -n           Tiny Shakespeare with nanoGPT's split (90/10) and loss (nats per character)
#     -m MINUTES   training time (2.5; with -n: 3)
#     -o DIR       directory of data and run (runs/demo; with -n: runs/nanogpt)
#
# The same command resumes a stopped run.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
file=
minutes=
out=
nanogpt=
least=20000 # bytes of a text: of fewer no update can be made
usage() {
    sed -n '5,10s/^# *//p' "$root/scripts/run_demo.sh"
    exit "$1"
}
while [ $# -gt 0 ]; do
    case $1 in
    -f | -m | -o) [ $# -ge 2 ] || usage 2 >&2 ;;
    esac
    case $1 in
    -n)
        nanogpt=1
        shift
        continue
        ;;
    -f) file=$(realpath -m "$2") ;;
    -m) minutes=$2 ;;
    -o) out=$(realpath -m "$2") ;;
    -h | --help) usage 0 ;;
    *) usage 2 >&2 ;;
    esac
    shift 2
done
[ -z "$nanogpt" ] || [ -z "$file" ] || usage 2 >&2
: "${minutes:=${nanogpt:+3}}" "${minutes:=2.5}"
case $minutes in
*[!0-9.]* | *.*.*) usage 2 >&2 ;;
*[1-9]*) ;;
*) usage 2 >&2 ;;
esac
cd "$root"
. scripts/common.sh
. data/common.sh
: "${out:=runs/${nanogpt:+nanogpt}}"
[ "$out" != runs/ ] || out=runs/demo

prompt=''
if [ -z "$file" ]; then
    prompt=ROMEO:
    find_tinyshakespeare
    file=$text
fi
[ ! -d "$file" ] || fail "$file: is a directory, expected a text"
[ -f "$file" ] || fail "$file: no such file"
size=$(wc -c <"$file")
[ "$size" -ge "$least" ] || fail "$file: has $size bytes, expected a text of at least $least"
for program in tokenize train_fastformer; do
    [ -x "./$program" ] || make "$program" || fail "$program cannot be built"
done

mkdir -p "$out"
settings="text $(cksum <"$file"), $minutes minutes${nanogpt:+, as nanoGPT}"
[ ! -f "$out/settings" ] || [ "$(cat "$out/settings")" = "$settings" ] ||
    fail "$out: holds a run of another text, or with another -m or -n; choose another directory with -o"
echo "$settings" >"$out/settings"
set -- "$file"
recipe='--preset hybrid'
[ "$size" -ge 200000 ] || recipe='--preset tiny'
if [ -n "$nanogpt" ]; then
    recipe="$recipe --batch 4 --dropout 0 -v 400"
    head -c 1003854 "$file" >"$out/train.txt" # nine tenths of its characters
    tail -c +1003855 "$file" >"$out/val.txt"
    set -- --train "$out/train.txt" --val "$out/val.txt"
fi
grep -qs '"splits"' "$out/data/meta.json" || ./tokenize -o "$out/data" "$@"
resume=
[ ! -f "$out/run/log.jsonl" ] || resume=-y
# shellcheck disable=SC2086
./train_fastformer -i "$out/data" -o "$out/run" $resume $recipe --minutes "$minutes" --log-every 100
[ -f "$out/run/run.html" ] || exit 0 # stopped; the trainer said how to resume
if [ -n "$nanogpt" ]; then
    awk -F '"val_bpb":' '/"best":true/ { best = $2 + 0 } END {
        printf "\nvalidation loss: %.4f nats per character (nanoGPT: 1.88 in 3 minutes on a CPU, 1.47 on an A100)\n", best * log(2) }
    ' "$out/run/log.jsonl"
fi
echo
./train_fastformer -e "$out/run/best.safetensors" -i "$out/data" --prompt "$prompt" -g 200
echo
echo "$out/run/run.html: curves, samples and the model itself, in a browser"
