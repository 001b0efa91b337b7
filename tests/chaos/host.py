#!/usr/bin/env python3
"""Sessions whose host runs out of something, or whose clocks and names change, one session for each fault.

* killed_for_memory, memory_is_short: the daemon is in a control group with little memory;
* no_threads: its control group allows no further threads;
* clocks_differ, wall_clock_jumps, clocks_jump: libfaketime gives each process a clock of its own;
* name_moves: the daemon's name gets another address, in a mount namespace with an /etc/hosts of its own.

Members train a model, and must all have the same after every step. Needs root; a case whose part of the system is
missing is left out, and the line SKIPPED: says why if none is left.
"""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

from processes import Daemon, Member, NotStarted, free_port

FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")
MEMBERS = 3
STEPS = 60
LIMIT = 90.0  # seconds for whatever is waited for
MIB = 1 << 20
# Takes memory until there is none, and holds it.
HOG = "held = []\nwhile True: held.append(bytearray(b'x' * (1 << 20)))"


class Missing(Exception):
    """This machine cannot show the case."""


def check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise)


def wait_for(condition, what: str) -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():
        check(time.monotonic() < deadline, f"waited {LIMIT:g} s for {what}")
        time.sleep(0.02)


class Group:
    """A control group of one controller, of either version."""

    def __init__(self, controller: str, name: str) -> None:
        unified = Path("/sys/fs/cgroup/cgroup.controllers")
        self.v2 = unified.exists()
        root = unified.parent if self.v2 else unified.parent / controller
        self.path = root / f"gradwire-host-{os.getpid()}-{name}"
        try:
            self.path.mkdir()
        except OSError as error:
            raise Missing(f"no control group for {controller}: {error}") from error
        self.controller = controller

    def _file(self, v1: str, v2: str) -> Path:
        path = self.path / (v2 if self.v2 else v1)
        if not path.exists():
            self.remove()
            raise Missing(f"control groups have no {path.name} here")
        return path

    def limit_memory(self, size: int) -> None:
        self._file("memory.limit_in_bytes", "memory.max").write_text(str(size))

    def memory(self) -> int:
        return int(self._file("memory.usage_in_bytes", "memory.current").read_text())

    def kills(self) -> int:
        """For want of memory."""
        text = self._file("memory.oom_control", "memory.events").read_text()
        counts = dict(line.split() for line in text.splitlines())
        return int(counts.get("oom_kill", 0))

    def limit_tasks(self, count: int) -> None:
        self._file("pids.max", "pids.max").write_text(str(count))

    def tasks(self) -> int:
        return int(self._file("pids.current", "pids.current").read_text())

    def refusals(self) -> int:
        """Of tasks."""
        return int(self._file("pids.events", "pids.events").read_text().split()[1])

    def wrap(self, command: list[str]) -> list[str]:
        """The command, which begins in the group."""
        return ["/bin/sh", "-c", f"echo $$ > {self.path}/cgroup.procs && exec \"$@\"", "sh", *command]

    def remove(self) -> None:
        wait_for(lambda: not (self.path / "cgroup.procs").read_text(), f"{self.path} to be empty")
        self.path.rmdir()


class Clock:
    """What libfaketime adds to a process' clocks; a file says how much."""

    def __init__(self, folder: Path, name: str, monotonic: bool = False) -> None:
        if not FAKETIME.exists():
            raise Missing("libfaketime is not installed")
        self.file = folder / f"clock-{name}"
        self.environment = ["/usr/bin/env", f"LD_PRELOAD={FAKETIME}", f"FAKETIME_TIMESTAMP_FILE={self.file}",
                            "FAKETIME_NO_CACHE=1", f"FAKETIME_DONT_FAKE_MONOTONIC={int(not monotonic)}"]
        self.set("+0")

    def set(self, offset: str) -> None:
        new = self.file.with_suffix(".new")
        new.write_text(offset + "\n")
        new.replace(self.file)

    def wrap(self, command: list[str]) -> list[str]:
        return [*self.environment, *command]


