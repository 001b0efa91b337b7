"""check_bundle.py FILE [SECRET...]: prints the paths in a debug bundle, sorted; fails if the archive is unsafe or has a secret."""
import gzip
import pathlib
import sys
import tarfile


def main(file, *secrets):
    raw = gzip.decompress(pathlib.Path(file).read_bytes())
    for secret in secrets:
        if secret.encode() in raw:
            sys.exit(f"the archive contains {secret}")
    with tarfile.open(file, "r:gz") as archive:
        folder = pathlib.Path(file).name
        for member in archive:
            parts = member.name.split("/")
            if not member.isfile() or ".." in parts or member.name.startswith("/") or not member.name.isprintable():
                sys.exit(f"{member.name!r} is no path for a bundle in {folder}")
            if parts[0] == "" or not parts[0].startswith("gradwire-debug-"):
                sys.exit(f"{member.name!r} is not in the bundle's folder")
            if len(archive.extractfile(member).read()) != member.size:
                sys.exit(f"{member.name!r} is cut short")
        print("\n".join(sorted("/".join(one.name.split("/")[1:]) for one in archive)))
        readme = next(one for one in archive if one.name.endswith("/README.txt"))
        print(archive.extractfile(readme).read().decode())


main(*sys.argv[1:])
