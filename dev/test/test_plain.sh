#!/bin/sh
# Tests the model in one file, dev/fastformer/plain.c: it compiles without warnings, its gradients
# are right, its loss falls. The last line is "N passed, N failed".
# shellcheck source=dev/test/checks.sh
. "$(dirname "$0")/checks.sh"
${CC:-cc} -O2 -Wall -Wextra -Werror "$root/dev/fastformer/plain.c" -o plain -lm >out 2>&1
ok "plain.c compiles"
./plain --check >out 2>&1
ok "gradients are those of finite differences"
./plain "$shakespeare" 20 >out 2>&1 && awk '/^step 1\// { first = $4 } /^step 20\// { last = $4 } END { exit !(last < 0.8 * first) }' out
ok "the loss falls"
fails 1 "usage: plain FILE" ./plain
fails 1 "none: 0 bytes, expected more than 64" ./plain none
finish
