#!/bin/sh
# Tests the trainer as a user runs it: runs, resumes, signals, bad input. Needs TRAINER and
# TOKENIZE, the programs. The last line is "N passed, N failed".
# shellcheck source=dev/test/checks.sh
. "$(dirname "$0")/checks.sh"

head -c 40000 "$shakespeare" >text
"$tokenize" -o bytes --tokenizer byte text >out 2>&1
ok "tokenize"

small="-i bytes -L 2 -C 32 -H 2 -b 4 -t 64 -p fp32 --preset published --keep 9"
run() { # DIR OPTIONS...
    name=$1
    shift
    # shellcheck disable=SC2086
    "$trainer" $small -o "$name" "$@" >out 2>&1 </dev/null
}

# ---- resume, bit for bit; an epoch has about 140 updates, so the second half crosses its end
run whole -x 200 -k constant -n 50 -v 60 -m 2
ok "200 steps"
grep -q '^next$' out && grep -q '^  write text  .*/train_fastformer -e whole --prompt The$' out &&
    grep -q '^  train on    .*/train_fastformer -o whole -y -x 400$' out && grep -q '^  evaluate    .* -e whole --eval test$' out &&
    grep -q '^  look at     whole/run.html$' out && eval "$(sed -n 's/^  write text  //p' out) -g 5" | grep -q '^The'
ok "the end of a run says what to do next"
grep -q '"test_word_ppl"' whole/log.jsonl
ok "the test split is evaluated at the end"
run parts -x 100 -k constant -n 50 -v 60 -m 2 && run parts -x 200 -y
ok "100 steps, then 100 more"
cmp whole/step_00000200.safetensors parts/step_00000200.safetensors
ok "resumed weights are the same bytes"
cmp whole/step_00000200.state.safetensors parts/step_00000200.state.safetensors
ok "resumed state is the same bytes"
# shellcheck disable=SC2086
"$trainer" $small -o signal -x 100000 -k constant -v 1000 >out 2>&1 </dev/null &
child=$!
while ! grep -qs '"step":20,' signal/log.jsonl; do sleep 0.05; done
kill -INT $child
wait $child
[ $? -eq 130 ] && grep -q 'resume with: .*-o signal -y' out
ok "SIGINT saves and prints how to resume"
step=$(ls signal | sed -n 's/^step_0*\([0-9]*\)\.safetensors$/\1/p' | tail -n 1)
run again -x "$step" -k constant -v 1000
cmp signal/step_*"$step".safetensors again/step_*"$step".safetensors
ok "the interrupted run had the uninterrupted one's weights"
# shellcheck disable=SC2086
"$trainer" $small -o term -x 100000 >out 2>&1 </dev/null &
child=$!
while ! grep -qs '"step":5,' term/log.jsonl; do sleep 0.05; done
kill -TERM $child
wait $child
[ $? -eq 143 ] && ls term/step_*.state.safetensors >/dev/null
ok "SIGTERM saves"
OMP_NUM_THREADS=1 run onethread -x 50 -k constant -n 50 -v 60
a=$(sed -n 's/.*"step":50,.*"loss":\([0-9.]*\),.*/\1/p' whole/log.jsonl)
b=$(sed -n 's/.*"step":50,.*"loss":\([0-9.]*\),.*/\1/p' onethread/log.jsonl)
awk "BEGIN { exit !($a > 0 && ($a - $b < 1e-5 * $a) && ($b - $a < 1e-5 * $a)) }"
ok "one thread, the same loss ($a, $b)"

# ---- a text through a pipe
sed -n p text | "$tokenize" -o piped --tokenizer byte - >out 2>&1 && diff -r bytes piped >out 2>&1
ok "tokenize -: standard input"
mkfifo fifo && { cat text >fifo & } && "$tokenize" -o piped --tokenizer byte --shard-tokens 1000 fifo >out 2>&1 &&
    "$tokenize" -o named --tokenizer byte --shard-tokens 1000 text >out 2>&1 && diff -r named piped >out 2>&1
