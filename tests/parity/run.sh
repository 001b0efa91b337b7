#!/usr/bin/env bash
# run.sh FOLDER TEST: makes the reference vectors with PyTorch's own hooks, if they are not there for
# this version of the generator, and runs the test on them.
set -euo pipefail
folder=$1 test=$2
here=$(dirname "$0")
if ! /usr/bin/python3 -c 'import torch' 2>/dev/null; then
  echo "SKIPPED: the package python3-torch is not installed (deploy/install-packages.sh parity)"
  exit 77
fi
stamp=$(cat "$here"/make_vectors.py "$here"/configurations.py | sha256sum)
if [[ "$(cat "$folder/stamp" 2>/dev/null)" != "$stamp" ]]; then
  rm -rf "$folder"
  /usr/bin/python3 -B "$here/make_vectors.py" "$folder"
  echo "$stamp" >"$folder/stamp"
fi
GRADWIRE_PARITY_VECTORS=$folder exec "$test"
