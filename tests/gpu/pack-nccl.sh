#!/usr/bin/env bash
# Puts an NCCL that allows several members on one GPU into FOLDER, with the code of one architecture and compressed:
# 26 MB in place of 340.
#   tests/gpu/pack-nccl.sh FOLDER [ARCHITECTURE]     90, Hopper, unless another is named
set -euo pipefail

folder=$1
architecture=${2:-90}
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rm -rf "$folder"
mkdir -p "$folder"
python3 -m pip download --quiet --no-deps --dest "$work" "nvidia-nccl-cu13>=2.30"
python3 -m zipfile -e "$work"/nvidia_nccl_cu13-*.whl "$work/wheel"
library=$(find "$work/wheel" -name 'libnccl.so.2')
python3 -B "$here/thin_nccl.py" "$library" --keep "$architecture" | xz -6 >"$folder/libnccl.so.2.xz"
ls "$work"/*.whl >"$folder/wheel.txt"
sed -i 's,.*/,,' "$folder/wheel.txt"
du -sh "$folder"
