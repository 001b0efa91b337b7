"""A job on four hosts, network namespaces on one bridge, each with a folder for temporary files of its own:
`SessionState()` without an address, and what each link carried."""

import contextlib
import json
import os
import pathlib
import select
import subprocess
import sys
import time

import pytest
import torch

import job_member
from job_member import PARAMETERS, STEPS

ROOT = pathlib.Path(__file__).parents[3]
sys.path.append(str(ROOT / "tests" / "testing"))
import network  # noqa: E402

MEMBER = pathlib.Path(job_member.__file__)
EXAMPLE = MEMBER.parents[1] / "examples" / "ddp_one_line.py"
HOSTS = ["node0", "node1", "node2", "node3"]
MASTER_PORT = 29500
CLOSED_PORTS = "29700-29709"
MODEL_BYTES = 4 * PARAMETERS
START_SECONDS = 150  # torch's import, several times on few cores
STEP_SECONDS = 60
END_SECONDS = 25  # a drain included

pytestmark = pytest.mark.skipif(bool(network.missing()), reason=network.missing() or "-")


class Job:
    """Ranks on hosts, `ranks` for each host in the order of HOSTS. `program`: Python's arguments on a host."""

    def __init__(self, net, folder, ranks, program=lambda host: [MEMBER, "no"], variables=None):
        self._net = net
        self._temporary = folder / "tmp"  # the same path on all hosts, and another file system on each
        self._temporary.mkdir()
        self._logs = []
        self.members = []
        self._keepers = {}
        hosts = [host for host, count in zip(HOSTS, ranks) for _ in range(count)]
        for host in dict.fromkeys(hosts):
            keeper = net.start(
                host, "unshare", "--mount", "sh", "-c",
                f'mount -t tmpfs tmpfs "{self._temporary}" && echo there && exec cat',
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
            network.read_line(keeper, 10)
            self._keepers[host] = keeper
        for rank, host in enumerate(hosts):
            self._logs.append(folder / f"rank{rank}.log")
            with self._logs[rank].open("wb") as log:
                self.members.append(subprocess.Popen(
                    self._on(host, sys.executable, "-B", *program(host)),
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                    env={
                        **os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(self._temporary),
                        "RANK": str(rank), "WORLD_SIZE": str(len(hosts)), "MASTER_ADDR": net.address(HOSTS[0]),
                        "MASTER_PORT": str(MASTER_PORT), "GLOO_SOCKET_IFNAME": network.DEVICE,
                        **(variables or {}).get(host, {}),
                    },
                ))  # fmt: skip

    def _on(self, host, *command):
        target = self._keepers[host].pid
        return ["nsenter", "--target", str(target), "--net", "--mount", *map(str, command)]

    def answers(self, seconds):
        end = time.monotonic() + seconds
        found = []
        for rank, member in enumerate(self.members):
            ready, _, _ = select.select([member.stdout], [], [], max(0, end - time.monotonic()))
            line = member.stdout.readline() if ready else ""
            assert line, f"rank {rank} said nothing within {seconds} s: {self.said(rank)}"
            found.append(json.loads(line))
        return found

    def go_on(self):
        for member in self.members:
            member.stdin.write("\n")
            member.stdin.flush()

    def said(self, rank):
        return self._logs[rank].read_text(errors="replace")

    def expect_end(self):
        """All ranks end well, and so do the daemons; no file is left."""
        end = time.monotonic() + END_SECONDS
        for rank, member in enumerate(self.members):
            assert member.wait(max(0.1, end - time.monotonic())) == 0, self.said(rank)
        self.expect_nothing_left(end)

    def expect_nothing_left(self, end):
        for host, keeper in self._keepers.items():
            while (left := self._left(host, keeper)) and time.monotonic() < end:
                time.sleep(0.1)
            assert not left, f"on {host}: {left}"

    def _left(self, host, keeper):
        pids = set(network.run("ip", "netns", "pids", self._net.namespace(host)).split()) - {str(keeper.pid)}
        files = network.run(*self._on(host, "ls", "-A", self._temporary)).split()
        return [*pids, *(name for name in files if name.startswith("gradwire"))]  # torch leaves some too

    def close(self):
        for member in self.members:
            member.kill()
            member.wait()
            member.stdin.close()
            member.stdout.close()
        for keeper in self._keepers.values():
            keeper.kill()
            keeper.wait()
            keeper.stdin.close()
            keeper.stdout.close()


@pytest.fixture(scope="module")
def net():
    with network.Network(HOSTS) as made:
        yield made


@pytest.fixture
def start(net, tmp_path):
    with contextlib.ExitStack() as jobs:
        yield lambda *arguments, **options: jobs.enter_context(
            contextlib.closing(Job(net, tmp_path, *arguments, **options))
        )


def _train(net, job):
    """What the ranks said after their first steps, and each link's bytes in the others, both ways, in units of
    the model and a step."""
    began = job.answers(START_SECONDS)
    before = {host: net.counters(host) for host in HOSTS}
    job.go_on()
    ended = job.answers(STEP_SECONDS)
    carried = {host: net.counters(host) - before[host] for host in HOSTS}
    for answer in ended:
        assert answer["weights"] == ended[0]["weights"]
        assert answer["losses"][-1] < 0.8 * answer["losses"][0], answer["losses"]
    unit = STEPS * MODEL_BYTES
    return began, {host: (one.sent / unit, one.received / unit) for host, one in carried.items()}


def _expect_links(carried, expected, report, title):
    """Each within 10 % of what it should be, for headers and heartbeats."""
    for host, both in carried.items():
        line = f"{host}: sent {both[0]:.3f}, received {both[1]:.3f}; without headers {expected[host]:.3f}"
        report("bytes of each link in a step, in models: " + title, line)
    for host, both in carried.items():
        for found in both:
            assert expected[host] < found < 1.1 * expected[host], carried


def test_each_link_carries_a_rings_bytes(net, start, report):
    job = start([1, 1, 1, 1])
    began, carried = _train(net, job)
    addresses = began[0]["addresses"]
    assert [address.partition(":")[0] for address in addresses] == [net.address(host) for host in HOSTS]
    for answer in began:
        assert answer == {"addresses": addresses, "daemon": True, "shared_memory": True}
    ring = 2 * (len(HOSTS) - 1) / len(HOSTS)
    _expect_links(carried, dict.fromkeys(HOSTS, ring), report, "four hosts")
    job.go_on()
    job.expect_end()


def test_two_ranks_of_one_host_share_its_daemon(net, start, report):
    job = start([2, 1, 1, 1])
    began, carried = _train(net, job)
    assert [answer["daemon"] for answer in began] == [True, False, True, True, True]
    assert all(answer["shared_memory"] for answer in began)
    assert len(began[0]["addresses"]) == 4
    # What members send to the daemons elsewhere, and what a daemon sends to the members elsewhere.
    two, one = 2 * 3 / 4 + 3 / 4, 3 / 4 + 4 / 4
    _expect_links(carried, {"node0": two, "node1": one, "node2": one, "node3": one}, report, "two ranks on node0")
    job.go_on()
    job.expect_end()


@pytest.fixture
def closed_host(net):
    """node3 drops what comes from other hosts to the ports of CLOSED_PORTS."""
    rule = ["ip", "-n", net.namespace("node3"), "rule"]
    network.run(*rule, "add", "priority", "100", "lookup", "local")  # it would take packets first
    network.run(*rule, "delete", "priority", "0")
    network.run(*rule, "add", "priority", "10", "iif", network.DEVICE, "ipproto", "tcp", "dport", CLOSED_PORTS, "blackhole")
    yield "node3"
    network.run(*rule, "delete", "priority", "10")


def test_a_host_with_closed_ports_uses_the_daemons_of_the_others(net, start, report, closed_host):
    job = start([1, 1, 1, 1], variables=dict.fromkeys(HOSTS, {"GRADWIRE_PORT_RANGE": CLOSED_PORTS}))
    began, carried = _train(net, job)
    addresses = began[0]["addresses"]
    assert [address.partition(":")[0] for address in addresses] == [net.address(host) for host in HOSTS[:3]]
    assert {int(address.partition(":")[2]) for address in addresses} <= set(range(29700, 29710))
    assert [answer["daemon"] for answer in began] == [True, True, True, False]
    assert "cannot be reached by" in job.said(0) and "no answer within 5 s" in job.said(0), job.said(0)
    open_ones = 2 / 3 + 3 / 3
    expected = {**dict.fromkeys(HOSTS[:3], open_ones), closed_host: 1}
    _expect_links(carried, expected, report, "closed ports on node3")
    job.go_on()
    job.expect_end()


def test_after_a_crash_no_daemon_and_no_file_is_left(start):
    job = start([1, 1])
    job.answers(START_SECONDS)
    job.members[1].kill()
    job.members[1].wait()
    job.members[0].stdin.write("\n")
    job.members[0].stdin.flush()
    end = time.monotonic() + END_SECONDS
    assert job.members[0].wait(END_SECONDS) == 1
    assert "rank 1 was lost" in job.said(0) and "[GW301]" in job.said(0), job.said(0)
    job.expect_nothing_left(end)


TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])


