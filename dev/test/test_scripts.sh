#!/bin/sh
# Tests the comparisons (scripts/compare.py) with trainers that only write logs: parallel runs,
# signals, kept logs, tables of the finished runs. Also checks that the tables in dev/results match
# their logs.
set -u
cd "$(dirname "$0")/../.." || exit 1
command -v python3 >/dev/null || {
    echo 'skipped: python3 is missing'
    echo '0 passed, 0 failed'
    exit
}
root=$PWD
# shellcheck source=dev/test/stand_ins.sh
. dev/test/stand_ins.sh

mkdir -p "$directory/dev/bench"
cp -r scripts "$directory/"
cp dev/bench/exactness.sh dev/bench/precision.sh dev/bench/report.py "$directory/dev/bench/"
cd "$directory" || exit 1
meta() { # DATA TOKENIZER MASK
    mkdir -p "data/$1"
    echo "{\"tokenizer\":\"$2\",\"mask\":$3,\"splits\":{\"train\":{\"tokens\":40960},\"val\":{\"tokens\":100},\"test\":{\"tokens\":100}}}" >"data/$1/meta.json"
}
meta wikitext2 spm -1
meta wikitext2-bert bpe 1
meta wikitext2-words word -1
meta tinyshakespeare byte -1
meta multi30k bpe -1
echo 'exit 0' | fake tokenize
fake train_fastformer <<'END'
# Writes what a run of -x steps would log, unless the file `slow` makes it wait for a signal; the file `failing` names runs that fail.
command=$*
while [ $# -gt 0 ]; do
    case $1 in
    --eval)
        echo '{"test_accuracy":0.25}'
        exit
        ;;
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
{"event":"start","model":"fake, 1000 parameters","decoding_state_bytes":"4096","processor":"Fake CPU, 1 threads","products":"none, fp32, peak 1"}
{"step":1,"epoch":0.5,"loss":6,"lr":1e-3,"grad_norm":0.5,"ms":10,"tokens_per_s":100,"seconds":0.1}
{"step":$steps,"epoch":1,"loss":5.5,"lr":0,"grad_norm":0.25,"ms":10,"tokens_per_s":100,"seconds":0.2}
{"step":$steps,"val_loss":$loss,"val_ppl":200,"val_word_ppl":300,"val_saturated_share":0.01,"val_attention_max_abs":4,"val_weight_kurtosis":0.5,"val_activation_kurtosis":2,"val_tokens":100,"val_ms":5,"best":true,"seconds":0.3}
{"step":$steps,"test_loss":$loss,"test_ppl":200,"test_bpb":1.5,"test_word_ppl":300,"test_tokens":100,"test_ms":5,"seconds":0.4}
{"event":"statistics","step":$steps,"layer":0,"place":"residual","kurtosis":0.5,"max_abs":1}
{"event":"statistics","step":$steps,"layer":1,"place":"residual","kurtosis":$seed.5,"max_abs":2}
{"event":"statistics","step":$steps,"tensor":"h.0.boom.weight","kurtosis":0.25}
LOG
: >"$run/best.safetensors"
exit 0
END
cp train_fastformer train_gpt2
cp train_fastformer train_bert
fake train_translate <<'END'
case $* in *--translate*) cat ;; *) exec ./train_fastformer "$@" ;; esac
END
fake sacrebleu <<'END'
case $* in *-b*) echo 33.25 ;; *) echo 'BLEU|nrefs:1|case:mixed = 33.2 60/40' ;; esac
END
fake python <<'END'
# Has PyTorch, and trains as train_fastformer does.
[ "$1" = -c ] || { shift && exec ./train_fastformer "$@"; }
END
export OMP_NUM_THREADS=2 # so many cores there are, for the scripts

runs_made() { wc -l <trained; }
# says CODE TEXT COMMAND...: checks that it exits with CODE and prints TEXT
says() {
    code=$1
    text=$2
    shift 2
    "$@" >said 2>&1
    [ $? -eq "$code" ] && grep -qF -e "$text" said
}

# ---- parallel runs
: >trained
: >said
check 'nine runs, two at a time' says 0 '| fastformer-windowed | ' scripts/run_lengths.sh --quick --jobs 2 --output first --keep kept
check 'each run once' [ "$(sort -u trained | wc -l)" -eq 9 ]
check 'two at a time, of a thread each' [ "$(sort -u side_by_side | tail -n 1)" = '2 1' ]
check 'what it says of a run' grep -qE '^  9/9  gpt2-softmax-8192-seed-1 .* test perplexity [0-9.]+ in [0-9]+s, about [0-9]+s to go$' said
check 'a picture, or why it is missing' sh -c '[ -f first/perplexity_by_length.png ] || grep -q "^no perplexity_by_length.png: matplotlib is missing" said'
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
check 'what it measures first is gone' [ "$(find first -name '*.tmp' | wc -l)" -eq 0 ]
for trainer in fastformer gpt2; do mv train_${trainer}cu train_$trainer; done

