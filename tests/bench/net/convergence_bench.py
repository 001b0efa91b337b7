#!/usr/bin/env python3
"""Training to a fixed quality over limited links, by hook: two real tasks. Needs root.

    convergence_bench.py BIN [--tasks digits] [--hooks no,fp16] [--rates 100mbit] [--json FILE]

BIN has gradwired. Four members on hosts of their own train through a daemon on a fifth (see net_bench.py). Quality
per step does not depend on the links, so each (task, hook, seed) is trained once, without limits; step times are
measured at each rate, and both are combined. One run that really is limited checks that.
"""

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time

import combine
import net_bench
import network  # net_bench knows where it is
import traffic
from world import Failed, World

HERE = pathlib.Path(__file__).resolve().parent
HOOKS = "no,fp16,bf16,power_sgd:1,power_sgd:2,power_sgd:4"
TIMED_STEPS = 12  # after PowerSGD's plain ones
RUN_SECONDS = 3600  # of one training
STEP_SECONDS = 300
CHECKED = ("power_sgd:2", "100mbit")  # the run that really is limited, with the first task


def arguments_of(words=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bin", type=pathlib.Path, help="has gradwired")
    parser.add_argument("--tasks", default="digits,language")
    parser.add_argument("--hooks", default=HOOKS)
    parser.add_argument("--rates", default="20mbit,100mbit")
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, help="of each training; default: the task's")
    parser.add_argument("--no-check", action="store_true", help="without the run that really is limited")
    parser.add_argument("--paper", choices=("also", "only", "off"), default="also",
                        help="the shape of the PowerSGD paper's step times")
    parser.add_argument("--paper-members", type=int, default=4)
    parser.add_argument("--paper-overlap", type=float, default=0.4,
                        help="share of its compute time in which gradients come one by one")
    parser.add_argument("--paper-daemon-flags", default="--network-chunk-bytes=1048576 --network-window-chunks=4",
                        help="chunks for links of several Gbit/s, which a step of 312 ms needs")
    parser.add_argument("--json", type=pathlib.Path)
    given = parser.parse_args(words)
    given.tasks, given.hooks, given.rates = (
        getattr(given, name).split(",") for name in ("tasks", "hooks", "rates"))
    try:
        for hook in given.hooks:
            traffic.payload_bytes([(1,)], hook)
        for rate in given.rates:
            network.bits_per_second(rate)
        for task in given.tasks:
            if task not in ("digits", "language"):
                raise ValueError(f'the task is "{task}"; allowed are digits, language')
    except ValueError as error:
        parser.error(str(error))
    for name, low, high in (("members", 2, 64), ("paper_members", 2, 64), ("seeds", 1, 100), ("paper_overlap", 0, 1)):
        if not low <= getattr(given, name) <= high:
            parser.error(f"--{name.replace('_', '-')} is {getattr(given, name)}; allowed are {low} to {high}")
    return given


class Runs:
    """Trainings of the members on one network."""

    def __init__(self, given, stack):
        self.given = given
        hosts = traffic.star(given.members)
        self._folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="gradwire-convergence-"))
        self.network = stack.enter_context(network.Network(hosts.hosts))
        daemon, self._address = self.network.start_daemon("daemon", given.bin / "gradwired")
        stack.callback(self.network.stop, daemon)
        self._world = stack.enter_context(World(self.network, hosts.members, HERE / "trainer.py",
                            [pathlib.Path(self._folder, "store")], self._folder))
        self._number = 0

    def train(self, task, hook, seed, steps, rate="unlimited"):
        self._number += 1
        self.network.set_rate(rate)
        try:
            return self._world.ask(
                RUN_SECONDS, do="train", task=task, hook=hook, seed=seed, steps=steps, address=self._address,
                name=f"run{self._number}", limit_seconds=STEP_SECONDS)[0]
        finally:
            self.network.set_rate("unlimited")


def train_all(runs, given, task):
    """{hook: [a run for each seed]}, without limits."""
    trained = {}
    for hook in given.hooks:
        trained[hook] = [runs.train(task.name, hook, seed, given.steps or task.steps) for seed in range(given.seeds)]
        print(f"  trained {task.name} with {hook}: {task.quality_name} "
              + ", ".join(f"{run['qualities'][-1][1]:.3f}" for run in trained[hook]), flush=True)
    return trained


def time_all(runs, given, task):
    """{hook: {rate: (seconds of a plain step, of a later one)}}."""
    timed = {}
    for hook in given.hooks:
        timed[hook] = {}
        for rate in given.rates:
            start = task.start_power_sgd if traffic.power_sgd_rank(hook) else 0
            seconds = runs.train(task.name, hook, 0, start + TIMED_STEPS, rate)["seconds"]
            timed[hook][rate] = combine.step_times(seconds, start)
    return timed


