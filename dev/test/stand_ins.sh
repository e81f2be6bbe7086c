# shellcheck shell=sh
# What tests of scripts share that put stand-ins in the place of programs; they source it from the root of the project.
directory=$(mktemp -d) || exit 1
trap 'rm -rf "$directory"' EXIT
passed=0
failed=0

# check WHAT COMMAND...: shows what it says, and the file `said`, where it fails.
check() {
    what=$1
    shift
    if "$@" >"$directory/checked" 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL $what"
        cat "$directory/checked" "$directory/said" 2>/dev/null | sed 's/^/    /'
    fi
}

# fake NAME: a program of that name, from stdin, in $directory.
fake() {
    { echo '#!/bin/sh' && cat; } >"$directory/$1"
    chmod +x "$directory/$1"
}

finish() { # prints the last line; its status is the script's
    echo "$passed passed, $failed failed"
    [ "$failed" -eq 0 ]
}