@pytest.mark.skipif(TORCH < (2, 0), reason=f"torchrun of torch {torch.__version__} does not start")
@pytest.mark.parametrize("hosts, ranks, hook", [(2, 2, "power_sgd"), (4, 1, "no")])
def test_torchrun_on_several_hosts_needs_one_line(net, start, report, hosts, ranks, hook):
    master = f"{net.address(HOSTS[0])}:29400"
    before = {host: net.counters(host) for host in HOSTS}
    job = start([1] * hosts, program=lambda host: [
        "-m", "torch.distributed.run", "--nnodes", str(hosts), "--nproc-per-node", str(ranks), "--rdzv-backend", "c10d",
        "--rdzv-endpoint", master, "--rdzv-id", "digits", "--rdzv-conf", f"is_host={int(host == HOSTS[0])}",
        "--local-addr", net.address(host), EXAMPLE, "--hook", hook,
    ])  # fmt: skip
    said = [member.communicate(timeout=START_SECONDS)[0] for member in job.members]
    job.expect_end()
    assert sum("4 members, parameters identical on all" in text for text in said) == 1, (said, job.said(0))
    assert sum("accuracy 0.9" in text for text in said) == 1, said
    if hook == "no":
        sent = {host: (net.counters(host) - before[host]).sent for host in HOSTS}
        for host, count in sent.items():
            report("bytes sent in a whole job of torchrun", f"{host}: {count:,}")
        # Shards on all hosts, as in a ring: the host of a single daemon would send three times what the others do.
        assert max(sent.values()) < 1.25 * min(sent.values()), sent
