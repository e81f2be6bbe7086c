# shellcheck shell=sh
# What shell scripts share. They source it from the project's root.
export LC_ALL=C # a point in numbers, whatever the language

fail() {
    printf '%s: %s\n' "${0##*/}" "$1" >&2
    exit 1
}

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

# from_start PATH: that path, which may be relative to where the script was called ($start).
from_start() {
    case $1 in
    /*) echo "$1" ;;
    *) echo "$start/$1" ;;
    esac
}