# ---- a tuned comparison: the first seed at four rates, and more while the best is at an end; the
# other seeds at the best
tuned() {
    scripts/run_fair.sh --quick --seeds 2 --data wikitext2-bert --length 256 \
        --arms 'additive-in-published-by-adamw additive-raw-*-published-by-adamw' --output tuned
}
check 'two arms at four rates or more, then a second seed' says 0 'bytes of decoding state' tuned
check 'no such arm' says 2 'there are additive-in-published-by-adamw' scripts/run_fair.sh --quick --arms none
check 'too few updates' says 2 'expected 100 or more' scripts/run_fair.sh --quick --updates 5
check 'one name of two is unknown' says 2 '--arms none: nothing is called so' scripts/run_fair.sh --quick --arms 'additive* none'
check 'no name' says 2 '--arms: expected names' scripts/run_fair.sh --quick --arms ' '
check 'no such value' says 2 'there are pairs=8' scripts/run_recall.sh --quick --values none
for arm in additive additive-raw; do
    rates=$(ls -d tuned/"$arm-in"*-seed-1 | sed 's/.*adamw-//; s/-seed.*//' | sort -g)
    best=$(grep -o '"val_loss":[0-9.]*' tuned/"$arm-in"*-seed-1/log.jsonl | sort -t : -k 3,3 -g | sed -n "1s/-seed-1.*//p")
    check "$arm: four rates at least" [ "$(echo "$rates" | wc -l)" -ge 4 ]
    case ${best##*-} in 0.25 | 32) inner=$rates ;; *) inner=$(echo "$rates" | sed '1d;$d') ;; esac
    check "$arm: one on either side of the best" [ "$(echo "$inner" | grep -cx "${best##*-}")" -eq 1 ]
    check "$arm: the second seed at the rate of the lowest loss" [ -s "$best-seed-2/log.jsonl" ]
done

# Both arms have as many seeds at their best rates, too, if the best run of one becomes worse again.
echo '{"step":41,"val_loss":9}' >>"$best-seed-1/log.jsonl"
check 'a rate at which the loss rises again is not the best' says 0 'bytes of decoding state' tuned
check 'the second seed is at the rate of the table' [ "$(grep -c '^| .* | 2 | 1000 | ' tuned/results.md)" -eq 2 ]

# ---- a run that begins with the weights of another
check 'a model is asked for more than it was trained on' says 0 '| softmax | 0.2500 ' scripts/run_recall.sh --quick \
    --arms softmax --values 'pairs*' --output begun
check 'the second run begins with the weights of the first' [ "$(grep -c -e "-e [^ ]*begun/softmax-pairs=8,vocab=1024-seed-1" trained)" -eq 1 ]
check 'and follows it' [ "$(tail -n 2 trained | grep -c 'begun/softmax-pairs=4-64')" -eq 1 ]
sed -i '/test_loss/d' begun/softmax-pairs=4-64,vocab=1024-seed-1/log.jsonl
check 'the second run resumes' says 0 '| softmax | 0.2500 ' scripts/run_recall.sh --quick --arms softmax --values 'pairs*' --output begun
check 'with its own weights' [ "$(tail -n 1 trained | grep -e ' -y' | grep -vc -e ' -e ')" -eq 1 ]
check 'another arm' says 0 '| additive | - |' scripts/run_recall.sh --quick --arms additive --values copy --output begun
check 'does not take the place of the first in runs.csv' [ "$(grep -c '^softmax,.*,0.25,' begun/runs.csv)" -eq 1 ]

# ---- a signal to the script
: >trained
: >slow
scripts/run_rescale.sh --quick --jobs 2 --output third >said 2>&1 &
script=$!
while [ "$(ls -d running.* 2>/dev/null | wc -l)" -lt 2 ]; do sleep 0.05; done
kill -TERM $script
wait $script
check 'SIGTERM: exit code 130' [ $? -eq 130 ]
check 'it prints that once' [ "$(grep -c 'stopped; the same command resumes' said)" -eq 1 ]
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

# ---- tables of finished runs
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

# ---- all comparisons
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
rm -r fourth/fastformer-global-seed-1
check 'a report of a run whose log is gone' says 0 '| fastformer-global | - | 1 | ' scripts/run_wikitext2.sh --epochs 2 --seeds 1 \
    --output fourth --report
check 'the ablation' says 0 '| fastformer-sink-1 | 2 |' scripts/run_ablation.sh --quick --seeds 2 --jobs 2 --output fifth --keep ablation
check 'kurtosis of weights and of activations' grep -q '^wikitext2,gpt2-softmax,2,1,0.25,2.5,2$' fifth/layers.csv
check 'its logs are kept' says 0 '24 runs, of which 24 are finished' scripts/run_ablation.sh --quick --seeds 2 --output sixth --keep ablation
check 'cosine attention' says 0 '| cosine-learned | 5.' scripts/run_cosine.sh --quick --jobs 2 --output seventh
check 'exactness' says 0 '| published-15 | 5.' dev/bench/exactness.sh --python ./python --quick --jobs 2 --output eighth --keep exactness
check 'its options' grep -q ' --sums published --rescale 15 -i data/wikitext2 .* -x 50 -S 1 -l 2e-3 ' trained
check 'its settings' says 1 'have other settings' dev/bench/exactness.sh --python ./python --output eighth
check 'without PyTorch' says 1 'false has no PyTorch' dev/bench/exactness.sh --python false --quick --output eighth
mkdir 'a|b' && sed 's/"processor"/"data":"a b'"'"'c\\\\\\"d: 5 train, 2 val","processor"/' "fourth/$(ls fourth | grep -m 1 seed-1)/log.jsonl" >'a|b/log.jsonl'
check 'quotes and bars in names' says 0 'data | a b'"'"'c\"d: 5 train, 2 val |' scripts/report.py 'a|b'
check 'a bar is no border' grep -q '^| | a\\|b |$' said
for kind in additive softmax; do
    mkdir -p "of/$kind" && sed '1s/"processor"/"options":{"output":"'$kind'","lr":1,"attention":"'$kind'"},&/' 'a|b/log.jsonl' >"of/$kind/log.jsonl"
done
check 'options that differ' says 0 '| attention | additive | softmax |' scripts/report.py of/additive of/softmax
check 'the others' [ "$(grep -cE '^\| (lr|output) ' said)" -eq 1 ]
kept=$root/dev/results/fair-tinyshakespeare-256
check 'means of runs that differ in their seeds alone' says 0 '/softmax-windows-in-published-by-adamw-4 | 3 | 1.581 ± 0.004 | 1.676 ± 0.010 | 2.417 ± 0.015 |' \
    scripts/report.py "$kept"/additive-in-published-by-adamw-8-seed-*.jsonl "$kept"/softmax-windows-in-published-by-adamw-4-seed-*.jsonl
check 'p, compared with the first ones' sh -c 'grep -q "/additive-in-published-by-adamw-8 | 3 |.*| - |$" said && grep -q "softmax-windows.* | 0.005 |$" said'
check 'names of such runs' python3 -B -c 'import sys
sys.path.insert(0, "scripts")
import logs
assert [logs.common_name(x) for x in (["a-1"], ["a-1", "a-2"], ["b-seed-1", "b-seed-12"], ["x", "y"])] == ["a-1", "a", "b", "x"]
def run(seed, rate): return [{"model": "m", "data": "d", "options": {"seed": seed, "lr": rate, "output": str(seed)}}]
runs = [("a-1", run(1, 3)), ("b-1", run(1, 4)), ("a-2", run(2, 3)), ("old-1", [{"model": "m"}]), ("old-2", [{"model": "m"}])]
for _, events in runs: events[0]["event"] = "start"
assert [(name, len(found)) for name, found in logs.by_seed(runs)] == [("a", 2), ("b-1", 1), ("old-1", 1), ("old-2", 1)]'
check 'a spread takes two seeds' says 2 'a spread takes two' scripts/run_ablation.sh --seeds 1
check 'words' says 0 '| channels-256 | ' scripts/run_words.sh --quick --output ninth
check 'time to quality' says 0 '| speedrun | 1000 | 1 | 60 | ' scripts/run_speedrun.sh --quick --output tenth
check 'bf16 and float32' says 0 '| bf16 - fp32, mean |' dev/bench/precision.sh --quick --model gpt2 --output precision
mkdir texts && echo 'a house' >texts/test_2016_flickr.en && echo 'ein Haus' >texts/test_2016_flickr.de
translation() { PATH=$directory:$PATH MULTI30K_DIR=$directory/texts scripts/run_translation.sh --updates 30 --output translation "$@"; }
check 'translation' says 0 '| pre-warmup | 1 | 5.' translation --seeds 1
check 'its BLEU' grep -qF ' | 33.25 | 33.25 | ' said
check 'its signature' grep -qF 'Signature of the BLEU: `nrefs:1|case:mixed`' said
check 'its warmup' [ "$(grep -c ' --norm pre -u 1 ' trained)" -eq 1 ]
check 'a report of it scores nothing' says 0 ' | 33.25 | ' scripts/run_translation.sh --updates 30 --output translation --seeds 1 --report
check 'one arm of it' says 0 '1 runs, of which 0 are finished' translation --one --output translation-one

# ---- the demo
cp "$root/data/common.sh" data/ && mkdir -p demo/run play && yes 'To be, or not to be' | head -n 2000 >play/input.txt
demo() { TINYSHAKESPEARE_DIR=$directory/play scripts/run_demo.sh -m 3 -o demo "$@"; }
check 'the demo' demo
check 'it resumes' demo
check "with nanoGPT's split it is another run" says 1 'demo: holds a run of another text, or with another -m or -n' demo -n

# ---- data of another tokenizer
meta wikitext2 bpe -1
check 'data of another tokenizer' says 1 'run_lengths.sh: data/wikitext2: its tokenizer is bpe, expected spm; move data/wikitext2 away, and' \
    scripts/run_lengths.sh --quick --output eleventh
check 'in one line' [ "$(wc -l <said)" -eq 1 ]
meta wikitext2-bert bpe -1
check 'data without a mask token' says 1 'data/wikitext2-bert: has no mask token' scripts/run_cosine.sh --quick --output eleventh

# ---- help
for script in "$root"/scripts/run_*.sh "$root"/scripts/gpu_check.sh "$root"/scripts/compare.py "$root"/scripts/plot.py "$root"/scripts/report.py "$root"/scripts/export*.py \
    "$root"/data/[!c]*.sh "$root"/dev/bench/*.sh; do
    check "$script --help" sh -c 'case $0 in *.sh) bash "$0" --help ;; *) "$0" --help ;; esac >out 2>said && [ -s out ] && [ ! -s said ]' "$script"
done
check 'its own' sh -c '"$0"/scripts/run_claims.sh --help | grep -q "^usage: run_claims.sh"' "$root"

# ---- numbers
check 'statistics' python3 -B - scripts <<'END'
import sys
sys.path.insert(0, sys.argv[1])
import logs


def close(a, b):
    return abs(a - b) < 1e-5


# Student's t tables: 4.302653 and 2.228139 are the 97.5% points of 2 and 10 degrees of freedom.
assert close(logs.two_sided(4.302653, 2), 0.05) and close(logs.two_sided(2.228139, 10), 0.05)
assert close(logs.two_sided(0, 3), 1) and close(logs.two_sided(1, 1), 0.5)
assert close(logs.paired_test([1, 2, 3]), 0.0741799) and logs.paired_test([1]) is None
# With equal sizes and variances Welch's t has all 2n - 2 degrees of freedom.
assert close(logs.welch_test([1, 2, 3], [2, 3, 4]), logs.two_sided(1.5 ** 0.5, 4))
assert logs.both([1, 2, 3]) == "2.000 ± 1.000" and logs.both([None, 5]) == "5.000" and logs.both([]) == "-"
# A thinned log has the largest norm of each 50 steps, and what only the whole log says.
steps = [{"step": i, "loss": 1 / i, "grad_norm": 9 if i == 70 else 1 / i, "ms": i} for i in range(1, 201)]
thin = logs.thin(steps)
assert [e["step"] for e in thin if "loss" in e] == [1, 50, 70, 100, 101, 150, 151, 200]
assert logs.measure(thin)["ms"] == logs.measure(steps)["ms"] == 100
assert close(logs.measure(thin)["last_loss"], logs.measure(steps)["last_loss"])
END
check 'updates in equal time, by the number of softmax layers over all tokens' python3 -B - scripts <<'END'
import sys
import types
sys.path.insert(0, sys.argv[1])
from experiments import FAIR_ATTENTION, fair_steps

c = types.SimpleNamespace(arguments=types.SimpleNamespace(length=8192))
expected = {"softmax": 45, "softmax-all-shift": 72}
none = "additive", "additive-raw", "softmax-local", "softmax-shift-local", "mixed-shift-local", "3raw-window", "window-3raw"
expected.update(dict.fromkeys(none, 150))
for arm in FAIR_ATTENTION:
    assert fair_steps(f"{arm}-in-today-by-muon", 100, c) == expected.get(arm, 100), arm
END
mkdir diverged && cat >diverged/log.jsonl <<'END'
{"event":"start","model":"fake, 1000 parameters"}
{"step":1,"loss":6,"lr":1e-3,"grad_norm":0.5,"ms":10,"tokens_per_s":100,"seconds":0.1}
{"step":1,"val_loss":900,"val_ppl":null,"val_word_ppl":null,"best":true,"seconds":0.2}
{"step":1,"test_loss":null,"test_ppl":null,"seconds":0.3}
END
check 'an infinite perplexity' says 0 '| best validation perplexity per token | inf |' scripts/report.py diverged
check 'one that is not known is no number' sh -c '! grep "^| test" said'

check 'thinned to no step' says 1 'logs.py: 0: expected' python3 -B scripts/logs.py diverged 0

# ---- curves
if python3 -c 'import matplotlib' 2>/dev/null; then
    check 'curves of runs' says 0 curves/loss_by_time.svg python3 -B scripts/plot.py -o curves 'a|b' "$root/dev/results/demo"
    check 'a picture by step' [ -s curves/loss_by_step.png ]
else
    check 'curves without matplotlib' says 1 'matplotlib is missing: pip install' python3 -B scripts/plot.py -o curves 'a|b'
fi
mkdir -p held/one held/more/two && touch held/one/log.jsonl held/more/two/log.jsonl
check 'curves are written next to their runs' python3 -B -c 'import sys
sys.path.insert(0, "scripts")
import plot
assert plot.next_to(["held/one"]) == plot.next_to(["held/one/", "held/more/two/log.jsonl"]) == "held"'
check 'labels of ticks have all digits of a rate' python3 -B -c 'import sys
sys.path.insert(0, "scripts")
import plot
rates = [1e-3, 2.5e-3, 6.25e-4, 1e-10, 0, 0.05, 20, 3000, 1e6, 1.5e10]
assert [plot.plain(x) for x in rates] == "1e-3 2.5e-3 6.25e-4 1e-10 0 0.05 20 3,000 1e6 1.5e10".split()'
check 'the norm of a thinned log is smoothed as that of the whole one' python3 -B -c 'import sys
sys.path.insert(0, "scripts")
import logs, plot
whole = [{"step": i, "loss": 1, "grad_norm": 9 if i % 50 == 7 else 1} for i in range(1, 5001)]
curve = [plot.curves_of([("", [log])], "grad_norm", lambda p: p[0], True)[0] for log in (whole, logs.thin(whole))]
mean = [sum(y for _, y in c["points"]) / len(c["points"]) for c in curve]
assert 1 <= mean[1] <= mean[0] < 1.2, mean'
names_of() { # RUN...: the names of the runs in a page
    python3 -B scripts/compare.py --page page.html "$@" && grep -o '"name": "[^"]*"' page.html | cut -d '"' -f 4 | paste -sd' '
}
cp -r "$root/dev/page" dev/
cp held/one/log.jsonl held/seed-1.jsonl && cp held/one/log.jsonl held/seed-2.jsonl
check 'a page names each of the logs in a directory' [ "$(names_of held/seed-1.jsonl held/seed-2.jsonl)" = 'seed-1 seed-2' ]
check 'and runs by their directories' [ "$(names_of held/one held/more/two/log.jsonl)" = 'one two' ]
check 'curves of no run' says 1 'plot.py: nowhere: no such file' python3 -B scripts/plot.py nowhere

# ---- the tables of dev/results are those that their logs make, without data, programs or a build
mkdir -p bare/dev && cp -r "$root/scripts" bare/ && cp -r "$root/dev/results" bare/dev/ && cp -r bare/dev/results before
for table in "$root"/dev/results/*/results.md; do
    name=$(basename "$(dirname "$table")")
    check "the table of dev/results/$name" says 0 '# ' python3 -B bare/scripts/compare.py "${name%%-*}" --report \
        --keep "bare/dev/results/$name" --output "again/$name"
    check 'is the one that is kept' cmp "again/$name/results.md" "$table"
done
check 'a report elsewhere changes nothing there' diff -r before bare/dev/results
for parts in "$root"/dev/results/*/results.json; do
    check "the report of $parts" sh -c 'python3 -B dev/bench/report.py "$1" | cmp - "$2"' - "$parts" "${parts%results.json}report.md"
done
cd "$root" || exit 1
check 'figures of README and docs are those of the tables' python3 -B dev/test/figures.py

finish
