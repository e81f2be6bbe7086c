#!/bin/sh
# The Fastformer on WikiText-2 with a vocabulary of words. Options: --help
exec python3 -B "$(dirname "$0")/compare.py" words "$@"
