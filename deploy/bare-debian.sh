#!/usr/bin/env bash
# Makes a bare Debian 12 with the machine's own mirrors and certificates, in a folder or a .tar.
#   deploy/bare-debian.sh TARGET [OPTION OF MMDEBSTRAP]...
# Needs root.
set -euo pipefail
target=$1
shift

sources=(/etc/apt/sources.list.d/*.sources)
[[ -e "${sources[0]}" ]] || sources=()
[[ ! -s /etc/apt/sources.list ]] || sources+=(/etc/apt/sources.list)

settings=$(mktemp)
trap 'rm -f "$settings"' EXIT
apt-config dump | grep -E '^Acquire::(http|https|Check|Retries|ForceIP)' >"$settings" || true

# The network may end TLS with a certificate of its own; PyPI is then behind that.
trusted=(/usr/local/share/ca-certificates/*.crt)
hooks=()
if [[ -e "${trusted[0]}" ]]; then
  # shellcheck disable=SC2016  # mmdebstrap's shell expands it
  hooks=('--customize-hook=if test -x "$1/usr/sbin/update-ca-certificates"; then
    mkdir -p "$1/usr/local/share/ca-certificates"
    cp /usr/local/share/ca-certificates/*.crt "$1/usr/local/share/ca-certificates/"
    chroot "$1" update-ca-certificates >/dev/null 2>&1
  fi')
fi

mmdebstrap --quiet --mode=root --variant=minbase --aptopt="$settings" "${hooks[@]}" "$@" \
  bookworm "$target" "${sources[@]}"
