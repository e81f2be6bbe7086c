#!/bin/sh
# Installs the manual pages and the completions for bash, zsh and fish that the programs print.
# usage: pages.sh DIRECTORY-OF-PROGRAMS SHARE ZSH-FUNCTIONS PROGRAM...
set -eu
bin=$1 share=$2 functions=$3
shift 3
man=$share/man/man1 bash=$share/bash-completion/completions
zsh=$share/zsh/$functions fish=$share/fish/vendor_completions.d
install -d "$man" "$bash" "$zsh" "$fish"
for name; do
    "$bin/$name" --help=man | gzip -9n >"$man/$name.1.gz"
    "$bin/$name" --help=bash >"$bash/$name"
    "$bin/$name" --help=zsh >"$zsh/_$name"
    "$bin/$name" --help=fish >"$fish/$name.fish"
done
