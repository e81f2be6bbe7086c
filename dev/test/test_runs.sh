#!/bin/sh
# Tests runs that end badly and what they leave: signals, closed pipes and descriptors, full disks,
# kills, two runs in one directory, checkpoints with wrong contents. Needs TRAINER and TOKENIZE, the
# programs; GPT2 is optional. The last line is "N passed, N failed".
# shellcheck source=dev/test/checks.sh
. "$(dirname "$0")/checks.sh"

cp "$shakespeare" text
"$tokenize" -o bytes --tokenizer byte text >out 2>&1
ok "tokenize"

small="-i bytes -L 1 -C 16 -H 1 -b 4 -t 32 -p fp32 --preset published"
run() { # DIR OPTIONS...
    name=$1
    shift
    # shellcheck disable=SC2086
    "$trainer" $small -o "$name" "$@" >out 2>&1 </dev/null
}
# start DIR [default|ignore]: starts a run without end in the background, $child, and returns after
# five steps. Sets its action on SIGHUP, as nohup may have started the tests.
start() {
    # shellcheck disable=SC2086
    env --"${2:-default}"-signal=HUP "$trainer" $small -o "$1" -x 1000000 -v 1000000 >out 2>err </dev/null &
    child=$!
    while kill -0 $child && ! grep -qs '"step":5,' "$1/log.jsonl"; do sleep 0.05; done
}
saved() { # DIR: it holds a checkpoint, of which the weights are written last
    ls "$1"/step_????????.safetensors >/dev/null 2>&1
}

# ---- signals
start hangup
kill -HUP $child
wait $child
[ $? -eq 129 ] && grep -q 'resume with: .*/train_fastformer -o hangup -y' out && saved hangup
ok "SIGHUP saves"
# shellcheck disable=SC2086
"$trainer" $small -o minutes -x 1000000 -v 1000000 --save-minutes 0.001 >out 2>err </dev/null &
child=$!
while kill -0 $child && ! saved minutes; do sleep 0.05; done
kill -KILL $child
wait $child 2>/dev/null
saved minutes
ok "--save-minutes"
(start ignored ignore && kill -HUP $child && sleep 0.2 && kill -TERM $child && wait $child)
[ $? -eq 143 ]
ok "nohup: an ignored SIGHUP stays ignored"

# Evaluations that take longer than the steps between them, so that a signal arrives during one: no
# evaluation is lost.
head -n 1000 text >short
"$tokenize" -o slow --tokenizer byte --train short --val text --test text >out 2>&1
slow="-i slow --preset published -L 1 -C 16 -H 1 -b 4 -t 32 -p fp32 -v 2 -k constant --patience 9"
stopped_at() { # STEP OPTIONS...: a run in `stopped` that gets SIGTERM after that step
    step=$1
    shift
    # shellcheck disable=SC2086
    "$trainer" $slow -o stopped "$@" >out 2>&1 </dev/null &
    child=$!
    while kill -0 $child 2>/dev/null && ! grep -qs "^{\"step\":$step,.*\"lr\"" stopped/log.jsonl; do sleep 0.02; done
    kill -TERM $child
    wait $child
    [ $? -eq 143 ] && grep -aq '"evaluation_due":"1"' stopped/step_*"$step".state.safetensors
}
results() { # DIR: the log's evaluations without times
    grep _loss "$1/log.jsonl" | sed 's/,"[a-z]*_ms":[0-9]*//; s/,"seconds":[0-9.]*//'
}
# shellcheck disable=SC2086
"$trainer" $slow -o through -x 6 >out 2>&1 && results through >through.results && [ "$(grep -c val_loss through.results)" -eq 3 ]
ok "three evaluations"
stopped_at 4 -x 6
ok "an evaluation that a signal interrupts is due"
echo '{"step":4,"val_loss":1,"best":true}' >>stopped/log.jsonl # as if a kill came before the state that says it is done
stopped_at 6 -x 6 -y
ok "and so is the last one"
# shellcheck disable=SC2086
"$trainer" $slow -o stopped -y >out 2>&1 && results stopped | cmp - through.results &&
    cmp stopped/step_00000006.state.safetensors through/step_00000006.state.safetensors &&
    cmp stopped/best.safetensors through/best.safetensors
