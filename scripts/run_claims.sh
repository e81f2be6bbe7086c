#!/bin/sh
# All training runs of the README's tables, one comparison after the other. Options: --help
exec python3 -B "$(dirname "$0")/compare.py" claims "$@"
