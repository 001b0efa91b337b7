#!/usr/bin/env python3
"""What the Python side of a hook call costs: aggregate_hook on 4 KiB buckets, one member, a daemon.

    python_hook_bench.py [--calls 10000] [--json FILE]

The baseline is a hook that completes a torch future at once, in the same run, call by call in turn.
Calls are made from within backward(), where DistributedDataParallel makes them.
"""

import argparse
import json
import statistics
import time

import torch

import gradwire.torch as gw

NUMEL = 1024
CALLS_OF_A_BACKWARD = 50


class Bucket:
    """What torch's GradBucket says of one bucket with one parameter."""

    def __init__(self, parameter: torch.nn.Parameter) -> None:
        self._parameter = parameter
        self._buffer = torch.ones(NUMEL)

    def buffer(self) -> torch.Tensor:
        return self._buffer

    def parameters(self) -> list[torch.nn.Parameter]:
        return [self._parameter]

    def is_last(self) -> bool:
        return True


def completed(state: object, bucket: Bucket) -> torch.futures.Future:
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


class InBackward(torch.autograd.Function):
    """Calls a function when its gradient is asked for."""

    @staticmethod
    def forward(ctx, one: torch.Tensor, function) -> torch.Tensor:
        ctx.function = function
        return one.clone()

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.function()
        return gradient, None


def backward_with(function) -> None:
    InBackward.apply(torch.ones((), requires_grad=True), function).backward()


def measure(hook, state: object, bucket: Bucket) -> tuple[int, int]:
    """Nanoseconds of the call, and until its future was done."""
    begin = time.perf_counter_ns()
    future = hook(state, bucket)
    called = time.perf_counter_ns()
    future.wait()
    return called - begin, time.perf_counter_ns() - begin


def summary(nanoseconds: list[int]) -> dict[str, float]:
    ordered = sorted(nanoseconds)
    return {
        "median_us": statistics.median(ordered) / 1000,
        "p99_us": ordered[len(ordered) * 99 // 100] / 1000,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=10000)
    parser.add_argument("--json")
    arguments = parser.parse_args()

    model = torch.nn.Module()
    model.weight = torch.nn.Parameter(torch.zeros(NUMEL))
    bucket = Bucket(model.weight)
    with gw.SessionState(model=model, rank=0, world_size=1, session="bench") as state:
        hooks = {"gradwire": (gw.aggregate_hook, state), "baseline": (completed, None)}
        samples = {name: [] for name in hooks}

        def take_turns() -> None:
            for _ in range(CALLS_OF_A_BACKWARD):
                for name, (hook, its_state) in hooks.items():
                    samples[name].append(measure(hook, its_state, bucket))

        backward_with(take_turns)  # joins the session, and is not counted
        for sample in samples.values():
            sample.clear()
        while len(samples["gradwire"]) < arguments.calls:
            backward_with(take_turns)
    results = {
        f"{name}_{what}": summary([sample[i] for sample in values])
        for name, values in samples.items()
        for i, what in enumerate(("call", "until_done"))
    }
    print(f"\npython hook, {arguments.calls} calls of {NUMEL * 4} bytes, torch {torch.__version__}")
    print(f"{'':<28}{'median':>10}{'p99':>10}  (microseconds)")
    for name, row in results.items():
        print(f"{name.replace('_', ' '):<28}{row['median_us']:>10.1f}{row['p99_us']:>10.1f}")
    if arguments.json:
        with open(arguments.json, "w") as out:
            json.dump(
                {"benchmark": "python_hook", "torch": torch.__version__, "results": results}, out
            )


if __name__ == "__main__":
    main()
