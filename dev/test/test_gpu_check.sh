#!/bin/sh
# Tests scripts/gpu_check.sh without a GPU, with stand-ins that print what the real programs would.
set -u
cd "$(dirname "$0")/../.." || exit 1
# shellcheck source=dev/test/stand_ins.sh
. dev/test/stand_ins.sh

mkdir "$directory/bin" "$directory/none"
echo 'echo "Fake GPU, 550.1, 9.0, 81559 MiB"' | fake bin/nvidia-smi
echo 'echo ERROR SUMMARY: 0 errors' | fake bin/compute-sanitizer
echo 'echo "7 passed, 0 failed"' | fake test_layerscu
echo 'echo "6 passed, 1 failed"; exit 1' | fake test_attentioncu
echo 'echo "skipped: not today"; echo "0 passed, 0 failed, 9 skipped"' | fake test_gpt2cu
echo 'echo one row; sleep 60' | fake test_fastformercu
fake train_fastformercu <<'END'
while [ "$1" != -o ]; do shift; done
mkdir "$2" && echo '{"step":200,"tokens_per_s":1234.5}' >"$2/log.jsonl"
END
fake python <<'END'
case "$*" in -c*) exit 0 ;; esac
while [ $# -gt 0 ]; do
    [ "$1" != --json ] || json=$2
    [ "$1" != measure ] || echo "[{\"model\": \"$2\", \"results\": []}]" >rows
    shift
done
case $json in */gpu.json) echo '{"gpu": "Fake"}' >"$json" && exit 0 ;; esac
printf '### fastformer: B 2\n\n| | ms/step |\n|---|---|\n| ours | 1.300 |\n'
mv rows "$json"
END
sed -i 's|>rows|>'"$directory"'/rows|; s|mv rows|mv '"$directory"'/rows|' "$directory/python"

# run DIR ARGUMENT...: runs gpu_check.sh with -o DIR; its output goes to DIR.txt.
run() {
    to=$1
    shift
    PATH=$directory/bin:$PATH scripts/gpu_check.sh -b "$directory" -p "$directory/python" -o "$directory/$to" "$@" >"$directory/$to.txt" 2>&1
}

# says FILE TEXT
says() {
    grep -qF -e "$2" "$directory/$1"
}

is_json() {
    ! command -v python3 >/dev/null || python3 -m json.tool "$1" >/dev/null
}

run all -t 12 test memcheck
check 'a failed part fails the run' [ $? -eq 1 ]
check 'passed' says all/gpu_check.md '| test-layers | passed |'
check 'failed' says all/gpu_check.md '| test-attention | failed |'
check 'stopped' says all/gpu_check.md '| test-fastformer | timeout |'
check 'no time left' says all.txt 'no time is left'
check 'JSON' is_json "$directory/all/gpu_check.json"
check 'at most eight files' [ "$(find "$directory/all" -type f | wc -l)" -le 8 ]
check 'what parts said' sh -c "tar -xzOf '$directory/all/gpu_check.tar.gz' ./test-fastformer.txt | grep -q '^one row$'"

run some test-gpt2 gpu seed
check 'skipped' says some/gpu_check.md '| test-gpt2 | skipped | 0 | not today |'
check 'what is not built' says some.txt 'train_gpt2cu is not built'
check 'the machine' says some/gpu_check.json '"machine": {"gpu": "Fake"}'
check 'a row is shown' says some.txt '| ours | 1.300 |'
check 'chosen parts' says some/gpu_check.md '| seed-fastformer | passed |'
check 'steps of an optimiser' says some/gpu_check.md 'tokens/s: "tokens_per_s":1234.5'
check 'rows in the report' says some/gpu_check.md '| ours | 1.300 |'
check 'benchmarks' says some/gpu_check.json '{"model": "fastformer"'
check 'no others' sh -c "! grep -q test-layers '$directory/some.txt'"
check 'JSON of some' is_json "$directory/some/gpu_check.json"

echo 'exit 9' | fake none/nvidia-smi
PATH=$directory/none:/usr/bin:/bin scripts/gpu_check.sh -b "$directory/none" -o "$directory/without" -p false >"$directory/without.txt" 2>&1
check 'nothing fails without a GPU' [ $? -eq 0 ]
check 'why' says without.txt 'there is no GPU (nvidia-smi finds none)'
scripts/gpu_check.sh -t soon >/dev/null 2>&1
check 'usage' [ $? -eq 2 ]
window_counts() { # without PyTorch
    python3 -B -c 'import sys, types
sys.path.insert(0, "dev/bench")
sys.modules.update({name: types.ModuleType(name) for name in ("torch", "pytorch_models")})
import pytorch_peer as peer
sizes = {"B": 1, "T": 65536, "C": 128, "H": 4, "L": 6, "V": 32000}
layers = (12 * 128 ** 2, 2 * 128 * 256, 2 * 128 * 32768)
row = {"contender": "ours", "ms": 1000}
peer.bytes_per_step = lambda *_: 0
peer.complete(row, 1000, "gpt2", sizes, {"peak_flops": 1, "peak_bandwidth": 1}, 256)
assert row["share_of_peak"] == 65536 * 6 * (6 * (layers[0] + layers[1]) + 32000 * 128), row
assert peer.flops_per_token("gpt2", sizes) == 6 * (6 * (layers[0] + layers[2]) + 32000 * 128)
assert ", window 256, --x\n" in peer.markdown_head("gpt2", sizes, 0.1, 256, "--x")'
}
! command -v python3 >/dev/null || check 'a window counts as such' window_counts

finish
