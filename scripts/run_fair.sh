#!/bin/sh
# Additive attention, softmax and both, each tuned. Options: --help
exec python3 -B "$(dirname "$0")/compare.py" fair "$@"
