"""Hosts for tests and benchmarks: network namespaces on one bridge, each with a link of its own.

Needs root, iproute2, and a kernel with bridges, veth and tbf. A token bucket limits each link in both
directions: at the host's end what it sends, at the bridge's end what it receives. Packets are dropped at the
bridge's end, so that no host is told; that needs clsact and cls_bpf.
"""

import dataclasses
import json
import os
import pathlib
import re
import select
import shutil
import subprocess
import time

DEVICE = "eth0"  # of each host
COMMAND_SECONDS = 30
DAEMON_SECONDS = 20
# A packet waits at most that long in a limited link's queue; then packets are dropped.
QUEUE = "100ms"
# The first tokens of an idle link. A bucket of more would let a small step's whole traffic pass at once;
# one of less than a timer's precision would not let the link reach its rate.
BURST_SECONDS = 1e-3
LEAST_BURST = 10_000
UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
# A filter's instructions, as `tc` takes them: ld rand; jgt #{most}, pass; drop: ret TC_ACT_SHOT; pass: ret TC_ACT_UNSPEC.
DROP_SOME = "4,32 0 0 4294963256,37 1 0 {most},6 0 0 2,6 0 0 4294967295"
DROP_ALL = "1,6 0 0 2"


class NetworkError(Exception):
    pass


def bits_per_second(rate):
    """Of "100mbit", "1gbit", "1.5gbit"; None for "unlimited"."""
    if rate == "unlimited":
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit)", rate)
    if not found or float(found[1]) == 0:
        raise ValueError(f'the rate is "{rate}"; allowed are numbers with kbit, mbit or gbit, and "unlimited"')
    return float(found[1]) * UNITS[found[2]]


def burst_bytes(rate):
    return max(LEAST_BURST, int(bits_per_second(rate) / 8 * BURST_SECONDS))


@dataclasses.dataclass(frozen=True)
class Counters:
    """What a host has sent and received since its device exists, Ethernet headers included."""

    sent: int
    received: int
    packets_sent: int
    packets_received: int

    def __sub__(self, other):
        return Counters(*(a - b for a, b in zip(dataclasses.astuple(self), dataclasses.astuple(other))))


def parse_counters(text):
    """From `ip -j -s link show DEVICE`."""
    try:
        (link,) = json.loads(text)
        sent, received = (link["stats64"][side] for side in ("tx", "rx"))
        return Counters(sent["bytes"], received["bytes"], sent["packets"], received["packets"])
    except (ValueError, KeyError, TypeError) as error:
        raise NetworkError(f"ip shows no counters: {text[:200]!r}") from error


def missing():
    """What this machine lacks for namespaces, as a sentence; "" if nothing."""
    if os.geteuid() != 0:
        return "needs root, for network namespaces"
    for program in ("ip", "tc"):
        if shutil.which(program) is None:
            return f"needs {program}, of the Debian package iproute2"
    return ""