ok "tokenize FIFO: a pipe of any name"
"$tokenize" -o piped --tokenizer word --train - --val text <"$shakespeare" >out 2>&1 && ! grep -q MB out
ok "--train -"
if command -v script >/dev/null; then
    { cat text && sleep 0.7 && cat text; } >fifo &
    script -qec "$tokenize -o piped --tokenizer byte fifo" /dev/null >out 2>&1 </dev/null && grep -q 'fifo: 0 MB read' out
    ok "progress on a terminal"
fi
fails 1 "error: standard input: has no words" "$tokenize" -o piped -

# ---- where sequences start
losses() { grep -o "\"\(loss\|val_loss\|test_loss\)\":[0-9.]*" "$1/log.jsonl"; }
run fixed -x 200 -k constant -n 50 -v 60 -m 2 --offsets fixed && ! cmp -s whole/step_00000200.safetensors fixed/step_00000200.safetensors &&
    grep -q ' training tokens are in no sequence (--offsets fixed)' out
ok "--offsets fixed: tokens left out are printed"
# A state from before the option existed; its header keeps its length.
rm -rf earlier && cp -r fixed earlier && rm earlier/step_*[12]00.*
edited 's/"offsets":"fixed"/"affsets":"fixed"/' fixed/step_00000150.state.safetensors >earlier/step_00000150.state.safetensors
run earlier -x 200 -y && cmp fixed/step_00000200.safetensors earlier/step_00000200.safetensors
ok "a run from before continues in its order"
sed 's/"offsets":"fixed",//' fixed/log.jsonl >earlier.jsonl && run told3 --config earlier.jsonl &&
    cmp fixed/step_00000200.safetensors told3/step_00000200.safetensors
ok "--config: and so does its log"
"$tokenize" -o pieces --tokenizer byte --shard-tokens 60 text >out 2>&1 && run pieces -i pieces -x 200 -k constant -n 50 -v 60 -m 2 &&
    losses whole >out && losses pieces | cmp - out
ok "shards that are shorter than a sequence are one text"

# ---- the page
grep -q '"command":"[^"]*--output parts [^"]*--steps 100' parts/run.html && grep -q '"command":"[^"]*--resume [^"]*--steps 200' parts/run.html &&
    grep -q '"test_word_ppl":' parts/run.html && grep -q '"samples":\["' parts/run.html && [ ! -e whole/run.html.tmp ]
ok "run.html at the end of a run"
rm whole/run.html && run whole -y --no-page && [ ! -e whole/run.html ] && ! grep -q 'look at' out
ok "--no-page"
"$trainer" -e whole --page page.html --eval val >out 2>&1 && grep -q '"model":{"' page.html && grep -q '"step":\[1,2,' page.html
ok "--page FILE -e RUN"
run whole -y && [ -s whole/run.html ]
ok "a page at the end, again"

# ---- layers of two kinds
hybrid="-L 4 -C 16 --attention additive*3+softmax:16 -k constant --no-test"
# shellcheck disable=SC2086
run hybrid $hybrid -x 8 && run hybrids $hybrid -x 4 &&
    "$trainer" -o hybrids -y -x 8 -p fp32 >out 2>&1 </dev/null && cmp hybrid/step_00000008.safetensors hybrids/step_00000008.safetensors &&
    grep -qF '"attention":["additive","additive","additive","softmax"]' hybrid/config.json && "$trainer" -e hybrid --prompt The -g 20 2>err | grep -q '^The'
ok "additive*3+softmax:16: 4 steps, then 4 more, are the same bytes, which write text"

"$trainer" -i bytes -o preset --preset hybrid -C 16 -H 2 -b 2 -t 32 -x 2 -v 1 -m 1 >out 2>&1 &&
    grep -q '"attention":"additive\*3+softmax","windows":"2,4,8,global","rescale":2' preset/log.jsonl &&
    grep -q '"positions":"rotary"' preset/config.json && grep -q '"pool":"raw","query_gain":1' preset/config.json
