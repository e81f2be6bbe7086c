#!/bin/sh
# Tests that runs are self-contained, that directories of Hugging Face load, and the text that
# models generate. Needs TRAINER, GPT2, BERT and TOKENIZE, the programs.
# The last line is "N passed, N failed".
# shellcheck source=dev/test/checks.sh
. "$(dirname "$0")/checks.sh"
gpt2=$(cd "$root" && realpath "${GPT2:-train_gpt2}")
bert=$(cd "$root" && realpath "${BERT:-train_bert}")

cp "$shakespeare" text
"$tokenize" -o data --vocab-size 300 text >out 2>&1 && "$tokenize" -o words --tokenizer word text >out 2>&1 &&
    "$tokenize" -o bytes --tokenizer byte text >out 2>&1
ok "tokenize"
train() { # DIR OPTIONS...
    name=$1
    shift
    "$trainer" -L 2 -C 32 -H 2 -b 4 -t 64 -p fp32 -o "$name" "$@" >out 2>&1 </dev/null
}

# ---- a run's weights name their data and tokenizer
train bpe -i data -x 30 -v 30 -m 2 && train word -i words -x 2 -m 1 && train byte -i bytes -x 2 -m 1
ok "runs of three tokenizers"
for kind in bpe word byte; do
    mkdir -p else && (cd else && "$trainer" -e ../$kind/best.safetensors --prompt "The " -g 5 >../out 2>&1)
    ok "$kind: --prompt without --input, from another directory"
    "$trainer" -e $kind --eval test -m 1 >out 2>&1 && grep -q 'test loss' out
    ok "$kind: --eval test without --input"
done
train embedded -x 1 -m 1 && "$trainer" -e embedded --prompt "The " -g 5 >out 2>&1 &&
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
sh -c "$(sed -n 's/.*resume with: //p' out) -x $((step + 1))" >again 2>&1 </dev/null
grep -q "resuming after step $step" again && [ -f "a run/best.safetensors" ]
ok "the line that says how to resume is the whole command"

