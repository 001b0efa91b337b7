#!/usr/bin/env bash
# pythons.sh: the interpreters that a wheel can be built with and for, one line "VERSION PATH" for each
# version: 3.12 and later first, which share a wheel. Looks on the PATH, in /usr/bin and at pyenv's.
set -euo pipefail

probe='
import os, sys, sysconfig, ensurepip, venv
if sys.version_info < (3, 10) or not os.path.exists(sysconfig.get_path("include") + "/Python.h"):
    sys.exit(1)
print("%d.%d" % sys.version_info[:2], sys.executable)'

{
  for name in python3.{10..19} python3; do
    for candidate in $(type -ap "$name") "${PYENV_ROOT:-$HOME/.pyenv}"/versions/*/bin/"$name"; do
      [[ -x $candidate ]] || continue
      # pyenv's shims answer for the versions that are switched on only.
      "$candidate" -c "$probe" 2>/dev/null || true
    done
  done
} | awk -F '[. ]' '!seen[$2]++ {print ($2 >= 12 ? $2 : 100 - $2), $0}' | sort -n | cut -d ' ' -f 2-
