#!/bin/sh
# Makes a Debian package of PROGRAM, which holds all programs (fastformer.c), under all their names.
# usage: VERSION=V SOURCE_DATE_EPOCH=SECONDS deb.sh PROGRAM DIRECTORY
set -eu
export LC_ALL=C TZ=UTC
umask 022
program=$(realpath "$1") to=$(realpath "$2")
cd "$(dirname "$0")/../.."
maintainer='fastformer.c developers <fastformer@packages.invalid>'
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
root=$tree/root
doc=$root/usr/share/doc/fastformer
install -d "$root/DEBIAN" "$root/usr/bin" "$doc"
install -m 755 "$program" "$root/usr/bin/fastformer"
names=$("$program" --help | sed -n 's/.* the program //p')
for name in $names; do ln -s fastformer "$root/usr/bin/$name"; done
# shellcheck disable=SC2086 # words
dev/package/pages.sh "$root/usr/bin" "$root/usr/share" vendor-completions fastformer $names

gzip -9nc docs/usage.md >"$doc/usage.md.gz"
{
    printf 'Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n'
    printf 'Upstream-Name: fastformer.c\n\nFiles: *\n%s\nLicense: Expat\n' "$(sed -n 's/^Copyright (c)/Copyright:/p' LICENSE)"
    sed '1,/^Copyright/d; s/^$/./; s/^/ /' LICENSE | tail -n +2
} >"$doc/copyright"
# The changelog of the newest release, in the format of Debian.
{
    printf 'fastformer (%s) unstable; urgency=medium\n\n' "$VERSION"
    awk '/^## /{ if (seen++) exit; next }
        /^### /{ print "  [ " substr($0, 5) " ]"; next }
        /^- /{ flush(); item = substr($0, 3); next }
        /^  /{ item = item " " substr($0, 3); next }
        { flush() }
        END { flush() }
        function flush(  n, words, i, line) {
            if (item == "") return
            n = split(item, words, " ")
            line = "  *"
            for (i = 1; i <= n; i++) {
                if (length(line words[i]) > 76) { print line; line = "   " }
                line = line " " words[i]
            }
            print line
            item = ""
        }' CHANGELOG.md
    printf '\n -- %s  %s\n' "$maintainer" "$(date -Rd "@$SOURCE_DATE_EPOCH")"
} | gzip -9n >"$doc/changelog.gz"

# The packages of this system that hold the libraries of the program.
mkdir "$tree/debian"
echo 'Source: fastformer' >"$tree/debian/control"
depends=$(cd "$tree" && dpkg-shlibdeps -O "$program" 2>/dev/null | sed -n 's/^shlibs:Depends=//p')
cat >"$root/DEBIAN/control" <<END
Package: fastformer
Version: $VERSION
Architecture: $(dpkg --print-architecture)
Maintainer: $maintainer
Installed-Size: $(du -sk --apparent-size "$root/usr" | cut -f 1)
Depends: $depends
Suggests: sentencepiece
Section: science
Priority: optional
Description: trains small language models with linear-time attention
 Training programs in C for language models: the causal Fastformer, whose
 windowed additive attention costs the same per token at any length of the
 context, and for comparison GPT-2, BERT and a translating encoder-decoder.
 They choose the instructions that are fast on this processor when they start,
 and train at once on a text that they contain.
END
(cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
find "$root" -exec touch -hd "@$SOURCE_DATE_EPOCH" {} +
dpkg-deb --root-owner-group -Zxz --build "$root" "$to" >/dev/null
ls "$to/fastformer_${VERSION}_"*.deb