ok "a resumed run makes up for the evaluations that are due"
# shellcheck disable=SC2086
"$trainer" $slow -o tested -x 2 >out 2>&1 </dev/null &
child=$!
while kill -0 $child 2>/dev/null && ! saved tested; do sleep 0.02; done
kill -TERM $child
wait $child
[ $? -eq 143 ] && grep -q 'test and page were interrupted; resume with: .*/train_fastformer -o tested -y' out && [ ! -e tested/run.html ]
ok "a signal during the test prints a message"
"$trainer" -o tested -y >out 2>&1 && [ "$(grep -c test_loss tested/log.jsonl)" -eq 1 ] && [ -s tested/run.html ]
ok "and the test comes again"
rm out
# shellcheck disable=SC2086
"$trainer" $small -o never --config hangup/log.jsonl >out 2>&1 </dev/null &
child=$!
while kill -0 $child 2>/dev/null && ! grep -qs '^model ' out; do sleep 0.005; done
kill -TERM $child
wait $child
# If the signal came after the first step, a checkpoint exists to resume from.
[ $? -eq 143 ] && if saved never; then grep -q 'resume with: .* -o never -y' out; else grep -q '^stopped before the first step; nothing was saved$' out; fi
ok "a signal before the first step"

# ---- standard output and input
# shellcheck disable=SC2086
{ "$trainer" $small -o pipe -x 1000000 -v 1000000 --log-every 1 2>err; echo $? >code; } | head -n 20 >out
[ "$(cat code)" -eq 141 ] && [ "$(wc -l <err)" -eq 1 ] && grep -q 'resume with: .*/train_fastformer -o pipe -y' err && saved pipe
ok "a pipe that is closed saves"
# shellcheck disable=SC2086
"$trainer" $small -o closed -x 30 -v 20 <&- >&- 2>&- &&
    ! grep -qv '^{.*}$' closed/log.jsonl && [ "$(grep -c '"grad_norm"' closed/log.jsonl)" -eq 30 ]
ok "closed descriptors leave the log alone"
run closed -x 40 -y
ok "the run with closed descriptors resumes"
(cd bytes && "$tokenize" -o ../again --tokenizer byte ../text <&- >&- 2>&-) && cmp -s bytes/meta.json again/meta.json
ok "tokenize with closed descriptors"
best=closed/best.safetensors
fails 1 "standard output: cannot write" sh -c "\"$trainer\" -e $best -i bytes --prompt a >/dev/full"
fails 1 "standard output: cannot write" sh -c "\"$trainer\" -e $best -i bytes --eval val >/dev/full"
fails 1 "standard output: cannot write" sh -c "\"$trainer\" --help >/dev/full"
fails 1 "standard output: cannot write" sh -c "\"$tokenize\" -o again --tokenizer byte text >/dev/full"
{ sleep 1; "$trainer" -e $best -i bytes --prompt a -g 30 2>err; echo $? >code; } | true
[ "$(cat code)" -eq 141 ] && ! grep -qv '^\[' err # but for its remarks
ok "--prompt to a closed pipe"

# ---- the log
printf '{"step":41,"los\n' >>closed/log.jsonl
run closed -x 50 -y && grep -q 'was damaged and is cut off' out && ! grep -qv '^{.*}$' closed/log.jsonl
ok "a damaged last line of the log is cut off"
edited 's/"val_loss":"[0-9]*/"val_loss":"0/' closed/best.safetensors >better && cp better closed/best.safetensors
: >closed/log.jsonl
run closed -x 60 -y && cmp closed/best.safetensors better && ! grep -q '"best":true' closed/log.jsonl
ok "a log that is lost loses no best weights"

