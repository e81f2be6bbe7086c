#!/bin/sh
# Tests what the scripts that compare models share (scripts/compare.sh, arms.sh), with trainers that only write logs: runs side by
# side, what a signal leaves, what is kept, tables of what is finished.
set -u
cd "$(dirname "$0")/../.." || exit 1
# shellcheck source=dev/test/stand_ins.sh
. dev/test/stand_ins.sh

mkdir -p "$directory/data/wikitext2" "$directory/data/tinyshakespeare" "$directory/bin" "$directory/dev/bench"
cp -r scripts "$directory/"
cp data/common.sh "$directory/data/"
cp dev/bench/exactness.sh "$directory/dev/bench/"
cd "$directory" || exit 1
for data in wikitext2 tinyshakespeare; do
    echo '{"tokenizer":"byte","mask":1,"splits":{"train":{"tokens":40960},"val":{"tokens":100},"test":{"tokens":100}}}' >data/$data/meta.json
done
echo 'exit 0' | fake tokenize
fake train_fastformer <<'END'
# Writes what a run of -x steps would log, unless the file `slow` makes it wait for a signal; the file `failing` names runs that fail.
command=$*
while [ $# -gt 0 ]; do
    case $1 in
    -o) run=$2 ;;
    -x) steps=$2 ;;
    -S) seed=$2 ;;
    esac
    shift
done
case $run in
*.tmp) ;; # a probe
*)
    echo "$run $command" >>trained
    trap 'echo "$run" >>stopped; rmdir "running.$$"; exit 143' TERM
    mkdir "running.$$"
    count=$(ls -d running.* | wc -l)
    echo "$count $OMP_NUM_THREADS" >>side_by_side
    while [ -f slow ]; do sleep 0.05; done
    sleep 0.1
    rmdir "running.$$"
    if [ -f failing ] && case $run in *$(cat failing)*) true ;; *) false ;; esac then
        echo 'error: something failed'
        exit 1
    fi
    ;;
esac
loss=5.$(echo "$run" | cksum | cut -c 1-3)
cat >"$run/log.jsonl" <<LOG
{"event":"start","model":"fake, 1000 parameters","processor":"Fake CPU, 1 threads","products":"none, fp32, peak 1"}
{"step":1,"epoch":0.5,"loss":6,"lr":1e-3,"grad_norm":0.5,"ms":10,"tokens_per_s":100,"seconds":0.1}
{"step":$steps,"epoch":1,"loss":5.5,"lr":0,"grad_norm":0.25,"ms":10,"tokens_per_s":100,"seconds":0.2}
{"step":$steps,"val_loss":$loss,"val_ppl":200,"val_word_ppl":300,"val_saturated_share":0.01,"val_attention_max_abs":4,"val_weight_kurtosis":0.5,"val_activation_kurtosis":2,"val_tokens":100,"val_ms":5,"best":true,"seconds":0.3}
{"step":$steps,"test_loss":$loss,"test_ppl":200,"test_bpb":1.5,"test_word_ppl":300,"test_tokens":100,"test_ms":5,"seconds":0.4}
{"event":"statistics","step":$steps,"layer":0,"place":"residual","kurtosis":0.5,"max_abs":1}
{"event":"statistics","step":$steps,"layer":1,"place":"residual","kurtosis":$seed.5,"max_abs":2}
{"event":"statistics","step":$steps,"tensor":"h.0.boom.weight","kurtosis":0.25}
LOG
exit 0
END
cp train_fastformer train_gpt2
cp train_fastformer train_bert
fake python <<'END'
# Has PyTorch, and trains as train_fastformer does.
[ "$1" = -c ] || { shift && exec ./train_fastformer "$@"; }
END
# Its pictures are empty.
fake bin/gnuplot <<'END'
sed -n "s/^set output '\(.*\)'$/\1/p" "$1" | while read -r file; do : >"$file"; done
END
PATH=$directory/bin:$PATH
export OMP_NUM_THREADS=2 # so many cores there are, for the scripts

runs_made() { wc -l <trained; }
# says CODE TEXT COMMAND...: it exits with CODE and says TEXT
says() {
    code=$1
    text=$2
    shift 2
    "$@" >said 2>&1
    [ $? -eq "$code" ] && grep -qF -e "$text" said
}

# ---- runs side by side
: >trained
: >said
check 'nine runs, two at a time' says 0 '| fastformer-windowed | ' scripts/run_lengths.sh --quick --jobs 2 --output first --keep kept
check 'each run once' [ "$(sort -u trained | wc -l)" -eq 9 ]
check 'two at a time, of a thread each' [ "$(sort -u side_by_side | tail -n 1)" = '2 1' ]
check 'what it says of a run' grep -qE '^  9/9  gpt2-softmax-8192-seed-1 .* test perplexity [0-9.]+ in [0-9]+s, about [0-9]+s to go$' said
check 'a picture' [ -f first/perplexity_by_length.png ]
check 'a table without a hole' [ "$(grep -c ' | - ' first/results.md)" -eq 0 ]
check 'no word of runs that are missing' [ "$(grep -c 'so far' first/results.md)" -eq 0 ]
check 'the same command again makes none' says 0 '9 runs, of which 9 are finished' scripts/run_lengths.sh --quick --output first
check 'another machine goes by the logs' says 0 '9 runs, of which 9 are finished' \
    scripts/run_lengths.sh --quick --output second --keep kept
check 'nine in all' [ "$(runs_made)" -eq 9 ]
check 'more runs than cores' says 1 '--jobs 3: there are 2 cores' scripts/run_lengths.sh --quick --jobs 3 --output first
for options in '--jobs 0' '--jobs' '--seeds 1x' '--keep' '--epochs 2'; do
    # shellcheck disable=SC2086
    check "$options" says 2 'usage: run_lengths.sh' scripts/run_lengths.sh $options
