# shellcheck shell=sh
# Shared by the recipes in this directory, which source this file from the project's root.

case ${1-} in
-h | --help) # the comment that opens a recipe
    sed -n '2,/^set/s/^# \{0,1\}//p' "data/${0##*/}"
    exit 0
    ;;
esac

die() {
    echo "error: $*" >&2
    exit 1
}

# Exits with an error if ./tokenize or what the tokenizer $TOKENIZER needs is missing. Called before
# any download.
check_tokenizer() {
    [ -x ./tokenize ] || die "./tokenize is missing: make tokenize"
    case $TOKENIZER in
    bpe | byte | word) ;;
    spm)
        [ -n "${SPM_MODEL-}" ] || command -v spm_train >/dev/null || # text is encoded without it
            die "spm_train is not installed: install SentencePiece's programs (Debian and Ubuntu: apt install" \
                "sentencepiece), or say TOKENIZER=bpe, TOKENIZER=byte or TOKENIZER=word"
        ;;
    *) die "TOKENIZER=$TOKENIZER: expected bpe, spm, byte or word" ;;
    esac
}

# Prints the git blob hash of a file's content.
blob_id() {
    { printf 'blob %d\0' "$(wc -c <"$1")" && cat "$1"; } | sha1sum | cut -d ' ' -f 1
}

by_hand='if you have the texts, say where: WIKITEXT2_DIR, TINYSHAKESPEARE_DIR or MULTI30K_DIR=DIR'

# download URL FILE ID: downloads URL to FILE and checks that its git blob hash is ID. Does nothing
# if FILE already has that hash.
download() {
    if [ -f "$2" ] && [ "$(blob_id "$2")" = "$3" ]; then return; fi
    echo "downloading $1"
    mkdir -p "$(dirname "$2")"
    if command -v curl >/dev/null; then
        curl --fail --location --silent --show-error --retry 3 --output "$2.tmp" "$1" || die "cannot download $1; $by_hand"
    elif command -v wget >/dev/null; then
        wget --quiet --output-document="$2.tmp" "$1" || die "cannot download $1; $by_hand"
    else
        die "curl or wget is needed to download $1; $by_hand"
    fi
    found=$(blob_id "$2.tmp")
    if [ "$found" != "$3" ]; then
        rm -f "$2.tmp"
        die "$1: found git blob $found, expected $3"
    fi
    mv "$2.tmp" "$2"
}

# Sets `text` to the file of Tiny Shakespeare: in TINYSHAKESPEARE_DIR, else in ../shared, else
# downloaded.
find_tinyshakespeare() {
    text=${TINYSHAKESPEARE_DIR:-../shared/data/tinyshakespeare}
    if [ -z "${TINYSHAKESPEARE_DIR:-}" ] && [ ! -d "$text" ]; then
        text=data/download/tinyshakespeare
        download https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt \
            $text/input.txt 7dcb3a2d4cc3b48b6283dd46870bfeb78f88aac9
    fi
    text=$text/input.txt
}

# Sets `text` to the directory of WikiText-2's train.txt, valid.txt and test.txt: WIKITEXT2_DIR,
# else in ../shared, else downloaded.
find_wikitext2() {
    text=${WIKITEXT2_DIR:-../shared/data/wikitext-2}
    if [ -z "${WIKITEXT2_DIR:-}" ] && [ ! -d "$text" ]; then
        url=https://raw.githubusercontent.com/pytorch/examples/main/word_language_model/data/wikitext-2
        text=data/download/wikitext2
        download $url/train.txt $text/train.txt 2d84b35af79e411d73ea7cae83c73964c6ac83b4
        download $url/valid.txt $text/valid.txt eec944eb2d9e46061cd34a6913528797db6842fc
        download $url/test.txt $text/test.txt 6f3fc88e4cd88456ea892971f9f12243e8428624
    fi
}