ok "--preset hybrid"
"$trainer" -e preset -i bytes -o preset/tuned --config preset/log.jsonl -x 1 --no-test >out 2>&1 &&
    grep -q '"optimizer":"muon"' preset/tuned/log.jsonl
ok "-e takes the options of a run with a preset from its log"
"$trainer" -i bytes -o far --preset long -C 32 -H 2 -b 2 -t 32 -x 2 -v 1 -m 1 -p fp32 >out 2>&1 &&
    grep -q '"windows":"2,global,2,global"' far/log.jsonl &&
    grep -q '"token_shift":0.5,"norm":"rms","activation":"swiglu","intermediate_size":96,"scores":"qknorm"' far/config.json
ok "--preset long"
mkdir theirs && cp far/config.json theirs && edited 's/"model":"fastformer"/"modem":"fastformer"/' far/best.safetensors >theirs/model.safetensors &&
    "$trainer" -i bytes -e far --eval val -p fp32 2>err | sed 's/  in .*//' >eval.out &&
    "$trainer" -i bytes -e theirs --eval val -p fp32 2>err | sed 's/  in .*//' >out && grep -q '^val loss' out && cmp out eval.out
ok "--preset long: config.json says what the metadata says"
run gated -x 2 -m 1 --no-test --ffn swiglu --ffn-size 128 && mkdir gated.theirs && cp gated/config.json gated.theirs &&
    edited 's/"model":"fastformer"/"modem":"fastformer"/' gated/best.safetensors >gated.theirs/model.safetensors &&
    "$trainer" -i bytes -e gated --eval val -p fp32 2>err | sed 's/  in .*//' >eval.out &&
    "$trainer" -i bytes -e gated.theirs --eval val -p fp32 2>err | sed 's/  in .*//' >out && grep -q '^val loss' out && cmp out eval.out
ok "and so with SwiGLU of 4 C channels, which config.json does not name"

# ---- Muon
run muon -x 20 --optimizer muon -k constant -n 10 && run halves -x 10 --optimizer muon -k constant -n 10 &&
    run halves -x 20 -n 10 -y && cmp muon/step_00000020.safetensors halves/step_00000020.safetensors &&
    cmp muon/step_00000020.state.safetensors halves/step_00000020.state.safetensors
ok "--optimizer muon: 10 steps, then 10 more, are the same bytes"
run muon -x 20 -y && grep -q '"memory":"[^"]*orthogonalisation' muon/log.jsonl
ok "--optimizer muon: its memory is printed"
fails 1 "--optimizer adamw: muon/step_00000020.state.safetensors has muon; drop the option" \
    "$trainer" -i bytes -o muon -y --optimizer adamw -x 30
fails 1 "--optimizer muon: whole/step_00000200.state.safetensors has adamw" \
    "$trainer" -i bytes -o whole -y --optimizer muon -x 300
rm -rf before && cp -r whole before # a state from before there was a choice
edited 's/"optimizer":"adamw"/"optimizes":"adamw"/' whole/step_00000200.state.safetensors >before/step_00000200.state.safetensors
fails 1 "--optimizer muon: before/step_00000200.state.safetensors has adamw" \
    "$trainer" -i bytes -o before -y --optimizer muon -x 300
edited 's/"optimizer":"muon"/"optimizer":"mu  "/' muon/step_00000020.state.safetensors >halves/step_00000020.state.safetensors
fails 1 "optimizer mu  : expected one of adamw|adam|muon" "$trainer" -i bytes -o halves -y -x 30

