#!/bin/sh
# Writes the seeds that programs make, into dev/fuzz/corpus: needed again when a format changes. The others are written
# by hand, or were found by the fuzzer. Needs ./train_fastformer and ./tokenize.
cd "$(dirname "$0")/../.." || exit 1
corpus=$PWD/dev/fuzz/corpus
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
set -e

# Four words, as fuzz_checkpoint.c has them.
for line in one "one two" one two "two one one" "one two one" "two two one two one"; do echo "$line"; done >"$dir/text"
./tokenize -o "$dir/data" --tokenizer word --train "$dir/text" --val "$dir/text" --test "$dir/text" >/dev/null
printf '<eos>\n<unk>\none\ntwo\n' >"$dir/data/tokenizer.vocab"
train() { # NAME OPTIONS...
    name=$1
    shift
    ./train_fastformer -i "$dir/data" -o "$dir/$name" -b 1 -t 8 -x 1 -p fp32 "$@" >/dev/null
    cp "$dir/$name/step_00000001.safetensors" "$corpus/checkpoint/valid_$name"
}
train one_layer -L 1 -C 4 -H 1
train two_layers -L 2 -C 4 -H 2 --windows 4,global --pool raw --sink 1
cp "$dir/one_layer/log.jsonl" "$corpus/log/valid_run"
cp "$corpus/checkpoint/valid_one_layer" "$corpus/safetensors/valid_weights"
cp "$dir/data/train_000000.bin" "$corpus/shard/valid_uint16"

# A SentencePiece model of a small vocabulary, without the table of its normaliser.
head -c 3000 dev/test/texts/shakespeare.txt >"$dir/text"
spm_train --input="$dir/text" --model_prefix="$dir/spm" --vocab_size=400 --model_type=bpe --byte_fallback=true \
    --character_coverage=1.0 --pad_id=0 --eos_id=1 --unk_id=2 --bos_id=-1 --hard_vocab_limit=false \
    --normalization_rule_name=identity --minloglevel=2
cp "$dir/spm.model" "$corpus/sentencepiece/valid_bpe"

# Byte-level BPE, then a text that is not all UTF-8.
./tokenize -o "$dir/bpe" --tokenizer bpe --vocab-size 280 "$dir/readme" >/dev/null
{
    cat "$dir/bpe/tokenizer.json"
    printf '\0Two commands <|endoftext|> on any\377\303 line  it'"'"'s 12\n'
} >"$corpus/bpe/valid_bpe"
# Llama 3's form with added tokens of all flags, a hole and a template; Digits; a prefix; bytes that are missing.
split='{"type":"Split","pattern":{"Regex":"(?i:'"'s|'t|'re|'ve|'m|'ll|'d"')|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},"behavior":"Isolated","invert":false}'
small() { # NAME PRE_TOKENIZER POST_PROCESSOR NORMALIZER ADDED TEXT
    printf '{"added_tokens":[{"id":0,"content":"<e>","special":true}%s],"normalizer":%s,"pre_tokenizer":%s,"post_processor":%s,"decoder":{"type":"ByteLevel"},"model":{"type":"BPE","ignore_merges":true,"vocab":{"<e>":0,"a":1,"b":2,"\304\240":3,"1":4,"ab":5,"\304\240ab":7,"\303\203":8,"\302\251":9,"e":10,"\303\214":11,"\304\243":12},"merges":["a b",["\304\240","ab"]]}}\000%b' \
        "$5" "$4" "$2" "$3" "$6" >"$corpus/bpe/$1"
}
level='{"type":"ByteLevel","add_prefix_space":false}'
small valid_llama3 '{"type":"Sequence","pretokenizers":['"$split"',{"type":"ByteLevel","use_regex":false}]}' \
    '{"type":"Sequence","processors":['"$level"',{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<e>"}},{"Sequence":{"id":"A"}}],"special_tokens":{"<e>":{"ids":[0]}}}]}' \
    '{"type":"NFC"}' ',{"id":20,"content":"<l>","lstrip":true,"rstrip":true},{"id":21,"content":"ba","single_word":true,"normalized":true}' \
    'a <l> ab111ab<e>ba e\314\201'
small valid_digits '{"type":"Sequence","pretokenizers":[{"type":"Digits","individual_digits":true},'"$level"']}' null null "" 'a11 ab 1'
small valid_prefix '{"type":"ByteLevel","add_prefix_space":true}' '{"type":"RobertaProcessing","cls":["<e>",0],"sep":["a",1]}' \
    '{"type":"Sequence","normalizers":[]}' "" 'ab<e>ab'
