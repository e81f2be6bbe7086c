#!/bin/sh
# WikiText-2 with a vocabulary of words: 33,278 types, as in AWD-LSTM.
#
#   make data/wikitext2-words       WIKITEXT2_DIR as in wikitext2.sh
TOKENIZER=word exec sh "$(dirname "$0")/wikitext2.sh" "${1:-wikitext2-words}"
