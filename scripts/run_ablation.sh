#!/bin/sh
# GPT-2 with softmax, softmax1 and cosine attention, and the Fastformer with other sinks, on two
# data sets. Options: --help
exec python3 -B "$(dirname "$0")/compare.py" ablation "$@"
