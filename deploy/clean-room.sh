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

in_room() {
  # shellcheck disable=SC2016  # expanded by the inner shell
  unshare --mount --pid --ipc --uts --fork --kill-child --propagation private sh -ceu '
    root=$1; shift
    mount -t proc proc "$root/proc"
    mount --rbind /dev "$root/dev"
    mount -t tmpfs tmpfs "$root/tmp"
    exec chroot "$root" /usr/bin/env -i HOME=/root LANG=C.UTF-8 TERM="${TERM:-dumb}" \
      PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"
  ' in_room "$room" "$@"
}

bootstrap() {
  # The machine's own mirrors and proxies, whichever they are.
  local sources=(/etc/apt/sources.list.d/*.sources)
  [[ -e "${sources[0]}" ]] || sources=()
  [[ ! -s /etc/apt/sources.list ]] || sources+=(/etc/apt/sources.list)
  apt-config dump | grep -E '^Acquire::(http|https|Check|Retries|ForceIP)' >"$room.apt" || true
  mmdebstrap --quiet --mode=root --variant=minbase --include=git,make,ca-certificates \
    --aptopt="$room.apt" bookworm "$room" "${sources[@]}"
  rm -f "$room.apt"
  cp /etc/resolv.conf "$room/etc/resolv.conf"
  # Its network may end TLS with a certificate of its own; PyPI is then behind that.
  local trusted=(/usr/local/share/ca-certificates/*.crt)
  if [[ -e "${trusted[0]}" ]]; then
    cp "${trusted[@]}" "$room/usr/local/share/ca-certificates/"
    in_room update-ca-certificates >/dev/null 2>&1
  fi
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