done

for trainer in fastformer gpt2; do mv train_$trainer train_${trainer}cu; done
check 'on a GPU by the programs for it' says 0 '9 runs, of which 0 are finished' scripts/run_lengths.sh --quick --gpu --output gpu
check 'where nothing is measured first' [ "$(find gpu -name '*.cost' | wc -l)" -eq 0 ]
for trainer in fastformer gpt2; do mv train_${trainer}cu train_$trainer; done

# ---- what a signal leaves
: >trained
: >slow
scripts/run_rescale.sh --quick --jobs 2 --output third >said 2>&1 &
script=$!
while [ "$(ls -d running.* 2>/dev/null | wc -l)" -lt 2 ]; do sleep 0.05; done
kill -TERM $script
wait $script
check 'SIGTERM: exit code 130' [ $? -eq 130 ]
check 'it says so once' [ "$(grep -c 'stopped; the same command goes on' said)" -eq 1 ]
check 'each trainer had the signal once' [ "$(sort stopped | uniq -c | grep -c '^ *1 .*/third/')" -eq 2 ]
check 'none is left' [ "$(ls -d running.* 2>/dev/null | wc -l)" -eq 0 ]
rm slow
check 'nothing is finished' says 1 'third: no run is finished' scripts/run_rescale.sh --quick --report --output third
check 'a trainer that a signal ends stops the script' sh -c '
    : >slow
    scripts/run_rescale.sh --quick --jobs 2 --output third >said 2>&1 &
    script=$!
    while [ "$(ls -d running.* 2>/dev/null | wc -l)" -lt 2 ]; do sleep 0.05; done
    kill -TERM "$(ls -d running.* | sed -n "1s/.*\.//p")"
    wait $script
    code=$?
    rm slow
    [ $code -eq 130 ]'

# ---- tables of what is finished
echo 'raw-2e-3' >failing
: >trained
check 'a run that fails' says 1 'runs failed and are not in the table' scripts/run_rescale.sh --quick --jobs 2 --output third
check 'which one' grep -q 'raw-2e-3-seed-1  *failed: error: something failed in' said
check 'the table has the others' grep -qF '**15 of 16 runs are finished so far.**' third/results.md
rm failing
check 'a report trains nothing' says 0 '15 of 16 runs' scripts/run_rescale.sh --quick --report --output third
check 'sixteen were tried' [ "$(runs_made)" -eq 16 ]
check 'the failed one is tried again' says 0 '| raw | ' scripts/run_rescale.sh --quick --output third
check 'and alone' [ "$(runs_made)" -eq 17 ]

# ---- all of them
check 'a signal ends all comparisons' sh -c '
    : >slow
    scripts/run_claims.sh --quick >said 2>&1 &
    script=$!
    while [ "$(ls -d running.* 2>/dev/null | wc -l)" -lt 1 ]; do sleep 0.05; done
    kill -TERM $script
    wait $script
    code=$?
    rm slow
    [ $code -eq 130 ] && [ "$(grep -c "^==" said)" -eq 1 ]'
rm -r runs
check 'one that cannot be made keeps none from being tried' says 1 'run_claims.sh: 6 comparisons failed' scripts/run_claims.sh --quick --report

# ---- options of one script
: >trained
check 'options for the trainers' says 0 '| gpt2-softmax | ' scripts/run_wikitext2.sh --epochs 2 --seeds 1 --output fourth -- -t 512
check 'they have them' [ "$(grep -c ' -v 10 -t 512 -x 20 -S 1 ' trained)" -eq 3 ]
check 'the ablation' says 0 '| fastformer-sink-1 | 2 |' scripts/run_ablation.sh --quick --seeds 2 --jobs 2 --output fifth --keep ablation
check 'kurtosis of weights and of activations' grep -q '^wikitext2,gpt2-softmax,2,1,0.25,2.5,2$' fifth/layers.csv
check 'its logs are kept' says 0 '24 runs, of which 24 are finished' scripts/run_ablation.sh --quick --seeds 2 --output sixth --keep ablation
check 'pictures are kept' [ -f ablation/tinyshakespeare/kurtosis_by_step.png ]
check 'cosine attention' says 0 '| cosine-learned | 5.' scripts/run_cosine.sh --quick --jobs 2 --output seventh
check 'largest numbers by step' [ -f seventh/attention_by_step.png ]
check 'exactness' says 0 '| published-15 | 5.' dev/bench/exactness.sh --python ./python --quick --jobs 2 --output eighth --keep exactness
check 'its options' grep -q ' --sums published --rescale 15 -i data/wikitext2 .* -x 50 -S 1 -l 2e-3 ' trained
check 'its settings' says 1 'the runs beside it have other settings' dev/bench/exactness.sh --python ./python --output eighth
check 'without PyTorch' says 1 'false has no PyTorch' dev/bench/exactness.sh --python false --quick --output eighth
mkdir 'a|b' && sed 's/"processor"/"data":"a b'"'"'c\\\\\\"d: 5 train, 2 val","processor"/' "fourth/$(ls fourth | grep -m 1 seed-1)/log.jsonl" >'a|b/log.jsonl'
check 'quotes and bars in names' says 0 'data | a b'"'"'c\"d: 5 train, 2 val |' scripts/report.sh 'a|b'
check 'a bar is no border' grep -q '^| | a\\|b |$' said
check 'a spread takes two seeds' says 2 usage: scripts/run_ablation.sh --seeds 1

finish
