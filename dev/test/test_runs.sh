#!/bin/sh
# Runs that end badly, and what is left of them: signals, closed pipes and descriptors, full disks, kills, two
# runs in one directory, checkpoints that lie. Needs TRAINER and TOKENIZE, the programs.
# The last line is "N passed, N failed".
# shellcheck source=dev/test/checks.sh
. "$(dirname "$0")/checks.sh"

cat "$root"/dev/trainer/*.c >text
"$tokenize" -o bytes --tokenizer byte text >out 2>&1
ok "tokenize"

small="-i bytes -L 1 -C 16 -H 1 -b 4 -t 32 -p fp32"
run() { # DIR OPTIONS...
    name=$1
    shift
    # shellcheck disable=SC2086
    "$trainer" $small -o "$name" "$@" >out 2>&1 </dev/null
}
# start DIR: a run without end in the background, $child, that has done five steps
start() {
    # shellcheck disable=SC2086
    "$trainer" $small -o "$1" -x 1000000 -v 1000000 >out 2>err </dev/null &
    child=$!
    while kill -0 $child && ! grep -qs '"step":5,' "$1/log.jsonl"; do sleep 0.05; done
}
saved() { # DIR: it holds a checkpoint
    ls "$1"/step_*.state.safetensors >out 2>&1
}

# ---- signals
start hangup
kill -HUP $child
wait $child
[ $? -eq 129 ] && saved hangup && grep -q 'go on with: -o hangup -y' out
saved hangup
ok "SIGHUP saves"
(trap '' HUP && start ignored && kill -HUP $child && sleep 0.2 && kill -TERM $child && wait $child)
[ $? -eq 143 ]
ok "nohup: an ignored SIGHUP stays ignored"

# ---- standard output and input
# shellcheck disable=SC2086
{ "$trainer" $small -o pipe -x 1000000 -v 1000000 --log-every 1 2>err; echo $? >code; } | head -n 20 >out
[ "$(cat code)" -eq 141 ] && [ "$(wc -l <err)" -eq 1 ] && grep -q 'go on with: -o pipe -y' err && saved pipe
ok "a pipe that is closed saves"
# shellcheck disable=SC2086
"$trainer" $small -o closed -x 30 -v 20 <&- >&- 2>&- &&
    ! grep -qv '^{.*}$' closed/log.jsonl && [ "$(grep -c '"grad_norm"' closed/log.jsonl)" -eq 30 ]
ok "closed descriptors leave the log alone"
run closed -x 40 -y
ok "the run with closed descriptors goes on"
(cd bytes && "$tokenize" -o ../again --tokenizer byte ../text <&- >&- 2>&-) && cmp -s bytes/meta.json again/meta.json
ok "tokenize with closed descriptors"
best=closed/best.safetensors
fails 1 "standard output: cannot write" sh -c "\"$trainer\" -e $best -i bytes --prompt int >/dev/full"
fails 1 "standard output: cannot write" sh -c "\"$trainer\" -e $best -i bytes --eval val >/dev/full"
fails 1 "standard output: cannot write" sh -c "\"$trainer\" --help >/dev/full"
fails 1 "standard output: cannot write" sh -c "\"$tokenize\" -o again --tokenizer byte text >/dev/full"
{ "$trainer" -e $best -i bytes --prompt int -g 30 2>err; echo $? >code; } | true
[ "$(cat code)" -eq 141 ] && [ ! -s err ]
ok "--prompt to a closed pipe"

# ---- the log
printf '{"step":41,"los\n' >>closed/log.jsonl
run closed -x 50 -y && grep -q 'was damaged and is cut off' out && ! grep -qv '^{.*}$' closed/log.jsonl
ok "a damaged last line of the log is cut off"

finish
