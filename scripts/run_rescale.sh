#!/bin/sh
# The Fastformer's rescale s, what it pools, its sink. Options: --help
exec python3 -B "$(dirname "$0")/compare.py" rescale "$@"
