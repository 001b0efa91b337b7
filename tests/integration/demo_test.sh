#!/usr/bin/env bash
# demo_test.sh BUILD_DIR: the demo as `make demo` runs it, then interrupted, killed and with bad data. Each
# time it must leave no process and no socket behind.
set -euo pipefail

build=${1:?usage: demo_test.sh BUILD_DIR}
demo=$(cd "$(dirname "$0")/../.." && pwd)/client/examples/demo.sh
work=$(mktemp -d)
export TMPDIR=$work/tmp
out=$work/out

fail() {
  echo "FAILED: $1" >&2
  echo "--- output of the demo" >&2
  cat "$out" >&2
  exit 1
}

# Programs of the demo, by the folder that their command lines name.
processes() { grep -lsa "$TMPDIR" /proc/[0-9]*/cmdline || true; }
sockets() { find "$TMPDIR" -type s; }

clean_up() {
  [[ -z "${pid:-}" ]] || kill -KILL "$pid" 2>/dev/null || true
  rm -rf "$work"
}
trap clean_up EXIT

# expect_nothing_left SECONDS
expect_nothing_left() {
  local deadline=$((SECONDS + $1))
  while [[ -n "$(processes)$(sockets)" ]]; do
    ((SECONDS < deadline)) || fail "left behind: $(processes) $(sockets)"
    sleep 0.05
  done
}

# Starts the demo in the background, pid in $pid, and waits until it trains with hook $1.
start_demo() {
  rm -rf "$TMPDIR" && mkdir "$TMPDIR"
  : >"$out"
  "$demo" "$build" >"$out" 2>&1 &
  pid=$!
  until grep -q "^$1 .*epoch" "$out"; do
    kill -0 "$pid" 2>/dev/null || fail "the demo ended before it trained with $1"
    sleep 0.05
  done
  [[ $(processes | wc -l) -ge 5 ]] || fail "expected a daemon and four members"
}

# expect_exit CODE: of the demo in the background
expect_exit() {
  local code=0
  wait "$pid" || code=$?
  pid=
  [[ $code == "$1" ]] || fail "exit status $code, expected $1"
}

echo "a whole run"
mkdir "$TMPDIR"
"$demo" "$build" >"$out" 2>&1 || fail "exit status $?"
[[ $(grep -c '^check: .* ok ' "$out") == 10 ]] || fail "expected ten checks"
expect_nothing_left 0
[[ -z "$(ls -A "$TMPDIR")" ]] || fail "files left: $(ls -A "$TMPDIR")"
cat "$out"

for signal in INT TERM; do
  echo "interrupted by SIG$signal"
  start_demo no
  kill "-$signal" "$pid"
  expect_exit $((128 + $(kill -l "$signal")))
  expect_nothing_left 0
  [[ -z "$(ls -A "$TMPDIR")" ]] || fail "files left: $(ls -A "$TMPDIR")"
done

echo "killed"
start_demo no
kill -KILL "$pid"
expect_exit 137
expect_nothing_left 10

echo "bad data"
echo "1,2,3" >"$work/bad.csv"
if "$demo" "$build" --data "$work/bad.csv" >"$out" 2>&1; then fail "took bad data"; fi
grep -q "bad.csv:1: not 64 pixels" "$out" || fail "does not name the bad line"
expect_nothing_left 0
echo "ok"
