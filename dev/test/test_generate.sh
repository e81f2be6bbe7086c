#!/bin/sh
# Runs that stand on their own, directories of Hugging Face's, and the text that models write. Needs TRAINER, GPT2 and
# TOKENIZE, the programs. The last line is "N passed, N failed".
# shellcheck source=dev/test/checks.sh
. "$(dirname "$0")/checks.sh"
gpt2=$(cd "$root" && realpath "${GPT2:-./train_gpt2}")

cat "$root"/dev/text/*.c >text
"$tokenize" -o data --vocab-size 300 text >out 2>&1 && "$tokenize" -o words --tokenizer word text >out 2>&1 &&
    "$tokenize" -o bytes --tokenizer byte text >out 2>&1
ok "tokenize"
train() { # DIR OPTIONS...
    name=$1
    shift
    "$trainer" -L 2 -C 32 -H 2 -b 4 -t 64 -p fp32 -o "$name" "$@" >out 2>&1 </dev/null
}

# ---- a run's weights know their data and tokenizer
train bpe -i data -x 30 -v 30 -m 2 && train word -i words -x 2 -m 1 && train byte -i bytes -x 2 -m 1
ok "runs of three tokenizers"
for kind in bpe word byte; do
    mkdir -p else && (cd else && "$trainer" -e ../$kind/best.safetensors --prompt "int " -g 5 >../out 2>&1)
    ok "$kind: --prompt without --input, from another directory"
    "$trainer" -e $kind --eval test -m 1 >out 2>&1 && grep -q 'test loss' out
    ok "$kind: --eval test without --input"
done
train embedded -x 1 -m 1 && "$trainer" -e embedded --prompt "int " -g 5 >out 2>&1 &&
    "$trainer" -e embedded --eval val -m 1 >out 2>&1
ok "the embedded corpus, too"
(cd else && "$trainer" -o ../bpe -y -x 40 -m 2 >../out 2>&1) && [ -f bpe/step_00000040.safetensors ]
ok "-y finds the data in the checkpoint"
"$trainer" -e bpe -o tuned -x 2 -m 1 -t 64 >out 2>&1 && grep -q 'best.*tuned\|data:.*data\|data .*data' out
ok "-e RUN without --input trains on its data"
"$trainer" -i data -o "a run" -L 2 -C 32 -H 2 -t 64 -x 100000 -v 1000 >out 2>&1 </dev/null &
child=$!
while ! grep -qs '"step":5,' "a run/log.jsonl"; do sleep 0.05; done
kill -INT $child
wait $child
step=$(sed -n 's/.*stopped after step \([0-9]*\);.*/\1/p' out)
sh -c "$(sed -n 's/.*go on with: //p' out) -x $((step + 1))" >again 2>&1 </dev/null
grep -q "going on after step $step" again && [ -f "a run/best.safetensors" ]
ok "the line that says how to go on is the whole command"

# ---- what is missing, or of another run, is said
cp -r bpe alone && rm alone/tokenizer.json alone/vocab.json && mv data moved
fails 1 "its tokenizer (bpe) is not beside it" "$trainer" -e alone --prompt a
fails 1 "data, which is not there; give the data with --input" "$trainer" -e bpe --eval test
fails 1 "data, which is not there; give the data with --input" "$trainer" -e bpe -x 1
fails 1 "data, which is not there; give the data with --input" "$trainer" -o bpe -y -x 100
mv moved data
"$tokenize" -o others --vocab-size 300 "$root/README.md" >out 2>&1
fails 1 "was trained with another tokenizer than that of others" "$trainer" -e bpe -i others --eval val
cp others/tokenizer.json alone/
fails 1 "was trained with another tokenizer than that of alone" "$trainer" -e alone --prompt a
echo '{"model": ' >alone/tokenizer.json
fails 1 "alone/tokenizer.json" "$trainer" -e alone --prompt a
mkdir empty
fails 1 "empty: holds no weights" "$trainer" -e empty --prompt a
sed 's/"end_token":"[0-9]*"/"end_token":"999"/' bpe/best.safetensors >alone/lie.safetensors
cp bpe/tokenizer.json alone/
fails 1 "lie.safetensors" "$trainer" -e alone/lie.safetensors --prompt a
# As checkpoints were before: nothing of data or tokenizer
sed 's/"data":/"date":/; s/"tokenizer":/"tokenizre":/; s/"tokenizer_id":/"tokenizer_di":/; s/"end_token":/"end_tokne":/' \
    bpe/best.safetensors >alone/old.safetensors
"$trainer" -e alone/old.safetensors --prompt "int" -g 3 >out 2>&1 &&
    "$trainer" -e alone/old.safetensors -i data --eval val -m 1 >out 2>&1
ok "weights from before still load"
fails 1 "does not say what it was trained on; give the data with --input" \
    "$trainer" -e alone/old.safetensors --eval val

finish
