#!/usr/bin/env bash
# run_fuzzers.sh BIN_DIR CORPUS_DIR SECONDS: every *_fuzz in BIN_DIR, from CORPUS_DIR/<name> where there is
# one. What it finds on the way goes to BIN_DIR/<name>.corpus; a crash leaves its input there too.
set -euo pipefail
bin=$1 corpus=$2 seconds=$3

shopt -s nullglob
targets=("$bin"/*_fuzz)
[[ ${#targets[@]} -gt 0 ]] || { echo "fuzz: no *_fuzz in $bin" >&2; exit 1; }

for target in "${targets[@]}"; do
  name=$(basename "$target")
  found=$target.corpus
  mkdir -p "$found"
  seeds=()
  [[ ! -d $corpus/${name%_fuzz} ]] || seeds=("$corpus/${name%_fuzz}")
  [[ ! -d $corpus/$name ]] || seeds=("$corpus/$name")
  echo "fuzz: $name for $seconds s${seeds[0]:+, from ${seeds[0]}}"
  if ! "$target" -max_total_time="$seconds" -artifact_prefix="$found/" -print_final_stats=1 \
    "$found" "${seeds[@]}" >"$target.log" 2>&1; then
    tail -n 40 "$target.log" >&2
    echo "fuzz: $name failed; its log is $target.log" >&2
    exit 1
  fi
  grep -E 'number_of_executed_units' "$target.log" || true
done
