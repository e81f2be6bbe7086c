#!/bin/sh
# The Fastformer's rescale s, the values that it pools, and its sink. Options: --help
exec python3 -B "$(dirname "$0")/compare.py" rescale "$@"