# ---- attention weights: none on later tokens, and no sum above 1
for kind in bpe word byte; do
    "$trainer" -e $kind --show-attention "The king is" >out 2>&1 && [ "$(grep -c '^{"token":".*"place":"key_weights"' out)" -ge 3 ] &&
        head -n 1 out | grep -q '"heads":\[\[0\.9[0-9]*,0,'
    ok "$kind: --show-attention"
done
fails 1 "--show-attention: 0 tokens" "$trainer" -e bpe --show-attention ""

# ---- text that cannot be generated is refused before training
sed 's/"end":[0-9-]*/"end":-1/' data/meta.json >meta && cp -r data noend && mv meta noend/meta.json
cp -r bytes none && rm -f none/tokenizer* && sed 's/"tokenizer":"[a-z]*"/"tokenizer":"none"/' bytes/meta.json >none/meta.json
for kind in noend none; do
    fails 1 "error: --sample-every: $kind has no to" "$trainer" -i $kind -o $kind-run -L 2 -C 32 -H 2 -b 4 -t 64 -x 4 -s 3
done

# ---- errors about files that are missing or belong to another run
cp -r bpe alone && rm alone/tokenizer.json alone/vocab.json && mv data moved
fails 1 "its tokenizer (bpe) is not next to it" "$trainer" -e alone --prompt a
fails 1 "data, which is missing; give the data with --input" "$trainer" -e bpe --eval test
fails 1 "data, which is missing; give the data with --input" "$trainer" -e bpe -x 1
fails 1 "data, which is missing; give the data with --input" "$trainer" -o bpe -y -x 100
mv moved data
head -n 800 text | tr "[:lower:]" "[:upper:]" >source
"$tokenize" -o others --vocab-size 300 source >out 2>&1
fails 1 "than that of others; make the data with its tokenizer: ./tokenize -o DIR --model bpe/tokenizer.json TEXT" \
    "$trainer" -e bpe -i others --eval val
fails 1 "vocabulary has 300 tokens, that of bytes has 256; make the data with its tokenizer: ./tokenize -o DIR --model bpe/" \
    "$trainer" -e bpe -i bytes
"$tokenize" -o mine --model bpe/tokenizer.json text >out 2>&1 && "$trainer" -e bpe -i mine --eval val -m 1 >out 2>&1
ok "which works"
cp others/tokenizer.json alone/
fails 1 "was trained with another tokenizer than that of alone" "$trainer" -e alone --prompt a
echo '{"model": ' >alone/tokenizer.json
fails 1 "alone/tokenizer.json" "$trainer" -e alone --prompt a
mkdir empty
fails 1 "empty: holds no weights" "$trainer" -e empty --prompt a
edited 's/"end_token":"[0-9]*"/"end_token":"999"/' bpe/best.safetensors >alone/lie.safetensors
cp bpe/tokenizer.json alone/
fails 1 "lie.safetensors" "$trainer" -e alone/lie.safetensors --prompt a
# An old checkpoint, which names neither data nor tokenizer
edited 's/"data":/"date":/; s/"tokenizer":/"tokenizre":/; s/"tokenizer_id":/"tokenizer_di":/; s/"end_token":/"end_tokne":/' \
    bpe/best.safetensors >alone/old.safetensors
"$trainer" -e alone/old.safetensors --prompt "The" -g 3 >out 2>&1 &&
    "$trainer" -e alone/old.safetensors -i data --eval val -m 1 >out 2>&1
ok "weights from before still load"
fails 1 "does not name its training data; give the data with --input" \
    "$trainer" -e alone/old.safetensors --eval val

# ---- generating
write() { "$trainer" -e bpe -S 7 "$@" 2>err </dev/null; }
write --prompt "The king" -g 20 >one && write --prompt "The king" -g 20 >two && cmp one two && grep -q -e '--seed 7' err
ok "one seed, one text"
"$trainer" -e bpe --prompt "The king" -g 20 >one 2>err && "$trainer" -e bpe --prompt "The king" -g 20 >two 2>err &&
    ! cmp -s one two
ok "another seed each time"
seed=$(sed -n 's/.*--seed \([0-9]*\)]$/\1/p' err)
"$trainer" -e bpe --prompt "The king" -g 20 -S "$seed" >one 2>err && cmp one two
ok "the printed seed makes the same text again"
write --prompt 'a\n\tb' -g 1 --json >out && grep -qF '"prompt":"a\n\tb"' out
ok "\\n in a prompt"
printf 'a\n\\n\n' >prompt && write --prompt-file prompt -g 1 --json >out && grep -qF '"prompt":"a\n\\n"' out
ok "--prompt-file: a text as it is, without its last newline"
"$trainer" -e bpe -S 7 --prompt - -g 20 >two 2>err <prompt && write --prompt-file prompt -g 20 >one && cmp one two
ok "--prompt - reads standard input"
write --prompt "The king" -g 20 --samples 3 >out && [ "$(grep -c '^--- sample' out)" -eq 3 ]
ok "--samples"
write --prompt "The king" -g 20 --json --samples 3 >out && write --prompt "The king" -g 20 --json >one &&
    [ "$(head -n 1 out)" = "$(cat one)" ] && [ "$(sort -u out | wc -l)" -eq 3 ]
ok "--json, and a sample is the same among others"
write --prompt "The king" -g 500 --stop e --json >out && grep -q '"ended":"stop"' out &&
    ! LC_ALL=C sed 's/.*"text":"\(.*\)","tokens.*/\1/; s/\\u[0-9a-f]\{4\}//g' out | grep -q e # \u001e has one
ok "--stop"
write --prompt "The king" -g 500 --stop e --json >one && write --prompt "The king" -g 500 --stop e --stop XYZ --json >out &&
    cmp one out && write --prompt "The king" -g 500 --stop XYZ --stop e --json >out && cmp one out
ok "--stop twice: both count"
write --prompt "The king" -g 500 --stop e >out && grep -q 'ended after .* of 500 tokens: --stop came up' err
ok "what stops early prints a message"
write --prompt "The king" -g 100 --beyond stop >out && grep -q 'the model has 64 positions' err
ok "--beyond stop prints a message"
for how in slide repeat; do
    write --prompt "The king" -g 200 --beyond $how --json >out && grep -q '"tokens":200,"ended":"length"' out
    ok "--beyond $how"
done
write --prompt "The king" -g 40 --temperature 0 >one &&
    write --prompt "The king" -g 40 --temperature 0 --repetition-penalty 5 >two && ! cmp -s one two
ok "--repetition-penalty"
"$trainer" -e bpe --eval val --json >out && ! grep -q '"seconds":0}' out
ok "--eval --json: how long it took"
"$trainer" -e byte -S 3 --prompt "a" -g 300 --temperature 3 --top-p 1 --json >out 2>err && grep -q '"tokens":300' out
ok "bytes that are no text are no harm"
if command -v script >/dev/null; then
    printf 'The king\nThe queen\n' | script -qec "$trainer -e bpe -S 7 --prompt - -g 5" /dev/null >out 2>&1 &&
        [ "$(grep -c '^> ' out)" -ge 2 ]
    ok "a terminal: one types on"
    if command -v spm_train >/dev/null; then # the last pieces of what one types are bytes
        "$tokenize" -o pieces --tokenizer spm --vocab-size 400 text >out 2>&1 && train spm -i pieces -x 1 -m 1 &&
            printf 'The king\nQQQe\360\237\230\200\n' | script -qec "$trainer -e spm -S 7 --prompt - -g 300 --stop e --stop t" /dev/null >out 2>&1 &&
            [ "$(grep -c 'stop came up' out)" -eq 2 ] && [ "$(grep -c QQQ out)" -eq 1 ]
        ok "a terminal: after a stop one may type it"
    fi
    odd="-e byte -S 3 --prompt a -g 300 --temperature 3 --top-p 1"
    controls() { tr -d '\n\t\r' | LC_ALL=C tr -dc '\000-\037\177' | wc -c; }
    # shellcheck disable=SC2086
    [ "$("$trainer" $odd 2>err | controls)" -gt 0 ] && script -qec "$trainer $odd" /dev/null </dev/null >out 2>&1 &&
        [ "$(controls <out)" -eq 0 ]
    ok "a terminal gets no control characters"
fi
fails 2 "exclude each other" "$trainer" -e bpe --prompt a --prompt-file prompt
fails 2 "--prompt and --show-attention exclude each other" "$trainer" -e bpe --show-attention a --prompt a
fails 1 "nowhere" "$trainer" -e bpe --prompt-file nowhere
fails 2 "--beyond" "$trainer" -e bpe --prompt a --beyond slid
fails 2 "--samples" "$trainer" -e bpe --prompt a --samples 0
fails 1 "--precision tf32: only a GPU has it" "$trainer" -e bpe --prompt a -p tf32
fails 1 "the model has 64 positions" "$trainer" -e bpe --prompt-file text --beyond stop

# ---- more positions
"$trainer" -e bpe -o longer -x 1 -l 0 --dropout 0 -m 1 -t 128 >out 2>&1 &&
    grep -q 'bpe/best.safetensors: its 64 positions are interpolated to 128' out &&
    grep -q '"n_positions":128' longer/config.json
ok "-t larger: positions are interpolated"
fails 1 "the model has 64 positions" "$trainer" -e bpe -t 128 --eval val
train without -i data -x 1 -m 1 --attention additive+softmax --windows 2,global --positions none &&
    "$trainer" -e without -t 128 -m 1 --eval val --json >out && [ "$(grep -c val_loss out)" -eq "$(grep -c '' out)" ]
ok "--eval of longer sequences, where positions are not learned"
"$trainer" -e without -o listed -x 1 -m 1 -t 64 --windows 2,global >out 2>&1
ok "--windows as those of -e"

# ---- the perplexity of any text
"$tokenize" -o halves --model bpe/tokenizer.json --train text --val source --test source >out 2>&1
numbers() { sed 's/.*"\(text\|test\)_loss"/"loss"/; s/"text_/"/g; s/"test_/"/g; s/,"ms".*//'; }
"$trainer" -e bpe -i halves --eval test --json | numbers >one && "$trainer" -e bpe --eval source --json | numbers >two &&
    grep -q '"word_ppl":.*\|"bpb":' two && cmp one two
ok "--eval FILE: as the split of its tokens"
"$trainer" -e bpe --eval - --json <source | numbers | cmp - two && cat source | "$trainer" -e bpe --eval - >out 2>&1 &&
    grep -q 'text loss' out && grep -q 'bits/byte' out && ! grep -q 'word ppl' out
ok "--eval -: of standard input"
fails 1 "--eval tset: expected val, test, - or a text file" "$trainer" -e bpe --eval tset
: >nothing
fails 1 "nothing: has 0 tokens, of which nothing can be predicted" "$trainer" -e bpe --eval nothing
gzip -c source >source.gz
fails 1 "source.gz: is compressed by gzip, expected plain text: zcat source.gz | ... --eval -" "$trainer" -e bpe --eval source.gz
tr 'A-Z' '\001-\032' <source >controls && "$trainer" -e byte --eval controls >out 2>err &&
    grep -q '^warning: controls: is binary, expected plain text$' err && grep -q 'text loss' out
ok "--eval FILE: bytes of no known format are named"
fails 2 "--eval nothing: expected val or test; a text is for language models" "$bert" -e bpe --eval nothing

# ---- directories as on Hugging Face: config.json, tokenizer.json and weights without our metadata
foreign() { # RUN DIR
    mkdir "$2" && cp "$1"/config.json "$1"/tokenizer.json "$2" &&
        edited '1s/"model":"/"madel":"/' "$1"/best.safetensors >"$2/model.safetensors"
}
"$gpt2" -i data -o theirs -L 2 -C 32 -H 2 -b 4 -t 64 -p fp32 -x 20 -m 2 >out 2>&1 </dev/null && foreign theirs hf &&
    "$gpt2" -e hf --prompt "The king" -g 10 -S 1 >out 2>&1 && grep -q '^The king' out
ok "-e DIR: GPT-2"
"$gpt2" -e hf/model.safetensors --prompt "The king" -g 10 -S 1 >one 2>err && "$gpt2" -e hf --prompt "The king" -g 10 -S 1 >two 2>err &&
    cmp one two
ok "-e model.safetensors: the same"
rm hf/tokenizer.json && cp theirs/vocab.json theirs/merges.txt hf/ && "$gpt2" -e hf --prompt "The king" -g 10 -S 1 >two 2>err &&
    cmp one two
ok "vocab.json and merges.txt: the same"
rm hf/merges.txt hf/vocab.json
fails 1 "no tokenizer is next to it" "$gpt2" -e hf --prompt a
fails 1 "does not name its training data" "$gpt2" -e hf --eval val
# ---- settings in its files for generated text
of_hf() { "$gpt2" -e hf -g 20 -S 1 --temperature 0 --json "$@" 2>err; }
written() { sed 's/.*"text":"\(.*\)","tokens".*/\1/'; }
cp theirs/tokenizer.json hf/ && sed 's/"eos_token_id":[^,}]*/"eos_token_id":null/' hf/config.json >plain.json &&
    cp plain.json hf/config.json && of_hf --prompt "The king" >one && grep -q '"tokens":20,"ended":"length"' one &&
    sed 's/"eos_token_id":null/"eos_token_id":['"$(seq -s, 0 299)"']/' plain.json >hf/config.json &&
    of_hf --prompt "The king" >two &&
    grep -q '"text":"","tokens":1,"ended":"end"' two
ok "eos_token_id of config.json ends a text"
echo '{"eos_token_id":[299,100000]}' >hf/generation_config.json && of_hf --prompt "The king" >two &&
    ! grep -q '"tokens":1,' two
ok "that of generation_config.json is taken first"
rm hf/generation_config.json && cp plain.json hf/config.json
of_hf --prompt "<|endoftext|>The king" | written >one
sed 's/"post_processor":null/"post_processor":{"type":"RobertaProcessing","cls":["<|endoftext|>",0],"sep":["<|endoftext|>",0]}/' \
    theirs/tokenizer.json >hf/tokenizer.json && of_hf --prompt "The king" | written | cmp - one
ok "what the post-processor puts before a text is read"
echo '{"add_prefix_space":true}' >hf/tokenizer_config.json && cp theirs/tokenizer.json hf/ &&
    of_hf --prompt "The king" | grep -q '"prompt":" The king"'
ok "add_prefix_space of tokenizer_config.json"
rm hf/tokenizer_config.json
"$tokenize" -o fewer --vocab-size 280 text >out 2>&1 && cp fewer/tokenizer.json hf/ &&
    of_hf --prompt "The king" --temperature 5 --top-p 1 >out && grep -q '"tokens":20' out &&
    "$gpt2" -e hf -i fewer --eval val -m 1 >out 2>&1 && "$gpt2" -e hf -i fewer -o rows -x 2 -m 1 >out 2>&1 &&
    "$gpt2" -e rows --prompt "The king" -g 3 >out 2>&1
ok "more rows than tokens are never drawn"
fails 1 "its vocabulary has 300 tokens, that of bytes has 256" "$gpt2" -e hf -i bytes --eval val
"$tokenize" -o larger --vocab-size 320 text >out 2>&1 && cp larger/tokenizer.json hf/
fails 1 "its vocabulary has 300 tokens, that of hf has 320" "$gpt2" -e hf --prompt a
rm hf/tokenizer.json && touch hf/vocab.txt
fails 1 "hf/vocab.txt: is WordPiece" "$gpt2" -e hf --prompt a
yes 'to be or not<|endoftext|>' | tr -d '\n' | head -c 20000 >parts && "$tokenize" -o parted --vocab-size 270 parts >out 2>&1 &&
    train parted-run -i parted -x 60 -m 1 -l 1e-2 &&
    "$trainer" -e parted-run --prompt "to be" -g 60 --temperature 0 --json >out 2>err && grep -q '"ended":"end"' out &&
    "$trainer" -e parted-run --prompt "to be" -g 60 --temperature 0 >out 2>err && grep -q ': the text ends' err &&
    ! grep -q endoftext out
ok "a run on texts that end ends its own"
"$tokenize" -o masks --vocab-size 300 --reserve mask,padding text >out 2>&1 &&
    "$bert" -i masks -o asked -L 2 -C 32 -H 2 -b 4 -t 64 -p fp32 -x 20 -m 2 >out 2>&1 </dev/null && foreign asked hfbert &&
    "$bert" -e hfbert --fill "The [MASK]" >out 2>&1 && grep -q '\[MASK\] 1' out &&
    "$bert" -e asked --fill "The [MASK]" >one 2>&1 && cmp out one
ok "-e DIR: BERT, and its run"
"$bert" -e asked --fill "The [MASK] of [MASK]" --json >out 2>&1 && [ "$(wc -l <out)" -eq 2 ] &&
    [ "$(grep -cE '^\{"mask":[12],"best":\[(\{"token":"[^,]*","probability":[0-9.e-]*\},?){5}\]\}$' out)" -eq 2 ]
ok "--fill --json: an object per mask"
"$bert" --help >out && grep -q 'that of -e)$' out && "$trainer" --help >out && grep -q 'or the embedded text)$' out
ok "--help: who has an embedded text"
# Padding in a text is not a target, and is not learnt as one.
awk '{ for (i = NR % 5; i > 0; i--) printf "[PAD]"; print }' text >padded && "$tokenize" -o padded.data --vocab-size 300 --reserve padding \
    --train padded --val padded --test text >out 2>&1 && "$gpt2" -i padded.data -o padding --preset published -L 1 -C 16 -H 2 -b 4 -t 64 -x 2 -v 1 >out 2>&1
tokens=$(sed -n 's/.*"val":{"tokens":\([0-9]*\),.*/\1/p' padded.data/meta.json)
[ $((tokens - $(grep -o '\[PAD\]' padded | wc -l))) -eq "$(sed -n 's/.*"val_tokens":\([0-9]*\),.*/\1/p' padding/log.jsonl | head -n 1)" ]
ok "padding does not count"
fails 2 "--prompt and --eval exclude each other" "$trainer" -e bpe --prompt a --eval val
fails 2 "--json: is for --eval" "$trainer" -i data --json -x 1
finish
