# shellcheck shell=sh
# Shared by tests that replace programs by stand-ins; they source it from the project's root.
directory=$(mktemp -d) || exit 1
shown=$directory/checked
trap 'rm -rf "$directory"' EXIT
# shellcheck source=dev/test/count.sh
. dev/test/count.sh

# check WHAT COMMAND...: runs the command; if it fails, shows its output and the file `said`.
check() {
    what=$1
    shift
    "$@" >"$directory/checked" 2>&1 || { cat "$directory/said" >>"$directory/checked" 2>/dev/null; false; }
    ok "$what"
}

# fake NAME: makes a program of that name in $directory from stdin.
fake() {
    { echo '#!/bin/sh' && cat; } >"$directory/$1"
    chmod +x "$directory/$1"
}
