#!/usr/bin/env python3
"""Communication of a step over limited links: Gradwire, by topology and hook, beside torch + gloo. Needs root.

    net_bench.py BIN [--rates 100mbit,1gbit] [--hooks no,fp16] [--json FILE]

BIN has gradwired. Each member and each daemon is on a host of its own (a network namespace) on one bridge; a
token bucket limits each host's link in both directions. A step computes for a fixed time, in which it sleeps.
Communication is the median step less the median step without communication. Plain TCP, which carries a star's
bytes without reducing them, shows what the links can do.
"""

import argparse
import contextlib
import json
import os
import pathlib
import platform
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "testing"))
import network  # noqa: E402

import traffic  # noqa: E402
from world import Failed, World  # noqa: E402

RATES = "100mbit,1gbit,unlimited,100mbit+25ms"
BASELINE = "none"
WARM_UP = 4  # without limits: torch rebuilds its buckets after the first, PowerSGD begins with the third
SETTLE = 1  # with them, before steps count
SLACK_SECONDS = 120  # what a step may take beside its time on the link
SLOWEST = 8  # times slower than theory is a failure
HELPER_SECONDS = 20


def arguments_of(words=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bin", type=pathlib.Path, help="has gradwired")
    parser.add_argument("--rates", default=RATES, help="of each link, and +DELAY for the round trip of relays")
    parser.add_argument("--hooks", default="no,fp16,power_sgd:1,power_sgd:2,power_sgd:4")
    parser.add_argument("--topologies", default=",".join(traffic.TOPOLOGIES))
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--steps", type=int, default=5, help="that count, for each line of the table")
    parser.add_argument("--compute-ms", type=float, default=100)
    parser.add_argument("--overlap", type=float, default=0,
                        help="share of the compute time in which gradients come one by one")
    parser.add_argument("--no-gloo", action="store_true")
    parser.add_argument("--no-tcp", action="store_true", help="without plain TCP")
    parser.add_argument("--congestion", help="TCP's congestion control; default: the kernel's")
    parser.add_argument("--daemon-flags", default="", help="of each daemon, separated by spaces")
    parser.add_argument("--json", type=pathlib.Path)
    given = parser.parse_args(words)
    try:
        given.settings = [traffic.parse_setting(text, network.bits_per_second) for text in given.rates.split(",")]
        given.hooks = given.hooks.split(",")
        for hook in given.hooks:
            traffic.payload_bytes([(1,)], hook)
        given.topologies = given.topologies.split(",")
        for name in given.topologies:
            if name not in traffic.TOPOLOGIES:
                raise ValueError(f'the topology is "{name}"; allowed are {", ".join(traffic.TOPOLOGIES)}')
    except ValueError as error:
        parser.error(str(error))
    for name, low, high in (("members", 2, 64), ("steps", 1, 1000), ("compute_ms", 0, 60000), ("overlap", 0, 1)):
        if not low <= getattr(given, name) <= high:
            parser.error(f"--{name.replace('_', '-')} is {getattr(given, name)}; allowed are {low} to {high}")
    return given


def spread(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


class Bench:
    """One topology: its network, daemons and members."""

    def __init__(self, topology, given, settings, stack):
        self.topology, self.given, self.settings = topology, given, settings
        self._folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="gradwire-net-"))
        sysctls = {"net.ipv4.tcp_congestion_control": given.congestion} if given.congestion else None
        self.network = stack.enter_context(network.Network(topology.hosts, settings=sysctls))
        addresses = {}
        for daemon in topology.daemons:
            flags = [*daemon.flags(addresses), *given.daemon_flags.split()]
            socket = f"unix:{self._folder}/{daemon.name}.sock"
            if daemon.on_socket:
                flags += ["--listen", socket]
            child, addresses[daemon.name] = self.network.start_daemon(daemon.host, given.bin / "gradwired", *flags)
            if daemon.on_socket:
                addresses[daemon.name] = socket
            stack.callback(self.network.stop, child)
        ranks = range(len(topology.members))
        self._addresses = {0: [topology.address(rank, addresses) for rank in ranks]}
        for setting in settings:
            delay = setting.round_trip_ms
            if delay not in self._addresses:
                self._addresses[delay] = [self._relay(rank, delay) for rank in ranks]
        self._plain = ""
        if topology.plain_tcp_to and not given.no_tcp:
            self._plain = self._helper(topology.plain_tcp_to, "plain_tcp.py",
                                       self.network.address(topology.plain_tcp_to))
        self.world = stack.enter_context(World(self.network, topology.members, HERE / "member.py",
                           [pathlib.Path(self._folder, "store")], self._folder,
                           shares_memory=topology.shares_memory))
        self._built = []

    def _helper(self, host, program, *arguments):
        """Starts a program that prints the port on which it listens, on the host's address; returns both."""
        child = self.network.start(host, sys.executable, "-B", HERE / program, *arguments,
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        return f"{self.network.address(host)}:{network.read_line(child, HELPER_SECONDS)}"

    def _relay(self, rank, round_trip_ms):
        """On the member's host, in front of its address."""
        host = self.topology.members[rank]
        return self._helper(host, "relay.py", f"{self.network.address(host)}:0", self._addresses[0][rank],
                            round_trip_ms / 2)

    def build(self, hook):
        """The models of a hook, one for each way to reduce their gradients, warm and checked."""
        ways = self._built = [BASELINE]
        self.world.ask(SLACK_SECONDS, do="build", name=BASELINE, side="none", hook=hook)
        for setting in self.settings:
            delay = setting.round_trip_ms
            if self._way(delay) not in ways:
                ways.append(self._way(delay))
                self.world.ask(SLACK_SECONDS, [{"address": address} for address in self._addresses[delay]],
                               do="build", name=self._way(delay), side="gradwire", hook=hook,
                               limit_seconds=max(self._limit(hook, one) for one in self.settings))
        if self._plain:
            ways.append("tcp")
            self.world.ask(SLACK_SECONDS, do="build", name="tcp", side="tcp", hook=hook, address=self._plain)
        if not self.given.no_gloo:
            ways.append("gloo")
            self.world.ask(SLACK_SECONDS, do="build", name="gloo", side="gloo", hook=hook)
        for _ in range(WARM_UP):
            for way in ways:
                self.step(way, SLACK_SECONDS)
        for way in ways:
            if way not in (BASELINE, "tcp") and traffic.power_sgd_rank(hook) is None and hook != "noop":
                self.world.ask(SLACK_SECONDS, do="check_mean", name=way)

    def drop_all(self):
        for way in self._built:
            self.world.ask(SLACK_SECONDS, do="drop", name=way)
        self._built = []

    @staticmethod
    def _way(delay):
        return "gradwire" + (f"-{delay:g}ms" if delay else "")

    def _limit(self, hook, setting):
        """Seconds after which a step has failed."""
        payload = traffic.payload_bytes(traffic.resnet18(), hook) * self.topology.busiest
        return SLACK_SECONDS + SLOWEST * traffic.seconds_on_link(payload, network.bits_per_second(setting.rate))

    def step(self, way, seconds):
        """Seconds until all members are done, and what each link carried in them."""
        before = {host: self.network.counters(host) for host in self.topology.hosts}
        begin = time.perf_counter()
        self.world.ask(seconds, do="step", name=way, compute_seconds=self.given.compute_ms / 1e3,
                       overlap=self.given.overlap)
        taken = time.perf_counter() - begin
        return taken, {host: self.network.counters(host) - before[host] for host in self.topology.hosts}

    def measure(self, hook, setting, order):
        """The rows of one hook and setting: each way in turn."""
        payload = traffic.payload_bytes(traffic.resnet18(), hook)
        self.network.set_rate(setting.rate)
        ways = [BASELINE, self._way(setting.round_trip_ms)]
        if not setting.round_trip_ms:
            ways += [way for way in ("tcp", "gloo") if way in self._built]
        samples = {way: [] for way in ways}
        for i in range(-SETTLE, self.given.steps):
            order.shuffle(ways)  # not always the same one after the same other
            for way in ways:
                sample = self.step(way, self._limit(hook, setting))
                if i >= 0:
                    samples[way].append(sample)
        self.network.set_rate("unlimited")
        alone = dict.fromkeys(samples, statistics.median(taken for taken, _ in samples[BASELINE]))
        alone["tcp"] = self.given.compute_ms / 1e3  # it has no DistributedDataParallel
        return [self.row(hook, setting, way, payload, samples[way], alone[way]) for way in samples if way != BASELINE]

    def row(self, hook, setting, way, payload, samples, alone):
        gloo = way == "gloo"
        share = traffic.ring_share(len(self.topology.members))
        times = self.topology.traffic
        links = {}
        for host in self.topology.hosts:
            sent, received = times[host] if not gloo else (share, share) if host in self.topology.members else (0, 0)
            carried = [counters[host] for _, counters in samples]
            links[host] = {
                "sent": statistics.median(one.sent for one in carried), "sent_theory": sent * payload,
                "received": statistics.median(one.received for one in carried), "received_theory": received * payload,
                "packets_sent": statistics.median(one.packets_sent for one in carried),
            }  # fmt: skip
        busiest = payload * (share if gloo else self.topology.busiest)
        theory = traffic.seconds_on_link(busiest, network.bits_per_second(setting.rate))
        communication = statistics.median(taken for taken, _ in samples) - alone
        return {
            "topology": "ring" if gloo else self.topology.name, "side": way.partition("-")[0],
            "rate": setting.rate, "round_trip_ms": setting.round_trip_ms, "hook": hook, "payload_bytes": payload,
            "step_s": spread([taken for taken, _ in samples]), "steps_s": [taken for taken, _ in samples],
            "noop_s": alone, "communication_s": communication, "theory_s": theory,
            "of_link": theory / communication if theory and communication > 0 else None, "links": links,
        }  # fmt: skip


def table_heading():
    return (f"{'link':<15}{'hook':<13}{'side':<16}{'step ms':>9} {'[min - max]':<19}{'comm. ms':>9}{'theory':>8}"
            f"{'of link':>8}  {'member MB sent, received (theory)':<36}daemon MB sent, received (theory)")


def bytes_cell(links, hosts):
    if not hosts:
        return ""
    one = {key: max(links[host][key] for host in hosts) for key in links[hosts[0]]}
    return (f"{one['sent'] / 1e6:.2f}, {one['received'] / 1e6:.2f} "
            f"({one['sent_theory'] / 1e6:.2f}, {one['received_theory'] / 1e6:.2f})")


def table_row(row, topology):
    step = row["step_s"]
    link = row["rate"] + (f" +{row['round_trip_ms']:g} ms" if row["round_trip_ms"] else "")
    daemons = [daemon.host for daemon in topology.daemons if daemon.host not in topology.members]
    low_high = f"[{1e3 * step['min']:.0f} - {1e3 * step['max']:.0f}]"
    theory = f"{1e3 * row['theory_s']:.0f}" if row["theory_s"] else "-"
    of_link = f"{100 * row['of_link']:.0f} %" if row["of_link"] else "-"
    return (f"{link:<15}{row['hook']:<13}{row['side'] + ' ' + row['topology']:<16}{1e3 * step['median']:>9.1f} "
            f"{low_high:<19}{1e3 * row['communication_s']:>9.1f}{theory:>8}{of_link:>8}  "
            f"{bytes_cell(row['links'], list(topology.members)):<36}"
            f"{bytes_cell(row['links'], daemons) if row['side'] != 'gloo' else ''}").rstrip()


def explain(given):
    """What the figures are, once, above the table."""
    elements = sum(traffic.payload_bytes([shape], "no") for shape in traffic.resnet18()) // 4
    with open("/proc/sys/net/ipv4/tcp_congestion_control") as file:
        congestion = given.congestion or file.read().strip()
    print(f"""
bench-net: {given.members} members, {elements:,} parameters ({4 * elements / 1e6:.1f} MB of float32), a step computes \
{given.compute_ms:g} ms{f', {given.overlap:.0%} of it while gradients come' if given.overlap else ''}
medians of {given.steps} steps in turn; comm.: the step less the same step without communication; times in ms
theory: the payload of the busiest link at the link's rate; of link: theory / comm.
bytes: counters of the interfaces. Theory counts payload only: a full packet has {traffic.HEADER_BYTES} bytes of \
Ethernet, IP and TCP headers
for {traffic.SEGMENT_BYTES} ({100 * traffic.HEADER_BYTES / traffic.SEGMENT_BYTES:.1f} %), and acknowledgements of the \
other direction and gRPC's frames come to that.
Without a limit the kernel hands over packets of up to 64 KiB, so there are fewer headers
TCP: {congestion}; all hosts share {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}""")
    for name in given.topologies:
        print(f"{name}: {traffic.TOPOLOGIES[name](given.members).about}")
    print("tcp: the same bytes over the same links without gRPC and without sums" if not given.no_tcp else "")
    print("ring: torch + gloo, between the members\n" if not given.no_gloo else "")
    return {"elements": elements, "congestion": congestion, "cores": os.cpu_count(), "kernel": platform.release()}


def prepare(name, folder):
    """Says what is missing; hosts and processes are removed also after signals."""
    problem = network.missing()
    if not problem and not (folder / "gradwired").is_file():
        problem = f"there is no gradwired in {folder}"
    if problem:
        sys.exit(f"{name}: {problem}")
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def end(number, _):
        for one in numbers:
            signal.signal(one, signal.SIG_IGN)  # a second one must not interrupt the removal
        sys.exit(f"{name}: ended by {signal.Signals(number).name}")

    for number in numbers:
        signal.signal(number, end)


def main():
    given = arguments_of()
    prepare("bench-net", given.bin)
    result = {"benchmark": "net", "date": time.strftime("%Y-%m-%d"), "members": given.members, "steps": given.steps,
              "compute_ms": given.compute_ms, "overlap": given.overlap, **explain(given), "rows": []}
    order = random.Random(0)
    for name in given.topologies:
        topology = traffic.TOPOLOGIES[name](given.members)
        settings = [one for one in given.settings if topology.takes_relays or not one.round_trip_ms]
        for one in given.settings:
            if one not in settings:
                print(f"{name}: not with {one.name}, because all members need the same addresses, and relays differ")
        with contextlib.ExitStack() as stack:
            bench = Bench(topology, given, settings, stack)
            print(table_heading())
            for hook in given.hooks:
                bench.build(hook)
                for setting in settings:
                    for row in bench.measure(hook, setting, order):
                        print(table_row(row, topology), flush=True)
                        result["rows"].append(row)
                bench.drop_all()
    if given.json:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    try:
        main()
    except (Failed, network.NetworkError) as failure:
        sys.exit(f"bench-net: {failure}")
