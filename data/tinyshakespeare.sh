#!/bin/sh
# Tiny Shakespeare (Karpathy 2015): 1.1 MB of plays, by characters; cut 90/5/5.
#
#   make data/tinyshakespeare
#   TOKENIZER=spm make data/tinyshakespeare         byte (default), bpe, spm or word
#   SPM_MODEL=t5.model TOKENIZER=spm make data/tinyshakespeare
#   TINYSHAKESPEARE_DIR=DIR make data/tinyshakespeare    input.txt is there
#
# Without TINYSHAKESPEARE_DIR the text comes from ../shared/data/tinyshakespeare, else from the network.
set -eu
cd "$(dirname "$0")/.."
. data/common.sh
TOKENIZER=${TOKENIZER:-byte}
check_tokenizer

text=${TINYSHAKESPEARE_DIR:-../shared/data/tinyshakespeare}
if [ -z "${TINYSHAKESPEARE_DIR:-}" ] && [ ! -d "$text" ]; then
    text=data/download/tinyshakespeare
    download https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt \
        $text/input.txt 7dcb3a2d4cc3b48b6283dd46870bfeb78f88aac9
fi
./tokenize --output data/tinyshakespeare --tokenizer "$TOKENIZER" ${SPM_MODEL:+--model "$SPM_MODEL"} "$text/input.txt"
