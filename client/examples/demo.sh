#!/bin/sh
# demo.sh BUILD_DIR [OPTION]...   runs the demo with the programs that were built there
set -eu
build=${1:?usage: demo.sh BUILD_DIR [OPTION]...}
shift
exec "$build/bin/gradwire_demo" --data "$(dirname "$0")/data/digits.csv" "$@"
