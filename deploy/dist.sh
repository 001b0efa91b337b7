#!/usr/bin/env bash
# deploy/dist.sh VERSION: puts what a release has side by side into build/dist, with SHA256SUMS: the sources of HEAD,
# the Debian packages of `make deb`, the wheels of `make wheel`, and the image, if buildah is there.
set -euo pipefail
cd "$(dirname "$0")/.."
version=$1
out=build/dist

changed=$(git status --porcelain --untracked-files=no)
[[ -z $changed ]] || { printf 'dist: these changes are not committed:\n%s\n' "$changed" >&2; exit 1; }
rm -rf "$out"
mkdir -p "$out"
git archive --format=tar.gz --prefix="gradwire-$version/" -o "$out/gradwire-$version.tar.gz" HEAD
packages=(build/release/packages/*_"$version"-*.deb)
wheels=(build/wheels/gradwire-"$version"-*.whl)
for file in "${packages[@]}" "${wheels[@]}"; do
  [[ -e $file ]] || { echo "dist: no $file; run 'make deb wheel'" >&2; exit 1; }
  cp "$file" "$out/"
done
if command -v buildah >/dev/null; then
  image=localhost/gradwire:$version
  buildah bud -q --isolation chroot --format docker -f deploy/docker/Dockerfile --build-arg PACKAGES=prebuilt \
    --build-arg VERSION="$version" --build-arg REVISION="$(git rev-parse HEAD)" -t "$image" . >/dev/null
  buildah push -q "$image" "docker-archive:$out/gradwire-$version-image.tar:gradwire:$version"
fi
cd "$out"
sha256sum -- * >SHA256SUMS
ls -l
