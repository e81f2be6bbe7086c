#!/bin/sh
# WikiText-2 (Merity et al. 2017): 2 million words of Wikipedia articles, rare words replaced by
# <unk>.
#
#   make data/wikitext2
#   TOKENIZER=word make data/wikitext2              tokenizer: spm (default), bpe, byte or word
#   make data/wikitext2-bert                        BPE with BERT's tokens (wikitext2-bert.sh)
#   make data/wikitext2-words                       words (wikitext2-words.sh)
#   SPM_MODEL=t5.model make data/wikitext2          an existing SentencePiece model
#   WIKITEXT2_DIR=DIR make data/wikitext2           directory of train.txt, valid.txt and test.txt
#
# Without WIKITEXT2_DIR the texts come from ../shared/data/wikitext-2 if it exists, else from the
# network.
set -eu
cd "$(dirname "$0")/.."
. data/common.sh
TOKENIZER=${TOKENIZER:-spm}
check_tokenizer

find_wikitext2
# The published counts use spm_train's own settings.
if [ "$TOKENIZER" = spm ] && [ -z "${SPM_MODEL:-}" ]; then normalise=--normalise; fi
./tokenize --output "data/${1:-wikitext2}" --tokenizer "$TOKENIZER" ${SPM_MODEL:+--model "$SPM_MODEL"} ${normalise:-} \
    ${RESERVE:+--reserve "$RESERVE"} --train "$text/train.txt" --val "$text/valid.txt" --test "$text/test.txt"
