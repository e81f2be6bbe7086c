#!/bin/sh
# Draws the curves of training runs, by step and by time, from the log.jsonl of each: the loss, bits a byte of the
# validation where there is such, learning rate and norm of the gradients.
#
#   scripts/plot.sh [-o DIR] [-t TITLE] RUN...
#
# writes loss_by_step.png, loss_by_time.png and the same as .svg into DIR (default: here). The title says model and data
# unless -t does. Needs gnuplot.
set -eu
export LC_ALL=C # a point in numbers, whatever the language

usage() {
    echo 'usage: plot.sh [-o DIR] [-t TITLE] RUN...   (directories that hold a log.jsonl)' >&2
    exit 2
}

fail() {
    printf 'plot.sh: %s\n' "$1" >&2
    exit 1
}

# name_of RUN RUNS...: the last part of its path, or the whole path where another run has the same last part.
name_of() {
    path=${1%/}
    name=${path##*/}
    shift
    for other in "$@"; do
        other=${other%/}
        [ "$other" = "$path" ] || [ "${other##*/}" != "${path##*/}" ] || name=$path
    done
    printf '%s' "$name"
}

# extract LOG PREFIX: writes PREFIX.train (step, seconds, smoothed loss, learning rate, smoothed norm of the gradients)
# and, where there was an evaluation, PREFIX.val (step, seconds, loss) and PREFIX.bytes (step, seconds, bits a byte);
# prints "steps seconds top", top being the greatest loss after the steep beginning.
extract() {
    PREFIX=$2 awk '
        # The value of a member; "" where there is none or it is null.
        function number(key,    text) {
            if (!match($0, "\"" key "\" *: *-?[0-9][-+.0-9eE]*")) return ""
            text = substr($0, RSTART, RLENGTH)
            sub(/^[^:]*: */, "", text)
            return text + 0
        }
        {
            step = number("step"); loss = number("loss"); val = number("val_loss"); time = number("seconds")
            bpb = number("val_bpb"); norm = number("grad_norm")
            if (step == "" || time == "") next
            if (loss != "") {
                # A run that was begun anew in the same directory counts from there.
                while (n > 0 && train_step[n] >= step) n--
                while (m > 0 && val_step[m] >= step) m--
                train_step[++n] = step; train_time[n] = time; sum[n] = sum[n - 1] + loss
                # Of a step whose gradient was not finite there is no norm; the one before stands for it.
                if (norm == "") norm = n > 1 ? norms[n - 1] - norms[n - 2] : 0
                rate[n] = number("lr"); norms[n] = norms[n - 1] + norm
            } else if (val != "") {
                val_step[++m] = step; val_time[m] = time; val_loss[m] = val; val_bpb[m] = bpb
            }
        }
        END {
            file = ENVIRON["PREFIX"] ".train"
            every = int(n / 2000) + 1 # more points than columns would only make the files large
            for (i = 1; i <= n; i++) {
                if (i % every && i != 1 && i != n) continue
                # The mean of the hundredth before and the hundredth after; at the beginning, where the loss
                # falls fast, of as many as there are on both sides.
                half = int(n / 100)
                if (half > i - 1) half = i - 1
                end = i + half < n ? i + half : n
                mean = (sum[end] - sum[i - half - 1]) / (end - i + half + 1)
                printf "%d %g %g %g %g\n", train_step[i], train_time[i], mean, rate[i],
                    (norms[end] - norms[i - half - 1]) / (end - i + half + 1) > file
                if (i >= 0.03 * n && mean > top) top = mean
            }
            file = ENVIRON["PREFIX"] ".val"
            for (i = 1; i <= m; i++) {
                printf "%d %g %g\n", val_step[i], val_time[i], val_loss[i] > file
                if (val_loss[i] > top) top = val_loss[i]
            }
            file = ENVIRON["PREFIX"] ".bytes"
            for (i = 1; i <= m; i++) if (val_bpb[i] != "") printf "%d %g %g\n", val_step[i], val_time[i], val_bpb[i] > file
            print n + 0, train_time[n] + 0, top + 0
        }' "$1"
}

# draw FILE TERMINAL X-LABEL X EVALUATED BYTES: the gnuplot commands of one picture. EVALUATED and BYTES are the numbers of
# the runs that have a validation loss, and bits a byte; over an empty list gnuplot would loop once.
draw() {
    validation=${5:+"for [i in '$5'] sprintf('%s.val', i) using $4:3 with linespoints lw 2.5 pt 7 ps 0.6 lc rgb colour(i) notitle,"}
    middle=0.10
    [ -z "$6" ] || middle=0.57
    cat <<END
set terminal $2
set output '$1'
set multiplot title heading
set lmargin at screen 0.10
set rmargin at screen 0.97
set tmargin at screen 0.94
set bmargin at screen 0.42
unset xlabel
set ylabel 'loss (nats a token)' offset 1
set yrange [*:top]
set key top right spacing 1.2
plot for [i=1:runs] sprintf('%d.train', i) using $4:3 with lines lw 1.5 lc rgb shade(i) notitle, \
     $validation \
     for [i=1:runs] NaN with lines lw 5 lc rgb colour(i) title names[i], \
     NaN with lines lw 1.5 lc rgb 0x70000000 title 'training, smoothed', \
     NaN with linespoints lw 2.5 pt 7 ps 0.6 lc rgb 0 title 'validation'
set tmargin at screen 0.35
set tics font ',11'
set bmargin at screen 0.08
set xlabel '$3'
set yrange [*:*]
END
    [ -z "$6" ] || cat <<END
set rmargin at screen 0.46
set ylabel 'validation (bits a byte)' offset 1
unset key
plot for [i in '$6'] sprintf('%s.bytes', i) using $4:3 with linespoints lw 2.5 pt 7 ps 0.6 lc rgb colour(i) notitle
END
    cat <<END
set lmargin at screen $middle
set rmargin at screen 0.87
set ylabel 'gradient norm' offset 1
set yrange [0:*]
set y2range [0:*]
set y2label 'learning rate' offset -1
set y2tics format '%.1e'
set border 11 lc rgb 0x444444
set key top right spacing 1.2
plot for [i=1:runs] sprintf('%d.train', i) using $4:5 with lines lw 1.5 lc rgb shade(i) notitle, \
     for [i=1:runs] sprintf('%d.train', i) using $4:4 axes x1y2 with lines lw 2 dt 2 lc rgb colour(i) notitle, \
     NaN with lines lw 1.5 lc rgb 0x70000000 title 'norm, smoothed', \
     NaN with lines lw 2 dt 2 lc rgb 0 title 'rate'
unset y2tics
unset y2label
set border 3 lc rgb 0x444444
set tics font ''
unset multiplot
END
}

# commands RUNS EVALUATED BYTES SECONDS TOP: all of gnuplot's commands but the names and the title.
commands() {
    cat <<END
runs = $1
top = $5
# Okabe and Ito's colours, which colour-blind eyes tell apart too.
array colours[7] = [0x0072b2, 0xd55e00, 0x009e73, 0xcc79a7, 0xe69f00, 0x56b4e9, 0x000000]
colour(i) = colours[(int(i) - 1) % 7 + 1]
shade(i) = colour(i) + 0x70000000
set xrange [0:*]
set grid lt 1 lc rgb 0xdddddd lw 1
set border 3 lc rgb 0x444444
set tics nomirror
END
    unit='seconds 1'
    [ "${4%.*}" -lt 300 ] || unit='minutes 60'
    [ "${4%.*}" -lt 10800 ] || unit='hours 3600'
    for format in png svg; do
        case $format in
        png) terminal='pngcairo noenhanced size 1000,900 font "sans,14"' ;;
        svg) terminal='svg noenhanced size 1000,900 font "sans-serif,16" background rgb "white"' ;;
        esac
        draw "loss_by_step.$format" "$terminal" step 1 "$2" "$3"
        draw "loss_by_time.$format" "$terminal" "time (${unit% *})" "(\$2/${unit#* })" "$2" "$3"
    done
}

