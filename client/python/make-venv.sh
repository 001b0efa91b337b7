#!/usr/bin/env bash
# Makes the virtual environment in which the Python package is built and tested with Debian's torch, and
# prints the CMake options that go with it. Where PyPI does not answer, the options leave the package out
# and say why.
#   client/python/make-venv.sh FOLDER
set -euo pipefail

folder=$(mkdir -p "$1" && cd "$1" && pwd)
packages=(nanobind==3.1.0 pytest==9.2.0)

if [[ "$(cat "$folder/packages" 2>/dev/null)" != "${packages[*]}" ]]; then
  echo "making the virtual environment $1" >&2
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  # Debian's own interpreter: it sees Debian's torch.
  if ! { /usr/bin/python3 -m venv --system-site-packages --clear "$folder" &&
    timeout 300 "$folder/bin/pip" install --quiet --retries 2 --timeout 20 "${packages[@]}"; } >"$log" 2>&1; then
    echo "make-venv: no Python package: $(tail -n 1 "$log")" >&2
    echo "-DGRADWIRE_BUILD_PYTHON=OFF -DGRADWIRE_SKIP_PYTHON=ON"
    exit 0
  fi
  echo "${packages[*]}" >"$folder/packages"
fi
echo "-DGRADWIRE_BUILD_PYTHON=ON -DGRADWIRE_SKIP_PYTHON=OFF -DPython_EXECUTABLE=$folder/bin/python"
