#!/usr/bin/env bash
# Puts what run.sh carries to a machine with a GPU and nothing else of ours into FOLDER: programs, the CUDA
# library, and every library that they need, the C library among them. Build first (make test-cuda, or the dev preset).
#   tests/gpu/pack.sh BUILD FOLDER
set -euo pipefail

build=$1
folder=$2
rm -rf "$folder"
mkdir -p "$folder/lib"
for program in gpu_test gpu_bench power_sgd_bench; do
  cp "$build/bin/$program" "$folder/"
done
cp "$build/bin/libgradwire_cuda.so" "$folder/"
strip "$folder"/gpu_test "$folder"/gpu_bench "$folder"/power_sgd_bench
ldd "$folder"/gpu_test "$folder"/gpu_bench "$folder"/power_sgd_bench "$folder"/libgradwire_cuda.so |
  awk '$2 == "=>" {print $3} $1 ~ /^\// && NF == 2 && $1 !~ /:$/ {print $1}' | sort -u |
  while read -r library; do cp -L "$library" "$folder/lib/"; done
du -sh "$folder"
