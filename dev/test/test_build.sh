#!/bin/sh
# Tests the Makefile: objects built with other flags are rebuilt, and nothing else; builds in other
# directories; install. The last line is "N passed, N failed".
root=$(realpath "$(dirname "$0")/../..")
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"; [ -z "${link-}" ] || rm -f "$link"' EXIT
mkdir "$dir/elsewhere" "$dir/a b"
shown=$dir/out
# shellcheck source=dev/test/count.sh
. "$root/dev/test/count.sh"

# build ARGUMENT...: runs make as a user does, without the variables of the make that runs this test
build() {
    env -i PATH="$PATH" HOME="$HOME" make -C "$root" BUILD="$dir/build" OPENMP=0 "$@" >"$dir/out" 2>&1
}

float=$dir/build/float-serial/dev/base/error.o
compiles() { # NAME ARGUMENT...: the object is compiled, once
    name=$1
    shift
    build ONEDNN=0 "$@" "$float" && grep -q ' CC ' "$dir/out"
    ok "$name is compiled"
    build ONEDNN=0 "$@" "$float" && ! grep -q ' CC ' "$dir/out"
    ok "$name is not compiled twice"
}
compiles "a new tree"
compiles "CFLAGS" CFLAGS=-O1
compiles "CPPFLAGS" CPPFLAGS='-DTEXT="\"a b\""'
compiles "WERROR" WERROR=1
compiles "another compiler" CC="gcc -pipe"
compiles "the first flags, again"
build ONEDNN=0 CFLAGS=-O0 "$float" "${float%error.o}memory.o" && grep -q '^\[1/2\] CC ' "$dir/out" &&
    grep -q '^\[2/2\] CC ' "$dir/out"
ok "steps are counted"

# A test of the double build contains the path of its float build.
double=$dir/build/double-serial/dev/test/model_test.o
build ONEDNN=0 "$double" && grep -qF "$dir/build/float-serial" "$double" && ! grep -qF float-serial-onednn "$double"
ok "a double test finds the float build"
build ONEDNN=1 "$double" && grep -qF "$dir/build/float-serial-onednn" "$double"
ok "a double test finds the other float build"

(cd "$dir/elsewhere" && env -i PATH="$PATH" make -n -f "$root/Makefile" tokenize) >"$dir/out" 2>&1 &&
    grep -q "$dir/elsewhere/build/float.*bin/tokenize" "$dir/out" && grep -q "$dir/elsewhere/tokenize" "$dir/out"
ok "make -f from another directory"
(cd "$dir/a b" && env -i PATH="$PATH" make -f "$root/Makefile" OPENMP=0 ONEDNN=0 CFLAGS=-O0 BUILD="c d" tokenize) \
    >"$dir/out" 2>&1 && "$dir/a b/tokenize" --version >>"$dir/out" && [ -d "$dir/a b/c d/float-serial" ]
ok "make -f from a directory with a blank in its name, and BUILD with one"
link=$(find "$root" -maxdepth 1 -lname "$dir/a b/c d")
# HERE keeps it from removing the programs of this directory, which other tests run.
build HERE="$dir/a b" BUILD="$dir/a b/c d" clean && [ -n "$link" ] && [ ! -e "$link" ] &&
    [ ! -e "$dir/a b/c d/float-serial" ] && [ ! -e "$dir/a b/tokenize" ]
ok "clean, BUILD with a blank in its name"
build help && grep -q '^  make test ' "$dir/out" && ! grep -q '^SOURCE' "$dir/out"
ok "make help"
build -n ONEDNN=0 install PREFIX=/usr DESTDIR="$dir/root" && grep -q "install .*\"$dir/root/usr/bin\"" "$dir/out"
ok "install"
# shellcheck disable=SC2016 # make's variable
printf 'include Makefile\njobs: ; @echo jobs $(filter -j%%,$(MAKEFLAGS))\n' >"$dir/show.mk"
build -f "$dir/show.mk" jobs && grep -qx "jobs -j$(env -u OMP_NUM_THREADS nproc)" "$dir/out"
ok "as many jobs as cores"
build -f "$dir/show.mk" -j3 jobs && grep -qx "jobs -j3" "$dir/out"
ok "-j on the command line"
finish