# ---- two runs in one directory
start two
fails 1 "two: process $child on $(uname -n) trains here" "$trainer" -i bytes -o two -y
fails 1 "trains here" "$trainer" -i bytes -o two
kill -TERM $child
wait $child
run two -y -x 5 && "$trainer" -i bytes -o two -y --eval val >out 2>&1
ok "a lock ends with its run, and --eval needs none"
mkdir -p race && cd race && i=0 && while [ "$i" -lt 6 ]; do
    # shellcheck disable=SC2086
    "$trainer" -i ../bytes -L 1 -C 16 -H 1 -b 4 -t 32 -p fp32 -x 3 >/dev/null 2>&1 &
    i=$((i + 1))
done
wait
cd ..
[ "$(find race/runs -name best.safetensors | wc -l)" -eq 6 ]
ok "six runs at once without -o: six directories"

# A reader of a directory in which a run works never finds an incomplete checkpoint
# shellcheck disable=SC2086
"$trainer" $small -o busy -x 1000000 -n 1 -v 1000000 >/dev/null 2>&1 </dev/null &
child=$!
while ! saved busy; do sleep 0.05; done
i=0
while [ "$i" -lt 20 ] && "$trainer" -i bytes -o busy -y --prompt a -g 1 >out 2>&1 &&
    "$trainer" -e busy --prompt a -g 1 >out 2>&1; do i=$((i + 1)); done
[ "$i" -eq 20 ]
ok "--prompt during a run that saves every step"
kill -TERM $child
wait $child

# ---- weights and states that do not belong together
run one -x 20 -n 10 --keep 9
run other -x 20 -n 10 --keep 9 -S 7
rm -rf mixed && cp -r one mixed && cp other/step_00000020.state.safetensors mixed/
fails 1 "step_00000020.state.safetensors: does not belong to the weights next to it" "$trainer" -i bytes -o mixed -y
fails 1 "does not belong" "$trainer" -i bytes -o mixed -y --eval val
rm mixed/step_00000020.*
run mixed -x 20 -y -n 10 && cmp mixed/step_00000020.safetensors one/step_00000020.safetensors
ok "without the foreign pair the older one is resumed"
rm -rf mixed && cp -r one mixed && rm mixed/*.state.safetensors
fails 1 "has weights without their state" "$trainer" -i bytes -o mixed -y
fails 1 "mixed: holds" "$trainer" -i bytes -o mixed
rm mixed/step_*
fails 1 "holds best.safetensors of an earlier run" "$trainer" -i bytes -o mixed
# without_id FROM TO: copies a file without its id, as before ids existed; the header keeps its
# length
without_id() { edited 's/"checkpoint_id":"\([0-9a-f]*\)"/"checkpoint_xx":"\1"/' "$1" >"$2"; }
rm -rf old && cp -r one old
without_id one/step_00000020.state.safetensors old/step_00000020.state.safetensors
fails 1 "does not belong" "$trainer" -i bytes -o old -y
without_id one/step_00000020.safetensors old/step_00000020.safetensors
run one -x 20 -y && run one -x 30 -y && [ "$(find one -name 'step_*' | wc -l)" -eq 6 ]
ok "a resumed run keeps as many checkpoints as before"
run old -x 30 -y && cmp old/step_00000030.safetensors one/step_00000030.safetensors
ok "a pair from before there were ids is resumed"

# ---- signals of batch systems
for signal in 10 12 24; do # SIGUSR1, SIGUSR2, SIGXCPU
    start by$signal
    kill -$signal $child
    wait $child
    [ $? -eq $((128 + signal)) ] && saved by$signal && "$trainer" -o by$signal -y -x 1 >out 2>&1
    ok "signal $signal saves"
done
(ulimit -St 1 && run limited -x 10000000 -v 10000000)
[ $? -eq 152 ] && saved limited
ok "a soft limit on CPU time saves"

# ---- updates that are not finite: nothing is saved meanwhile; training from the file named works
run diverges -C 32 -x 400 --lr 1e3 --clip 0 -n 1 -v 1 -m 1 --no-test --keep 3
good=$(sed -n 's/.*last good checkpoint, which was tried, is \(.*\); lower.*/\1/p' out)
skipped=$(sed -n 's/^step \([0-9]*\) skipped.*/\1/p' out | head -n 1)
[ -z "$skipped" ] || [ "$(find diverges -name "step_*.state.*" | sed 's/.*step_0*//; s/[.].*//' | sort -n | tail -n 1)" -lt "$skipped" ]
ok "nothing is saved while updates are skipped"
[ -n "$good" ] || good=$(sed -n 's/.*start from \(.*best.safetensors\) with -e.*/\1/p' out)
[ -n "$good" ] && run finite -e "$good" --eval val -m 1 -C 32 && run finite -C 32 -e "$good" -x 12 -m 1 --lr 1e-9 && ! grep -q skipped out
ok "the named file can be trained on"