def rows_of(given, task, trained, timed):
    rows = []
    for hook in given.hooks:
        start = task.start_power_sgd if traffic.power_sgd_rank(hook) else 0
        steps = [combine.steps_to(run["qualities"], task.target, task.higher_is_better) for run in trained[hook]]
        row = {
            "task": task.name, "hook": hook, "parameters": trained[hook][0]["parameters"], "target": task.target,
            "quality_name": task.quality_name, "final": [run["qualities"][-1][1] for run in trained[hook]],
            "steps_to_target": steps, "start_power_sgd": start, "rates": {}, "losses": trained[hook][0]["losses"],
            "qualities": [run["qualities"] for run in trained[hook]],
        }  # fmt: skip
        for rate in given.rates:
            plain, later = timed[hook][rate]
            row["rates"][rate] = {
                "plain_step_s": plain, "step_s": later,
                "to_target_s": [combine.seconds_until(one, start, plain, later) for one in steps],
            }  # fmt: skip
        rows.append(row)
    return rows


def check_limited(runs, task, trained, timed, given):
    """Time to the target of a run that really is limited, beside what the combination says."""
    hook, rate = CHECKED
    if hook not in given.hooks or rate not in given.rates:
        return None
    run = runs.train(task.name, hook, 0, given.steps or task.steps, rate)
    reached = combine.steps_to(run["qualities"], task.target, task.higher_is_better) or len(run["seconds"])
    plain, later = timed[hook][rate]
    combined = combine.seconds_until(reached, task.start_power_sgd, plain, later)
    measured = sum(run["seconds"][:reached])
    same = run["losses"] == trained[hook][0]["losses"]
    print(f"check: {task.name} with {hook}, seed 0, really at {rate}: {reached} steps took {measured:.1f} s, combined "
          f"{combined:.1f} s; its losses are {'the same bits as' if same else 'NOT those of'} the run without limits")
    return {"task": task.name, "hook": hook, "rate": rate, "steps": reached, "measured_s": measured,
            "combined_s": combined, "same_losses": same}


def paper_shape(given):
    """Steps of ResNet-18's size that compute for 225 ms, over links on which float32 takes 312 ms."""
    topology = traffic.star(given.paper_members)
    words = [str(given.bin), "--members", str(given.paper_members), "--compute-ms", str(combine.PAPER_COMPUTE_MS),
             "--overlap", str(given.paper_overlap), "--no-gloo", "--no-tcp", "--rates", "unlimited",
             "--daemon-flags", given.paper_daemon_flags]
    with contextlib.ExitStack() as stack:
        wanted = net_bench.arguments_of(words)
        bench = net_bench.Bench(topology, wanted, wanted.settings, stack)

        def median(rate, steps=7):
            bench.network.set_rate(rate)
            return statistics.median(bench.step("gradwire", STEP_SECONDS)[0] for _ in range(steps))

        bench.build("no")
        rate, reached = combine.find_rate(median, combine.PAPER_FP32_MS / 1e3)
        whole = median(rate, 15)
        bench.drop_all()
        rows = {}
        for hook in combine.PAPER_RATIOS:
            bench.build(hook)
            rows[hook] = median(rate, 15)
            bench.drop_all()
    if not reached:
        print(f"paper: {given.paper_members} members cannot do a float32 step in {combine.PAPER_FP32_MS} ms here: "
              f"without limits it takes {1e3 * whole:.0f} ms; ratios are to that")
    return {"members": given.paper_members, "overlap": given.paper_overlap, "rate": rate, "reached": reached,
            "fp32_s": whole, "step_s": rows}


def save(given, result):
    if given.json:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps(result, indent=1) + "\n")


def main():
    given = arguments_of()
    net_bench.prepare("bench-convergence", given.bin)
    result = {"benchmark": "convergence", "date": time.strftime("%Y-%m-%d"), "members": given.members,
              "seeds": given.seeds, "cores": os.cpu_count(), "rows": [], "check": None, "paper": None}
    if given.paper != "only":
        import tasks  # torch, which the pure parts do without

        with contextlib.ExitStack() as stack:
            runs = Runs(given, stack)
            print(combine.EXPLANATION.format(members=given.members, seeds=given.seeds, cores=os.cpu_count(),
                                             load=os.getloadavg()[0]))
            for name in given.tasks:
                task = tasks.TASKS[name]
                trained = train_all(runs, given, task)
                timed = time_all(runs, given, task)
                result["rows"] += (rows := rows_of(given, task, trained, timed))
                print("\n".join(combine.table(rows, given.rates)), flush=True)
                if name == given.tasks[0] and not given.no_check:
                    result["check"] = check_limited(runs, task, trained, timed, given)
    save(given, result)  # the trainings took long: what follows may fail
    if given.paper != "off":
        result["paper"] = paper_shape(given)
        print("\n".join(combine.paper_table(result["paper"])))
        save(given, result)


if __name__ == "__main__":
    try:
        main()
    except (Failed, network.NetworkError) as failure:
        sys.exit(f"bench-convergence: {failure}")
