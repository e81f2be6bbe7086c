#!/bin/sh
# Whether bf16 products train as well as float32 ones. Options: --help
exec python3 -B "$(dirname "$0")/../../scripts/compare.py" precision "$@"
