#!/usr/bin/env python3
"""A step's gradients reduced by torch on gloo and by Gradwire, in turn in the same processes.

    compare_gloo.py [--quick] [--members 2 4] [--hooks no fp16 power_sgd] [--json FILE]

Each rank holds DistributedDataParallel models of ResNet-18's shapes with given gradients, one with
torch's own hook and one with Gradwire's for each path: frames over a unix socket and over TCP; shared
memory into which DDP's buckets are copied; and DDP's buckets as shared memory. A step is forward and
backward, timed from the word go until all ranks have the result. Before anything counts, both sides
must have come to the same numbers.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import pathlib
import random
import select
import statistics
import subprocess
import sys
import tempfile
import time

import torch

import compare_gloo_rank as rank_side
from compare_gloo_rank import BASELINE

WARM_UP = 4  # torch rebuilds its buckets after the first, PowerSGD begins with the third
ANSWER_SECONDS = 120.0
DAEMON_SECONDS = 20.0
NO_SHARED_MEMORY = {"GRADWIRE_SHARED_MEMORY": "off"}
NO_SHARED_GRADIENTS = {"GRADWIRE_SHARED_GRADIENTS": "off"}
# How far two correct results may lie apart, relative to a gradient's norm.
TOLERANCE = {"no": 1e-6, "fp16": 2e-3, "power_sgd": 1e-4}


class Failed(Exception):
    pass


class Daemon:
    def __init__(self, listen: str) -> None:
        self._child = subprocess.Popen(
            [os.environ["GRADWIRE_DAEMON"], "--listen", listen, "--stop-on-eof",
             "--drain-timeout", "5s", "--log-level", "error"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self.address = self._read_address()

    def _read_address(self) -> str:
        said = b""
        end = time.monotonic() + DAEMON_SECONDS
        while b"grpc" not in said or not said.endswith(b"\n"):
            pipe = self._child.stdout.fileno()
            ready, _, _ = select.select([pipe], [], [], max(0.0, end - time.monotonic()))
            more = os.read(pipe, 4096) if ready else b""
            if not more:
                self.close()
                raise Failed("gradwired did not start")
            said += more
        # The status page's address may follow.
        return next(line for line in said.splitlines() if b"grpc" in line).split()[-1].decode()

    def close(self) -> None:
        self._child.stdin.close()
        try:
            self._child.wait(DAEMON_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()


class World:
    """The ranks of one hook and number of members."""

    def __init__(self, members: int, hook: str, transports: dict, store: pathlib.Path) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["compare_gloo_rank"])
        self._connections = []
        self._processes = []
        for rank in range(members):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=rank_side.serve,
                args=(theirs, rank, members, str(store), hook, transports),
                daemon=True,
            )
            process.start()
            theirs.close()
            self._connections.append(ours)
            self._processes.append(process)

    def answers(self) -> list:
        """Of all ranks, to what they were told last."""
        values = []
        end = time.monotonic() + ANSWER_SECONDS
        for rank, connection in enumerate(self._connections):
            if not connection.poll(max(0.0, end - time.monotonic())):
                raise Failed(f"rank {rank} says nothing")
            try:
                ok, value = connection.recv()
            except (EOFError, ConnectionError):
                raise Failed(f"rank {rank} ended") from None
            if not ok:
                raise Failed(f"rank {rank}: {value}")
            values.append(value)
        return values

    def ask(self, *words: object) -> list:
        for connection in self._connections:
            with contextlib.suppress(BrokenPipeError):  # its last words, if any, are the answer
                connection.send(words)
        return self.answers()

    def step(self, name: str) -> float:
        """Milliseconds until all ranks have their gradients."""
        self.ask("clear", name)
        begin = time.perf_counter()
        self.ask("step", name)
        return (time.perf_counter() - begin) * 1e3

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()


def check(world: World, members: int, hook: str, transports: list[str]) -> dict[str, dict]:
    """What the last steps left: torch's numbers, the mean, and the same bits on every transport."""
    found = {}
    for name in transports:
        compared = world.ask("compare", name, "gloo")
        distance = max(distance for distance, _ in compared)
        same = all(same for _, same in compared)
        from_mean = max(world.ask("compare_mean", name))
        if members == 2 and hook != "power_sgd" and not same:
            raise Failed(f"{hook} over {name} is not torch's bit for bit, but {distance:.1e} away")
        for what, value in (("torch's result", distance), ("the mean", from_mean)):
            if not value <= TOLERANCE[hook]:
                raise Failed(f"{hook} over {name}: {value:.1e} from {what}")
        if not all(same for _, same in world.ask("compare", name, transports[0])):
            raise Failed(f"{hook}: {name} and {transports[0]} do not give the same bits")
        in_place = all(world.ask("in_place", name))
        if in_place != (name == "shared" and hook != "power_sgd"):
            raise Failed(f"{hook} over {name}: buckets are reduced in place: {in_place}")
        found[name] = {"distance": distance, "same_bits": same}
    return found


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def measure(members: int, hook: str, transports: dict, repetitions: int, folder: str) -> list[dict]:
    world = World(members, hook, transports, pathlib.Path(folder, f"store-{members}-{hook}"))
    try:
        world.answers()  # all have met
        names = [BASELINE, "gloo", *transports]
        times: dict[str, list[float]] = {name: [] for name in names}
        order = random.Random(0)
        checked = {}
        for i in range(-WARM_UP, repetitions):
            if i == 0:
                checked = check(world, members, hook, list(transports))
            order.shuffle(names)  # not always the same one after the same other
            for name in names:
                taken = world.step(name)
                if i >= 0:
                    times[name].append(taken)
        world.ask("close")
    finally:
        world.end()
    rows = []
    for name in transports:
        pairs = zip(times["gloo"], times[name])
        rows.append(
            {
                "members": members,
                "hook": hook,
                "transport": name,
                "gloo_ms": spread(times["gloo"]),
                "gradwire_ms": spread(times[name]),
                "ratio": spread([gloo / ours for gloo, ours in pairs]),
                "no_communication_ms": spread(times[BASELINE]),
                **checked[name],
            }
        )
    return rows


