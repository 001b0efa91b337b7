"""Daemons that are killed under a training session of real processes, on a seeded schedule.

Prints one line for each fault, and a table in the end. Exits with 1 if
* a member ends with an error, or has another mean than the one that it computes itself;
* a step is applied by some members and skipped by others;
* more steps are skipped than daemons were lost;
* after a daemon's return no step is concluded within --return-limit seconds.
"""

import argparse
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path


class Daemon:
    """gradwired at one address, one life after another."""

    def __init__(self, binary: Path, address: str, folder: Path) -> None:
        self.command = [str(binary), "--listen", address, "--http-listen", "off",
                        "--on-coordinator-loss", "resume"]
        self.folder = folder
        self.lives = 0
        self.process: subprocess.Popen | None = None

    def start(self) -> float:
        """Returns when it serves."""
        self.lives += 1
        log = open(self.folder / f"daemon{self.lives}.log", "wb")  # noqa: SIM115
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=log, text=True)
        log.close()
        too_late = threading.Timer(30, self.process.kill)
        too_late.start()
        for line in self.process.stdout:
            if line.startswith("  grpc  "):
                too_late.cancel()
                return time.monotonic()
        raise SystemExit(f"chaos: gradwired did not start: see {log.name}")

    def end(self, signal_number: int) -> None:
        self.process.send_signal(signal_number)
        self.process.wait(timeout=60)
        self.process.stdout.close()


class Member:
    """A test member: all-reduces one parameter in each step, and checks the mean."""

    def __init__(self, binary: Path, arguments: list[str]) -> None:
        self.steps: list[tuple[float, int, str]] = []  # when, number, verdict
        self.words: list[str] = []
        self.process = subprocess.Popen([str(binary), *arguments], stdout=subprocess.PIPE, text=True)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            words = line.split()
            if words[:1] == ["step"]:
                self.steps.append((time.monotonic(), int(words[1]), words[2]))
            else:
                self.words.append(line.strip())

    def concluded_after(self, when: float, deadline: float) -> float | None:
        """The time of its first step after `when`."""
        while time.monotonic() < deadline:
            if self.steps[-1][0] > when:
                return next(at for at, _, _ in self.steps if at > when)
            time.sleep(0.01)
        return None


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def rate(members: list[Member], begin: float, end: float) -> float:
    """Steps in a second, of all members together."""
    return sum(sum(begin <= at < end for at, _, _ in m.steps) for m in members) / (end - begin)


def check(members: list[Member], lost: int) -> list[str]:
    wrong = []
    for rank, member in enumerate(members):
        if member.words != ["joined"]:
            wrong.append(f"rank {rank}: {member.words[-1]}")
    verdicts: dict[int, set[str]] = {}
    for member in members:
        for _, number, verdict in member.steps:
            verdicts.setdefault(number, set()).add(verdict)
    wrong += [f"step {number} has the verdicts {sorted(both)}"
              for number, both in verdicts.items() if len(both) > 1]
    skipped = sum(both == {"skip"} for both in verdicts.values())
    if skipped > lost:
        wrong.append(f"{skipped} steps are skipped; {lost} daemons were lost")
    print(f"{len(verdicts)} steps, {skipped} skipped")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=Path, help="folder of gradwired and gradwire_test_member")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--every", type=float, default=60, help="seconds from one fault to the next, on average")
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--elements", type=int, default=100_000)
    parser.add_argument("--late-ms", type=int, default=20, help="what a step computes")
    parser.add_argument("--away", type=float, default=0.5, help="seconds until the next daemon begins, at most")
    parser.add_argument("--unix", action="store_true", help="shared memory instead of TCP")
    parser.add_argument("--return-limit", type=float, default=2)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    args = parser.parse_args()
    rng = random.Random(args.seed)
    print(f"seed {args.seed}: {args.members} members, {args.minutes:g} minutes, a fault every {args.every:g} s")

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        address = f"unix:{folder}/daemon.sock" if args.unix else f"127.0.0.1:{free_port()}"
        daemon = Daemon(args.bin / "gradwired", address, folder)
        daemon.start()
        members = [Member(args.bin / "gradwire_test_member",
                          ["--address", address, "--session", "chaos", "--rank", str(rank), "--world-size",
                           str(args.members), "--elements", str(args.elements), "--steps", str(10**9),
                           "--late-ms", str(args.late_ms)]) for rank in range(args.members)]
        quiet = min(15.0, args.every)
        deadline = time.monotonic() + 60
        while not all(member.steps for member in members):
            if time.monotonic() > deadline:
                raise SystemExit(f"chaos: no first step within 60 s: {[member.words for member in members]}")
            time.sleep(0.05)
        begin = time.monotonic()
        time.sleep(quiet)
        undisturbed = rate(members, begin, begin + quiet)

        begin = time.monotonic()
        end = begin + 60 * args.minutes
        waits, wrong = [], []
        while not wrong:
            time.sleep(max(0.0, min(rng.uniform(0.5, 1.5) * args.every, end - time.monotonic())))
            if time.monotonic() >= end:
                break
            kills = rng.random() < 0.8
            daemon.end(signal.SIGKILL if kills else signal.SIGTERM)
            time.sleep(rng.uniform(0, args.away))
            back = daemon.start()
            times = [member.concluded_after(back, back + 30) for member in members]
            if None in times:
                wrong.append(f"rank {times.index(None)} concludes no step within 30 s of the daemon's return")
                break
            waits.append(max(times) - back)
            print(f"{time.monotonic() - begin:7.1f} s: {'kill -9' if kills else 'SIGTERM'}; "
                  f"the next step ends {waits[-1]:.2f} s after the daemon's return", flush=True)
        disturbed = rate(members, begin, time.monotonic())
        wrong += check(members, daemon.lives - 1)
        for member in members:
            member.process.kill()
        daemon.end(signal.SIGKILL)

    if waits:
        print(f"{len(waits)} faults; the next step ended {statistics.median(waits):.2f} s [{min(waits):.2f} - "
              f"{max(waits):.2f}] after the daemon's return; {disturbed / undisturbed:.1%} of the steps of "
              f"{quiet:g} undisturbed seconds")
        if max(waits) > args.return_limit:
            wrong.append(f"a step took {max(waits):.2f} s after the daemon's return; allowed: {args.return_limit:g} s")
    for line in wrong:
        print(f"chaos: {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
