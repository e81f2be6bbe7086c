#!/bin/sh
# Makes the source archive from the files in git. Its MANIFEST lists them, so that an archive can
# make itself again.
# usage: VERSION=V SOURCE_DATE_EPOCH=SECONDS dist.sh DIRECTORY
set -eu
export LC_ALL=C
umask 022
to=$(realpath "$1")
cd "$(dirname "$0")/../.."
name=fastformer.c-$VERSION
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
if [ -e MANIFEST ]; then
    cp MANIFEST "$scratch"
else
    git ls-files | sort >"$scratch/MANIFEST"
fi
tar -c --no-recursion --transform "s|^|$name/|S" --owner=0 --group=0 --numeric-owner --mode=go=rX,u+rw \
    --mtime="@$SOURCE_DATE_EPOCH" --verbatim-files-from -T "$scratch/MANIFEST" -C "$scratch" MANIFEST |
    gzip -9n >"$to/$name.tar.gz"
ls "$to/$name.tar.gz"
