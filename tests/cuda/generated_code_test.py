#!/usr/bin/env python3
"""What ptxas made of the kernels.

generated_code_test.py FOLDER ARCHITECTURE...: reads the logs (*.ptxas) that the build of the CUDA library for these
architectures ("90") leaves there.
"""

import collections
import pathlib
import re
import sys
import unittest

REGISTERS = 65536  # of a processor
THREADS = 256  # of a block, in all kernels

# Blocks of each kernel that fit a processor at once, at least: enough loads are on their way then to
# keep the memory busy. Arithmetic in few blocks (orthonormalization) has all registers.
BLOCKS = {
    "AddSplitsKernel": 6,
    "AddSumsKernel": 6,
    "EachKernel": 6,
    "MapPacks": 6,
    "MapSingles": 6,
    "OrthonormalizeKernel": 1,
    "ProductKernel": 1,
    "ReconstructAnyKernel": 6,
    "ReconstructKernel": 2,
    "SquaresKernel": 8,
    "SumKernel": 6,
    "TransposeKernel": 8,
    "TransposedKernel": 1,
}

Kernel = collections.namedtuple("Kernel", "name architecture registers spilled")


def kernels(log):
    """The kernels of one log. Functions that are called, not inlined, count with their kernel."""
    entry, spilled = None, 0
    for line in log.splitlines():
        if match := re.search(r"Compiling entry function '(\S+)' for '(sm_\d+)'", line):
            entry, spilled = match.groups(), 0
        elif match := re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line):
            spilled += int(match[1]) + int(match[2])
        elif match := re.search(r"Used (\d+) registers", line):
            yield Kernel(*entry, int(match[1]), spilled)


def family(name):
    match = re.search(r"(MapPacks|MapSingles|[A-Z][A-Za-z]*Kernel)(?=[IE])", name)
    return match[1] if match else name


class GeneratedCode(unittest.TestCase):
    folder = None
    architectures = frozenset()

    @classmethod
    def setUpClass(cls):
        logs = sorted(cls.folder.glob("*.ptxas"))
        cls.found = [kernel for log in logs for kernel in kernels(log.read_text("utf-8"))]

    def test_every_kernel_is_there_for_every_gpu(self):
        by_name = collections.defaultdict(set)
        for kernel in self.found:
            by_name[kernel.name].add(kernel.architecture)
        self.assertEqual({family(name) for name in by_name}, set(BLOCKS))
        for name, architectures in by_name.items():
            self.assertEqual(architectures, self.architectures, name)

    def test_no_register_is_spilled(self):
        self.assertEqual([kernel for kernel in self.found if kernel.spilled], [])

    def test_enough_blocks_fit_a_processor(self):
        for kernel in self.found:
            allocated = -(-kernel.registers // 8) * 8
            self.assertGreaterEqual(REGISTERS // (allocated * THREADS), BLOCKS[family(kernel.name)], kernel)

    def test_finds_a_spill(self):
        log = """ptxas info    : Compiling entry function '_Z3AKernel' for 'sm_80'
    8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 32 registers, used 0 barriers"""
        self.assertEqual(list(kernels(log)), [Kernel("_Z3AKernel", "sm_80", 32, 8)])


if __name__ == "__main__":
    GeneratedCode.folder = pathlib.Path(sys.argv[1])
    GeneratedCode.architectures = {f"sm_{one}" for one in sys.argv[2:]}
    unittest.main(argv=sys.argv[:1], verbosity=2)
