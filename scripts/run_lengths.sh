#!/bin/sh
# Three language models on WikiText-2, by the length of the context. Options: --help
exec python3 -B "$(dirname "$0")/compare.py" lengths "$@"
