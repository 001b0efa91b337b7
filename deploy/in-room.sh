#!/usr/bin/env bash
# Runs a command as root in a folder that bare-debian.sh made: deploy/in-room.sh FOLDER COMMAND...
# Its processes and mounts end with it, so nothing reaches the host's /dev or /proc. GRADWIRE_ROOM_MOUNT=FROM:TO
# shows one more folder there, read-only.
set -euo pipefail
root=$1
shift
# shellcheck disable=SC2016  # expanded by the inner shell
exec unshare --mount --pid --ipc --uts --fork --kill-child --propagation private sh -ceu '
  root=$1; extra=$2; shift 2
  mount -t proc proc "$root/proc"
  mount --rbind /dev "$root/dev"
  mount -t tmpfs tmpfs "$root/tmp"
  if [ -n "$extra" ]; then
    mkdir -p "$root/${extra#*:}"
    mount -o bind,ro "${extra%%:*}" "$root/${extra#*:}"
  fi
  exec chroot "$root" /usr/bin/env -i HOME=/root LANG=C.UTF-8 TERM="${TERM:-dumb}" \
    DEBIAN_FRONTEND=noninteractive PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"
' in-room "$root" "${GRADWIRE_ROOM_MOUNT:-}" "$@"