# ---- how long to train
rates() { # DIR: the learning rates of its log
    sed -n 's/.*"lr":\([^,]*\),.*/\1/p' "$1/log.jsonl"
}
last_step() { # DIR
    ls "$1" | sed -n 's/^step_0*\([0-9]*\)\.safetensors$/\1/p' | tail -n 1
}
run timed --minutes 0.02 -m 2 && rates timed >falling && sort -gr falling | cmp - falling &&
    [ "$(sort -u falling | wc -l)" -gt 1 ] && grep -q '"plan":"0.02 minutes of steps' timed/log.jsonl &&
    grep -q test_loss timed/log.jsonl
ok "--minutes: the rate falls with the time"
step=$(last_step timed)
# Checks only that it took long enough; how much longer depends on the machine.
seconds=$(cat timed/step_*"$step".state.safetensors | grep -ao '"seconds":"[0-9.]*"' | tr -dc 0-9.)
awk "BEGIN { exit !($seconds >= 1.2) }"
ok "--minutes: of updates"
run timed -y -m 2 && grep -q 'the 0.02 minutes are over' out && [ "$(grep -c test_loss timed/log.jsonl)" -eq 1 ]
ok "--minutes: a finished run stays finished"
run timed -y -m 2 --minutes "$(awk "BEGIN { print ($seconds + 0.6) / 60 }")" && [ "$(last_step timed)" -gt "$step" ] &&
    grep -q "resuming after step $step" out && sed -n "s/.*\"step\":$((step + 1)),.*\"lr\":\([^,]*\),.*/\1/p" timed/log.jsonl |
    awk -v seconds="$seconds" '{ exit !(($1 / 5e-4 - 0.6 / (seconds + 0.6)) ^ 2 < 1e-4) }'
ok "--minutes: a longer run resumes at the time that had passed"
run timed -y -x $(($(last_step timed) + 3)) -m 2 && grep -q '"minutes":0,' timed/log.jsonl
ok "--steps ends a run that --minutes began"
# --minutes is one second more than the log's time, so the rate of step 41 is that of the remaining
# time: at most that second, and at least that second minus the time until the end of the step.
run counted -x 40 -m 2 && seconds=$(sed -n 's/.*"seconds":\([0-9.]*\).*/\1/p' counted/log.jsonl | tail -n 1) &&
    run counted -y -m 2 --minutes "$(awk "BEGIN { printf \"%.9f\", ($seconds + 1) / 60 }")" &&
    sed -n 's/.*"step":41,.*"lr":\([^,]*\),.*"seconds":\([0-9.]*\)}$/\1 \2/p' counted/log.jsonl |
    awk -v seconds="$seconds" '{ left = $1 / 5e-4 * (seconds + 1); right = left < 1.002 && left > 0.998 - ($2 - seconds) } END { exit !right }'
ok "--minutes resumes where --steps ended, at the rate of the remaining time"
fails 2 "--minutes and --steps exclude each other" "$trainer" -i bytes -o x --minutes 1 -x 3
run patient -x 200 -l 10 -v 2 -m 1 --patience 3 --clip 0 && grep -q 'no better validation loss in the last 3 eval' out &&
    [ "$(last_step patient)" -lt 200 ] && grep -q test_loss patient/log.jsonl &&
    [ "$(grep val_loss patient/log.jsonl | tail -n 4 | grep -c best)" -eq 1 ]
ok "--patience"
run patient -y -v 2 -m 1 --patience 3 && grep -q 'no better' out && [ "$(grep -c test_loss patient/log.jsonl)" -eq 1 ]
ok "--patience: an ended run stays ended"
step=$(last_step patient)
eval "$(sed -n 's/^  train on  *//p' out) -l 0 -m 1" >out 2>&1 && [ "$(last_step patient)" -eq $((step + 6)) ]
ok "--patience: the command to train on does so"
run untested -x 3 -m 1 --no-test && ! grep -q test_loss untested/log.jsonl
ok "--no-test"

