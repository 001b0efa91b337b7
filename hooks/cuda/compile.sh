#!/usr/bin/env bash
# compile.sh LOG COMMAND...: runs nvcc and keeps what ptxas says of each kernel in LOG. Prints it only if
# the compilation fails.
set -euo pipefail
log=$1
shift
if ! "$@" >"$log" 2>&1; then
  cat "$log" >&2
  rm -f "$log"
  exit 1
fi
