#!/bin/sh
# Tests several processes that train one model (dev/ranks): n processes compute what one computes,
# and a process that fails or differs is handled. Uses real processes by mpirun, more than there are
# cores. Needs TRAINER and TOKENIZE, the programs, and TRAINERS, the directory of all trainers:
# those of the double build, in which rounding does not show, or under sanitizers those of the float
# build, whose products a library computes. ON_EMULATOR is a GPU trainer, or empty. QUICK runs every
# path of the code once; the plain run checks the numbers. The last line is "N passed, N failed".
trainers=$(realpath "${TRAINERS:?}")
emulated=${ON_EMULATOR:+$(realpath "$ON_EMULATOR")}
# shellcheck source=dev/test/checks.sh
. "$(dirname "$0")/checks.sh"

# shellcheck source=dev/test/mpirun.sh
. "$root/dev/test/mpirun.sh"
if ! command -v mpirun >/dev/null; then
    echo "skipped: mpirun is not installed, nothing runs as several processes"
    finish
fi
if ! ldd "$trainer" | grep -q libmpi; then
    echo "skipped: built without MPI, nothing runs as several processes"
    finish
fi

cp "$shakespeare" text
"$tokenize" -o bytes --tokenizer byte --shard-tokens 30000 text >out 2>&1
ok "tokenize"

# run N PROGRAM OPTIONS...: runs N processes (1: without mpirun)
run() {
    n=$1
    shift
    if [ "$n" -eq 1 ]; then "$@"; else timeout 120 mpirun -n "$n" "$@"; fi >out 2>err </dev/null
}
# losses DIR: prints the losses of steps, validation and test, and the gradient norms
# same_losses DIR DIR [LIMIT]: checks that they agree within a relative LIMIT
losses() { grep -o '"\(loss\|grad_norm\|val_loss\|test_loss\)":[0-9.e+-]*' "$1/log.jsonl"; }
same_losses() {
    losses "$1" >losses_a
    losses "$2" >losses_b
    paste -d: losses_a losses_b | awk -F: -v limit="${3-$rounding}" '{ d = $2 - $4; if (d < 0) d = -d
        if ($1 != $3 || !(d <= limit * $2)) { print "line " NR ": " $0; bad = 1; exit 1 } } END { exit bad || NR < 3 }' >out 2>&1
}
thorough() { [ -z "${QUICK-}" ]; }

small="-i bytes -L 2 -C 32 -H 2 -b 2 -t 32 -p fp32 --preset published -v 10 -m 5"

# ---- n processes compute what one computes, also for uneven shares (4 micro-batches, 3 processes)
train() { # N DIR OPTIONS...
    n=$1 name=$2
    shift 2
    # shellcheck disable=SC2086
    run "$n" "$trainers/train_fastformer" $small -o "$name" "$@"
}
steps=50 numbers='2 3 4' rounding=1e-9
thorough || steps=4 numbers=3 rounding=1e-5
last=step_$(printf %08d $steps).safetensors
train 1 n1 -d 256 -x $steps
ok "one process"
for n in $numbers; do
    train "$n" "n$n" -d 256 -x $steps && same_losses n1 "n$n"
    ok "$n processes compute what one does"
done
grep -q '"processes":"3 on 1 machine' n3/log.jsonl && grep -q '"event":"processes","bytes_a_step":[1-9]' n3/log.jsonl
ok "the log says how many there are, and what they send"
if thorough; then
    train 3 again -d 256 -x $steps && cmp n3/$last again/$last >out 2>&1
    ok "the same bits from run to run"
fi
# Small steps amplify float32 rounding less.
train 1 rows1 -x 10 -l 2e-5 && train 3 rows3 -x 10 -l 2e-5 && same_losses rows1 rows3
ok "a micro-batch of two sequences for three processes"

"$tokenize" -o masked --tokenizer bpe --vocab-size 300 --reserve mask,padding text >out 2>&1
ok "tokenize for BERT"
yes "a line of words
another one that is longer" | head -n 400 | awk '{ print $0, NR % 7, NR % 11 }' >source
awk '{ print $2, $1, $4 }' source >target
"$tokenize" -o pairs --source source --target target --vocab-size 300 >out 2>&1
ok "tokenize pairs"
family() { # PROGRAM OPTIONS...
    name=$(basename "$1")
    thorough || set -- "$@" --no-test
    run 1 "$@" -p fp32 -x 8 -v 4 -o "$name-1" && run 3 "$@" -p fp32 -x 8 -v 4 -o "$name-3" && same_losses "$name-1" "$name-3"
    ok "$name: three processes compute what one does"
}
# Eight steps of a hybrid amplify float32 rounding by 1e4, so this runs in double only.
! thorough || family "$trainers/train_fastformer" -i bytes --preset published -L 4 -C 16 -H 2 -b 2 -t 32 -d 256 -m 3 --attention "additive*3+softmax:16"
family "$trainers/train_gpt2" -i bytes --preset published -L 1 -C 32 -H 2 -b 2 -t 32 -d 256 -m 3
family "$trainers/train_bert" -i masked -L 1 -C 32 -H 2 -b 2 -t 32 -d 256 -m 3
family "$trainers/train_translate" -i pairs --encoder-layers 1 --decoder-layers 1 -C 32 -H 2 --batch-tokens 128 --max-length 32 --accumulate 4 -m 3


