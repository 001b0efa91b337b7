#!/usr/bin/env python3
"""Sessions whose links are cut, reset, slow or lose packets, one session for each fault, side by side.

Each session has three hosts, network namespaces on one bridge: one for its daemon, one for ranks 0 and 2, and one for
rank 1, whose link has the fault. Members that do not train a model check each mean against their own computation.
The limits are the daemon's own: 15 s of silence, 1 s for a broken connection to resume.

Needs root and iproute2; prints SKIPPED: and why where these, or a part of the kernel, are missing.
"""

import argparse
import contextlib
import subprocess
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from processes import Member

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "testing"))
import network  # noqa: E402

PARTS = ("daemon", "others", "member")
FAIL = ("--on-coordinator-loss", "fail")
RESUME = ("--on-coordinator-loss", "resume")
ENDLESS = 1_000_000  # steps
LIMIT = 90.0  # seconds for whatever is waited for


class Session:
    """The processes of a case."""

    def __init__(self, net: network.Network, binaries: Path, folder: Path, name: str) -> None:
        self.net, self.binaries, self.folder = net, binaries, folder
        self.daemon_host, self.others_host, self.member_host = hosts_of(name)
        self.members: list[Member] = []
        self.processes: list[subprocess.Popen] = []
        self.address = ""

    def start(self, *daemon_options: str, steps: int = ENDLESS, elements: int = 20_000, trains: bool = False,
              relay: tuple[int, int] | None = None) -> None:
        with open(self.folder / "daemon.log", "wb") as log:
            daemon, self.address = self.net.start_daemon(
                self.daemon_host, self.binaries / "gradwired", *daemon_options, log=log)
        self.processes.append(daemon)
        address = self._relay(*relay) if relay else self.address
        for rank, host in enumerate((self.others_host, self.member_host, self.others_host)):
            self.members.append(Member(self.net.inside(
                host, self.binaries / "gradwire_test_member", "--address", address, "--session", "s", "--rank", rank,
                "--world-size", 3, "--elements", elements, "--steps", steps, "--late-ms", 20, "--trains", int(trains),
            ), self.folder))

    def _relay(self, delay_ms: int, jitter_ms: int) -> str:
        """The address of a relay before the daemon."""
        host = self.net.address(self.daemon_host)
        relay = self.net.start(
            self.daemon_host, sys.executable, "-B", HERE.parent / "bench/net/relay.py", f"{host}:0", self.address,
            delay_ms, jitter_ms, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.processes.append(relay)
        return f"{host}:{network.read_line(relay, 20)}"

    def steps(self, rank: int) -> int:
        return len(self.members[rank].life.steps)

    def wait_for_steps(self, rank: int, steps: int) -> None:
        wait_for(lambda: self.steps(rank) >= steps, f"rank {rank} to have done {steps} steps")

    def daemon_log(self) -> str:
        return (self.folder / "daemon.log").read_text("utf-8", errors="replace")

    def ctl(self, *words: str) -> str:
        return self.net.run(self.others_host, self.binaries / "gradwirectl", "--address", self.address, *words)

    def resent_segments(self) -> int:
        """Of rank 1's host."""
        names, values = (line.split() for line in self.net.run(self.member_host, "cat", "/proc/net/snmp").splitlines()
                         if line.startswith("Tcp: "))
        return int(values[names.index("RetransSegs")])

    def expect_error(self, rank: int, *texts: str) -> None:
        """It ends with exit code 1 and an error with these texts."""
        life = self.members[rank].life
        check(life.wait(LIMIT), f"rank {rank} has not ended after {LIMIT:g} s")
        check(life.process.returncode == 1, f"rank {rank} ends with {life.process.returncode}, not with 1")
        for text in texts:
            check(any(line.startswith("error: ") and text in line for line in life.words),
                  f"rank {rank}: no {text!r} in its error: {life.words}")

    def expect_done(self, steps: int, most_skipped: int = 0) -> None:
        """All do all steps, which end alike for all."""
        for rank, member in enumerate(self.members):
            check(member.life.wait(LIMIT), f"rank {rank} has not ended after {LIMIT:g} s")
            check(member.process.returncode == 0, f"rank {rank} ends with {member.process.returncode}: {member.life.words}")
            check(member.life.words[-1] == "done", f"rank {rank} is not done: {member.life.words}")
        ends = [[(step, *outcome) for _, step, outcome in member.life.steps] for member in self.members]
        check(ends[1] == ends[0] and ends[2] == ends[0], f"steps end differently: {ends}")
        check([end[0] for end in ends[0]] == list(range(steps)), f"not each of {steps} steps: {ends[0]}")
        skipped = sum(end[1] == "skip" for end in ends[0])
        check(skipped <= most_skipped, f"{skipped} steps were skipped; allowed: {most_skipped}")

    def close(self) -> None:
        for member in self.members:
            member.end()
        for process in self.processes:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                pipe.close()

    def show(self) -> None:
        for rank, member in enumerate(self.members):
            print(f"---- rank {rank}: step {self.steps(rank)}, {member.life.words}")
        for log in sorted(self.folder.iterdir()):
            print(f"---- {log.name}\n{log.read_text('utf-8', errors='replace')[-4000:]}")


def check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise)


def wait_for(condition, what: str) -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():
        check(time.monotonic() < deadline, f"waited {LIMIT:g} s for {what}")
        time.sleep(0.02)


