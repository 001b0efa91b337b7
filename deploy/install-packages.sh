#!/usr/bin/env bash
# Installs the Debian 12 packages that a group of targets needs, and nothing more.
#   deploy/install-packages.sh [build|test|clang|lint|parity|python|bench|network|text|browser|manifests|deb|deploy|clean-room]...
# Without a name: build.
# Does nothing, and asks no mirror, when all of them are there.
set -euo pipefail

declare -A groups=(
  [build]="g++ cmake ninja-build pkg-config
    libgrpc++-dev protobuf-compiler protobuf-compiler-grpc libprotobuf-dev libabsl-dev libssl-dev
    libhwy-dev libxxhash-dev libeigen3-dev libcli11-dev libspdlog-dev nlohmann-json3-dev
    libmicrohttpd-dev prometheus-cpp-dev libyaml-cpp-dev zlib1g-dev"
  [test]="libgtest-dev libgmock-dev libboost-context-dev libfaketime openssl python3-prometheus-client python3 python3-grpcio python3-protobuf"
  [clang]="clang-14 libclang-rt-14-dev"
  [lint]="clang-format-14 clang-tidy-14 shellcheck python3 git"
  [parity]="python3-torch python3-numpy"
  [python]="python3-venv python3-dev"
  [bench]="python3-matplotlib openssl iproute2"
  [network]="iproute2"
  [text]="bible-kjv bible-kjv-text"
  [browser]="chromium fonts-dejavu-core python3"
  [manifests]="prometheus yamllint python3-yaml shellcheck python3 python3-venv openssl
    python3-grpcio python3-protobuf protobuf-compiler protobuf-compiler-grpc"
  [clean-room]="mmdebstrap git"
  [deb]="dpkg-dev file gzip python3-venv python3-dev"
  [deploy]="mmdebstrap buildah podman runc netavark aardvark-dns iptables catatonit mandoc lintian systemd openssl
    python3 python3-venv python3-yaml"
)

wanted=()
for group in "${@:-build}"; do
  if [[ -z "${groups[$group]:-}" ]]; then
    echo "install-packages: no group '$group'; there are: ${!groups[*]}" >&2
    exit 2
  fi
  read -r -d '' -a names <<<"${groups[$group]}" || true
  wanted+=("${names[@]}")
done

if ! command -v dpkg-query >/dev/null; then
  echo "install-packages: this is no Debian; please install what these packages contain: ${wanted[*]}" >&2
  exit 1
fi

missing=()
for name in "${wanted[@]}"; do
  # The status is "installed" only; a removed package leaves "config-files".
  [[ "$(dpkg-query -W -f='${db:Status-Status}' "$name" 2>/dev/null)" == installed ]] || missing+=("$name")
done
[[ ${#missing[@]} -gt 0 ]] || exit 0

install=(apt-get install -y --no-install-recommends "${missing[@]}")
as_root=()
if [[ $EUID -ne 0 ]]; then
  if ! command -v sudo >/dev/null; then
    echo "These Debian packages are missing. As root, run:" >&2
    echo "  apt-get update && ${install[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi

echo "installing Debian packages: ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
run() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive "$@" </dev/null >"$log" 2>&1 || {
    tail -n 20 "$log" >&2
    echo "install-packages: '$*' failed" >&2
    exit 1
  }
}
# Packages must not start their services, such as Prometheus: the checks start what they need. Debian's packages ask this
# program, also where no systemd runs.
policy=/usr/sbin/policy-rc.d
if [[ ! -e $policy ]]; then
  trap 'rm -f "$log"; "${as_root[@]}" rm -f "$policy"' EXIT
  printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" install -m 0755 /dev/stdin "$policy"
fi
run apt-get -q update
run "${install[@]}"