# ---- averaged weights
mean() { "$trainer" -i bytes -e "$1" --average 2 --eval val -m 2 --json >out && sed 's/,.*//' out; }
run averaged -x 40 -n 10 --keep 9 -k constant -l 1e-2 && rm -rf two && mkdir two && cp averaged/step_0000001* averaged/step_0000002* two/ &&
    [ "$(mean averaged/step_00000020.safetensors)" = "$(mean two)" ] && [ "$(mean averaged/step_00000040.safetensors)" = "$(mean averaged)" ] &&
    [ "$(mean averaged)" != "$(mean two)" ]
ok "--average takes those up to the file that -e names"
fails 1 "--average 3: averaged holds 2 checkpoints up to that" "$trainer" -i bytes -e averaged/step_00000020.safetensors --average 3 --eval val
fails 2 "--average: needs -e RUN" "$trainer" -o averaged -y --average 2 --eval val
fails 1 "averaged/best.safetensors is no step_N.safetensors" "$trainer" -i bytes -e averaged/best.safetensors --average 2 --eval val

# ---- a run that began with averaged weights resumes without averaging
run mean -e one --average 2 -x 3 -k constant && rm -rf told && cp -r mean told &&
    run told -y --config mean/log.jsonl -x 6 && run mean -y --average 2 -x 6 &&
    cmp told/step_00000006.safetensors mean/step_00000006.safetensors
ok "--average and its --init are of the beginning"

# ---- what killed runs leave
run clean -x 30 -n 10 -v 10 --stats 1 -k constant
run left -x 20 -n 10 -v 10 --keep 9 --stats 1 -k constant
rm -rf kept && cp -r left kept && rm kept/step_00000020.safetensors # killed between state and weights of step 20
for name in step_00000020.safetensors best.safetensors log.jsonl modeling_fastformer.py; do : >kept/$name.tmp; done
run kept -x 30 -n 10 -v 10 --keep 1 --stats 1 -y
[ "$(find kept -name 'step_*' | wc -l)" -eq 2 ] && [ -z "$(find kept -name '*.tmp')" ] &&
    cmp kept/step_00000030.state.safetensors clean/step_00000030.state.safetensors &&
    cmp kept/best.safetensors clean/best.safetensors
ok "a resumed run tidies up"
cp -rL clean flat && [ ! -L flat/model.safetensors ] && run flat -x 40 -v 10 -y && [ -L flat/model.safetensors ]
ok "a copy with files for links is resumed"
lines() { # DIR: what the log says of evaluations, without times
    grep -E '_loss"|statistics' "$1/log.jsonl" | sed 's/,"[a-z]*_ms":[0-9]*//; s/,"seconds":[0-9.]*//' | sort
}
lines clean >clean.lines
run kept -x 30 -y --stats 1
lines kept | cmp - clean.lines && [ "$(grep -c '"best":true' clean.lines)" -eq 3 ] &&
    [ "$(grep -c test_loss clean.lines)" -eq 1 ] && [ "$(grep -c '"val_attention_max_abs":[0-9]' clean.lines)" -eq 3 ]
ok "the log of a resumed run says of each evaluation what the uninterrupted one's does, and once"
rm -rf orphan && mkdir orphan && cp one/step_00000030.state.safetensors orphan/
run orphan -x 10 && [ ! -e orphan/step_00000030.state.safetensors ]
ok "a state alone is no run"
if [ "$(id -u)" -ne 0 ]; then
    chmod a-r mixed
    fails 1 "mixed: cannot be listed" "$trainer" -i bytes -o mixed -y
    chmod u+r mixed
