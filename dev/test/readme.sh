#!/usr/bin/env bash
# Runs the commands in the READMEs in a copy of the tree; CONTRIBUTING.md explains their marks. The
# last line is "N passed, N failed".
# usage: dev/test/readme.sh [FILE...]     default: every README, docs/*.md and CONTRIBUTING.md
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root" || exit 1
[ $# -gt 0 ] || set -- README.md CONTRIBUTING.md docs/*.md data/README.md scripts/README.md dev/README.md dev/*/README.md
limit=60 # seconds per block
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
passed=0
failed=0

# The copy shares this tree's objects. Its texts are parts of one small file.
mkdir -p "$scratch/tree" "$scratch/sample" "$scratch/blocks" "${BUILD:=build}"
tar -c --exclude=./.git --exclude="./$BUILD" --exclude=./runs --exclude='./data/*/*' . | tar -x -C "$scratch/tree"
ln -s "$(realpath "$BUILD")" "$scratch/tree/build"
export SAMPLE=$scratch/sample
text=dev/test/texts/shakespeare.txt
head -n 3000 "$text" >"$SAMPLE/train.txt"
tail -n +3001 "$text" | head -n 300 | tee "$SAMPLE/valid.txt" >"$SAMPLE/test.txt"
cp "$SAMPLE/train.txt" "$scratch/tree/my.txt"
export WIKITEXT2_DIR=$SAMPLE TOKENIZER=byte # what makes the commands shown fast enough

# blocks FILE: writes each of its code blocks to LINE.block and the mark of the block to LINE.mark
blocks() {
    rm -f "$scratch"/blocks/*
    awk -v to="$scratch/blocks/" '
        function text(line) { print line >file; }
        function open(line) {
            file = to sprintf("%05d", NR) ".block"
            printf "%s", mark >(to sprintf("%05d", NR) ".mark")
            mark = ""
            block = 1
        }
        fence { if (/^ *```/) { fence = 0; close(file) } else text($0); next }
        in_mark { in_mark = !sub(/ *-->.*/, ""); mark = mark $0 "\n"; next }
        /^<!-- test:/ {
            sub(/^<!-- test: */, "")
            in_mark = !sub(/ *-->.*/, "")
            mark = $0 "\n"
            block = 0
            next
        }
        /^ *```/ { open(); fence = 1; block = 0; next }
        /^    / && (block || blank || NR == 1) { if (!block) open(); text(substr($0, 5)); next }
        /^ *$/ { blank = 1; next }
        { blank = block = 0; mark = "" }
    ' "$1"
}

run() { # FILE LINE
    local name="$1:$((10#$2))" mark start=$SECONDS
    mark=$(cat "$scratch/blocks/$2.mark")
    case $mark in
    skip*)
        printf 'skip  %-50s %s\n' "$name" "${mark#skip, }"
        return
        ;;
    with\ *) sed -E "s/^(\.\/train_[^#]*[^# ]) *(#.*)?\$/\1 ${mark#with }/" "$scratch/blocks/$2.block" >"$scratch/commands" ;;
    ?*) printf '%s\n' "$mark" >"$scratch/commands" ;;
    *) cp "$scratch/blocks/$2.block" "$scratch/commands" ;;
    esac
    (cd "$scratch/tree" && timeout "$limit" bash -euo pipefail "$scratch/commands") >"$scratch/output" 2>&1 </dev/null
    local code=$?
    if [ $code -eq 0 ]; then
        passed=$((passed + 1))
        printf 'ok    %-50s %4d s\n' "$name" $((SECONDS - start))
    else
        failed=$((failed + 1))
        printf 'FAIL  %-50s %4d s\n' "$name" $((SECONDS - start))
        sed 's/^/    $ /' "$scratch/commands"
        tail -n 20 "$scratch/output" | sed 's/^/    /'
        [ $code -ne 124 ] || echo "    takes longer than $limit s: shorten it by a mark (CONTRIBUTING.md)"
    fi
}

# Builds first, as the time limit of a block is not for building.
make -C "$scratch/tree" all bench test_fastformer test_gpt2 test_llama test_bert test_translate >"$scratch/output" 2>&1 ||
    { tail -n 20 "$scratch/output"; echo "0 passed, 1 failed"; exit 1; }
for file in "$@"; do
    blocks "$file"
    for block in "$scratch"/blocks/*.block; do
        [ -f "$block" ] || continue
        run "$file" "$(basename "$block" .block)"
    done
done
# For each link to a line, [`name`](FILE#LN): checks that the line contains the name.
for page in docs/*.md; do
    while IFS='|' read -r name file line; do
        if sed -n "${line}p" "docs/$file" | grep -q "\b$name("; then
            passed=$((passed + 1))
        else
            failed=$((failed + 1))
            echo "FAIL  $page: $name is not in line $line of $file"
        fi
    done < <(grep -o '\[`[a-z_]*`\]([^)#]*#L[0-9]*)' "$page" | sed -E 's/\[`(.*)`\]\((.*)#L(.*)\)/\1|\2|\3/')
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
