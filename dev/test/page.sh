#!/bin/sh
# Tests the pages of tiny runs in a real browser: every kind of tokenizer, model and weights. Needs
# Chromium, Firefox for one page of each task, programs built with WebAssembly, and TRAINER and
# TOKENIZE. GPT2, LLAMA, BERT and TRANSLATE default to the programs in the root directory. The last
# line is "N passed, N failed".
# shellcheck disable=SC2086 # lists of options
# shellcheck source=dev/test/checks.sh
. "$(dirname "$0")/checks.sh"
gpt2=$(cd "$root" && realpath "${GPT2:-./train_gpt2}")
llama=$(cd "$root" && realpath "${LLAMA:-./train_llama}")
bert=$(cd "$root" && realpath "${BERT:-./train_bert}")
translate=$(cd "$root" && realpath "${TRANSLATE:-./train_translate}")
for name in chromium chromium-browser google-chrome none; do
    [ $name = none ] && echo 'skipped: Chromium is not installed' && finish
    command -v $name >/dev/null && break
done
in_browser() { # NAME OPTIONS...: what the browser found, counted
    what=$1
    shift
    python3 -B "$root/dev/test/page.py" "$@" >found 2>&1
    sed -n '/passed, .* failed$/!p' found | sed "s/^/$what: /"
    counts=$(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed$/\1 \2/p' found)
    set -- ${counts:-0 1}
    passed=$((passed + $1)) failed=$((failed + $2))
}
in_both() { # the same, in Firefox, too
    in_browser "$@"
    command -v firefox-esr >/dev/null || { echo 'skipped: Firefox is not installed'; return; }
    export BROWSER=firefox
    in_browser "$@"
    unset BROWSER
}
tiny="-b 2 -t 32 -L 2 -C 32 -H 2 -x 30 -v 10 -m 1 -l 5e-3 --no-test"
head -c 60000 "$root/dev/test/texts/shakespeare.txt" >text

# ---- tokenizers
for kind in bpe byte word spm; do
    [ $kind != spm ] || command -v spm_train >/dev/null || continue
    case $kind in
    bpe | spm) size='--vocab-size 400' ;;
    *) size= ;;
    esac
    "$tokenize" -o $kind.data --tokenizer $kind $size --train text --val text >out 2>&1 &&
        "$trainer" -i $kind.data -o $kind $tiny >out 2>&1 </dev/null && [ -s $kind/run.html ]
    ok "a run on $kind"
    grep -q '"format":"float32"' $kind/run.html || { echo 'skipped: the programs were built without WebAssembly'; finish; }
    [ $kind = bpe ] && show=in_both || show=in_browser
    $show "$kind" --text $kind/run.html "$trainer" "$(head -n 2 text)"
done

# ---- models, with a prompt that ends with a blank, which the next token must begin with
while read -r program options; do
    "$program" -i bpe.data -o causal $tiny $options >out 2>&1 </dev/null
    ok "$(basename "$program") $options"
    in_browser "$(basename "$program") $options" --text causal/run.html "$program" 'The king is '
    rm -r causal
done <<END
$gpt2
$gpt2 --attention cosine
$gpt2 --attention pairwise --similarity cosine
$gpt2 --attention additive:8,softmax
$gpt2 --attention softmax1 --windows 8,global --norm rms --positions rotary --ffn swiglu --kv-heads 1 --untied --scores qknorm
$trainer --attention additive,cosine --positions none --ffn relu2
$llama
$llama --attention softmax,additive
END
"$tokenize" -o mask.data --vocab-size 400 --reserve mask,padding --train text --val text >out 2>&1 &&
    "$bert" -i mask.data -o bert $tiny >out 2>&1 </dev/null &&
    "$bert" -e bert -p fp32 --fill 'The [MASK] is dead' --json >filled 2>out
ok "BERT"
best=$(sed -n 's/.*"best":\[{"token":\("[^"]*"\).*/\1/p' filled)
in_both BERT --masked bert/run.html 'The [MASK] is dead' "$best"
awk 'BEGIN { split("one two three four", word, " "); for (i = 0; i < 400; i++) print word[1 + i % 4], word[1 + int(i / 4) % 4], word[1 + int(i / 16) % 4] }' >source
tr '[:lower:]' '[:upper:]' <source >target
"$tokenize" -o pair.data --vocab-size 320 --source source --target target --val-source source --val-target target >out 2>&1 &&
    "$translate" -i pair.data -o translate -L 1 -D 1 -C 32 -H 2 --ffn 64 -b 512 -l 5e-3 -u 20 -x 100 -v 100 --no-test >out 2>&1 </dev/null &&
    echo 'two four one' | "$translate" -e translate/best.safetensors -p fp32 --translate >translated 2>out
ok "a translator"
in_both translator --translation translate/run.html 'two four one' "$(cat translated)"

# ---- weights: of the smaller format, compared with the program run on the page's own weights
"$trainer" -i byte.data -o large -b 1 -t 32 -L 5 -C 256 -H 4 -x 4 -v 2 -m 2 --no-test >out 2>&1 </dev/null &&
    grep -q '"format":"int8","loss":[0-9.]*,"rounded_loss":[0-9.]' large/run.html && [ "$(wc -c <large/run.html)" -lt 10000000 ]
ok "weights of a large model are smaller, and what that costs is measured"
in_browser "rounded weights" --text large/run.html "$trainer" 'The king'

# ---- while training
"$trainer" -i bpe.data -o training $tiny -x 1000000 >out 2>&1 </dev/null &
pid=$!
while [ ! -s training/run.html ] && kill -0 $pid; do sleep 0.2; done
in_browser "a run that is training" --training training/run.html
kill -INT $pid && wait $pid
[ $? -eq 130 ]
ok "it kept training meanwhile"

# ---- texts that contain markup
evil='</script><img src=x onerror=window.evil=1><!--'
yes "$evil" | head -n 2000 >evil.txt
name='run<img src=x onerror=window.evil=1>'
"$tokenize" -o evil.data --tokenizer word --train evil.txt --val evil.txt >out 2>&1 &&
    "$trainer" -i evil.data -o "$name" $tiny >out 2>&1 </dev/null
ok "a run on markup"
in_browser hostile --hostile "$name/run.html"

# ---- two runs in one page
"$root/scripts/compare.py" --page both.html bpe byte >out 2>&1
ok "compare.py --page"
in_browser "two runs" --curves both.html
finish
