#!/usr/bin/env bash
# run.sh BUILD_DIR: installs the build below a temporary prefix, then builds and runs project/ twice:
# through find_package(gradwire) and through pkg-config. CXX and CXXFLAGS are the build's own.
set -euo pipefail
build=$1
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"${CMAKE:-cmake}" --install "$build" --prefix "$work/first" >"$work/install.log" || {
  cat "$work/install.log"
  exit 1
}
# An installed tree can be moved.
mv "$work/first" "$work/prefix"
if grep -rIl -e "$work/first" -e "$build" "$work/prefix"; then
  echo "the files above name where they were built" >&2
  exit 1
fi

echo "== find_package"
"${CMAKE:-cmake}" -S "$here/project" -B "$work/cmake" -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix" \
  >"$work/configure.log" 2>&1 || { cat "$work/configure.log"; exit 1; }
"${CMAKE:-cmake}" --build "$work/cmake" -- --quiet
"$work/cmake/consumer"

echo "== pkg-config"
export PKG_CONFIG_PATH=$work/prefix/lib/pkgconfig
read -ra cflags <<<"${CXXFLAGS:-} $(pkg-config --cflags gradwire)"
read -ra libs <<<"$(pkg-config --libs gradwire)"
"${CXX:-c++}" -std=c++20 "${cflags[@]}" "$here/project/consumer.cc" -o "$work/consumer" "${libs[@]}"
"$work/consumer"

echo "== public headers"
count=0
while read -r header; do
  count=$((count + 1))
  # Alone, and with everything it brings in listed.
  echo "#include \"$header\"" >"$work/header.cc"
  "${CXX:-c++}" -std=c++20 -Wall -Wextra -Werror "${cflags[@]}" -MD -MF "$work/header.d" \
    -c "$work/header.cc" -o "$work/header.o"
  if grep -oE '/(grpc|grpcpp|google/protobuf|upb|nccl|cuda[a-z_]*)[/.][^ ]*' "$work/header.d" ||
    grep -nE '\bgrpc(pp)?(::|_)|namespace (grpc|google)\b|google::protobuf' "$work/prefix/include/$header"; then
    echo "$header shows gRPC, protobuf or CUDA: see above" >&2
    exit 1
  fi
done < <(cd "$work/prefix/include" && find gradwire -name '*.h' ! -name '*.pb.h' | sort)
[[ $count -gt 0 ]] || { echo "no public header was installed" >&2; exit 1; }
echo "$count public headers compile alone and show no gRPC, protobuf or CUDA"