fi

# ---- a run without a checkpoint starts again as its log says; loses nothing before it catches up
head -n 400 text >short
"$tokenize" -o mine --tokenizer word short >out 2>&1
"$trainer" -i mine -o whole -L 1 -C 16 -H 2 -t 32 -x 12 -v 4 -m 1 -k constant -p fp32 --no-test >out 2>&1
ok "a run to lose"
"$tokenize" -o foreign --vocab-size 300 short >out 2>&1 && cp -r foreign before
fails 1 "foreign: is a data set, whose tokenizer would be replaced; choose another --output" "$trainer" -o foreign -x 1
rm foreign/lock && diff -r foreign before >out && rm -r before
ok "nothing of it is changed"
lose() { rm -rf lost && cp -r whole lost && rm lost/step_*; }
without_attempts() { grep -v '"event"' "$1/log.jsonl" | sed -E 's/,"(ms|tokens_per_s|peak_fraction|seconds|val_ms)":[^,}]*//g'; }
lose && "$trainer" -o lost -y -x 1 -m 1 >out 2>&1 && grep -q 'lost: no checkpoint to resume; the run begins again with .* lost/log.jsonl' out &&
    cmp lost/best.safetensors whole/best.safetensors && cmp lost/tokenizer.vocab whole/tokenizer.vocab && saved lost &&
    cmp lost/log.jsonl.before whole/log.jsonl && grep -q '"channels":16,' lost/log.jsonl
ok "-y after the checkpoints were removed keeps the best weights and the log"
loss=$(sed -n 's/.*"val_loss":\([0-9.]*\),.*"best":true.*/\1/p' whole/log.jsonl | tail -n 1) && [ -n "$loss" ] &&
    grep -q "\"loss\":$loss,\"rounded_loss\"" lost/run.html
ok "and the page names their loss"
"$trainer" -o lost -y -x 12 -m 1 >out 2>&1 && without_attempts lost >a && without_attempts whole | grep -v '"step":1,"val' >b &&
    grep -v '"step":1,"val' a | cmp - b && cmp lost/step_00000012.safetensors whole/step_00000012.safetensors && [ ! -e lost/log.jsonl.before ]
ok "and ends as the lost run did"
lose && "$trainer" -o lost -y -l 1e-3 -x 1 >out 2>&1 && grep -q 'changed  *--lr 0.001 (was 0.0005)$' out
ok "with another rate, with a message; no moments exist to keep"
lose && (cd lost && "$trainer" -o . -y >out 2>&1 && cmp step_00000012.safetensors ../whole/step_00000012.safetensors)
ok "from another directory, too"
"$trainer" -i recall:copy -o generated -L 1 -C 16 -H 2 -t 32 -x 2 -m 1 -p fp32 --preset published --no-test >out 2>&1 &&
    rm generated/step_* && (cd mine && "$trainer" -o ../generated -y >../out 2>&1) && saved generated
ok "with generated sequences, too"
lose && mkdir moved && mv lost/log.jsonl lost/log.jsonl.before && cp -r mine moved && "$trainer" -o lost -y -i moved/mine >out 2>&1 &&
    without_attempts lost >a && without_attempts whole | cmp - a && cmp lost/best.safetensors whole/best.safetensors
