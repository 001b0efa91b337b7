#!/usr/bin/env bash
# What only a machine with a GPU can show. Needs Python with a torch that sees the GPU, and a wheel of the
# package that has its libraries inside (make wheel), since such a machine need not have gRPC.
#   tests/gpu/run.sh [FOLDER]      the record goes to FOLDER, or $OUT, or tests/gpu/records
# GRADWIRE_GPU_DEVICE=cpu tries the script itself where there is no GPU; its record says so.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
records=${1:-${OUT:-$here/records}}
device=${GRADWIRE_GPU_DEVICE:-cuda}
python=${PYTHON:-python3}
mkdir -p "$records"

package=$(mktemp -d)
trap 'rm -rf "$package"' EXIT
version=$("$python" -c 'import sys; print(f"{sys.version_info[0]}{sys.version_info[1]}")')
wheel=
for candidate in "$here"/../../build/wheels/gradwire-*.whl; do
  case $candidate in
    *cp"$version"-cp"$version"-*) wheel=$candidate && break ;;
    *-abi3-*) ((version >= 312)) && wheel=$candidate ;;
  esac
done
if [[ -n "$wheel" ]]; then
  "$python" -m zipfile -e "$wheel" "$package"
  find "$package" -name gradwired -type f -exec chmod +x {} +
  export PYTHONPATH=$package
elif ! "$python" -c 'import gradwire.torch' 2>/dev/null; then
  echo "gpu: no wheel for Python $version in build/wheels (make wheel), and gradwire is not installed" >&2
  exit 1
fi

record=$records/$(date -u +%Y-%m-%dT%H-%M-%SZ).txt
{
  echo "commit $(git -C "$here" rev-parse --short HEAD 2>/dev/null || echo unknown)"
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null || echo "no nvidia-smi"
  timeout 500 "$python" -B "$here/check_torch.py" --device "$device"
} 2>&1 | tee "$record"
