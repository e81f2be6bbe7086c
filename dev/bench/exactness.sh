#!/bin/sh
# Training with the published windowed sums in float32. Options: --help
exec python3 -B "$(dirname "$0")/../../scripts/compare.py" exactness "$@"
