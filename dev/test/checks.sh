# What the scripts that test the trainer share; they source it from their directory. Needs TRAINER and
# TOKENIZE, the programs. The work happens in an empty directory that goes when the script ends.
# shellcheck shell=sh disable=SC2034,SC2319 # variables are for the scripts; ok looks at the status before it
trainer=$(realpath "${TRAINER:?}")
tokenize=$(realpath "${TOKENIZE:?}")
root=$(realpath "$(dirname "$0")/../..")
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
shakespeare=$root/dev/test/texts/shakespeare.txt
cd "$dir" || exit 1
passed=0
failed=0

ok() { # NAME: the last command's exit status says how it went
    if [ $? -eq 0 ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL $1"
        [ -s out ] && sed 's/^/    /' out
    fi
}

# fails CODE TEXT COMMAND...: exits with CODE and one line on stderr that holds TEXT
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

finish() { # prints the last line; its status is the script's
    echo "$passed passed, $failed failed"
    [ "$failed" -eq 0 ]
}
