#!/bin/sh
# The source archive: what git has, or, in such an archive itself, all that is not made by make.
# usage: VERSION=V SOURCE_DATE_EPOCH=SECONDS dist.sh DIRECTORY
set -eu
export LC_ALL=C
to=$(realpath "$1")
cd "$(dirname "$0")/../.."
name=fastformer.c-$VERSION
if [ -e .git ]; then
    git ls-files -z
else
    find . -path ./build -prune -o -path ./runs -prune -o -path './data/*/*' -prune -o \( -type f -o -type l \) -printf '%P\0'
fi | sort -z |
    tar -c --null -T - --no-recursion --transform "s|^|$name/|S" --owner=0 --group=0 --numeric-owner \
        --mode=go=rX,u+rw --mtime="@$SOURCE_DATE_EPOCH" | gzip -9n >"$to/$name.tar.gz"
ls "$to/$name.tar.gz"
