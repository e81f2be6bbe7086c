#!/bin/sh
# How well models recall their context. Options: --help
exec python3 -B "$(dirname "$0")/compare.py" recall "$@"
