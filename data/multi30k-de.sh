#!/bin/sh
# Multi30k from German to English. BPE with 4,000 tokens, with which an update takes less time.
#
#   make data/multi30k-de           MULTI30K_DIR as in multi30k.sh
VOCABULARY=${VOCABULARY:-4000} exec sh "$(dirname "$0")/multi30k.sh" "${1:-multi30k-de}"
