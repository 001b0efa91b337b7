#!/usr/bin/env python3
"""PowerSGD's arithmetic in torch against Gradwire's, on one device.

    power_sgd_torch.py --program "power_sgd_bench ..." [--device cuda|cpu] [--scale N] [--json FILE]

For the matrices of ResNet-50 and of a transformer of a billion parameters, at rank 4: what
powerSGD_hook computes between its all-reduces (matrices of one shape in one bmm, its own
orthogonalization, the residual), and the same with --program. Medians of nine in one run. --scale divides
the models' layers, to try the script.
"""

import argparse
import json
import pathlib
import shlex
import statistics
import subprocess
import sys
import tempfile
import time

import torch
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

RANK = 4
REPEATS = 9


def resnet50() -> list[tuple[int, int]]:
    """Convolutions as torch views them, channels out x the rest, and the classifier."""
    shapes = [(64, 3 * 49)]
    before = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            shapes += [(width, before), (width, width * 9), (4 * width, width)]
            if block == 0:
                shapes.append((4 * width, before))
            before = 4 * width
    return [*shapes, (1000, before)]


def transformer(layers: int = 24, width: int = 1792, vocabulary: int = 50257) -> list[tuple[int, int]]:
    """A decoder of about a billion parameters: attention, two layers of four times the width, embedding."""
    layer = [(3 * width, width), (width, width), (4 * width, width), (width, 4 * width)]
    return [(vocabulary, width)] + layer * layers


class Torch:
    def __init__(self, shapes: list[tuple[int, int]], device: str) -> None:
        groups: dict[tuple[int, int], int] = {}
        for shape in shapes:
            groups[shape] = groups.get(shape, 0) + 1
        self._groups = []
        for (rows, columns), count in groups.items():
            rank = min(RANK, rows, columns)
            matrix = torch.randn(count, rows, columns, device=device)
            q = torch.randn(count, columns, rank, device=device)
            self._groups.append(
                (matrix, torch.randn_like(matrix), torch.empty(count, rows, rank, device=device), q)
            )

    def step(self) -> None:
        for matrix, residual, p, q in self._groups:
            matrix += residual
            residual.copy_(matrix)  # the hook keeps the input to subtract from
            torch.bmm(matrix, q, out=p)
        for _, _, p, _ in self._groups:
            powerSGD_hook._orthogonalize(p)
        for matrix, _, p, q in self._groups:
            torch.bmm(matrix.transpose(1, 2), p, out=q)
        for matrix, residual, p, q in self._groups:
            torch.bmm(p, q.transpose(1, 2), out=matrix)
            residual -= matrix


def of_torch(shapes: list[tuple[int, int]], device: str) -> list[float]:
    model = Torch(shapes, device)
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    times = []
    for repeat in range(REPEATS + 1):
        wait()
        begin = time.perf_counter()
        model.step()
        wait()
        if repeat > 0:
            times.append((time.perf_counter() - begin) * 1000)
    return times


def of_gradwire(shapes: list[tuple[int, int]], program: list[str]) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "shapes.json"
        file.write_text(json.dumps(shapes))
        command = [*program, "--shapes", str(file), "--rank", str(RANK), "--repeats", str(REPEATS)]
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", required=True)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--scale", type=int, default=1)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        sys.exit("power_sgd_torch: this torch sees no GPU")
    models = {
        "ResNet-50": resnet50()[:: arguments.scale],
        "transformer": transformer(layers=max(1, 24 // arguments.scale), width=1792 // arguments.scale,
                                   vocabulary=50257 // arguments.scale),
    }  # fmt: skip
    record = {}
    print(f"{'model':<14}{'parameters':>14}{'torch, ms':>20}{'Gradwire, ms':>20}{'ratio':>8}")
    for name, shapes in models.items():
        torch_ms = of_torch(shapes, arguments.device)
        if arguments.device == "cuda":
            torch.cuda.empty_cache()
        own_ms = of_gradwire(shapes, shlex.split(arguments.program))
        ratio = statistics.median(torch_ms) / statistics.median(own_ms)
        cells = [f"{statistics.median(t):.2f} ({min(t):.2f}-{max(t):.2f})" for t in (torch_ms, own_ms)]
        parameters = sum(rows * columns for rows, columns in shapes)
        print(f"{name:<14}{parameters:>14,}{cells[0]:>20}{cells[1]:>20}{ratio:>8.2f}")
        record[name] = {"torch_ms": statistics.median(torch_ms), "gradwire_ms": statistics.median(own_ms), "ratio": ratio}
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(record, indent=2))


if __name__ == "__main__":
    main()
