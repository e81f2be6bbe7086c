# Counts the checks that pass and fail. Sourced by test scripts.
# shellcheck shell=sh disable=SC2319 # ok looks at the status before it
passed=0
failed=0

ok() { # NAME: the last command's exit status says how it went; $shown, or `out`, what it printed
    if [ $? -eq 0 ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL $1"
        [ ! -s "${shown:-out}" ] || head -n 60 "${shown:-out}" | sed 's/^/    /'
    fi
}

finish() { # prints the last line, and ends the script with its status
    echo "$passed passed, $failed failed"
    [ "$failed" -eq 0 ]
    exit
}
