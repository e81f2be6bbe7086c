#!/bin/sh
# The Linux kernel's source: 0.6 GB of C with long-range dependencies, BPE with 8,192 tokens.
#
#   make data/linux
#   LINUX_SOURCE=FILE make data/linux      archive: linux-source-*.tar.xz or a tar of a kernel
#   TOKENIZER=byte make data/linux         tokenizer: bpe (default) or byte
#
# The default archive is that of Debian's package linux-source-6.1. The text is all *.c files,
# sorted by name, each after a line with its name. Of every 200 files, one is for validation and one
# for the test.
set -eu
cd "$(dirname "$0")/.."
. data/common.sh
TOKENIZER=${TOKENIZER:-bpe}
check_tokenizer

archive=${LINUX_SOURCE:-/usr/src/linux-source-6.1.tar.xz}
[ -r "$archive" ] || die "$archive: not found; install Debian's package linux-source-6.1 (apt install linux-source-6.1), or say" \
    "LINUX_SOURCE=FILE"
to=data/download/linux
rm -rf $to
mkdir -p $to/source
trap 'rm -rf "$to"' EXIT
tar -x -f "$archive" -C $to/source --strip-components=1 --wildcards '*.c' || die "$archive: cannot be unpacked into $to"
(cd $to/source && find . -type f -name '*.c' | sed 's|^\./||' | LC_ALL=C sort) >$to/files
[ "$(wc -l <$to/files)" -ge 200 ] || die "$archive: holds $(wc -l <$to/files) files of C, expected those of a kernel"

# split NAME: writes the files of split NAME (train, val or test) to NAME.txt.
split() {
    awk -v name="$1" '{ part = NR % 200 == 66 ? "val" : NR % 200 == 133 ? "test" : "train" } part == name' $to/files |
        while IFS= read -r file; do
            printf '/* %s */\n' "$file"
            cat "$to/source/$file"
        done >"$to/$1.txt"
}
for name in train val test; do split $name; done
rm -rf $to/source
./tokenize --output data/linux --tokenizer "$TOKENIZER" $([ "$TOKENIZER" = byte ] || echo --vocab-size 8192) --train $to/train.txt --val $to/val.txt \
    --test $to/test.txt
