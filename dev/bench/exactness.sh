#!/bin/sh
# Compares training with the published windowed sums in float32 with exact sums. Options: --help
exec python3 -B "$(dirname "$0")/../../scripts/compare.py" exactness "$@"
