#!/bin/sh
# BERT with softmax and with cosine attention divided by powers of the length. Options: --help
exec python3 -B "$(dirname "$0")/compare.py" cosine "$@"
