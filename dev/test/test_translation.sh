#!/bin/sh
# Tests the translator as a user runs it: tokenizing pairs of sentences, training, translating.
# Needs TRAINER, TRANSLATE and TOKENIZE, the programs. The last line is "N passed, N failed".
# shellcheck source=dev/test/checks.sh
. "$(dirname "$0")/checks.sh"
translate=$(cd "$root" && realpath "${TRANSLATE:-./train_translate}")

# Each word is translated to itself in capitals, which is learnt in a moment.
awk 'BEGIN {
    random = 1
    split("one two three four five six seven eight", word, " ")
    for (i = 0; i < 600; i++) {
        line = ""
        for (j = 1 + i % 7; j > 0; j--) line = line (line == "" ? "" : " ") word[1 + (random = random * 16807 % 2147483647) % 8]
        print line
    }
}' >source
tr '[:lower:]' '[:upper:]' <source >target
"$tokenize" -o data --vocab-size 320 --source source --target target --val-source source --val-target target >out 2>&1
ok "tokenize"
train() { # DIR OPTIONS...
    name=$1
    shift
    "$translate" -i data -o "$name" -L 1 -D 1 -C 32 -H 2 --ffn 64 --dropout 0.1 -b 512 -p fp32 -l 5e-3 -u 20 "$@" >out 2>&1 </dev/null
}
train run -x 160 -v 40 --keep 4
ok "160 steps"

# ---- resuming in the middle of an epoch and of the batches of an update
train whole -x 30 -v 1000 -n 15 --accumulate 2 --keep 9
train parts -x 15 -v 1000 -n 15 --accumulate 2 --keep 9 && train parts -x 30 -v 1000 -n 15 --accumulate 2 --keep 9 -y
cmp whole/step_00000030.safetensors parts/step_00000030.safetensors &&
    cmp whole/step_00000030.state.safetensors parts/step_00000030.state.safetensors
ok "resumed: the same bytes"
fails 1 "--batch-tokens 256" "$translate" -i data -o parts -y -x 40 -b 256

train tuned -e run -x 2 -v 2
ok "trained on, from weights"

# ---- updates of an epoch: 9 pairs in 7 batches
awk 'BEGIN { for (i = 0; i < 9; i++) { for (j = i < 4 ? 25 : 40; j > 0; j--) printf "%s ", j % 2 ? "one" : "two"; print "" } }' >nine
"$tokenize" -o nine.data --vocab-size 320 --source nine --target nine --val-source nine --val-target nine >out 2>&1 &&
    train nine.run -i nine.data -b 64 -t 64 -E 1 && [ -e nine.run/step_00000007.safetensors ]
ok "no update is lost to rounding"

# ---- translating
text() { printf 'one two three\n\nfour\nsix six seven one two\nfive'; }
for beams in 1 4; do
    text | "$translate" -e run --translate --beam $beams >together.$beams 2>out
    text | while IFS= read -r line || [ -n "$line" ]; do
        printf '%s\n' "$line" | "$translate" -e run --translate --beam $beams
    done >alone.$beams 2>>out
    [ ! -s out ] && [ "$(wc -l <together.$beams)" -eq 5 ] && [ -z "$(sed -n 2p together.$beams)" ] &&
        cmp together.$beams alone.$beams
    ok "--beam $beams: lines keep their order, an empty one stays empty, and none depends on the others"
done
train hardly -x 1
for beams in 1 4; do
    printf "one\none two three four five six seven eight one two\n" |
        "$translate" -e hardly --translate --beam $beams >together 2>out
    echo one | "$translate" -e hardly --translate --beam $beams >alone 2>>out
    [ ! -s out ] && [ -s alone ] && [ "$(head -n 1 together)" = "$(cat alone)" ]
    ok "--beam $beams: nor where nothing ends it but its length"
