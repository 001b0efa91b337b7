#!/usr/bin/env bash
# Puts the C++ sources in the project's format; with --check only says which are not.
set -euo pipefail
cd "$(dirname "$0")/../.."
mapfile -t files < <(git ls-files --cached --others --exclude-standard -- '*.cc' '*.h' '*.cu' '*.cuh')

if [[ "${1:-}" != --check ]]; then
  clang-format-14 -i "${files[@]}"
elif ! report=$(clang-format-14 --dry-run -Werror "${files[@]}" 2>&1); then
  # One line per file; the tool shows every place.
  grep -oE '^[^ :]+:[0-9]+' <<<"$report" | sort -t: -u -k1,1 >&2
  echo "format: the files above differ from there on; run 'make format'" >&2
  exit 1
fi
echo "format: ${#files[@]} files"
