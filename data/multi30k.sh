#!/bin/sh
# Multi30k (Elliott et al. 2016): 29,000 English image descriptions with German translations.
#
#   make data/multi30k                        English to German
#   make data/multi30k-de                     German to English, 4,000 tokens (multi30k-de.sh)
#   MULTI30K_DIR=DIR make data/multi30k       directory of train, val, test_2016_flickr (.en, .de)
#   VOCABULARY=4000 make data/multi30k        tokens of the joint BPE (default: 10,000)
#
# Without MULTI30K_DIR the texts come from ../shared/data/multi30k if it exists, else the network.
set -eu
cd "$(dirname "$0")/.."
. data/common.sh
TOKENIZER=bpe
check_tokenizer

text=${MULTI30K_DIR:-../shared/data/multi30k}
if [ -z "${MULTI30K_DIR:-}" ] && [ ! -d "$text" ]; then
    text=data/download/multi30k
    while read -r file blob; do
        download https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/"$file".gz "$text/$file.gz" "$blob"
        gzip -dc "$text/$file.gz" >"$text/$file"
    done <<'END'
train.en 8226b4b333656238e113284cf738778e1287b52e
train.de 3869154c6298e22b3dc9ed3b17fd45bf00276b94
val.en 8eb30ab9e5edd301e4c94330713c88513dd43dbc
val.de 0907cab7a248be8e15ac418d517343899351db18
test_2016_flickr.en c3c1142a4d12fa9d7736c81dca0dcea51975477e
test_2016_flickr.de 96b762cc43d913a5d23e5ec65acbc58a50d0a9b8
END
fi
if [ "${1:-}" = multi30k-de ]; then from=de to=en; else from=en to=de; fi
./tokenize --output "data/${1:-multi30k}" --vocab-size "${VOCABULARY:-10000}" \
    --source "$text/train.$from" --target "$text/train.$to" \
    --val-source "$text/val.$from" --val-target "$text/val.$to" \
    --test-source "$text/test_2016_flickr.$from" --test-target "$text/test_2016_flickr.$to"
