#!/bin/sh
# The encoder-decoder on Multi30k: BLEU by norm and warmup. Options: --help
exec python3 -B "$(dirname "$0")/compare.py" translation "$@"
