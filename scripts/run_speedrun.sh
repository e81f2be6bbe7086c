#!/bin/sh
# Time to quality on WikiText-2. Options: --help
exec python3 -B "$(dirname "$0")/compare.py" speedrun "$@"
