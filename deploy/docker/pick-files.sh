#!/bin/bash
# pick-files.sh FOLDER PROGRAM...: copies programs, the libraries they load and the libraries' licences, for an
# image that has only libc6, libgcc-s1 and libstdc++6.
set -euo pipefail
folder=$1
shift

mkdir -p "$folder/usr/bin"
cp "$@" "$folder/usr/bin/"
loaded=$(for file in "$@" /usr/lib/libgradwire_cuda.so; do
  [[ ! -e $file ]] || ldd "$file"
done | awk '$2 == "=>" {print $3}' | sort -u)
[[ -n $loaded && $loaded != *not* ]] || { echo "pick-files: ldd finds no library: $loaded" >&2; exit 1; }

while read -r library; do
  library=$(realpath "${library%/*}")/${library##*/}
  # A merged /usr and dpkg name the same file differently.
  package=$(dpkg -S "$library" 2>/dev/null || dpkg -S "${library#/usr}")
  package=${package%%:*}
  case $package in libc6 | libgcc-s1 | libstdc++6) continue ;; esac
  mkdir -p "$folder${library%/*}" "$folder/usr/share/doc/$package"
  cp -L "$library" "$folder$library"
  cp -L "/usr/share/doc/$package/copyright" "$folder/usr/share/doc/$package/"
done <<<"$loaded"
if [[ -e /usr/lib/libgradwire_cuda.so ]]; then
  cp /usr/lib/libgradwire_cuda.so "$folder/usr/lib/"
fi
mkdir -p "$folder/usr/share/doc/gradwired" "$folder/run/gradwire"
cp /usr/share/doc/gradwired/copyright "$folder/usr/share/doc/gradwired/"
chown 65532:65532 "$folder/run/gradwire"
chmod 0700 "$folder/run/gradwire"
