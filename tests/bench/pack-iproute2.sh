#!/usr/bin/env bash
# Puts ip and tc with their libraries into FOLDER, for carried.sh on a machine that lacks them.
#   tests/bench/pack-iproute2.sh FOLDER
set -euo pipefail

folder=$1
rm -rf "$folder"
mkdir -p "$folder/lib"
for program in ip tc; do
  binary=$(command -v "$program")
  cp -L "$binary" "$folder/lib/$program"
  ldd "$binary" | awk '$2 == "=>" {print $3} $1 ~ /^\// {print $1}' | while read -r library; do cp -L "$library" "$folder/lib/"; done
  cat >"$folder/$program" <<PROGRAM
#!/bin/sh
here=\$(dirname "\$0")/lib
exec "\$here/ld-linux-x86-64.so.2" --library-path "\$here" "\$here/$program" "\$@"
PROGRAM
  chmod +x "$folder/$program"
done
du -sh "$folder"
