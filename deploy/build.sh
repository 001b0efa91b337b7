#!/usr/bin/env bash
# deploy/build.sh COMMAND...: runs a command that builds with Ninja. On a terminal Ninja rewrites one
# line; elsewhere it would print one per file, and here one per tenth of the work.
set -euo pipefail
[[ ! -t 1 ]] || exec "$@"

due=0
NINJA_STATUS='[%p] ' "$@" | while IFS= read -r line; do
  if [[ $line =~ ^\[\ *([0-9]+)%\]\  ]]; then
    percent=${BASH_REMATCH[1]}
    [[ $percent -ge $due ]] || continue
    printf '  %d%%\n' "$percent"
    due=$((percent - percent % 10 + 10))
  elif [[ $line != 'ninja: no work to do.' ]]; then
    printf '%s\n' "$line"
  fi
done
