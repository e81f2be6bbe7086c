#!/bin/sh
# Tiny Shakespeare (Karpathy 2015): 1.1 MB of plays, character by character; split 90/5/5.
#
#   make data/tinyshakespeare
#   TOKENIZER=spm make data/tinyshakespeare         tokenizer: byte (default), bpe, spm or word
#   SPM_MODEL=t5.model TOKENIZER=spm make data/tinyshakespeare
#   TINYSHAKESPEARE_DIR=DIR make data/tinyshakespeare    directory of input.txt
#
# Without TINYSHAKESPEARE_DIR the text comes from ../shared/data/tinyshakespeare if it exists, else
# from the network.
set -eu
cd "$(dirname "$0")/.."
. data/common.sh
TOKENIZER=${TOKENIZER:-byte}
check_tokenizer

find_tinyshakespeare
./tokenize --output data/tinyshakespeare --tokenizer "$TOKENIZER" ${SPM_MODEL:+--model "$SPM_MODEL"} "$text"
