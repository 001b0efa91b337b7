#!/usr/bin/env bash
# test-torch.sh VENV: builds the wheel, installs it beside PyPI's current torch, accelerate and lightning,
# and runs the package's tests there.
set -euo pipefail

venv=$(mkdir -p "$1" && cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
packages=(torch accelerate lightning pytest nanobind==3.1.0)

read -r version python < <("$here/pythons.sh")
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if [[ "$("$venv/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" != "$version" ]]; then
  "$python" -m venv --clear "$venv"
fi
echo "installing ${packages[*]} in $1"
if ! "$venv/bin/pip" install --disable-pip-version-check --upgrade --retries 2 --timeout 20 \
  "${packages[@]}" >"$log" 2>&1; then
  echo "test-torch: PyPI did not give ${packages[*]}: $(tail -n 1 "$log")" >&2
  exit 1
fi

echo "building the wheel"
wheel=$("$here/build-wheel.sh" "$python")
"$venv/bin/pip" install --disable-pip-version-check --quiet --no-index --no-deps --force-reinstall "$wheel"

unset PYTHONPATH GRADWIRE_DAEMON GRADWIRE_ADDRESS GRADWIRE_SESSION
"$venv/bin/python" -c '
import importlib.metadata, platform
names = ("gradwire", "torch", "accelerate", "lightning", "pytest", "nanobind")
versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)
print(f"Python {platform.python_version()}, {versions}")'
"$venv/bin/pytest" -q -rs -p no:cacheprovider "$here/tests"
