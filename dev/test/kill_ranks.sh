#!/bin/sh
# Sends SIGKILL to one of two processes of a run, at random moments after the launcher starts, and
# resumes the run each time. All processes must end, and the weights must be those of an undisturbed
# run, byte for byte.
#
#   dev/test/kill_ranks.sh [KILLS]     default: 100, which takes a quarter of an hour
#
# Needs TRAINER and TOKENIZE, the programs, and mpirun. SEED selects the moments. The last line is
# "N passed, N failed".
kills=${1:-100}
# shellcheck source=dev/test/checks.sh
. "$(dirname "$0")/checks.sh"
# shellcheck source=dev/test/mpirun.sh
. "$root/dev/test/mpirun.sh"

"$tokenize" -o bytes --tokenizer byte "$shakespeare" >out 2>&1
ok "tokenize"
steps=60
train() { # DIR: two processes, resumed where there is something
    mpirun -n 2 "$trainer" -i bytes -L 1 -C 32 -H 2 -b 2 -t 32 -d 128 -p fp32 -k constant -v 1000000 -n 2 -x $steps --no-test \
        --timeout 20 -o "$1" $([ ! -e "$1/lock" ] || echo -y) >out 2>err </dev/null
}
seconds() { date +%s.%N; }
start=$(seconds)
train plain
ok "the run that nothing disturbs"
longest=$(awk "BEGIN { print $(seconds) - $start }")

seed=${SEED:-1}
random() { # into `number`: below $1
    seed=$(((seed * 1103515245 + 12345) % 2147483648))
    number=$(awk "BEGIN { print $seed / 2147483648 * $1 }")
}
trainers() { pgrep -f -- "^$trainer .*-o disturbed"; }
gone() { # SECONDS: no trainer is left
    for _ in $(seq "$1"); do trainers >/dev/null || return 0; sleep 1; done
    ! trainers >/dev/null
}
same() { cmp plain/step_000000$steps.safetensors disturbed/step_000000$steps.safetensors >out 2>&1; }

killed=0 rounds=0 stuck=0 left=0
while [ $killed -lt "$kills" ]; do
    train disturbed &
    launcher=$!
    random "$longest"
    sleep "$number"
    random 2
    victim=$(trainers | sed -n "$((${number%.*} + 1))p")
    [ -n "$victim" ] && kill -KILL "$victim" 2>/dev/null && killed=$((killed + 1))
    gone 60 || left=$((left + 1))
    # mpirun is a child of the shell that waits for it.
    for _ in $(seq 50); do kill -0 $launcher 2>/dev/null || break; sleep 0.1; done
    if kill -0 $launcher 2>/dev/null; then
        sleep 15
        if pkill -KILL -P $launcher mpirun; then stuck=$((stuck + 1)); fi
    fi
    wait $launcher
    if [ $? -eq 0 ]; then
        same || { failed=$((failed + 1)); echo "FAIL other weights after $killed kills"; }
        rounds=$((rounds + 1))
        rm -rf disturbed
    fi
done
train disturbed && same
ok "the weights after the last kill"
[ $left -eq 0 ]
ok "every process ended within a minute"
echo "$killed kills, $rounds runs came to their end between them; mpirun itself did not come back $stuck times"
finish