# ---- a resumed run keeps its options for evaluations
evaluated() { # DIR STEP: the tokens of the validation after that step
    sed -n "s/^{\"step\":$2,\"val_loss\".*\"val_tokens\":\([0-9]*\),.*/\1/p" "$1/log.jsonl"
}
run habits -x 10 -v 5 -m 1 --no-test --sample-every 5 -g 3 && "$trainer" -o habits -y -x 20 >out 2>&1 &&
    [ "$(evaluated habits 5)" -gt 0 ] && [ "$(evaluated habits 15)" = "$(evaluated habits 5)" ] && ! grep -q test_loss habits/log.jsonl &&
    grep -q '^sample at step 15' out
ok "-y evaluates and samples as before"
"$trainer" -o habits -y -x 25 -m 2 >out 2>&1 && grep -q "is of $(evaluated habits 5) tokens, this evaluation of $(evaluated habits 25)" out &&
    grep -q '^{"step":25,"val_loss".*"best":true' habits/log.jsonl
ok "a best loss of other text does not count"
"$trainer" --config habits/log.jsonl -o configured -x 1 >out 2>&1 && grep -q "data  .*/bytes: " out
ok "the log of a resumed run says its data"
fails 1 "nowhere: holds no run to resume; check --output" "$trainer" -o nowhere -y
[ ! -e nowhere ]
ok "no directory is made for it"
run betas -x 5 -n 5 -m 1 --beta1 0.8 --eps 1e-6 && run default -x 5 -n 5 -m 1 &&
    ! cmp -s betas/step_00000005.safetensors default/step_00000005.safetensors
ok "--beta1 and --eps"
fails 1 "--beta1 0.7" "$trainer" -i bytes -o betas -y -x 6 --beta1 0.7
run told --config betas/log.jsonl -m 1 && cmp told/step_00000005.state.safetensors betas/step_00000005.state.safetensors
ok "--config: a log trains the same run"
echo '{"lr": 1e-3, "steps": 500, "beta1": 0.8, "eps": 1e-6}' >my.json
run told2 --config my.json -l 5e-4 -x 5 -m 1 && cmp told2/step_00000005.safetensors betas/step_00000005.safetensors
ok "--config: the command line wins"
echo '{"lr": "fast"}' >my.json
fails 1 'my.json: "lr": expected a number' "$trainer" -i bytes -o x --config my.json
fails 1 "nowhere.json" "$trainer" -i bytes -o x --config nowhere.json

# ---- data that have changed
"$tokenize" -o moving --tokenizer byte text >out 2>&1 && run moved -i moving -x 4 -v 2 -m 2 --no-test &&
    tr a-y b-z <text >other && "$tokenize" -o moving --tokenizer byte other >out 2>&1
ok "other data of as many tokens"
fails 1 "moving/train_000000.bin: had other tokens when step 4 was saved; to continue on the present data, add --input" \
    "$trainer" -o moved -y -x 6
run moved -i moving -y -x 6 && [ "$(grep -c '^warning: moving/.*: had other tokens when step 4' out)" -eq 3 ] &&
    grep -q '^{"step":6,"val_loss".*"best":true' moved/log.jsonl && run moved -y -i moving -x 7 && ! grep -q warning out
ok "-y -i continues on them, and looks for the best loss again"
"$tokenize" -o moving --tokenizer byte --train other --val text --test text >out 2>&1
fails 1 "moving: its train split had 35983 tokens" "$trainer" -o moved -y -x 8
sed 's/,"checksums":\["[0-9a-f]*"\]//g' moving/meta.json >meta && ! grep -q checksums meta && mv meta moving/meta.json
run moved -i moving -y -x 8 && grep -q 'validation losses of before are not compared' out
ok "where meta.json has no checksums, too"
printf 'X' | dd of=bytes/val_000000.bin bs=1 seek=1100 conv=notrunc 2>/dev/null
fails 1 "bytes/val_000000.bin: was changed or damaged since it was made" "$trainer" -i bytes -o damaged
"$tokenize" -o bytes --tokenizer byte text >out 2>&1