def run(*command, text=None):
    try:
        done = subprocess.run([str(part) for part in command], input=text, capture_output=True, text=True,
                              timeout=COMMAND_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise NetworkError(f"{' '.join(map(str, command))} took more than {COMMAND_SECONDS} s") from error
    if done.returncode != 0:
        raise NetworkError(f"{' '.join(map(str, command))}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def read_line(child, seconds, wanted=rb"(.*)\n"):
    """The first group of `wanted` in what a process prints, read from its pipe until it is there."""
    said, end = b"", time.monotonic() + seconds
    while True:
        found = re.search(wanted, said)
        if found:
            return found[1].decode()
        ready, _, _ = select.select([child.stdout], [], [], max(0, end - time.monotonic()))
        more = os.read(child.stdout.fileno(), 4096) if ready else b""
        if not more:
            name = " ".join(child.args[4:])
            raise NetworkError(f"{name} did not start within {seconds} s; it printed {said.decode(errors='replace')!r}")
        said += more


class Network:
    """The hosts named, with addresses of 192.0.2.0/24. A context manager: leaving it ends what runs there.

    `rate` is as for `set_rate`. `settings` are sysctls of each host, such as
    {"net.ipv4.tcp_congestion_control": "cubic"}.
    """

    def __init__(self, hosts, rate="unlimited", settings=None):
        if len(hosts) > 250:
            raise NetworkError(f"{len(hosts)} hosts; allowed are 1 to 250")
        self.hosts = list(hosts)
        self._rate = rate
        self._settings = settings or {}
        self._switch = f"gradwire-{os.getpid()}-switch"
        self._made = []
        self._children = []

    def __enter__(self):
        problem = missing()
        if problem:
            raise NetworkError(problem)
        try:
            self._make()
            self.set_rate(self._rate)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *unused):
        for child in self._children:
            if child.poll() is None:
                child.kill()
        for child in self._children:
            child.wait()
        self._children.clear()
        for name in self._made:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True, timeout=COMMAND_SECONDS)
        self._made.clear()

    def _make(self):
        for name in (self._switch, *map(self.namespace, self.hosts)):
            self._made.append(name)  # first, because a signal may come in between
            run("ip", "netns", "add", name)
        run("ip", "-n", self._switch, "-batch", "-", text="link add bridge0 type bridge\nlink set bridge0 up\n")
        for number, host in enumerate(self.hosts):
            here = self.namespace(host)
            run("ip", "link", "add", DEVICE, "netns", here, "type", "veth",
                "peer", "name", f"port{number}", "netns", self._switch)
            run("ip", "-n", here, "-batch", "-",
                text=f"address add {self.address(host)}/24 dev {DEVICE}\nlink set {DEVICE} up\nlink set lo up\n")
            run("ip", "-n", self._switch, "-batch", "-",
                text=f"link set port{number} master bridge0\nlink set port{number} up\n")
            for name, value in self._settings.items():
                run(*self.inside(host, "sysctl", "-q", "-w", f"{name}={value}"))

    def namespace(self, host):
        return f"gradwire-{os.getpid()}-{host}"

    def address(self, host):
        return f"192.0.2.{self.hosts.index(host) + 1}"  # of those for documentation: nobody has them

    def set_rate(self, rate, hosts=None, burst=None, queue=QUEUE):
        """Limits the links of all hosts, or of these, in both directions; "unlimited" ends that."""
        limited = bits_per_second(rate) is not None
        for host in hosts or self.hosts:
            port = f"port{self.hosts.index(host)}"
            for name, device in ((self.namespace(host), DEVICE), (self._switch, port)):
                if limited:
                    run("tc", "-n", name, "qdisc", "replace", "dev", device, "root",
                        "tbf", "rate", rate, "burst", str(burst or burst_bytes(rate)), "latency", queue)
                elif "tbf" in run("tc", "-n", name, "qdisc", "show", "dev", device):
                    run("tc", "-n", name, "qdisc", "del", "dev", device, "root")

    def drop(self, host, fraction, ways=("sent", "received")):
        """Loses so much of what a host sends and receives; 0 ends that."""
        device = f"port{self.hosts.index(host)}"
        if "clsact" not in run("tc", "-n", self._switch, "qdisc", "show", "dev", device):
            run("tc", "-n", self._switch, "qdisc", "add", "dev", device, "clsact")
        code = DROP_ALL if fraction == 1 else DROP_SOME.format(most=int(fraction * (2**32 - 1)))
        for hook in ({"sent": "ingress", "received": "egress"}[way] for way in ways):
            filter_ = ["tc", "-n", self._switch, "filter"]
            run(*filter_, "delete", "dev", device, hook)
            if fraction > 0:
                run(*filter_, "add", "dev", device, hook, "bpf", "direct-action", "bytecode", code)

    def reset(self, host, peer):
        """Ends all TCP connections between two hosts with a reset; how many there were."""
        return run(*self.inside(host, "ss", "-H", "-K", "-t", "dst", self.address(peer))).count("\n")

    def counters(self, host):
        return parse_counters(run("ip", "-n", self.namespace(host), "-j", "-s", "link", "show", DEVICE))

    def inside(self, host, *command):
        return ["ip", "netns", "exec", self.namespace(host), *map(str, command)]

    def start(self, host, *command, **popen):
        """A process on a host. It is killed with the network; Ctrl-C does not reach it."""
        child = subprocess.Popen(self.inside(host, *command), start_new_session=True, **popen)
        self._children.append(child)
        return child

    def run(self, host, *command, seconds=300):
        done = subprocess.run(self.inside(host, *command), capture_output=True, text=True, timeout=seconds)
        if done.returncode != 0:
            raise NetworkError(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
        return done.stdout

    def start_daemon(self, host, binary, *flags, log=subprocess.DEVNULL):
        """A gradwired that drains at the end of its standard input, and its address."""
        child = self.start(
            host, pathlib.Path(binary).resolve(), "--listen", f"{self.address(host)}:0", "--insecure",
            "--http-listen", "off", "--stop-on-eof", *flags,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        return child, read_line(child, DAEMON_SECONDS, rb"grpc +(\S+)\n")

    @staticmethod
    def stop(child):
        """A daemon that `start_daemon` started."""
        child.stdin.close()
        child.stdout.close()
        try:
            child.wait(DAEMON_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