def print_heading(repetitions: int) -> None:
    print(f"\nResNet-18's gradients, torch {torch.__version__} on gloo against Gradwire")
    print(f"medians of {repetitions} steps in turn, min to max in brackets")
    print("gloo/ours: of each pair of steps; none: the same step without communication\n")
    cells = [f"{'members':>7}  {'hook':<10}{'path':<7}"]
    cells += [f"{name:>8} {'':<17}" for name in ("gloo ms", "ours ms", "gloo/ours")]
    print("".join(cells) + f"{'none ms':>8}  gradients")


def print_rows(rows: list[dict]) -> None:
    for row in rows:
        cells = [f"{row['members']:>7}  {row['hook']:<10}{row['transport']:<7}"]
        for key, digits in (("gloo_ms", 1), ("gradwire_ms", 1), ("ratio", 2)):
            s = row[key]
            low_high = f"[{s['min']:.{digits}f} - {s['max']:.{digits}f}]"
            cells.append(f"{s['median']:>8.{digits}f} {low_high:<17}")
        cells.append(f"{row['no_communication_ms']['median']:>8.1f}")
        same = "same bits" if row["same_bits"] else f"{row['distance']:.0e} apart"
        print("".join(cells) + f"  {same}")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--members", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--hooks", nargs="+", choices=TOLERANCE, default=list(TOLERANCE))
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--quick", action="store_true", help="3 repetitions")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    repetitions = 3 if arguments.quick else arguments.repetitions

    rows = []
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="gradwire-bench-"))
        transports = {}
        for name, listen, environment in (
            ("unix", f"unix:{folder}/unix.sock", NO_SHARED_MEMORY),
            ("tcp", "127.0.0.1:0", NO_SHARED_MEMORY),
            ("copied", f"unix:{folder}/copied.sock", NO_SHARED_GRADIENTS),
            ("shared", f"unix:{folder}/shared.sock", {}),
        ):
            daemon = Daemon(listen)
            stack.callback(daemon.close)
            transports[name] = (daemon.address, environment)
        print_heading(repetitions)
        for members in arguments.members:
            for hook in arguments.hooks:
                measured = measure(members, hook, transports, repetitions, folder)
                print_rows(measured)
                rows += measured
    if arguments.json:
        result = {
            "benchmark": "compare_gloo",
            "torch": torch.__version__,
            "elements": sum(torch.Size(shape).numel() for shape in rank_side.resnet18()),
            "repetitions": repetitions,
            "rows": rows,
        }
        out = pathlib.Path(arguments.json)
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    try:
        main()
    except Failed as failure:
        sys.exit(f"compare_gloo: {failure}")
