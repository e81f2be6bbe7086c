#!/bin/sh
# Compares training with bf16 and with float32 products. Options: --help
exec python3 -B "$(dirname "$0")/../../scripts/compare.py" precision "$@"
