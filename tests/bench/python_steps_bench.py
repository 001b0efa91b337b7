#!/usr/bin/env python3
"""What a step of a model of many small parameters costs, by the way its gradients are reduced.

    python_steps_bench.py --member PROGRAM [--parameters 1000 10000] [--repetitions 9] [--json FILE]

One member, so that what counts is the work for each parameter. The baseline is
DistributedDataParallel with a hook that completes at once. All ways take turns in one run, each on a
model of its own. PROGRAM is steps_member: the C++ SDK, without torch and without a backward().
"""

import argparse
import contextlib
import json
import random
import statistics
import subprocess
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradwire.torch as gw
from compare_gloo_rank import Model
from gradwire._daemon import EmbeddedDaemon

NUMEL = 8
WARM_UP = 3  # torch rebuilds its buckets after the first
BASELINE = "DDP, no communication"
WAYS = (BASELINE, "DDP", "attach_", "reduce_grads_")


def completed(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


class Python:
    """One model and the way in which its gradients are reduced."""

    def __init__(self, way: str, count: int, address: str) -> None:
        self._given = [torch.full((NUMEL,), float(i)) for i in range(count)]
        self._model = Model(self._given)
        self._parameters = list(self._model.parameters())
        self._way = way
        session = f"python-{WAYS.index(way)}-{count}"
        self._state = gw.SessionState(address=address, session=session, model=self._model)
        self._forward = self._model
        if way.startswith("DDP"):
            self._forward = DistributedDataParallel(self._model)
            hook = completed if way == BASELINE else gw.aggregate_hook
            self._forward.register_comm_hook(self._state, hook)
        elif way == "attach_":
            gw.attach_(self._model, self._state)

    def step(self) -> float:
        """Milliseconds of backward() and the reduction."""
        for parameter in self._parameters:
            parameter.grad = None
        loss = self._forward()
        begin = time.perf_counter()
        loss.backward()
        if self._way == "reduce_grads_":
            gw.reduce_grads_(self._parameters, self._state)
        return (time.perf_counter() - begin) * 1e3

    def close(self) -> None:
        """The mean of one member is what it gave."""
        for parameter, given in zip(self._parameters, self._given):
            if not torch.equal(parameter.grad, given):
                raise SystemExit(f"python_steps: {self._way} gives another gradient")
        self._state.close()


class Cpp:
    def __init__(self, program: str, count: int, address: str) -> None:
        self._child = subprocess.Popen(
            [program, address, f"cpp-{count}", str(count), str(NUMEL)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
        )  # fmt: skip
        self._child.stdout.readline()  # it has joined

    def step(self) -> float:
        self._child.stdin.write("go\n")
        return float(self._child.stdout.readline().split()[-1])

    def close(self) -> None:
        self._child.stdin.close()
        self._child.wait(30)


def measure(count: int, repetitions: int, program: str, address: str) -> list[dict]:
    members = {way: Python(way, count, address) for way in WAYS}
    members["C++ SDK"] = Cpp(program, count, address)
    times: dict[str, list[float]] = {way: [] for way in members}
    order, ways = random.Random(0), list(members)
    for i in range(-WARM_UP, repetitions):
        order.shuffle(ways)
        for way in ways:
            taken = members[way].step()
            if i >= 0:
                times[way].append(taken)
    for member in members.values():
        member.close()
    base = statistics.median(times[BASELINE])
    return [
        {
            "parameters": count,
            "way": way,
            "median_ms": statistics.median(taken),
            "min_ms": min(taken),
            "max_ms": max(taken),
            "ratio": statistics.median(taken) / base,
        }
        for way, taken in times.items()
    ]


def print_rows(rows: list[dict]) -> None:
    for row in rows:
        print(
            f"{row['parameters']:>10}  {row['way']:<24}{row['median_ms']:>9.1f}"
            f"  [{row['min_ms']:.1f} - {row['max_ms']:.1f}]".ljust(70) + f"{row['ratio']:>7.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--member", required=True)
    parser.add_argument("--parameters", type=int, nargs="+", default=[1000, 10000])
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--json")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", 0, 1, True, wait_for_workers=False)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    print(f"\npython steps: backward() and reduction, parameters of {NUMEL} elements, one member")
    print(f"torch {torch.__version__}, medians of {arguments.repetitions} steps in turn, in ms\n")
    print(f"{'parameters':>10}  {'way':<24}{'median':>9}  [min - max]".ljust(70) + f"{'ratio':>7}")
    rows = []
    with contextlib.closing(EmbeddedDaemon()) as daemon:
        for count in arguments.parameters:
            measured = measure(count, arguments.repetitions, arguments.member, daemon.address)
            print_rows(measured)
            rows += measured
    if arguments.json:
        with open(arguments.json, "w") as out:
            json.dump(
                {"benchmark": "python_steps", "torch": torch.__version__, "rows": rows}, out
            )


if __name__ == "__main__":
    main()
