#!/bin/sh
# Tests what a run's directory holds for Hugging Face transformers in addition to weights and class:
# config.json, generation_config.json, tokenizer_config.json. Needs TRAINER, GPT2, BERT, TRANSLATE
# and TOKENIZE, the programs. The last line is "N passed, N failed".
# shellcheck source=dev/test/checks.sh
. "$(dirname "$0")/checks.sh"
gpt2=$(cd "$root" && realpath "${GPT2:-train_gpt2}")
bert=$(cd "$root" && realpath "${BERT:-train_bert}")
translate=$(cd "$root" && realpath "${TRANSLATE:-train_translate}")

awk 'NR <= 2000 { print } NR % 40 == 0 { printf "<|endoftext|>" }' "$shakespeare" >documents
head -n 2000 "$shakespeare" >lines
head -n 100 lines >source
tr '[:lower:]' '[:upper:]' <source >target
"$tokenize" -o documents.data --vocab-size 300 documents >out 2>&1 && "$tokenize" -o plain.data --vocab-size 300 lines >out 2>&1 &&
    "$tokenize" -o words.data --tokenizer word lines >out 2>&1 &&
    "$tokenize" -o masked.data --vocab-size 300 --reserve mask,padding documents >out 2>&1 &&
    "$tokenize" -o pairs.data --vocab-size 300 --source source --target target --val-source source --val-target target >out 2>&1
ok "tokenize"
run() { # NAME PROGRAM OPTIONS...: a run in NAME
    name=$1
    shift
    "$@" -o "$name" -x 1 -m 1 -p fp32 >out 2>&1 </dev/null
}
small="-L 1 -C 8 -H 2 -t 32 -b 2"
# shellcheck disable=SC2086
run gpt2 "$gpt2" -i documents.data $small && run plain "$trainer" -i plain.data $small && run words "$gpt2" -i words.data $small &&
    run bert "$bert" -i masked.data $small && run pairs "$translate" -i pairs.data -L 1 -D 1 -C 8 -H 2 -b 512
ok "runs"
has() { # NAME FILE MEMBER...: all of them are in a file of a run
    file=$1/$2
    shift 2
    for member in "$@"; do
        grep -qF "$member" "$file" || return 1
    done
}
ends='"bos_token_id":0,"eos_token_id":0,"pad_token_id":null'
has gpt2 config.json "$ends" '"n_positions":32' '"n_ctx":32' && has gpt2 generation_config.json "$ends" '"max_length":32' &&
    has gpt2 tokenizer_config.json '"bos_token":"<|endoftext|>","eos_token":"<|endoftext|>"' '"model_max_length":32' PreTrainedTokenizerFast
ok "documents: the end token ends a text"
ends='"bos_token_id":null,"eos_token_id":null,"pad_token_id":null'
has plain config.json "$ends" && has plain generation_config.json "$ends" '"max_length":32' &&
    ! grep -q '_token"' plain/tokenizer_config.json
ok "lines: text continues after a newline"
has words generation_config.json "$ends" && [ ! -e words/tokenizer_config.json ]
ok "words: transformers has no such tokenizer"
has bert config.json '"pad_token_id":0' && has bert tokenizer_config.json '"pad_token":"[PAD]","mask_token":"[MASK]"' &&
    [ ! -e bert/generation_config.json ]
ok "BERT writes no text"
ends='"bos_token_id":null,"eos_token_id":1,"pad_token_id":0,"decoder_start_token_id":0,"forced_eos_token_id":null'
has pairs config.json "$ends" && has pairs generation_config.json "$ends" '"max_length":128' &&
    has pairs tokenizer_config.json '"eos_token":"<|endoftext|>","pad_token":"[PAD]"'
ok "a translation ends at the end token, or where the positions do"

# shellcheck disable=SC2086
run mixed "$gpt2" -i plain.data $small --attention additive && grep -q '^  (no config.json: transformers has no class' out &&
    [ ! -e mixed/config.json ]
ok "a model that transformers has no class for says so"

# ---- files of other programs stay; files that a killed run left incomplete are removed
mkdir theirs && echo '{}' >theirs/generation_config.json
# shellcheck disable=SC2086
fails 1 "theirs/generation_config.json: is no run's and would be replaced" "$gpt2" -i plain.data $small -o theirs -x 1
touch gpt2/generation_config.json.tmp gpt2/tokenizer_config.json.tmp
"$gpt2" -o gpt2 -y -x 2 -m 1 >out 2>&1 </dev/null && ! ls gpt2/*.tmp >/dev/null 2>&1
ok "temporary files are removed"
finish
