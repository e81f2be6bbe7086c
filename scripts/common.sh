# shellcheck shell=sh
# What shell scripts share. They source it from the project's root.
export LC_ALL=C # a point in numbers, whatever the language

fail() {
    printf '%s: %s\n' "${0##*/}" "$1" >&2
    exit 1
}

# An awk function for lines of JSON: the number of a member, "" where it is missing or null.
# shellcheck disable=SC2016,SC2034
json_number='
    function number(key,    text) {
        if (!match($0, "\"" key "\" *: *-?[0-9][-+.0-9eE]*")) return ""
        text = substr($0, RSTART, RLENGTH)
        sub(/^[^:]*: */, "", text)
        return text + 0
    }'

# An awk function: a number with about four digits, "-" for "".
# shellcheck disable=SC2034
show_number='
    function decimals(x) {
        if (x < 0) x = -x
        return x >= 1000 ? 0 : x >= 100 ? 1 : x >= 10 ? 2 : x >= 1 ? 3 : 4
    }
    function show(x) {
        return x == "" ? "-" : sprintf("%.*f", decimals(x), x)
    }'

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

# from_start PATH: that path, which may be relative to where the script was called ($start).
from_start() {
    case $1 in
    /*) echo "$1" ;;
    *) echo "$start/$1" ;;
    esac
}
