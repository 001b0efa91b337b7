#!/usr/bin/env python3
"""Blanks the GPU code of other architectures in a copy of libnccl.so, so that the copy compresses well.

    thin_nccl.py LIBRARY --keep 90 >THIN

A loaded library uses one architecture's kernels of its section .nv_fatbin, and nothing of __nv_relfatbin, which is
there for those who link it anew. Both are a list of containers: a header (magic, version, its own length, length of
what follows), then entries (a header that says kind, its own length, the code's length and the architecture; the
code). Only code is blanked: every header, offset and size stays, so that the loader finds what it expects.
"""

import argparse
import pathlib
import struct
import sys

CONTAINER = struct.Struct("<IHHQ")
MAGIC = 0xBA55ED50
ENTRY = struct.Struct("<HHIQIIHHI")
SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")


def sections(library: bytes) -> dict[str, tuple[int, int]]:
    """Offset and length of each section of an ELF file of 64 bits."""
    (table,) = struct.unpack_from("<Q", library, 40)
    entry_size, count, names_index = struct.unpack_from("<HHH", library, 58)
    headers = [SECTION_HEADER.unpack_from(library, table + i * entry_size) for i in range(count)]
    names = headers[names_index][4]
    return {
        library[names + h[0] : library.index(b"\0", names + h[0])].decode(): (h[4], h[5]) for h in headers
    }


def blank_other_architectures(library: bytearray, offset: int, length: int, keep: int) -> int:
    """Blanks the code of entries for others than `keep`; returns the bytes that were kept."""
    kept, position, end = 0, offset, offset + length
    while position + CONTAINER.size <= end:
        magic, _, header, size = CONTAINER.unpack_from(library, position)
        if magic != MAGIC:
            position += 8
            continue
        entry, position = position + header, position + header + size
        while entry < position:
            _, _, header, size, *_, architecture = ENTRY.unpack_from(library, entry)
            if architecture == keep:
                kept += size
            else:
                library[entry + header : entry + header + size] = bytes(size)
            entry += header + size
    return kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", type=pathlib.Path)
    parser.add_argument("--keep", type=int, default=90, help="the architecture that stays, 90 for Hopper")
    arguments = parser.parse_args()
    library = bytearray(arguments.library.read_bytes())
    found = sections(library)
    offset, length = found[".nv_fatbin"]
    if not blank_other_architectures(library, offset, length, arguments.keep):
        sys.exit(f"thin_nccl: {arguments.library} has no code for architecture {arguments.keep}")
    if "__nv_relfatbin" in found:
        offset, length = found["__nv_relfatbin"]
        library[offset : offset + length] = bytes(length)
    sys.stdout.buffer.write(library)


if __name__ == "__main__":
    main()
