#!/bin/sh
# Tests that no result depends on how many threads OpenMP delivers: both trainers train, evaluate
# and generate text in float32 and bf16 under limits of every kind, and must give the results of two
# threads. Also tests that waiting threads sleep. Needs TRAINER, GPT2 and TOKENIZE, the programs.
# QUICK: only three threads, as requested and as a limit. The last line is "N passed, N failed".
trainers="$(realpath "${TRAINER:?}") $(realpath "${GPT2:?}")"
tokenize=$(realpath "${TOKENIZE:?}")
root=$(realpath "$(dirname "$0")/../..")
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
cd "$dir" || exit 1
# shellcheck source=dev/test/count.sh
. "$root/dev/test/count.sh"
unset GOMP_SPINCOUNT OMP_WAIT_POLICY KMP_BLOCKTIME KMP_USE_YIELD KMP_LIBRARY OMP_NUM_THREADS OMP_THREAD_LIMIT OMP_DYNAMIC OMP_NESTED OMP_MAX_ACTIVE_LEVELS OMP_PROC_BIND OMP_PLACES

# Settings, one per line. Those with a limit deliver fewer threads than OMP_NUM_THREADS asks for.
core=$(sed -n 's/^Cpus_allowed_list:[^0-9]*\([0-9]*\).*/\1/p' /proc/self/status) # the first that we may use
cat >settings <<END
OMP_NUM_THREADS=1
OMP_NUM_THREADS=3
OMP_NUM_THREADS=64
OMP_NUM_THREADS=2 OMP_THREAD_LIMIT=1
OMP_NUM_THREADS=64 OMP_THREAD_LIMIT=3
OMP_NUM_THREADS=64 OMP_DYNAMIC=true
OMP_NUM_THREADS=4 OMP_MAX_ACTIVE_LEVELS=0
OMP_NUM_THREADS=2,2 OMP_NESTED=true OMP_MAX_ACTIVE_LEVELS=3
OMP_NUM_THREADS=4 taskset -c $core
END
[ -z "${QUICK-}" ] || sed -i '/=3$/!d' settings

# results TRAINER PRECISION SETTING...: writes every loss and gradient norm of a short run, one
# number per line, and the text that the model generates into the file "results"
results() {
    program=$1
    numbers=$2
    shift 2
    rm -rf run results
    env "$@" "$program" -i data -o run -L 2 -C 128 -H 4 -b 3 -t 96 -x 2 -k constant -p "$numbers" >out 2>&1 </dev/null &&
        grep -o '"\(loss\|grad_norm\|val_loss\|test_loss\)":[0-9.e+-]*' run/log.jsonl | sed 's/.*://' >results &&
        env "$@" "$program" -i data -e run/best.safetensors -p "$numbers" --prompt "int " -g 8 --temperature 0 \
            >>results 2>out </dev/null
}

# agree: compares "results" with "expected". Without oneDNN they must be identical; oneDNN splits
# sums by the number of threads and may round them differently.
agree() {
    case $products in
    built-in*) cmp expected results ;;
    *) paste expected results | awk -F '\t' '{ d = $1 - $2; if (d < 0) d = -d }
           $1 ~ /^[0-9.e+-]+$/ ? !(d <= 1e-5 * $1) : $1 != $2 { print "expected " $1 ", found " $2; exit 1 }' ;;
    esac >out 2>&1
}

head -c 20000 "$root/dev/test/texts/shakespeare.txt" >text
"$tokenize" -o data --tokenizer byte text >out 2>&1 || { cat out; echo "0 passed, 1 failed"; exit 1; }
for trainer in $trainers; do
    for precision in fp32 bf16; do
        name="$(basename "$trainer") -p $precision"
        if ! results "$trainer" "$precision" OMP_NUM_THREADS=2; then
            grep -q 'no bf16 products' out && echo "skipped: $name, which this build or processor has not" && continue
            false
            ok "$name"
            continue
        fi
        mv results expected
        products=$(sed -n 's/.*"products":"\([^"]*\)".*/\1/p' run/log.jsonl)
        while read -r setting; do
            # shellcheck disable=SC2086
            results "$trainer" "$precision" $setting && agree expected results
            ok "$name: $setting"
        done <settings
    done
done

# look VARIABLE=VALUE COMMAND...: starts a trainer with the variable and runs the command in its
# /proc directory
look() {
    rm -rf run
    env "$1" "${trainers%% *}" -i data -o run -L 1 -C 16 -H 1 -b 3 -t 96 -x 100000 -v 100000 >out 2>&1 </dev/null &
    while kill -0 $! 2>/dev/null && ! grep -qs '"step":1,' run/log.jsonl; do sleep 0.05; done
    shift
    (cd "/proc/$!" && "$@")
    kill -KILL $!
    wait $!
}

# waits VARIABLE=VALUE: prints the trainer's GOMP_SPINCOUNT
waits() {
    look "$1" sh -c 'tr "\0" "\n" <environ | sed -n "s/^GOMP_SPINCOUNT=//p"'
}

# places VARIABLE=VALUE: prints how many cores have a thread bound to them alone
places() {
    look "$1" sh -c 'sed -n "s/^Cpus_allowed_list:[^0-9]*\([0-9]*\)$/\1/p" task/*/status | sort -u | wc -l'
}

# Waiting threads sleep soon, unless the user sets how they wait.
{ [ "$(waits A=1)" = 30000 ] && [ -z "$(waits OMP_WAIT_POLICY=active)" ] && [ "$(waits GOMP_SPINCOUNT=77)" = 77 ]; } 2>>out
ok "threads that wait"

# Each thread is bound to its own core, by default or on request, but not if there are more or fewer
# threads than cores.
cores=$(nproc)
[ "$cores" -eq 1 ] || for setting in A=1 OMP_PROC_BIND=true; do
    { [ "$(places $setting)" -eq "$cores" ]; } 2>>out
    ok "places, $setting"
done
for setting in OMP_NUM_THREADS=$((cores + 1)) OMP_PROC_BIND=false; do
    [ "$cores" -gt 1 ] || continue # one core is every thread's own
    { [ "$(places "$setting")" -eq 0 ]; } 2>>out
    ok "places, $setting"
done
finish