# The CUDA program in float32, in which the order of a sum matters. MPI replaces NCCL
# (dev/emulator/nccl_on_cpu.h). Three micro-batches, so that one process has none in the last round.
# These modern blocks have parameters of their own, whose gradients are summed too.
if [ -n "$emulated" ]; then
    gpu="-i bytes -L 1 -C 32 -H 2 --untied --positions rotary --scores qknorm -b 1 -t 32 -d 96 -p fp32 -x 3 -m 1 --no-test"
    last_gpu=step_00000003.safetensors
    # shellcheck disable=SC2086
    {
        run 1 "$emulated" $gpu -o gpu1 && run 2 "$emulated" $gpu -o gpu2 && same_losses gpu1 gpu2 1e-6
        ok "two processes of the CUDA program compute what one does"
        run 2 "$emulated" $gpu -o gpu2b --reduce bf16 && ! cmp -s gpu2/$last_gpu gpu2b/$last_gpu && same_losses gpu1 gpu2b 1e-2
        ok "--reduce bf16 of the CUDA program"
        if thorough; then
            run 2 "$emulated" $gpu -C 16 -d 64 -o gpu2small
            ok "a model of one bucket: nothing is summed in the captured graph"
        fi
    }
else
    echo "skipped: no C++ compiler, the CUDA program does not run as several processes"
fi

# ---- evaluation, and runs that resume with another number of processes
one="$trainers/train_fastformer"
"$one" -i bytes -e n1/best.safetensors --eval val --json >one 2>err && run 3 "$one" -i bytes -e n1/best.safetensors --eval val --json &&
    [ "$(grep -o '"val_loss":[0-9.]\{8\}' one)" = "$(grep -o '"val_loss":[0-9.]\{8\}' out)" ] && [ "$(wc -l <out)" -eq 1 ]
ok "an evaluation is shared out, and printed once"
cp -r n1 verified && printf U | dd of=verified/best.safetensors bs=1 seek=$(($(wc -c <verified/best.safetensors) - 1)) conv=notrunc 2>/dev/null
"$one" --verify verified >one 2>err
run 2 "$one" --verify verified
[ $? -eq 1 ] && grep -q '^  best.safetensors  *DAMAGED: is damaged' out && cmp out one >>err
ok "--verify of damaged files says the same"
if thorough; then
    train 1 stayed -d 256 -x 20 -k constant --no-test && train 1 stayed -y -x 40 &&
        train 2 moved -d 256 -x 20 -k constant --no-test && train 3 moved -y -x 40 && same_losses stayed moved
    ok "a run of two resumes with three"
fi

# ---- formats in which gradients are summed
val_loss() { sed -n 's/.*"val_loss":\([0-9.]*\).*/\1/p' "$1/log.jsonl" | tail -n 1; }
train 3 bf16 -d 256 -x 20 --reduce bf16 && train 3 exact -d 256 -x 20 &&
    echo "$(val_loss bf16) $(val_loss exact)" | awk '{ d = $1 - $2; exit !(d != 0 && d < 0.003 && d > -0.003) }'
ok "--reduce bf16"
if thorough; then
    train 3 bf16b -d 256 -x 20 --reduce bf16 && cmp bf16/step_00000020.safetensors bf16b/step_00000020.safetensors >out 2>&1
    ok "--reduce bf16: the same bits from run to run"
    # All processes must skip the update: they compare their state at each checkpoint.
    mpicc -shared -fPIC -o poison.so "$root/dev/test/poison.c" >out 2>&1
    # shellcheck disable=SC2086
    set -- "$trainers/train_fastformer" $small -d 256 -x 12 -n 1 -o nan
    timeout 60 mpirun -n 1 "$@" : -n 1 -x LD_PRELOAD=./poison.so "$@" >out 2>err </dev/null &&
        [ "$(grep -c 'skipped: .*gradient norm -*nan' out)" -eq 1 ] && [ -e nan/step_00000012.safetensors ]
    ok "a NaN in the gradients of one process: all skip that update"
