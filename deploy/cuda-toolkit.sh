#!/usr/bin/env bash
# Puts CUDA's compiler and disassembler, from PyPI, into FOLDER, and prints where nvcc lies.
#   deploy/cuda-toolkit.sh FOLDER
set -euo pipefail

folder=$(mkdir -p "$1" && cd "$1" && pwd)
packages=(nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88
  nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85
  nvidia-cuda-cuobjdump==13.2.78 nvidia-cuda-nvdisasm==13.2.78)

if [[ "$(cat "$folder/packages" 2>/dev/null)" != "${packages[*]}" ]]; then
  echo "fetching CUDA's compiler into $1" >&2
  rm -rf "$folder/venv" "$folder/site"
  /usr/bin/python3 -m venv "$folder/venv"
  "$folder/venv/bin/pip" install --quiet --no-deps --target "$folder/site" "${packages[@]}" >&2
  echo "${packages[*]}" >"$folder/packages"
fi
echo "$folder/site/nvidia/cu13/bin/nvcc"
