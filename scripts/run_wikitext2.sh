#!/bin/sh
# Three language models on WikiText-2 with the same budget. Options: --help
exec python3 -B "$(dirname "$0")/compare.py" wikitext2 "$@"
