#!/usr/bin/env bash
# check_completion.sh GRADWIRECTL SHELL: prints what the completion offers for some command lines, one answer a line. Exits
# with 77 if the shell is not there.
set -euo pipefail
tool=$1 shell=$2
command -v "$shell" >/dev/null || { echo "skipped: $shell is not installed"; exit 77; }
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
"$tool" completion "$shell" >"$folder/script"
case $shell in
  bash)
    bash -n "$folder/script"
    touch "$folder/model.safetensors"
    cd "$folder"
    bash -euc '
      . ./script
      complete -p gradwirectl
      ask() {
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
        _gradwirectl
        echo "${COMPREPLY[*]}"
      }
      ask gradwirectl s
      ask gradwirectl session ""
      ask gradwirectl session pause digits --
      ask gradwirectl -o ""
      ask gradwirectl --tls-ca mo
      ask gradwirectl session export digits mo
      ask gradwirectl completion ""
      ask gradwirectl --address ""
      ask gradwirectl debug ""
      ask gradwirectl explain GW30'
    ;;
  zsh) zsh -n "$folder/script" && echo checked ;;
  fish) fish --no-execute "$folder/script" && echo checked ;;
esac