ok "with data that were moved, by the log that was kept"
unchanged() { # TEXT OPTIONS...: refused with TEXT, and everything stays
    text=$1
    shift
    lose && cp -r lost before
    fails 1 "$text" "$trainer" -o lost -y "$@"
    rm -f lost/lock before/lock
    diff -r lost before >out
    ok "$text: nothing is changed"
    rm -rf before
}
unchanged "--channels 32: lost/log.jsonl has 16; drop the option, or choose another --output" -C 32
unchanged "--seq-len 16: lost/log.jsonl has 32" -i mine -t 16
unchanged "the data of bytes now have" -i bytes
TRAINER=$trainer && trainer=$(cd "$root" && realpath "${GPT2:-$trainer}")
[ "$trainer" = "$TRAINER" ] || unchanged "is of a model of type fastformer"
trainer=$TRAINER
lose
fails 1 "lost: has no checkpoint yet" "$trainer" -o lost -y --eval val
rm lost/log.jsonl
fails 1 "lost: holds no run to resume" "$trainer" -o lost -y
fails 1 "lost: holds best.safetensors of an earlier run" "$trainer" -o lost -y -i mine
# Killed before the first save, by default at the end of the first epoch; or the disk is full at the
# first save
# shellcheck disable=SC2086
"$trainer" $small -C 32 -S 5 -o killed -v 3 -n 1000000 >out 2>&1 </dev/null &
child=$!
while kill -0 $child && ! grep -qs '"step":7,' killed/log.jsonl; do sleep 0.02; done
kill -KILL $child
wait $child 2>/dev/null
"$trainer" -o killed -y -x 4 >out 2>&1 && run through2 -C 32 -S 5 -v 3 -x 4 && cmp killed/step_00000004.safetensors through2/step_00000004.safetensors
ok "killed before the first save"
(ulimit -f 30 && run filled -C 64 -x 4) || { run filled2 -C 64 -x 4 && "$trainer" -o filled -y >out 2>&1 &&
    cmp filled/step_00000004.safetensors filled2/step_00000004.safetensors; }
ok "a disk that is full at the first save"

# ---- checkpoints with wrong metadata
# lies FROM TO TEXT: best.safetensors with FROM replaced by TO (same length) is refused with TEXT
lies() {
    edited "s/$1/$2/" clean/best.safetensors >lie.safetensors
    cmp -s lie.safetensors clean/best.safetensors && echo "nothing is $1"
    fails 1 "$3" "$trainer" -i bytes -e lie.safetensors --prompt a
}
lies '"activation":"gelu"' '"activation":"relu"' 'metadata activation is "relu", this program computes "gelu"'
lies '"layernorm_eps":"1e-05"' '"layernorm_eps":"1e-12"' 'metadata layernorm_eps is "1e-12"'
lies '"window_sizes":"\[32\]"' '"window_sizes":"[16]"' 'metadata window_sizes is "[16]"'
lies '"padding_token":"-1"' '"padding_token":"77"' 'padding_token is 77'
# The sizes in the metadata are checked against the tensors before the model is allocated: this one
# would take 17 GB
lies '"format":"pt",\(.*\)"n_positions":"32"' '"":"p",\1"n_positions":"268435456"' \
    'position_embeddings.weight has shape (32, 16), expected (268435456, 16)'
