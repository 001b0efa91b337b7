#!/usr/bin/env python3
"""Whether the hot kernels move 16 bytes with each load and store.

wide_access_test.py FOLDER LIBRARY ARCHITECTURE...: FOLDER has cuobjdump and nvdisasm, LIBRARY is libgradwire_cuda.so
for these architectures ("90").
"""

import collections
import os
import re
import subprocess
import sys
import unittest

# Kernels that are bound by memory: a pattern on the mangled name, and what they move 16 bytes of at a time.
# t is a 16-bit element, f a float. What is small beside the matrix (P, Q, sums of splits) may be narrower.
HOT = (
    (r"MapPacksI(ff|ft|tf|tt)N", ("LDG", "STG")),
    (r"SumKernelILNS_5DTypeE1ELNS1_4FormE[02]ELj4E", ("LDG", "STG")),
    (r"SumKernelILNS_5DTypeE2ELNS1_4FormE0ELj2E", ("LDG", "STG")),
    (r"SumKernelILNS_5DTypeE[34]ELNS1_4FormE0ELj8E", ("LDG", "STG")),
    (r"\d+ProductKernelIfLj(1|2|4|8|16)ELj\dELj4E", ("LDG", "STG")),
    (r"TransposedKernelIfLj(1|2|4|8|16)ELj4E", ("LDG",)),
    (r"\d+ReconstructKernelIfLj\d+ELj4E", ("LDG", "STG")),
)


def accesses(sass):
    """For each kernel, how often each instruction accesses global memory, by its width in bits."""
    found, kernel = {}, None
    for line in sass.splitlines():
        if match := re.search(r"Function : (\S+)", line):
            kernel = found.setdefault(match[1], collections.Counter())
        elif match := re.search(r"\b(LDG|STG)\.E(\.[\w.]+)?", line):
            width = re.search(r"\.(U8|S8|U16|S16|64|128|256)\b", match[0])
            kernel[match[1], int(width[1].lstrip("US")) if width else 32] += 1
    return found


class WideAccess(unittest.TestCase):
    tools = library = None
    architectures = ()

    def test_hot_kernels_move_16_bytes_at_a_time(self):
        environment = {**os.environ, "PATH": f"{self.tools}:{os.environ['PATH']}"}
        for architecture in self.architectures:
            command = [f"{self.tools}/cuobjdump", "-sass", "-arch", architecture, self.library]
            run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            kernels = accesses(run.stdout)
            for pattern, kinds in HOT:
                hot = {name: counts for name, counts in kernels.items() if re.search(pattern, name)}
                self.assertTrue(hot, f"no kernel {pattern} for {architecture}")
                for name, counts in hot.items():
                    for kind in kinds:
                        wide = counts[kind, 128] + counts[kind, 256]
                        self.assertGreater(wide, 0, f"{kind} of {name} for {architecture}: {dict(counts)}")

    def test_counts_by_width(self):
        sass = "Function : k\n LDG.E.128 R4\n LDG.E.U16.CONSTANT R4\n STG.E desc\n LDG.E.128.CONSTANT R1"
        expected = {("LDG", 128): 2, ("LDG", 16): 1, ("STG", 32): 1}
        self.assertEqual(accesses(sass), {"k": expected})


if __name__ == "__main__":
    WideAccess.tools, WideAccess.library = sys.argv[1:3]
    WideAccess.architectures = [f"sm_{one}" for one in sys.argv[3:]]
    unittest.main(argv=sys.argv[:1], verbosity=2)