done
[ "$(sed -n 3p together.1)" = FOUR ]
ok "it has learnt"
mkfifo input
sleep 30 >input &
silent=$!
"$translate" -e run --translate <input >out 2>&1 &
child=$!
sleep 1
start=$(date +%s)
kill -TERM $child
wait $child
[ $? -eq 143 ] && [ $(($(date +%s) - start)) -lt 20 ]
ok "SIGTERM ends it while it waits for a line"
kill $silent 2>/dev/null
printf '' | "$translate" -e run --translate >out 2>&1 && [ ! -s out ]
ok "no line, no translation"
printf 'one two three four five six seven\n' | "$translate" -e run --translate --max-length 3 --beam 2 >out 2>&1
ok "a line that is too long"
grep -q 'warning: 1 lines are longer than 3 tokens and were cut' out
ok "is cut, and counted"
printf 'one\n' | "$translate" -e run --translate --longest 1 --beam 3 >out 2>&1 && [ "$(wc -l <out)" -eq 1 ]
ok "--longest"
text | "$translate" -e run --translate --beam 4 --nbest 3 >out 2>&1 && sed -n 's/^0 ||| \(.*\) ||| -[0-9.]*$/\1/p' out >list &&
    [ "$(wc -l <list)" -eq 3 ] && [ "$(head -n 1 list)" = "$(head -n 1 together.4)" ] &&
    sed -n 's/^0 .* ||| //p' out >scores && sort -gr scores | cmp - scores
ok "--nbest: a list with scores, the best first"
printf 'one\n\n' | "$translate" -e run --translate --beam 4 --nbest 2 --json >out 2>&1 && [ "$(sed -n 2p out)" = '{"text":"","best":[]}' ] &&
    head -n 1 out | grep -qE '^\{"text":"(.*)","best":\[\{"text":"\1","score":-[0-9.e-]*\},\{"text":"[^"]*","score":-[0-9.e-]*\}\]\}$'
ok "--nbest --json"
fails 2 "--nbest 3: takes a --beam as large" "$translate" -e run --translate --beam 2 --nbest 3
mkdir hf && cp run/config.json run/tokenizer.json hf && edited '1s/"model":"/"madel":"/' run/best.safetensors >hf/model.safetensors
theirs() { printf 'one\n' | "$translate" -e hf --translate "$@" 2>err; }
theirs >two && [ -s two ] && echo '{"bad_words_ids":[['"$(seq -s'],[' 2 999)"']]}' >hf/generation_config.json && theirs >two &&
    [ "$(cat two)" = "" ] && theirs --beam 3 >two && [ "$(cat two)" = "" ]
ok "bad_words_ids: never written"
echo '{"bad_words_ids":[[1]],"forced_eos_token_id":1}' >hf/generation_config.json && theirs --longest 3 --beam 2 --nbest 1 >two &&
    grep -q '||| -' two && echo '{"bad_words_ids":[[1]],"forced_eos_token_id":2}' >hf/generation_config.json
ok "forced_eos_token_id"
fails 1 '"forced_eos_token_id" is 2, but "eos_token_id" 1' theirs
printf 'one\n\n' | "$translate" -e run --translate --json >out 2>&1 && [ "$(sed -n 2p out)" = '{"text":""}' ] &&
    grep -q '^{"text":"[A-Z ]*"}$' out
ok "--json"
printf 'one \000 two \377\n' | "$translate" -e run --translate >out 2>&1 && [ "$(wc -l <out)" -eq 1 ]
ok "bytes that are no text"
yes one two | head -n 5000 | "$translate" -e run --translate >out 2>&1 && [ "$(sort -u out | wc -l)" -eq 1 ] &&
    [ "$(wc -l <out)" -eq 5000 ]
