#!/usr/bin/env bash
# Makes a bare Debian 12 (git, make and ca-certificates on top of the minimal system), clones HEAD of
# this repository into it and runs make targets there: what a new user's machine would do.
#   deploy/clean-room.sh [target]...        (demo and test when none is named)
# Needs root. Output goes to the terminal and to build/clean-room/log. The room is removed at the end.
set -euo pipefail

repository=$(cd "$(dirname "$0")/.." && pwd)
targets=("${@:-demo}")
[[ $# -gt 0 ]] || targets=(demo test)

if [[ $EUID -ne 0 ]]; then
  echo "clean-room: needs root for chroot and mounts; run 'sudo make clean-room'" >&2
  exit 1
fi
git -C "$repository" rev-parse --quiet --verify HEAD >/dev/null || {
  echo "clean-room: the repository has no commit to clone" >&2
  exit 1
}

mkdir -p "$repository/build/clean-room"
log=$repository/build/clean-room/log
room=$(mktemp -d "${TMPDIR:-/tmp}/gradwire-clean-room.XXXXXX")
# The mounts live in a namespace that dies with its processes, so this never reaches the host's /dev.
trap 'rm -rf --one-file-system "$room"' EXIT
trap 'exit 130' INT TERM

in_room() { "$repository/deploy/in-room.sh" "$room" "$@"; }

bootstrap() {
  "$repository/deploy/bare-debian.sh" "$room" --include=git,make,ca-certificates
  cp /etc/resolv.conf "$room/etc/resolv.conf"
  printf '127.0.0.1 localhost\n::1 localhost\n' >"$room/etc/hosts"
}

say() { printf '== clean-room: %s\n' "$*"; }

main() {
  local started=$SECONDS
  [[ -z "$(git -C "$repository" status --porcelain)" ]] ||
    say "the working tree has changes that are not committed; only HEAD is tried"
  say "bare Debian in $room"
  bootstrap
  say "$(in_room dpkg-query -W | wc -l) packages, compilers: $(in_room sh -c 'command -v cc g++ clang cmake' || echo none)"
  git clone --quiet --no-hardlinks "$repository" "$room/root/gradwire"
  say "cloned $(git -C "$room/root/gradwire" log -1 --format='%h %s')"
  local target
  for target in "${targets[@]}"; do
    say "make $target"
    local at=$SECONDS
    in_room make -C /root/gradwire "$target" || { say "make $target FAILED"; return 1; }
    say "make $target passed in $((SECONDS - at)) s"
  done
  say "passed in $((SECONDS - started)) s"
}

# Not in an `if` or before `||`: either would turn off `set -e` inside.
set +e
( set -e; main ) 2>&1 | tee "$log"
exit "${PIPESTATUS[0]}"
