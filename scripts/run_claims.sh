#!/bin/sh
# Every training run behind the README's tables, one comparison after the other. Options: --help
exec python3 -B "$(dirname "$0")/compare.py" claims "$@"