# ---- gradients whose squares are too large: the last weight of the output layer, before its bias, is 1e22
edited '' whole/best.safetensors >huge.safetensors
printf '\170\206\007\144' | dd of=huge.safetensors bs=1 seek=$(($(wc -c <huge.safetensors) - 257 * 4)) conv=notrunc 2>/dev/null
run huge -e huge.safetensors -x 3 --clip 0 -m 1 --no-test && grep -q 'step 3 skipped: loss .*, gradient norm [0-9.]*e+2' out &&
    run huge -y -x 4 -m 1 --no-test
ok "an update whose second moments would be infinite is skipped"

# ---- evaluation and generation
"$trainer" -e whole/best.safetensors -i bytes --eval val --json >out 2>&1 && [ "$(wc -l <out)" -eq 1 ] &&
    grep -q '^{"val_loss":[0-9.]*,"val_ppl":[0-9.]*,"val_bpb":.*}$' out
ok "--eval --json"
parameters() { sed -n 's/.*"\(val\|text\)_loss".*,"parameters":"\([0-9a-f]\{16\}\)"}$/\2/p' "$1" | tail -n 1; }
[ -n "$(parameters whole/log.jsonl)" ] && OMP_NUM_THREADS=1 "$trainer" -o whole -y --eval val --json >one &&
    OMP_NUM_THREADS=2 "$trainer" -o whole -y --eval val --json >two && [ "$(parameters one)" = "$(parameters two)" ] &&
    [ "$(parameters one)" = "$(parameters whole/log.jsonl)" ] &&
    "$trainer" -e whole/step_00000150.safetensors --eval val --json >three && [ "$(parameters one)" != "$(parameters three)" ]
ok "the checksum of the parameters is that of the weights, with any threads"
"$trainer" -e whole/best.safetensors -i bytes --eval val --json --stats 1 >out 2>&1 && ! grep -qv '^{.*}$' out &&
    grep -q '"event":"statistics","tensor":.*"kurtosis":' out
ok "--eval --json --stats"
"$trainer" -e whole/best.safetensors -i bytes --eval val --json --eval-positions >out 2>&1 && ! grep -qv '^{.*}$' out &&
    grep -q '"positions":\[{"from":1,"to":1,' out
ok "--eval --json --eval-positions"
"$trainer" -e whole/best.safetensors -i bytes --eval val >out 2>&1
ok "--eval"
"$trainer" -e whole/best.safetensors -i bytes --eval val --stats 2 >out 2>&1 && grep -q query_weights out
ok "--stats"
run measured -x 20 -v 10 -m 2 --stats 1 && awk '
    function number(key) { return match($0, "\"" key "\":-?[0-9][-+.0-9e]*") ? substr($0, RSTART + length(key) + 3, RLENGTH - length(key) - 3) : "" }
    /"best":true/ { weights = number("val_weight_kurtosis"); largest = number("val_activation_max_abs") }
    /"tensor":/ { sum += number("kurtosis"); tensors++ }
    /"place":"residual"/ && number("layer") > 0 && number("max_abs") > top { top = number("max_abs") }
    END { d = weights - sum / tensors; exit !(tensors == 6 && d * d < 1e-20 && top == largest && top > 0) }' measured/log.jsonl
ok "what evaluations say with --stats is what the end says of each matrix and layer"
run profiled -x 3 --profile && grep -q classifier out && grep -q '"event":"profile","steps":2' profiled/log.jsonl
ok "--profile"
"$trainer" -e whole/best.safetensors -i bytes --prompt "The " -g 30 >out 2>&1 && grep -q '^The ' out
ok "--prompt"
run tuned -e whole/best.safetensors -x 5
ok "--init"
"$trainer" --help >out && [ "$(wc -l <out)" -le 40 ] && ! grep -q '.\{80\}' out
ok "--help fits a screen"