edited 's/"layernorm_eps":"1e-05"/"layernorm_eps":"1E-5 "/' clean/best.safetensors >same.safetensors
"$trainer" -i bytes -e same.safetensors --prompt a >out 2>&1
ok "a number may be written in another way"
edited '' clean/best.safetensors >nan.safetensors
printf '\000\000\300\177' | dd of=nan.safetensors bs=1 seek=$(($(wc -c <nan.safetensors) - 4)) conv=notrunc 2>/dev/null
fails 1 "proj_logits.bias: element 255 is nan" "$trainer" -i bytes -e nan.safetensors --eval val
rm -rf far && cp -r clean far && state=far/step_00000030.state.safetensors # its header keeps its length
edited 's/"sequences":"120","sequences_per_update":"4"/"sequences":"9223372036854775800","other":""/' clean/${state#*/} >$state
fails 1 'metadata sequences is "9223372036854775800", expected an integer from 0 to 1152921504606846976' "$trainer" -i bytes -o far -y -x 40
rm -rf nan && cp -r clean nan && state=nan/step_00000030.state.safetensors
edited '' clean/${state#*/} >$state
printf '\000\000\200\177' | dd of=$state bs=1 seek=$(($(wc -c <$state) - 4)) conv=notrunc 2>/dev/null
fails 1 "second_moment.proj_logits.bias: element 255 is inf" "$trainer" -i bytes -o nan -y

# ---- damaged checkpoints next to good older ones
run good -x 20 -n 10 --keep 2 -k constant
for damaged in step_00000020.safetensors step_00000020.state.safetensors; do
    rm -rf bad && cp -r good bad && head -c 2000 good/$damaged >bad/$damaged
    fails 1 "; to resume from step 10, which is complete, remove bad/step_00000020.*" "$trainer" -o bad -y
done
rm bad/step_00000020.* && "$trainer" -o bad -y >out 2>&1 && cmp bad/step_00000020.safetensors good/step_00000020.safetensors
ok "and that works"

# ---- resuming with another rate, schedule or batch
run other2 -x 10 -k constant && "$trainer" -o other2 -y -x 20 -l 1e-4 -k cosine -b 8 >out 2>&1 &&
    grep -q 'changed  *--lr 0.0001 (was 0.0005), --schedule cosine (was constant), --batch 8 (was 4); moments are kept' out &&
    grep -q '"event":"resume".*"changed":"--lr 0.0001 (was 0.0005)' other2/log.jsonl &&
    grep -q '"step":11,.*"lr":0.00005,\|"step":11,.*"lr":5[0-9.]*e-05,' other2/log.jsonl
ok "-y with another rate, schedule and batch"
"$trainer" -o other2 -y -x 30 >out 2>&1 && ! grep -q changed out && grep -q '30 steps of 8 x 32 tokens' out
ok "and then it is the run's"
head -c 6000 text >little && "$tokenize" -o little.d --tokenizer byte --train little --val little >out 2>&1
"$trainer" -i little.d -L 1 -C 16 -H 1 -t 32 -p fp32 -o grows -E 4 -b 2 -v 60 -n 60 --keep 99 -k constant >out 2>&1 && rm grows/step_000003* # leaves 240 steps, 480 of 752 sequences
"$trainer" -o grows -y -b 4 >out 2>&1 && [ "$(grep -c '"grad_norm"' grows/log.jsonl)" -eq 308 ]
ok "--epochs with another batch: the steps done, and new ones for the rest"

# ---- settings that cannot work, and disks that are too small
says() { # TEXT OPTIONS...: the run works, with this warning alone
    text=$1
    shift
    rm -rf said
    # shellcheck disable=SC2086
    "$trainer" $small -o said -x 2 -m 1 --no-test "$@" >out 2>err
    grep -qF -e "warning: $text" err && [ "$(wc -l <err)" -eq 1 ]
    ok "$text"
}
says "--schedule noam with --lr 0.0005: the rate peaks at 8.8e-05" -k noam -u 2
says "--warmup 5: the run has 2 steps, so the rate rises to 0.0002 and never falls" -u 5
says "--lr 0: the model does not learn" -l 0
says "--lr 5: the rate peaks at 5" -l 5 -c 0
says "--final-lr: has no effect with --schedule constant" -k constant -q 0.1
says "--weight-decay 10: with a rate of 0.1" -c 10 -l 0.1
says "--clip 1e-06: gradients" --clip 1e-6
says "--epochs 3: has no effect with --steps" -E 3
says "--patience 9: the run has 1 evaluations" --patience 9 -v 2
room() { run room -x 2 -m 1 --no-test --keep "$1" && sed -n 's/.*"disk":"\([^"]*\) of the .*/\1/p' room/log.jsonl && rm -r room; }
[ "$(room 2)" != "$(room 1)" ] && [ "$(room 2)" = "$(room 1000000000)" ]
ok "the room on the disk is that of the checkpoints that the run makes"
fails 1 "are available; lower --keep, or choose another --output" "$trainer" -i bytes -o vast -L 2 -C 512 -H 4 -x 1000000000 -n 1 --keep 1000000000

# ---- --verify
# damage FILE: overwrites its last byte
damage() { printf '\125' | dd of="$1" bs=1 seek=$(($(wc -c <"$1") - 1)) conv=notrunc 2>/dev/null; }
run verified -x 6 -n 2 -v 2 -m 1 --keep 3 --no-test
"$trainer" --verify verified >out 2>&1 && grep -q '^newest good checkpoint: verified/step_00000006.safetensors$' out &&
    grep -q '^  log.jsonl  *good$' out && grep -q ' 0 damaged$' out
ok "--verify: a good run"
cp -r verified rotten && damage rotten/step_00000006.state.safetensors && damage rotten/best.safetensors &&
    printf '{"step":' >>rotten/log.jsonl
"$trainer" --verify rotten >out 2>err
[ $? -eq 1 ] && [ ! -s err ] && grep -q '^newest good checkpoint: rotten/step_00000004.safetensors$' out &&
    grep -q '^  step_00000006.state.safetensors  DAMAGED: .* the checksum of tensor "second_moment.proj_logits.bias" is ' out &&
    grep -q '^  best.safetensors  *DAMAGED: ' out && grep -q 'the last one, was cut off$' out && grep -q ' 3 damaged$' out
ok "--verify: damaged files, and the newest good checkpoint"
fails 1 'second_moment.proj_logits.bias" is ' "$trainer" -o rotten -y
rm rotten/step_00000006*
! "$trainer" -o rotten -y >out 2>&1 && grep -q '^error: rotten/best.safetensors: is damaged: .*; to continue without these weights, remove the file$' out
ok "-y: damaged best weights may go"
rm rotten/best* && "$trainer" -o rotten -y >out 2>&1 && cmp rotten/step_00000006.safetensors verified/step_00000006.safetensors
ok "a damaged checkpoint is removed, and its run resumed"
rm rotten/best* && "$trainer" -o rotten -y -x 8 -l 100 >out 2>&1 && grep -q '^{"step":8,"val_loss":.*"best":true' rotten/log.jsonl &&
    [ -e rotten/best.safetensors ]
ok "without best weights the best loss begins again"
cp -r bytes rotten_data && "$trainer" --verify rotten_data >out 2>&1 && grep -q '^  train_000000.bin  *good$' out &&
    damage rotten_data/val_000000.bin && ! "$trainer" --verify rotten_data >out 2>err && [ ! -s err ] &&
    grep -q '^  train_000000.bin  *good$' out && grep -q '^  val_000000.bin  *DAMAGED: ' out
ok "--verify: a data set"
fails 1 "nowhere: is missing, or empty" "$trainer" --verify nowhere
fails 1 "holds neither a run nor a data set" "$trainer" --verify "$root/dev/test/texts"
edited '' verified/best.safetensors >old.safetensors && mkdir plain && mv old.safetensors plain/ &&
    "$trainer" --verify plain >out 2>&1 && grep -q 'good: has no checksums' out
ok "--verify: files from before there were checksums"

# ---- more memory than available
# The size is printed before memory is allocated, and the error names the option to lower. Skipped
# if the limit is too low to start at all.
limited() { (ulimit -v 3000000 && exec "$@"); }
if limited "$trainer" --help >out 2>&1; then
    fails 1 "error: --channels: the model needs" limited \
        "$trainer" -i bytes -o large -L 12 -C 4096 -H 4 -b 1 -t 16 -d 16 -x 1
    grep -q '^model   fastformer, [0-9,]* parameters, [0-9.]* GiB of memory$' out
    ok "memory is printed before it is taken"
    fails 1 "available; lower it or --seq-len" limited \
        "$trainer" -i bytes -o large -L 8 -C 256 -H 4 -b 1024 -t 64 -d 65536 -x 1
fi
run fits -x 1
grep -q '^model   fastformer, [0-9,]* parameters, [0-9.]* [KM]iB of memory$' out && ! grep -q '^start$' out &&
    grep -q '"memory":"[0-9.]* [KM]iB: parameters [0-9.]*[1-9] KiB, ' fits/log.jsonl
ok "memory of a small run: one number, its parts in the log"
run profiled -x 1 --profile && tr -s ' \n' ' ' <out | grep -q 'start model .* memory [0-9.]* [KM]iB: parameters [0-9.]* KiB, '
ok "with --profile all that is known at the start is shown"

finish
