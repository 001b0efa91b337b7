#!/usr/bin/env bash
# compare_gloo and bench-net on a machine with many cores and nothing of ours: a core for each member and each daemon,
# where two cores would time their turns. Its JSON and tables go to FOLDER.
#   tests/bench/carried.sh FOLDER [OPTION of net_bench.py]...
# Needs root, Python with torch, and carried along: build/wheels (make wheel), and build/iproute2 (pack-iproute2.sh)
# where there is no ip and tc.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
records=$1
shift
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$records"
exec > >(tee "$records/bench.txt") 2>&1

"$python" -m zipfile -e "$root"/build/wheels/gradwire-*-abi3-*.whl "$work/package"
programs=$work/package/gradwire/bin
chmod +x "$programs"/*
export PYTHONPATH=$work/package GRADWIRE_DAEMON=$programs/gradwired
# torch's PowerSGD fails on the CPU where there is a GPU.
export CUDA_VISIBLE_DEVICES=
if ! command -v tc >/dev/null; then
  export PATH=$PATH:$root/build/iproute2
fi

echo "$(nproc) cores, $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1), $(uname -r)"
"$python" -B "$here/compare_gloo.py" --members 2 --json "$records/compare_gloo.json"
"$python" -B "$here/net/net_bench.py" "$programs" --json "$records/net.json" "$@"
