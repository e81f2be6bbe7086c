#!/bin/sh
# WikiText-2 for train_bert: byte-level BPE, 8,192 tokens, with tokens for masking and padding.
#
#   make data/wikitext2-bert        WIKITEXT2_DIR as in wikitext2.sh
TOKENIZER=bpe RESERVE=mask,padding exec sh "$(dirname "$0")/wikitext2.sh" "${1:-wikitext2-bert}"