def expect_loss_of_rank_1(session: Session) -> None:
    """All end; the others name it."""
    for rank in (0, 2):
        session.expect_error(rank, "ABORTED", "rank 1 was lost", "nothing was heard from it for 15s", "[GW302]")
    session.expect_error(1, "UNAVAILABLE", f"lost the daemon at {session.address}", "[GW308]")


def cut_off(session: Session) -> None:
    """A member that is cut off is lost, for the others and for itself."""
    session.start(*FAIL)
    session.wait_for_steps(1, 5)
    session.net.drop(session.member_host, 1)
    expect_loss_of_rank_1(session)


def cut_off_under_wait(session: Session) -> None:
    """With `wait` its place is held, and it goes on when its link is there again."""
    session.start(*RESUME, "--on-member-loss", "wait", steps=40, trains=True)
    session.wait_for_steps(1, 5)
    session.net.drop(session.member_host, 1)
    wait_for(lambda: "[GW302]" in session.daemon_log(), "the daemon to lose rank 1")
    session.net.drop(session.member_host, 0)
    session.expect_done(40, most_skipped=2)


def cut_towards_the_member(session: Session) -> None:
    """Without acknowledgements TCP sends nothing new, so that both sides hear nothing."""
    session.start(*FAIL)
    session.wait_for_steps(1, 5)
    session.net.drop(session.member_host, 1, ways=["received"])
    expect_loss_of_rank_1(session)


def cut_towards_the_daemon(session: Session) -> None:
    session.start(*FAIL)
    session.wait_for_steps(1, 5)
    session.net.drop(session.member_host, 1, ways=["sent"])
    expect_loss_of_rank_1(session)


def resets(session: Session) -> None:
    """Connections are reset again and again, and no step is lost."""
    session.start(*RESUME, steps=100, elements=100_000)
    for number in range(8):
        session.wait_for_steps(1, 5 + 10 * number)
        wait_for(lambda: session.net.reset(session.member_host, session.daemon_host) > 0, "a connection to reset")
    session.expect_done(100)


def loss(session: Session) -> None:
    """1 % of the packets are lost, then 10 %."""
    session.start(*RESUME, steps=40)
    session.wait_for_steps(1, 5)
    session.net.drop(session.member_host, 0.01)
    session.wait_for_steps(1, 20)
    session.net.drop(session.member_host, 0.1)
    session.expect_done(40)
    check(session.resent_segments() > 0, "TCP has sent nothing again")


def slow_link(session: Session) -> None:
    """The others wait for a member with 1 Mbit/s, and the daemon says why."""
    name_slow_link(session, "1mbit", 20_000, "its link is slow")


def very_slow_link(session: Session) -> None:
    """A bucket this small travels with its announcement, so that the daemon sees no more than who is late."""
    name_slow_link(session, "64kbit", 5000, "")


def name_slow_link(session: Session, rate: str, elements: int, cause: str) -> None:
    session.start(*RESUME, steps=60, elements=elements)
    session.wait_for_steps(1, 3)
    session.net.set_rate(rate, [session.member_host])
    wait_for(lambda: "rank 1 caused" in (text := session.ctl("why")) and cause in text, "rank 1 to be named")
    session.net.set_rate("unlimited", [session.member_host])
    session.expect_done(60)


def long_round_trips(session: Session) -> None:
    """Round trips of 300 ms and up to 100 ms more."""
    session.start(*RESUME, steps=10, relay=(150, 50))
    session.expect_done(10)
    check("lost" not in session.daemon_log(), "somebody was lost")


CASES = {
    case.__name__: case
    for case in (cut_off, cut_off_under_wait, cut_towards_the_member, cut_towards_the_daemon, resets, loss, slow_link,
                 very_slow_link, long_round_trips)
}


def hosts_of(name: str) -> list[str]:
    return [f"{name}-{part}" for part in PARTS]


def run(net: network.Network, binaries: Path, folder: Path, name: str) -> str:
    """What went wrong."""
    began = time.monotonic()
    folder.mkdir()
    session = Session(net, binaries, folder, name)
    try:
        CASES[name](session)
        return ""
    except (AssertionError, OSError, subprocess.SubprocessError, network.NetworkError) as error:
        session.show()
        return f"{error}\n{traceback.format_exc(limit=3)}"
    finally:
        session.close()
        print(f"{name}: {time.monotonic() - began:.1f} s", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=Path, help="folder of gradwired, gradwirectl and gradwire_test_member")
    parser.add_argument("--only", choices=CASES, action="append", help="a case; may be repeated")
    args = parser.parse_args()
    names = args.only or list(CASES)
    reason = network.missing()
    if reason:
        print(f"SKIPPED: {reason}")
        return 0
    with contextlib.ExitStack() as stack:
        try:
            net = stack.enter_context(network.Network([host for name in names for host in hosts_of(name)]))
            net.drop(net.hosts[0], 0.5)
            net.drop(net.hosts[0], 0)
            net.reset(net.hosts[0], net.hosts[1])
        except network.NetworkError as error:
            print(f"SKIPPED: this machine has no network namespaces, or drops no packets: {error}")
            return 0
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        pool = stack.enter_context(ThreadPoolExecutor(len(names)))
        wrong = list(pool.map(lambda name: run(net, args.bin.resolve(), folder / name, name), names))
    for name, text in zip(names, wrong, strict=True):
        if text:
            print(f"links: {name}: {text}")
    print(f"{len(names)} faults of links, {sum(map(bool, wrong))} with another outcome than expected")
    return 1 if any(wrong) else 0


if __name__ == "__main__":
    sys.exit(main())
