#!/usr/bin/env bash
# Checks that the directories of dev are layers: a file includes only its own directory and lower
# layers (dev/README.md). Prints every other include. The last line is "N passed, N failed",
# counting includes.
cd "$(dirname "$0")/../.." || exit 1

# One layer per line, lowest first. Directories of one layer do not include each other.
layers='base
text ranks
data
model
cpu
cuda start
trainer
tasks
fastformer gpt2 llama bert translate
page'

find dev -name '*.c' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' |
    grep -vE '/(test_|.*_test\.)|^dev/(test|fuzz|bench|tools|emulator|package)/' | xargs grep -H '^#include "' |
    awk -v layers="$layers" -F '[/:"]' '
    BEGIN {
        count = split(layers, rows, "\n")
        for (i = 1; i <= count; i++) {
            n = split(rows[i], names, " ")
            for (j = 1; j <= n; j++) level[names[j]] = i
        }
        while (("find dev -type f" | getline path) > 0) {
            split(path, parts, "/")
            if (parts[2] in level || parts[2] == "emulator") directory[parts[3]] = parts[2]
        }
    }
    {
        from = $2; to = directory[$(NF - 1)]
        # Tests compile the CUDA sources for the emulator, which takes the place of the toolkit.
        if (to == "" || to == "emulator" || from == to) { passed++; next }
        if (!(from in level)) { print "FAIL " $0 ": " from " is in no layer"; failed++; next }
        if (level[to] < level[from]) { passed++; next }
        print "FAIL " $1 "/" $2 "/" $3 " includes " $(NF - 1) ": " from " is not above " to
        failed++
    }
    END { print passed + 0 " passed, " failed + 0 " failed"; exit failed > 0 }'
