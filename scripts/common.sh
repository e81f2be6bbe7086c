# shellcheck shell=sh
# Shared by shell scripts, which source this file from the project's root.
export LC_ALL=C # a point in numbers, whatever the language

fail() {
    printf '%s: %s\n' "${0##*/}" "$1" >&2
    exit 1
}

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

# from_start PATH: prints the path, resolved against the directory of the call ($start) if relative.
from_start() {
    case $1 in
    /*) echo "$1" ;;
    *) echo "$start/$1" ;;
    esac
}
