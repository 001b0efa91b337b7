#!/usr/bin/env bash
# Puts an NCCL that allows several members on one GPU into FOLDER, in parts that each fit 60 MiB.
#   tests/gpu/pack-nccl.sh FOLDER
set -euo pipefail

folder=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rm -rf "$folder"
mkdir -p "$folder"
python3 -m pip download --quiet --no-deps --dest "$work" "nvidia-nccl-cu13>=2.30"
python3 -m zipfile -e "$work"/nvidia_nccl_cu13-*.whl "$work/wheel"
split --bytes 60M "$(find "$work/wheel" -name 'libnccl.so.2')" "$folder/part-"
ls "$work"/*.whl >"$folder/wheel.txt"
sed -i 's,.*/,,' "$folder/wheel.txt"
du -sh "$folder"
