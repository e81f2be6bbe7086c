#!/bin/sh
# Three language models on WikiText-2 with different context lengths. Options: --help
exec python3 -B "$(dirname "$0")/compare.py" lengths "$@"
