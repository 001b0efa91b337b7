#!/usr/bin/env bash
# net.sh BUILD VENV NAME [OPTION]...: net/NAME_bench.py with the package and gradwired of this build; JSON and plot go
# to build/bench/NAME.json and .png. Says so where there is no package.
set -euo pipefail
build=$1 venv=$2 name=$3
shift 3
here=$(dirname "$0")
if [[ ! -d $build/python/gradwire ]]; then
  echo "bench-$name: there is no Python package in $build (nanobind comes from PyPI)" >&2
  exit 1
fi
PYTHONPATH=$build/python "$venv/bin/python" -B "$here/net/${name}_bench.py" "$build/bin" --json "build/bench/$name.json" "$@"
"$venv/bin/python" -B "$here/net/plots.py" "build/bench/$name.json" "build/bench/$name.png"
