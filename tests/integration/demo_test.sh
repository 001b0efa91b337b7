#!/usr/bin/env bash
# demo_test.sh BUILD_DIR: the demo as `make demo` runs it, then interrupted, killed and with bad
# data. Each time it must leave no process and no socket behind.
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
  # A process group of its own, as a shell gives it one, and SIGINT not ignored as it is for `&`.
  setsid env --default-signal=INT "$demo" "$build" >"$out" 2>&1 &
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
  wait "$pid" 2>/dev/null || code=$?
  pid=
  [[ $code == "$1" ]] || fail "exit status $code, expected $1"
}

echo "a whole run"
mkdir "$TMPDIR"
"$demo" "$build" >"$out" 2>&1 || fail "exit status $?"
[[ $(grep -c '^check: .* ok ' "$out") == 23 ]] || fail "expected 23 checks"
expect_nothing_left 0
[[ -z "$(ls -A "$TMPDIR")" ]] || fail "files left: $(ls -A "$TMPDIR")"
cat "$out"

# interrupt SIGNAL TARGET EXIT_CODE
interrupt() {
  kill "-$1" -- "$2"
  expect_exit "$3"
  expect_nothing_left 0
  [[ -z "$(ls -A "$TMPDIR")" ]] || fail "files left: $(ls -A "$TMPDIR")"
  grep -q "^demo: interrupted" "$out" || fail "does not say that it was interrupted"
}

echo "Ctrl-C: SIGINT to all its processes"
start_demo no
interrupt INT "-$pid" 130

echo "SIGINT and SIGTERM to the demo alone"
start_demo no
interrupt INT "$pid" 130
start_demo fp16
interrupt TERM "$pid" 143

echo "killed"
start_demo no
kill -KILL "$pid"
expect_exit 137
expect_nothing_left 40  # the daemon may drain for 30

echo "bad data"
echo "1,2,3" >"$work/bad.csv"
if "$demo" "$build" --data "$work/bad.csv" >"$out" 2>&1; then fail "took bad data"; fi
grep -q "bad.csv:1: not 64 pixels" "$out" || fail "does not name the bad line"
expect_nothing_left 0
echo "ok"