class Session:
    """The processes of a case."""

    def __init__(self, binaries: Path, folder: Path, number: int) -> None:
        self.binaries, self.folder = binaries, folder
        self.host = f"127.78.{number}.1"
        self.members: list[Member] = []
        self.daemon: Daemon | None = None
        self.stack = contextlib.ExitStack()

    def start_daemon(self, *options: str, wrap=lambda command: command) -> None:
        daemon = Daemon(self.binaries / "gradwired", f"{self.host}:{free_port(self.host)}", self.folder, list(options))
        daemon.command = wrap(daemon.command)
        self.daemon = daemon
        daemon.start()

    def start_members(self, steps: int = STEPS, wraps=(), address: str = "") -> None:
        for rank in range(MEMBERS):
            command = [str(self.binaries / "gradwire_test_member"), "--address", address or self.daemon.address,
                       "--session", "s", "--rank", str(rank), "--world-size", str(MEMBERS), "--elements", "20000",
                       "--steps", str(steps), "--late-ms", "20", "--trains", "1"]
            member = Member(wraps[rank](command) if wraps else command, self.folder)
            self.members.append(member)

    def wait_for_steps(self, steps: int) -> None:
        wait_for(lambda: len(self.members[0].life.steps) >= steps, f"rank 0 to have done {steps} steps")

    def expect_done(self, steps: int = STEPS, most_skipped: int = 0) -> None:
        for rank, member in enumerate(self.members):
            check(member.life.wait(LIMIT), f"rank {rank} has not ended after {LIMIT:g} s")
            check(member.process.returncode == 0 and member.life.words[-1:] == ["done"],
                  f"rank {rank} ends with {member.process.returncode}: {member.life.words}")
        ends = [[(step, *outcome) for _, step, outcome in member.life.steps] for member in self.members]
        check(all(end == ends[0] for end in ends), f"steps end differently: {ends}")
        check([end[0] for end in ends[0]] == list(range(steps)), f"not each of {steps} steps: {ends[0]}")
        skipped = sum(end[1] == "skip" for end in ends[0])
        check(skipped <= most_skipped, f"{skipped} steps were skipped; allowed: {most_skipped}")

    def ctl(self, *words: str) -> str:
        return subprocess.run([self.binaries / "gradwirectl", "--address", self.daemon.address, *words],
                              capture_output=True, text=True, timeout=LIMIT, check=True).stdout

    def expect_nobody_lost(self) -> None:
        check(self.daemon.count_in_logs("lost") == 0, "somebody was lost")

    def close(self) -> None:
        for member in self.members:
            if member.process.poll() is None:
                member.end()
        if self.daemon is not None and self.daemon.process.poll() is None:
            self.daemon.end(signal.SIGKILL)
        self.stack.close()

    def show(self) -> None:
        for rank, member in enumerate(self.members):
            print(f"---- rank {rank}: step {len(member.life.steps)}, {member.life.words}")
        for log in sorted(self.folder.glob("*.log")):
            print(f"---- {log.name}\n{log.read_text('utf-8', errors='replace')[-4000:]}")


def group_of(session: Session, controller: str) -> Group:
    group = Group(controller, session.folder.name)
    session.stack.callback(group.remove)
    return group


def killed_for_memory(session: Session) -> None:
    """The kernel kills the daemon for another process' hunger; members go on with the next one."""
    group = group_of(session, "memory")
    session.start_daemon(wrap=group.wrap)
    first = session.daemon.process
    Path(f"/proc/{first.pid}/oom_score_adj").write_text("1000")
    session.start_members()
    session.wait_for_steps(5)
    group.limit_memory(group.memory() + 64 * MIB)
    hog = subprocess.Popen(group.wrap([sys.executable, "-c", HOG]))
    try:
        wait_for(lambda: first.poll() is not None, "the daemon to be killed")
    finally:
        hog.kill()
        hog.wait()
    check(first.returncode == -signal.SIGKILL, f"the daemon ended with {first.returncode}")
    check(group.kills() > 0, "the kernel has killed nobody for memory")
    first.stdout.close()
    group.limit_memory(1024 * MIB)
    session.daemon.start()
    session.expect_done(most_skipped=1)


def memory_is_short(session: Session) -> None:
    """The daemon goes by its group's limit: it refuses what does not fit, and is not killed."""
    group = group_of(session, "memory")
    group.limit_memory(192 * MIB)
    session.start_daemon(wrap=group.wrap)
    session.start_members()
    large = subprocess.run(
        [session.binaries / "gradwire_test_member", "--address", session.daemon.address, "--session", "large", "--rank",
         "0", "--world-size", "64", "--elements", "30000000", "--steps", "1"], capture_output=True, text=True, timeout=LIMIT,
        check=False)
    check(large.returncode == 1 and "[GW207]" in large.stdout, f"a session that does not fit: {large}")
    session.expect_done()
    check(session.daemon.process.poll() is None and group.kills() == 0, "the kernel has killed the daemon")


def no_threads(session: Session) -> None:
    """A daemon that may start no further thread serves with those that it has."""
    group = group_of(session, "pids")
    session.start_daemon(wrap=group.wrap)
    group.limit_tasks(group.tasks())
    session.start_members()
    session.expect_done()
    session.expect_nobody_lost()
    check(group.refusals() > 0, "the daemon has asked for no thread")


