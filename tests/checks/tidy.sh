#!/usr/bin/env bash
# tidy.sh BUILD_DIR JOBS: clang-tidy over the product's own .cc files, by the build's compile commands.
set -euo pipefail
build=$1 jobs=$2
cd "$(dirname "$0")/../.."
[[ -e $build/compile_commands.json ]] || { echo "tidy: no compile commands in $build" >&2; exit 1; }

mapfile -t files < <(git ls-files --cached --others --exclude-standard -- \
  'base/*.cc' 'hooks/*.cc' 'proto/*.cc' 'client/*.cc' 'server/*.cc')
if grep -q '^GRADWIRE_SKIP_PYTHON:BOOL=ON' "$build/CMakeCache.txt"; then
  echo "tidy: leaves out client/python, which needs nanobind from PyPI"
  mapfile -t files < <(printf '%s\n' "${files[@]}" | grep -v '^client/python/')
fi
[[ ${#files[@]} -gt 0 ]] || { echo "tidy: no sources" >&2; exit 1; }

# A file that no target compiles has no command; clang-tidy would make one up.
compiled=() orphans=()
for file in "${files[@]}"; do
  if grep -qF "\"file\": \"$PWD/$file\"" "$build/compile_commands.json"; then
    compiled+=("$file")
  else
    orphans+=("$file")
  fi
done
[[ ${#orphans[@]} -eq 0 ]] || { echo "tidy: compiled by no target: ${orphans[*]}" >&2; exit 1; }

# Without gcc's precompiled headers, which clang cannot read and which would hide a missing include.
mkdir -p "$build/tidy"
sed -E 's# (-Winvalid-pch )?-include [^ ]*cmake_pch\.hxx##' "$build/compile_commands.json" \
  >"$build/tidy/compile_commands.json"

# clang-tidy counts the warnings it left out on stderr; errors come on stdout.
started=$SECONDS
printf '%s\0' "${compiled[@]}" |
  xargs -0 -P "$jobs" -n 1 clang-tidy-14 -quiet -p "$build/tidy" 2>"$build/tidy.log" || {
  grep -E 'error:|Error ' "$build/tidy.log" >&2 || true
  echo "tidy: findings above" >&2
  exit 1
}
echo "tidy: ${#compiled[@]} files in $((SECONDS - started)) s"
