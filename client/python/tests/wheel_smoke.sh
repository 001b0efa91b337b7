#!/usr/bin/env bash
# wheel_smoke.sh WHEEL [PYTHON]: installs the wheel alone into a clean environment of this interpreter (the
# latest of pythons.sh that takes the wheel), and all-reduces through its daemon. No library of gRPC and the
# like but the wheel's own may be loaded; where user namespaces are allowed, the system's are hidden too.
set -euo pipefail
wheel=$1
here=$(cd "$(dirname "$0")" && pwd)
if [[ $wheel == *-abi3-* ]]; then
  accepted='3\.1[2-9] '
else
  accepted=$(sed -E 's/.*-cp3([0-9]+)-.*/3\\.\1 /' <<<"$wheel")
fi
python=${2:-$("$here/../pythons.sh" | grep "^$accepted" | tail -n 1 | cut -d ' ' -f 2)}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-index "$wheel"
unset LD_LIBRARY_PATH PYTHONPATH GRADWIRE_DAEMON GRADWIRE_ADDRESS GRADWIRE_SESSION

cat >"$work/run.sh" <<'RUN'
set -euo pipefail
work=$1
here=$2
hidden=0
if [[ $3 == hide ]]; then
  while read -r library; do
    mount --bind /dev/null "$library"
    hidden=$((hidden + 1))
  done < <(ldconfig -p | sed -nE 's/^\s*lib(absl_|address_sorting|cares|fmt|gpr|grpc|hwy|protobuf|re2|spdlog|upb|xxhash).* => //p' |
    xargs -r realpath | sort -u)
fi
echo "wheel_smoke: $hidden libraries of the system hidden"
cd "$work"
exec "$work/venv/bin/python" -B "$here/wheel_smoke.py" "$work/venv/bin/gradwired"
RUN
run=(bash "$work/run.sh" "$work" "$here")
if unshare --map-root-user --mount mount --bind /dev/null "$work/run.sh" 2>/dev/null; then
  unshare --map-root-user --mount "${run[@]}" hide
else
  "${run[@]}" show
fi
