#!/usr/bin/env python3
"""What gpu_bench should show, from the kernels' bytes and operations per element and a GPU's data sheet.

predict.py [RECORD.json]   prints the table; with gpu_bench's JSON and --gpu NAME also what was measured

A kernel takes at least the time of each of its parts: memory, additions in fp32 and fp64, conversions between
fp32 and fp64, shared memory. The largest of them is its bound.
"""

import argparse
import dataclasses
import json

# Measured copies reach about this part of the data sheet's bandwidth.
COPY = 0.92


@dataclasses.dataclass(frozen=True)
class Gpu:
    """Rates per processor and clock are the CUDA programming guide's, for the compute capability."""

    gb_per_s: float
    processors: int
    ghz: float
    fp32: int
    fp64: int
    converts: int  # between fp32 and fp64
    shared: int = 32  # loads of 4 or 16 bytes


GPUS = {
    "A100": Gpu(gb_per_s=2039, processors=108, ghz=1.41, fp32=64, fp64=32, converts=16),
    "H100": Gpu(gb_per_s=3350, processors=132, ghz=1.83, fp32=128, fp64=64, converts=16),
    "H200": Gpu(gb_per_s=4800, processors=132, ghz=1.83, fp32=128, fp64=64, converts=16),
    "B200": Gpu(gb_per_s=8000, processors=148, ghz=1.85, fp32=128, fp64=64, converts=16),
}


@dataclasses.dataclass(frozen=True)
class Kernel:
    """Of one element: bytes moved, and operations."""

    bytes: float
    fp32: float = 0  # instructions of any kind but the ones below
    fp64: float = 0
    converts: float = 0
    shared: float = 0

    def bounds(self, gpu):
        """Seconds for 10^9 elements, by what takes them."""
        per_second = gpu.processors * gpu.ghz
        return {
            "memory": self.bytes / (gpu.gb_per_s * COPY),
            "fp32": self.fp32 / (gpu.fp32 * per_second),
            "fp64": self.fp64 / (gpu.fp64 * per_second),
            "converts": self.converts / (gpu.converts * per_second),
            "shared memory": self.shared / (gpu.shared * per_second),
        }


def kernels():
    """The rows of gpu_bench. A quotient takes about 12 instructions in fp32."""
    found = {}
    for name, width in (("f16", 2), ("bf16", 2)):
        found[f"f32 to {name}"] = Kernel(bytes=4 + width, fp32=4)
        found[f"{name} to f32"] = Kernel(bytes=4 + width, fp32=3)
        found[f"f32 to {name}, divide"] = Kernel(bytes=4 + width, fp32=18)
        found[f"sum {name} N=4"] = Kernel(bytes=5 * width, fp32=4 * 3 + 6)
    found["f32, divide"] = Kernel(bytes=8, fp32=14)
    for n in (2, 4, 8):
        found[f"sum f32 N={n}"] = Kernel(bytes=4 * (n + 1), fp32=n + 4, fp64=n - 1, converts=n + 1)
    for rank in (1, 4, 16, 32):
        wide = 4 if rank <= 16 else 2  # columns of a thread, which share a weight in shared memory
        found[f"M += R, M Q, rank {rank}"] = Kernel(bytes=12, fp32=rank * 1.4 + 3)
        found[f"M^T P, rank {rank}"] = Kernel(bytes=4, fp32=rank * 1.1 + 1, shared=rank / wide / 4)
        found[f"P Q^T, residual, rank {rank}"] = Kernel(bytes=12, fp32=2.3 * rank + 3)
    return found


def predicted(kernel, gpu):
    """GB/s, part of a copy, and the bound."""
    bounds = kernel.bounds(gpu)
    bound = max(bounds, key=bounds.get)
    rate = kernel.bytes / bounds[bound]
    return rate, rate / (gpu.gb_per_s * COPY), bound


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("record", nargs="?")
    parser.add_argument("--gpu", choices=GPUS, default="H200")
    arguments = parser.parse_args()
    measured = json.load(open(arguments.record, encoding="utf-8")) if arguments.record else None
    if measured is None:
        print("| kernel | " + " | ".join(f"{name}: GB/s, of a copy, bound" for name in GPUS) + " |")
        print("| --- |" + " --- |" * len(GPUS))
        for name, kernel in kernels().items():
            cells = [predicted(kernel, gpu) for gpu in GPUS.values()]
            print(f"| {name} | " + " | ".join(f"{r:.0f}, {p:.2f}, {b}" for r, p, b in cells) + " |")
        return
    print(f"{'kernel':<28}{'predicted':>10}{'measured':>10}{'off by':>8}   parts of a copy; {arguments.gpu}")
    for name, kernel in kernels().items():
        if name not in measured:
            continue
        _, part, _ = predicted(kernel, GPUS[arguments.gpu])
        seen = measured[name]["of_copy"]
        print(f"{name:<28}{part:>10.2f}{seen:>10.2f}{abs(seen - part) / part:>8.0%}")


if __name__ == "__main__":
    main()