ok "more lines than are read at once"
"$translate" -e run --beam 4 --show-attention "one two three" >seen 2>&1
weights='{"layer":1,"place":"[a-z_]*attention_weights","heads":[^{}]*}'
[ "$(sed 's/{"token":"\([^"]*\)".*/\1/;s/<|endoftext|>//' seen | tr -d '\n')" = "$(head -n 1 together.4)" ] &&
    ! grep -v '"attention":\['"$weights,$weights\]}$" seen
ok "--show-attention: the tokens of the translation, and what each drew on in the decoder's layer"
fails 1 "--show-attention: nothing to translate" "$translate" -e run --show-attention " "
fails 2 "--beam: is for --translate" "$translate" -e run --beam 5
printf 'one\r\n\r\n \t\none\n' | "$translate" -e run --translate >out 2>&1 && [ "$(sed -n 1p out)" = "$(sed -n 4p out)" ] &&
    [ -z "$(sed -n 2,3p out)" ] && [ "$(wc -l <out)" -eq 4 ]
ok "carriage returns and white space are no text"
mkdir one && cp run/step_00000160.safetensors run/step_00000160.state.safetensors run/tokenizer.json one
loss() { "$translate" -i data "$@" --eval val --json -p fp32 2>&1 | sed -n 's/.*"val_loss":\([0-9.e-]*\).*/\1/p'; }
[ -n "$(loss -e one)" ] && [ "$(loss -e one)" = "$(loss -e run --average 1)" ] &&
    [ "$(loss -e one)" != "$(loss -e run --average 3)" ]
ok "--average: the mean of the last checkpoints"
train told --config hardly/log.jsonl && [ -e told/step_00000001.safetensors ]
ok "--config: what is false in a log is no action"
fails 1 "--average 9: run holds 4 checkpoints; train with a larger --keep" "$translate" -e run --average 9 --translate
fails 2 "--translate: needs weights" "$translate" --translate
fails 2 "--beam 9: takes a larger --batch-tokens or --max-length" "$translate" -e run --translate --beam 9 --max-length 8

"$translate" -i data -x 1 -o huge -b 20000000 >out 2>&1
[ $? -eq 1 ] && grep -q 'error: --batch-tokens: the model needs .*; lower it or --max-length' out
ok "too large a batch is refused by the option that says it"

# ---- only the splits in use must be usable
head -n 40 source >few
yes one two | head -n 200 | tr '\n' ' ' >long && echo >>long
"$tokenize" -o lopsided --vocab-size 320 --source source --target target --val-source few --val-target few --test-source long \
    --test-target long >out 2>&1
ok "data whose test is one long pair"
train refused -i lopsided -x 1
[ $? -eq 1 ] && grep -q 'lopsided: no pair of the test split is left' out
ok "a split without a pair that can be used is refused"
train accepted -i lopsided -x 1 --no-test
ok "--no-test asks nothing of the test split"
loss_of() { "$translate" -e accepted -i lopsided --eval val --json "$@" | sed -n 's/.*"val_loss":\([0-9]*\.[0-9]\{6\}\).*/\1/p'; }
[ -n "$(loss_of)" ] && [ "$(loss_of)" = "$(loss_of -b 128)" ]
ok "--eval val, nor does it depend on the batch"
fails 2 "--batch-tokens 64: a sentence may have --max-length 128 tokens" "$translate" -e accepted -i lopsided --eval val -b 64
echo one | "$translate" -e accepted -i lopsided --translate -t 4 >out 2>&1 && ! grep -q split out
ok "--translate asks nothing of any"

# ---- carriage returns, and data without pairs
sed 's/$/\r/' few >few.crlf
"$tokenize" -o lf --vocab-size 320 --source few --target few >out 2>&1 &&
    "$tokenize" -o crlf --vocab-size 320 --source few.crlf --target few.crlf >out 2>&1 &&
    cmp lf/train_000000.bin crlf/train_000000.bin
ok "a carriage return belongs to the end of the line"
"$tokenize" -o text source >out 2>&1
fails 1 "text: has no pairs of sentences; make the data with ./tokenize --source" "$translate" -i text -x 1
fails 1 "has no pairs of sentences" "$translate" -x 1

finish
