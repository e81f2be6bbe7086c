# shellcheck shell=sh
# What scripts share. They source it from the project's root.
export LC_ALL=C # a point in numbers, whatever the language

fail() {
    printf '%s: %s\n' "${0##*/}" "$1" >&2
    exit 1
}

# An awk function for lines of JSON: the number of a member, "" where there is none or it is null.
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

# build PROGRAM...: those that are not there.
build() {
    for program in "$@"; do
        [ -x "./$program" ] || make "$program" || fail "$program cannot be built"
    done
}

# has_data DIR: whether shards are there that ./tokenize finished.
has_data() {
    grep -qs '"splits"' "$1/meta.json"
}

# words_of_wikitext2 DIR: shards of WikiText-2 there with words as tokens; nothing is done where they are. Needs data/common.sh.
words_of_wikitext2() {
    if has_data "$1"; then return; fi
    find_wikitext2
    # shellcheck disable=SC2154 # text: found
    ./tokenize -o "$1" --tokenizer word --train "$text/train.txt" --val "$text/valid.txt" --test "$text/test.txt"
}

# tokens_of DATA SPLIT: how many tokens it has.
tokens_of() {
    found=$(sed -n "s/.*\"$2\" *: *{\"tokens\" *: *\([0-9]*\).*/\1/p" "data/$1/meta.json")
    [ -n "$found" ] || fail "data/$1/meta.json: does not say how many tokens the split '$2' has"
    echo "$found"
}

# keep_settings FILE: the settings on stdin go to FILE, which has to hold the same if it is there: runs with other settings
# are not to be compared.
keep_settings() {
    cat >"$1.tmp"
    if [ -f "$1" ] && ! cmp -s "$1" "$1.tmp"; then
        rm -f "$1.tmp"
        fail "$1: the runs beside it have other settings; choose another directory"
    fi
    mv "$1.tmp" "$1"
}

# from_start PATH: that path, which may be relative to where the script was called.
from_start() {
    case $1 in
    /*) echo "$1" ;;
    *) echo "$start/$1" ;;
    esac
}

# ---- logs

# log_number KEY DIR: the last number of that name in the log of a run.
log_number() {
    sed -n "s/.*\"$1\":\(-*[0-9][-+.0-9eE]*\).*/\1/p" "$2/log.jsonl" | tail -n 1
}

# log_text KEY DIR: the last text of that name.
log_text() {
    sed -n "s/.*\"$1\":\"\(\([^\"\\\\]\|\\\\.\)*\)\".*/\1/p" "$2/log.jsonl" | tail -n 1 | sed 's/\\\(["\\]\)/\1/g'
}

# log_median KEY DIR: the middle one of the numbers of that name.
log_median() {
    sed -n "s/.*\"$1\":\([0-9.]*\).*/\1/p" "$2/log.jsonl" | sort -n |
        awk '{ x[NR] = $1 } END { print x[int((NR + 1) / 2)] }'
}

# log_least KEY DIR: the least of them.
log_least() {
    sed -n "s/.*\"$1\":\(-*[0-9][-+.0-9eE]*\).*/\1/p" "$2/log.jsonl" | sort -g | sed -n 1p
}

# ---- time

# In seconds and hundredths, from when the machine started.
clock() {
    read -r now _ </proc/uptime
    echo "$now"
}

# duration SECONDS: "1h 02m", "3m 20s", "12s".
duration() {
    awk -v s="$1" 'BEGIN {
        s = int(s + 0.5)
        if (s < 60) printf "%ds\n", s
        else if (s < 3600) printf "%dm %02ds\n", s / 60, s % 60
        else printf "%dh %02dm\n", s / 3600, s % 3600 / 60
    }'
}

# ---- plots

# plot_style FORMAT FILE WIDTH HEIGHT: the beginning of gnuplot's commands for a picture FILE.FORMAT.
plot_style() {
    case $1 in
    png) terminal='pngcairo font "sans,14"' ;;
    svg) terminal='svg font "sans-serif,16" background rgb "white"' ;;
    esac
    cat <<END
set terminal $terminal noenhanced size $3,$4
set output '$2.$1'
# The colours of plot.sh.
array colours[6] = [0x0072b2, 0xd55e00, 0x009e73, 0xcc79a7, 0xe69f00, 0x56b4e9]
set border 3 lc rgb 0x444444
set tics nomirror
set grid lt 1 lc rgb 0xdddddd lw 1
END
}

# plot_names NAME...: gnuplot's array of them.
plot_names() {
    echo "array names[$#]"
    number=0
    for name in "$@"; do
        number=$((number + 1))
        echo "names[$number] = '$name'"
    done
}

# plot_draw DIR FILE: runs $tmp/commands in $tmp and moves the pictures that it draws, FILE.png and FILE.svg, to DIR; without gnuplot
# it says that there are none.
plot_draw() {
    if ! command -v gnuplot >/dev/null; then
        echo "no $2.png: gnuplot is missing; on Debian: apt install gnuplot-nox; the same command with --report draws it then"
        return
    fi
    # Curves that are still empty are no error.
    (cd "$tmp" && gnuplot commands 2>said) || fail "gnuplot ended with an error: $(head -n 1 "$tmp/said")"
    for format in png svg; do
        mv "$tmp/$2.$format" "$1/"
        echo "$1/$2.$format"
    done
}
