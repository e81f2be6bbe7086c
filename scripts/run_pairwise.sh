#!/bin/sh
# BERT with any similarity of queries and keys and any activation. Options: --help
exec python3 -B "$(dirname "$0")/compare.py" pairwise "$@"