# quote TEXT: as gnuplot reads it: between single quotes a quote that is doubled, and nothing else, is special.
quote() {
    printf "'%s'" "$(printf '%s' "$1" | tr -d '\n' | sed "s/'/''/g")"
}

# heading LOG: model and data of a run.
heading() {
    sed -n '/"event":"start"/{
        s/.*"model":"\([^",]*\).*"data":"\(\([^":\\]\|\\.\)*\).*/\1 on \2/
        s/\\\(["\\]\)/\1/g
        p
        q
    }' "$1"
}

out=.
title=
while getopts :o:t: option; do
    case $option in
    o) out=$OPTARG ;;
    t) title=$OPTARG ;;
    *) usage ;;
    esac
done
shift $((OPTIND - 1))
[ $# -gt 0 ] || usage
command -v gnuplot >/dev/null || fail 'gnuplot is missing; on Debian: apt install gnuplot-nox'

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
trap 'exit 1' HUP INT TERM

count=0
evaluated=
bytes=
for run in "$@"; do
    log=${run%/}/log.jsonl
    [ -f "$log" ] || fail "$log: no such file"
    [ -r "$log" ] || fail "$log: cannot be read"
    count=$((count + 1))
    extract "$log" "$tmp/$count" >"$tmp/summary"
    read -r steps _ <"$tmp/summary"
    [ "$steps" -gt 0 ] || fail "$log: no training step in it"
    cat "$tmp/summary" >>"$tmp/summaries"
    [ ! -e "$tmp/$count.val" ] || evaluated="${evaluated:+$evaluated }$count"
    [ ! -e "$tmp/$count.bytes" ] || bytes="${bytes:+$bytes }$count"
    printf 'names[%d] = %s\n' "$count" "$(quote "$(name_of "$run" "$@")")" >>"$tmp/names"
    heading "$log" >>"$tmp/headings"
done
[ -n "$title" ] || [ "$(sort -u "$tmp/headings" | wc -l)" -gt 1 ] || title=$(sort -u "$tmp/headings")
awk '{ if ($2 > t) t = $2; if ($3 > top) top = $3 } END { print t + 0, 1.03 * top }' "$tmp/summaries" >"$tmp/summary"
read -r seconds top <"$tmp/summary"

{
    echo "array names[$count]"
    cat "$tmp/names"
    echo "heading = $(quote "$title")"
    commands "$count" "$evaluated" "$bytes" "$seconds" "$top"
} >"$tmp/commands"
# Of a curve of one point it warns.
(cd "$tmp" && gnuplot commands 2>said) || fail "gnuplot ended with an error: $(head -n 1 "$tmp/said")"
mkdir -p "$out"
for by in step time; do
    for format in png svg; do
        mv "$tmp/loss_by_$by.$format" "$out/"
        echo "$out/loss_by_$by.$format"
    done
done
