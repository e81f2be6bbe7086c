#!/bin/sh
# What models recall of their context. Options: --help
exec python3 -B "$(dirname "$0")/compare.py" recall "$@"