fi

# ---- failures: one line that names rank and host, no hang, and the last checkpoint is good
host=$(uname -n)
# trouble TEXT COMMAND...: runs several processes that must fail with one error line, with TEXT
trouble() {
    text=$1
    shift
    timeout 60 mpirun "$@" >out 2>err </dev/null
    got=$?
    [ $got -ne 0 ] && [ $got -ne 124 ] && [ "$(grep -c '^error: ' err)" -eq 1 ] && grep '^error: ' err | grep -qF -e "$text"
    status=$?
    [ $status -eq 0 ] || { echo "exit code $got, expected '$text'; stderr:" >out && cat err >>out; }
    [ $status -eq 0 ]
    ok "$text"
}
a="$trainer $small -d 256 -x 5 -o trouble"
# shellcheck disable=SC2086
{
    trouble "error: rank 1 of 2 on $host: all processes must have the same options: here --lr 0.001" -n 1 $a : -n 1 $a --lr 1e-3
    cp "$trainer" other && echo >>other
    trouble "error: rank 2 of 3 on $host: all processes must be the same program" -n 2 $a : -n 1 ./other ${a#* }
    trouble "error: rank 0 of 2 on $host: unknown option" -n 2 $a --no-such
    trouble "error: rank 0 of 2 on $host: --timeout inf: expected a number from 0.1 to 1000000000" -n 2 $a --timeout inf
    trouble "is the work of one process" -n 2 "$trainer" -e n1/best.safetensors --prompt a
}
if [ -n "$emulated" ]; then
    # shellcheck disable=SC2086
    CUDA_VISIBLE_DEVICES=0 trouble "error: rank 0 of 2 on $host: ranks 0 and 1 on $host have the same GPU" -n 2 "$emulated" $gpu -o trouble
fi
# shellcheck disable=SC2016,SC2086
trouble "error: start of MPI: waited 2 s (--timeout)" -n 2 sh -c '[ "$OMPI_COMM_WORLD_RANK" = 0 ] || exec sleep 50; exec "$@"' sh $a --timeout 2
mkdir -p here there && cp -r bytes here && cp -r bytes there
# A run that saved no checkpoint starts again: all ranks read its log, and only rank 0 the rest,
# which it may replace meanwhile.
train 1 here/again -x 2 --no-test && rm here/again/step_* && cp -r here/again lost
again="$one -o again -y -i bytes"
# shellcheck disable=SC2086
trouble "error: rank 1 of 2 on $host: again/log.jsonl: cannot be read" -n 1 --wdir here $again : -n 1 --wdir there $again
cp -r lost there/again && : >there/again/best.safetensors
# shellcheck disable=SC2086
timeout 60 mpirun -n 1 --wdir here $again : -n 1 --wdir there $again >out 2>err </dev/null && [ -e here/again/step_00000002.safetensors ]
ok "two processes start a run again"
printf '\001\000\001\000\001\000' | dd of=there/bytes/train_000002.bin bs=2 seek=15500 conv=notrunc 2>err
trouble "error: rank 1 of 2 on $host: bytes: here shard 2 of train with 30000 tokens, id " -n 1 --wdir here $a : -n 1 --wdir there $a
rm there/bytes/train_000001.bin
trouble "error: rank 1 of 2 on $host: bytes/meta.json: \"train\" has" -n 1 --wdir here $a : -n 1 --wdir there $a
rm there/bytes/meta.json
trouble "error: rank 1 of 2 on $host: bytes: here " -n 1 --wdir here $a : -n 1 --wdir there $a
rm there/bytes/train_*.bin
trouble "error: rank 1 of 2 on $host: " -n 1 --wdir here $a : -n 1 --wdir there $a

# endless DIR OPTIONS...: starts two processes that train without end in the background, $launcher,
# and returns after five steps. They are in the foreground's group, so that mpirun receives a signal
# to the launcher once: with two signals it does not wait for its processes.
endless() {
    name=$1
    shift
    # shellcheck disable=SC2086
    timeout --foreground 60 mpirun -n 2 "$trainers/train_fastformer" $small -o "$name" -x 1000000 -v 1000000 "$@" >out 2>err </dev/null &
    launcher=$!
    while kill -0 $launcher && ! grep -qs '"step":5,' "$name/log.jsonl"; do sleep 0.05; done
}
# of_rank N DIR: prints the process id
of_rank() {
    for process in $(pgrep -f -- "-o $2 -x"); do
        tr '\0' '\n' <"/proc/$process/environ" 2>/dev/null | grep -qx "OMPI_COMM_WORLD_RANK=$1" && echo "$process" && return
    done
}
good() { # DIR: its newest checkpoint is the one of an undisturbed run; the one before may not be removed yet, and of the next
    # one the state may be there already, which is written before the weights
    step=$(ls "$1" | sed -n 's/^step_0*\([0-9]*\)\.safetensors$/\1/p' | tail -n 1)
    [ -n "$step" ] && train 2 "$1-good" -v 1000000 -n 1000000 -x "$step" -k constant &&
        cmp "$1/step_$(printf %08d "$step").safetensors" "$1-good/step_$(printf %08d "$step").safetensors" >out 2>&1
}
endless stop -k constant
kill -TERM "$(of_rank 1 stop)"
wait $launcher
[ $? -eq 143 ] && grep -q 'resume with: .* -o stop -y' out && good stop
ok "SIGTERM to one process: all finish the step, and rank 0 saves"
if thorough; then
    endless limit -k constant
    kill -TERM "$(of_rank 0 limit)" "$(of_rank 1 limit)"
    wait $launcher
    [ $? -eq 143 ] && grep -q 'resume with: ' out && good limit
    ok "SIGTERM to all processes, as a scheduler's time limit comes"
    OMPI_MCA_odls_base_sigkill_timeout=5 endless launched -k constant
    kill -TERM $launcher
    wait $launcher
    good launched
    ok "SIGTERM to mpirun alone, with time to save"
    endless killed -k constant -n 3
    kill -KILL "$(of_rank 1 killed)"
    wait $launcher
    [ $? -ne 124 ] && good killed
    ok "SIGKILL of one process: the run ends, and the last checkpoint is good"
    endless disk -k constant -n 3
    prlimit --pid "$(of_rank 0 disk)" --fsize=1000
    wait $launcher
    status=$?
    [ $status -eq 1 ] && grep -q "error: rank 0 of 2 on $host: disk/.*: cannot write: File too large" err && good disk ||
        { echo "exit code $status; stderr:" >out && cat err >>out && ls disk >>out; false; }
    ok "a file that may not grow on rank 0: all end, and the last checkpoint is good"
    # A separate disk, if we may mount one: checkpoints fit until another file fills it.
    mkdir -p full
    if unshare -m mount -t tmpfs none full 2>err; then
        # shellcheck disable=SC2016
        timeout 60 unshare -m sh -c 'mount -t tmpfs -o size=64m none full
            mpirun -n 2 "$@" & while ! grep -qs "step\":9," full/run/log.jsonl; do sleep 0.05; done
            cat /dev/zero >full/rest 2>/dev/null; wait $!; echo $? >code; rm full/rest; cp -r full/run after' sh \
            "$trainers/train_fastformer" $small -o full/run -x 1000000 -v 1000000 -n 3 -k constant >out 2>err </dev/null
        [ "$(cat code)" -eq 1 ] && grep -q "error: rank 0 of 2 on $host: full/run/.*: cannot write: No space left" err && good after ||
            { cat err >>out && ls after >>out; false; }
        ok "a full disk on rank 0: all end, and the last checkpoint is good"
    else
        echo "skipped: no right to mount, so no disk is full"
    fi
fi
if thorough; then
    endless paused --timeout 5 -k constant
    kill -STOP "$(of_rank 0 paused)" "$(of_rank 1 paused)"
    sleep 7
    kill -CONT "$(of_rank 0 paused)" "$(of_rank 1 paused)"
    step=$(tail -n 1 paused/log.jsonl | sed 's/{"step":\([0-9]*\),.*/\1/')
    while kill -0 $launcher 2>/dev/null && ! grep -q "\"step\":$((step + 9))," paused/log.jsonl; do sleep 0.05; done
    kill -TERM "$(of_rank 1 paused)"
    wait $launcher
    [ $? -eq 143 ] && good paused
    ok "a run that was suspended for longer than --timeout continues"
fi
endless frozen --timeout 10
frozen=$(of_rank 1 frozen)
kill -STOP "$frozen"
wait $launcher
[ $? -eq 1 ] && grep -q "error: rank 0 of 2 on $host: .*: waited 10 s (--timeout) for rank 1 on $host" err &&
    for _ in 1 2 3 4 5; do ! kill -0 "$frozen" 2>/dev/null || sleep 1; done && ! kill -0 "$frozen" 2>/dev/null
ok "a process that does not answer: the run ends after --timeout"
finish
