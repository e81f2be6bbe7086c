# Shared by the scripts that test the trainer, which source it from their directory. Needs TRAINER
# and TOKENIZE, the programs. Changes to an empty directory that is removed when the script ends.
# shellcheck shell=sh disable=SC2034 # variables are for the scripts
trainer=$(realpath "${TRAINER:?}")
tokenize=$(realpath "${TOKENIZE:?}")
root=$(realpath "$(dirname "$0")/../..")
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
shakespeare=$root/dev/test/texts/shakespeare.txt
cd "$dir" || exit 1
# shellcheck source=dev/test/count.sh
. "$root/dev/test/count.sh"

# edited EXPRESSION FILE: prints a checkpoint edited by sed, without checksums, as others write it
edited() { LC_ALL=C sed "$1;s/\"checksum/\"_hecksum/g" "$2"; }

# fails CODE TEXT COMMAND...: checks that it exits with CODE and one line on stderr with TEXT
fails() {
    code=$1
    text=$2
    shift 2
    "$@" >out 2>err </dev/null
    got=$?
    [ "$got" -eq "$code" ] && [ "$(wc -l <err)" -eq 1 ] && grep -qF -e "$text" err
    status=$?
    [ $status -eq 0 ] || { echo "exit code $got, expected $code with '$text'; stderr:" >out && cat err >>out; }
    [ $status -eq 0 ]
    ok "$text"
}
