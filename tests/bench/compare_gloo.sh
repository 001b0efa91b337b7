#!/usr/bin/env bash
# compare_gloo.sh BUILD VENV JSON [OPTION]...: compare_gloo.py with the package of this build; says
# so, and writes an empty result, where there is none.
set -euo pipefail
build=$1 venv=$2 json=$3
shift 3
if [[ ! -d $build/python/gradwire ]]; then
  echo "gloo: left out, since there is no Python package in $build (nanobind comes from PyPI)"
  echo '{}' >"$json"
  exit 0
fi
PYTHONPATH=$build/python GRADWIRE_DAEMON=$build/bin/gradwired \
  "$venv/bin/python" -B "$(dirname "$0")/compare_gloo.py" --json "$json" "$@"
