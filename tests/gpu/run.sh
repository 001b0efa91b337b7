#!/usr/bin/env bash
# What only a machine with a GPU can show, in less than 10 minutes: conformance, sanitizers, throughput against
# the predictions, and the torch hook. Prints tables and writes a record.
#   tests/gpu/run.sh [FOLDER]      the record goes to FOLDER, or $OUT, or tests/gpu/records
# Such a machine need not have gRPC or Debian's packages. It needs, made elsewhere and carried along:
#   build/gpu      from tests/gpu/pack.sh, for all but torch
#   build/gpu-nccl from tests/gpu/pack-nccl.sh, for node groups: several members of one on one GPU
#   build/wheels   a wheel with its libraries (make wheel), and Python with a torch that sees the GPU, for torch
# What is missing is skipped, with the reason. GRADWIRE_GPU_DEVICE=cpu tries the torch part without a GPU.
# shellcheck disable=SC2317  # functions are called by `step`
set -uo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
records=${1:-${OUT:-$here/records}}
device=${GRADWIRE_GPU_DEVICE:-cuda}
python=${PYTHON:-python3}
carried=$root/build/gpu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$records"
failed=0

# result NAME VALUE: a line of the record.
result() { printf '%s\t%s\n' "$1" "$2" >>"$work/results"; }
step() {
  local name=$1
  shift
  echo "== $name"
  if "$@"; then result "$name" ok; else
    result "$name" "failed ($?)"
    failed=1
  fi
}
skip() {
  echo "== $1: SKIPPED: $2"
  result "$1" "skipped: $2"
}

# Runs a carried program with the C library that it was linked to. The driver's libraries are the machine's.
drivers=$(ldconfig -p 2>/dev/null | awk '/libcuda\.so\.1/ {print $NF; exit}')
run() {
  local program=$1
  shift
  "$carried/lib/ld-linux-x86-64.so.2" --library-path "$carried/lib:$carried:$(dirname "${drivers:-/usr/lib}"):${LD_LIBRARY_PATH:-}" \
    "$carried/$program" "$@"
}

find_sanitizer() {
  PATH=$PATH:/usr/local/cuda/bin command -v compute-sanitizer
}

sanitize() {
  timeout 150 "$sanitizer" --tool "$1" --error-exitcode 9 --target-processes all \
    "$carried/lib/ld-linux-x86-64.so.2" --library-path "$carried/lib:$carried:$(dirname "${drivers:-/usr/lib}")" \
    "$carried/gpu_test" --gtest_filter="$2" --gtest_brief=1
}

bench() {
  local model
  model=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | grep -oE 'A100|H100|H200|B200' | head -n 1)
  run gpu_bench --json "$work/bench.json" && "$python" -B "$here/predict.py" "$work/bench.json" --gpu "${model:-H200}"
}

unpack_wheel() {
  local version wheel='' candidate
  version=$("$python" -c 'import sys; print(f"{sys.version_info[0]}{sys.version_info[1]}")')
  for candidate in "$root"/build/wheels/gradwire-*.whl; do
    case $candidate in
      *cp"$version"-cp"$version"-*) wheel=$candidate && break ;;
      *-abi3-*) ((version >= 312)) && wheel=$candidate ;;
    esac
  done
  if [[ -n $wheel ]]; then
    "$python" -m zipfile -e "$wheel" "$work/package"
    find "$work/package" -name gradwired -type f -exec chmod +x {} +
    export PYTHONPATH=$work/package
  fi
  "$python" -c 'import gradwire.torch' 2>"$work/import.log"
}

# PowerSGD's arithmetic for the matrices of two models, as torch computes it and as we do.
low_rank() {
  local libraries program
  libraries=$carried/lib:$carried:$(dirname "${drivers:-/usr/lib}"):${LD_LIBRARY_PATH:-}
  program="$carried/lib/ld-linux-x86-64.so.2 --library-path $libraries"
  timeout 200 "$python" -B "$here/power_sgd_torch.py" --device "$device" --json "$work/low_rank.json" \
    --program "$program $carried/power_sgd_bench"
}

# Preloaded, so that the process has one NCCL: torch brings its own, which may be older.
grouped_members() {
  "$python" -c 'import lzma, shutil, sys; shutil.copyfileobj(lzma.open(sys.argv[1]), sys.stdout.buffer)' \
    "$root/build/gpu-nccl/libnccl.so.2.xz" >"$work/libnccl.so.2"
  LD_PRELOAD=$work/libnccl.so.2 NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_DEBUG=WARN timeout 200 \
    "$python" -B "$here/check_torch.py" --device "$device" --members "$1" --node-group auto
}

torch_members() { timeout 200 "$python" -B "$here/check_torch.py" --device "$device" --members "$1"; }

all() {
  if [[ ! -x $carried/gpu_test ]]; then
    skip kernels "no build/gpu (tests/gpu/pack.sh)"
  elif ! run gpu_bench --mib 1 --repeats 1 >/dev/null 2>"$work/no_gpu"; then
    skip kernels "$(cat "$work/no_gpu")"
  else
    step conformance run gpu_test --gtest_brief=1
    if sanitizer=$(find_sanitizer); then
      step memcheck sanitize memcheck 'Gpu/DeviceConformance.*-*Many*'
      step racecheck sanitize racecheck 'Gpu/DeviceConformance.Orth*:Gpu/DeviceConformance.Mult*:Gpu/DeviceConformance.AddsSquares*'
    else
      skip sanitizers "no compute-sanitizer"
    fi
    step bench bench
    if "$python" -c 'import torch' 2>/dev/null; then step low_rank low_rank; else skip low_rank "no torch"; fi
  fi
  if unpack_wheel; then
    step torch_2_members torch_members 2
    step torch_4_members torch_members 4
    if [[ ! -e $root/build/gpu-nccl/libnccl.so.2.xz ]]; then
      skip node_groups "no build/gpu-nccl (tests/gpu/pack-nccl.sh)"
    elif [[ $device == cpu ]]; then
      skip node_groups "members on the CPU are in no node group"
    else
      step node_group_of_2 grouped_members 2
      step node_group_of_4 grouped_members 4
    fi
  else
    skip torch "no wheel for this Python in build/wheels, or no torch: $(tail -n 1 "$work/import.log")"
  fi
}

stamp=$(date -u +%Y-%m-%dT%H-%M-%SZ)
{
  echo "commit $(git -C "$root" rev-parse --short HEAD 2>/dev/null || echo unknown)"
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null || echo "no nvidia-smi"
  all
  echo "$failed" >"$work/failed"
} 2>&1 | tee "$records/$stamp.txt"
"$python" - "$work" "$records/$stamp.json" <<'PYTHON'
import json, pathlib, subprocess, sys
work, record = pathlib.Path(sys.argv[1]), sys.argv[2]
lines = (work / "results").read_text().splitlines() if (work / "results").exists() else []
bench = work / "bench.json"
low_rank = work / "low_rank.json"
smi = subprocess.run("nvidia-smi --query-gpu=name,driver_version --format=csv,noheader", shell=True, capture_output=True, text=True)
json.dump(
    {
        "gpu": smi.stdout.strip() or None,
        "results": dict(line.split("\t", 1) for line in lines),
        "bench": json.loads(bench.read_text()) if bench.exists() else None,
        "low_rank": json.loads(low_rank.read_text()) if low_rank.exists() else None,
    },
    open(record, "w"),
    indent=2,
)
PYTHON
exit "$(cat "$work/failed")"
