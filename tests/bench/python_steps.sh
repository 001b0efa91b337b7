#!/usr/bin/env bash
# python_steps.sh BUILD VENV JSON: python_steps_bench.py with the package and steps_member of this build; says
# so, and writes an empty result, where there is no package.
set -euo pipefail
build=$1 venv=$2 json=$3
if [[ ! -d $build/python/gradwire ]]; then
  echo "python steps: left out, since there is no Python package in $build (nanobind comes from PyPI)"
  echo '{}' >"$json"
  exit 0
fi
PYTHONPATH=$build/python GRADWIRE_DAEMON=$build/bin/gradwired GLOO_SOCKET_IFNAME=${GLOO_SOCKET_IFNAME:-lo} \
  "$venv/bin/python" -B "$(dirname "$0")/python_steps_bench.py" --member "$build/bin/steps_member" --json "$json"