def clocks_differ(session: Session) -> None:
    """Each process has another time, by hours and years."""
    clocks = [Clock(session.folder, f"rank{rank}") for rank in range(MEMBERS)]
    for clock, offset in zip(clocks, ("-3650d", "+1h", "+3650d"), strict=True):
        clock.set(offset)
    session.start_daemon()
    session.start_members(wraps=[clock.wrap for clock in clocks])
    session.expect_done()
    session.expect_nobody_lost()


def wall_clock_jumps(session: Session) -> None:
    """By an hour, and by ten years, in both directions, while the session trains."""
    clocks = [Clock(session.folder, name) for name in ("daemon", "member")]
    session.start_daemon(wrap=clocks[0].wrap)
    session.start_members(wraps=[clocks[1].wrap, lambda command: command, lambda command: command])
    for number, offset in enumerate(("+1h", "-1h", "+3650d", "-3650d")):
        session.wait_for_steps(5 + 10 * number)
        for clock in clocks:
            clock.set(offset)
    session.expect_done()
    session.expect_nobody_lost()
    then = time.gmtime(time.time() - 3650 * 86400).tm_year
    check(session.daemon.count_in_logs(f"{then}-") > 0, "the daemon's clock has not jumped")


def clocks_jump(session: Session) -> None:
    """All clocks of the daemon, the monotonic one too, jump by an hour, as if it had slept."""
    clock = Clock(session.folder, "daemon", monotonic=True)
    session.start_daemon(wrap=clock.wrap)
    session.start_members()
    session.wait_for_steps(5)
    clock.set("+1h")
    wait_for(lambda: "up 36" in session.ctl("status"), "the daemon's clock to jump")
    session.expect_done()
    session.expect_nobody_lost()


def name_moves(session: Session) -> None:
    """The daemon is lost, and the next one is at another address of the same name."""
    hosts = session.folder / "hosts"

    def point(address: str) -> None:
        # In place: what is mounted is this file.
        hosts.write_text(f"127.0.0.1 localhost\n{address} daemon.test\n")

    def wrap(command: list[str]) -> list[str]:
        return ["/usr/bin/unshare", "--mount", "/bin/sh", "-c", f"mount --bind {hosts} /etc/hosts && exec \"$@\"", "sh",
                *command]

    point(session.host)
    tried = subprocess.run(wrap(["/bin/true"]), capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        raise Missing(f"no mount namespace: {tried.stderr.strip()}")
    session.start_daemon()
    port = session.daemon.address.rpartition(":")[2]
    session.start_members(wraps=[wrap] * MEMBERS, address=f"daemon.test:{port}")
    session.wait_for_steps(5)
    session.daemon.end(signal.SIGKILL)
    other = session.host[:-1] + "2"
    session.daemon.command = [f"{other}:{port}" if word == session.daemon.address else word
                              for word in session.daemon.command]
    point(other)
    session.daemon.start()
    session.expect_done(most_skipped=1)


CASES = {
    case.__name__: case
    for case in (killed_for_memory, memory_is_short, no_threads, clocks_differ, wall_clock_jumps, clocks_jump, name_moves)
}


def run(binaries: Path, folder: Path, name: str) -> tuple[str, str]:
    """What went wrong, and what is missing."""
    began = time.monotonic()
    folder.mkdir()
    session = Session(binaries, folder, 1 + list(CASES).index(name))
    try:
        CASES[name](session)
        return "", ""
    except Missing as missing:
        return "", str(missing)
    except (AssertionError, OSError, subprocess.SubprocessError, NotStarted) as error:
        session.show()
        return f"{error}\n{traceback.format_exc(limit=3)}", ""
    finally:
        session.close()
        print(f"{name}: {time.monotonic() - began:.1f} s", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=Path, help="folder of gradwired, gradwirectl and gradwire_test_member")
    parser.add_argument("--only", choices=CASES, action="append", help="a case; may be repeated")
    args = parser.parse_args()
    names = args.only or list(CASES)
    if os.geteuid() != 0:
        print("SKIPPED: needs root, for control groups and namespaces")
        return 0
    wrong, missing = 0, []
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            error, lacks = run(args.bin.resolve(), Path(folder) / name, name)
            if error:
                print(f"host: {name}: {error}")
                wrong += 1
            if lacks:
                print(f"{name} is left out: {lacks}")
                missing.append(lacks)
    if len(missing) == len(names):
        print(f"SKIPPED: {missing[0]}")
    print(f"{len(names) - len(missing)} faults of a host, {wrong} with another outcome than expected")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