# ---- invalid options
fails 2 "did you mean --windows" "$trainer" --widnows 4
fails 2 "--heads" "$trainer" --heads 0
fails 1 "--heads 3" "$trainer" -i bytes -C 32 -H 3
fails 2 "--rescale" "$trainer" --rescale 41
fails 2 "--total-batch" "$trainer" -i bytes -b 2 -t 64 -d 100
fails 2 "--eval-positions: is for --eval" "$trainer" -e whole --page page.html --eval val --eval-positions
fails 2 "--json: is for --eval" "$trainer" -e whole --page page.html --eval val --json
fails 2 "--eval: needs weights: -e PATH" "$trainer" --eval test
fails 2 "--gpu: train_fastformer trains on the CPU; train_fastformercu (make train_fastformercu) does on a GPU" "$trainer" --gpu
fails 1 "--heads" "$trainer" -i bytes -o whole -y -H 8
fails 1 "--seed" "$trainer" -i bytes -o whole -y -S 7
fails 1 "--resume" "$trainer" -i bytes -o whole -x 10
fails 1 "--seq-len 65" "$trainer" -i bytes -e whole/best.safetensors -t 65 --eval val
fails 1 "--seq-len 65: the model has 64 positions, and --average makes no more" \
    "$trainer" -i bytes -e whole --average 2 -t 65 -o x
fails 1 "shorter --seq-len" "$trainer" -i bytes -o long -t 1000000 -b 1
fails 1 "lower --seq-len or --batch" "$trainer" -i bytes -o wide -b 100000

# ---- invalid files
copy() { rm -rf bad && cp -r bytes bad; }
fails 1 "nowhere" "$trainer" -i nowhere -o x
copy && rm bad/train_*.bin
fails 1 "bad" "$trainer" -i bad -o x
copy && truncate -s -1 bad/val_000000.bin
fails 1 "bad/val_000000.bin" "$trainer" -i bad -o x
copy && truncate -s 100 bad/train_000000.bin
fails 1 "bad/train_000000.bin" "$trainer" -i bad -o x
copy && printf 'x' | dd of=bad/train_000000.bin conv=notrunc 2>/dev/null
fails 1 "bad/train_000000.bin" "$trainer" -i bad -o x
copy && printf '\377\377' | dd of=bad/train_000000.bin bs=1 seek=2024 conv=notrunc 2>/dev/null
fails 1 "bad/train_000000.bin" "$trainer" -i bad -o x
copy && echo '{"tokenizer": "byte", ' >bad/meta.json
fails 1 "bad/meta.json" "$trainer" -i bad -o x
best=whole/best.safetensors
head -c 1000 $best >short.safetensors
fails 1 "short.safetensors" "$trainer" -i bytes -e short.safetensors --eval val
printf '\377\377\377\377\377\377\377\177' | cat - $best >lying.safetensors
fails 1 "lying.safetensors" "$trainer" -i bytes -e lying.safetensors --eval val
edited 's/"n_layer":"2"/"n_layer":"3"/' $best >deep.safetensors
fails 1 "decoders.2" "$trainer" -i bytes -e deep.safetensors --eval val
edited 's/"model":"fastformer"/"model":"otherformer"/' $best >other.safetensors
fails 1 "other.safetensors" "$trainer" -i bytes -e other.safetensors --eval val
"$tokenize" -o words --tokenizer word text >out 2>&1
fails 1 "its vocabulary has 256" "$trainer" -i words -e $best --eval val

# ---- a disk that is full: the last good checkpoint stays
run full -x 10 && before=$(cat full/step_*10.safetensors full/step_*10.state.safetensors | cksum)
(ulimit -f 40 && "$trainer" -i bytes -o full -x 20 -y >out 2>err)
[ $? -eq 1 ] && [ "$(wc -l <err)" -eq 1 ]
ok "a full disk is one line"
[ "$before" = "$(cat full/step_*10.safetensors full/step_*10.state.safetensors | cksum)" ] && run full -x 20 -y
ok "a full disk leaves the last checkpoint"

finish
