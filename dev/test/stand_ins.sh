# shellcheck shell=sh
# What tests of scripts share that put stand-ins in the place of programs; they source it from the root of the project.
directory=$(mktemp -d) || exit 1
shown=$directory/checked
trap 'rm -rf "$directory"' EXIT
# shellcheck source=dev/test/count.sh
. dev/test/count.sh

# check WHAT COMMAND...: shows what it says, and the file `said`, where it fails.
check() {
    what=$1
    shift
    "$@" >"$directory/checked" 2>&1 || { cat "$directory/said" >>"$directory/checked" 2>/dev/null; false; }
    ok "$what"
}

# fake NAME: a program of that name, from stdin, in $directory.
fake() {
    { echo '#!/bin/sh' && cat; } >"$directory/$1"
    chmod +x "$directory/$1"
}
