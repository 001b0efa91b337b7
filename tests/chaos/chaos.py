"""Daemons and members that are killed under a training session of real processes, on a seeded schedule.

Without --wait and --shrink the daemon is lost, four times out of five by SIGKILL. With one of them half of the
faults kill a member (SIGKILL), a third the daemon, and the others stop a member for up to 3 s. With --wait a
killed member's successor comes at once, and gets the model from the others; with --shrink the others go on
meanwhile, and it comes after --absent seconds.

With --leave every other one of these members is told to leave (SIGTERM), and hands its residuals over.
With --shards the session has several daemons, one of which is lost at a time.
With --nodes members are behind leaf daemons, which are lost too; with one of its processes all of a node are, and
start again.

Prints one line for each fault, and a summary in the end. Exits with 1 if
* a member ends with an error, or has another mean than the one that it computes itself; with --wait:
  another model than the other members after any step;
* a step is applied by some members and skipped by others;
* more steps are skipped than daemons were lost, and two for each member; with --keep: than two for each member;
* the session's ledger does not close;
* no step is concluded within --return-limit seconds of the return of what was lost, or of what was stopped.
"""

import argparse
import json
import math
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from processes import Daemon, Member, free_port


def rate(members: list[Member], begin: float, end: float) -> float:
    """Applied steps in a second, of all members together."""
    applied = [[at for at, _, (verdict, *_) in member.steps() if verdict == "apply"] for member in members]
    return sum(sum(begin <= at < end for at in times) for times in applied) / (end - begin)


def check(members: list[Member], may_be_skipped: int) -> list[str]:
    wrong = [f"rank {rank}: {member.life.words[-1] if member.life.words else 'did not join'}"
             for rank, member in enumerate(members) if member.life.words != ["joined"]]
    outcomes: dict[int, set[tuple[str, ...]]] = {}
    for member in members:
        for _, number, outcome in member.steps():
            outcomes.setdefault(number, set()).add(outcome)
    wrong += [f"step {number} ends differently: {sorted(both)}"
              for number, both in outcomes.items() if len(both) > 1]
    skipped = sum(one[0] == "skip" for (one, *_) in outcomes.values())
    if skipped > may_be_skipped:
        wrong.append(f"{skipped} steps are skipped; allowed after these faults: {may_be_skipped}")
    print(f"{len(outcomes)} steps, {skipped} skipped")
    return wrong


class Chaos:
    """One session, and what happens to it."""

    def __init__(self, args: argparse.Namespace, rng: random.Random, folder: Path) -> None:
        self.args, self.rng = args, rng
        self.daemons = [self._start_daemon(folder / f"shard{number}") for number in range(args.shards)]
        self.address = ",".join(daemon.address for daemon in self.daemons)
        self.leaves = [self._start_leaf(folder / f"leaf{number}") for number in range(args.nodes)]
        self.node_size = args.members // args.nodes if args.nodes else 1
        command = [str(args.bin / "gradwire_test_member"), "--session", "chaos",
                   "--world-size", str(args.members), "--elements", str(args.elements), "--steps", str(10**9),
                   "--late-ms", str(args.late_ms), *(["--trains", "1"] if args.policy != "fail" else []),
                   *(["--hook", args.hook] if args.hook else []),
                   *(["--node", str(self.node_size)] if args.nodes else [])]
        if args.keep:
            os.environ["GRADWIRE_KEEP_GRADIENTS"] = "on"
        self.members = [Member([*command, "--rank", str(rank), "--address", self._address_of(rank)])
                        for rank in range(args.members)]
        self.may_be_skipped = 0

    def _address_of(self, rank: int) -> str:
        return self.leaves[rank // self.node_size].address if self.leaves else self.address

    def _start_leaf(self, folder: Path) -> Daemon:
        folder.mkdir()
        leaf = Daemon(self.args.bin / "gradwired", f"unix:{folder}/leaf.sock", folder, ["--upstream", self.address])
        leaf.start()
        return leaf

    def _start_daemon(self, folder: Path) -> Daemon:
        folder.mkdir()
        address = f"unix:{folder}/daemon.sock" if self.args.unix else f"127.0.0.1:{free_port()}"
        daemon = Daemon(self.args.bin / "gradwired", address, folder, ["--ledger", "--on-member-loss", self.args.policy])
        daemon.start()
        return daemon

    def await_first_step(self) -> None:
        deadline = time.monotonic() + 60
        while not all(member.life.steps for member in self.members):
            if time.monotonic() > deadline:
                words = [member.life.words for member in self.members]
                raise SystemExit(f"chaos: no first step within 60 s: {words}")
            time.sleep(0.05)

    def quiet_rate(self, seconds: float) -> float:
        begin = time.monotonic()
        time.sleep(seconds)
        return rate(self.members, begin, begin + seconds)

    def fault(self) -> tuple[str, float]:
        """What happened, and when everything was there again."""
        drawn = self.rng.random()
        if self.args.policy == "fail":
            return self._lose_daemon(signal.SIGKILL if drawn < 0.8 else signal.SIGTERM)
        if drawn < 1 / 4 and self.leaves:
            return self._lose_leaf()
        if drawn < 1 / 2:
            return self._lose_member()
        if drawn < 5 / 6:
            return self._lose_daemon(signal.SIGKILL)
        return self._stop_member()

    def _lose_daemon(self, number: signal.Signals) -> tuple[str, float]:
        self.may_be_skipped += 0 if self.args.keep else 1
        shard = self.rng.randrange(len(self.daemons))
        self.daemons[shard].end(number)
        time.sleep(self.rng.uniform(0, self.args.away))
        which = f"shard {shard}" if len(self.daemons) > 1 else "daemon"
        return f"{which} {number.name}", self.daemons[shard].start()

    def _lose_member(self) -> tuple[str, float]:
        self.may_be_skipped += 2
        rank = self.rng.randrange(self.args.members)
        leaves = self.args.leave and self.rng.random() < 1 / 2
        number = signal.SIGTERM if leaves else signal.SIGKILL
        self.members[rank].end(number)
        said = f" ({self.members[rank].life.words[-1]})" if leaves else ""
        if self.args.policy == "shrink":
            time.sleep(self.args.absent)
        time.sleep(self.rng.uniform(0, self.args.away))
        if self.leaves:
            self._start_node(rank // self.node_size)
        else:
            self.members[rank].start()
        return f"rank {rank} {number.name}{said}", time.monotonic()

    def _lose_leaf(self) -> tuple[str, float]:
        self.may_be_skipped += 2
        leaf = self.rng.randrange(len(self.leaves))
        self.leaves[leaf].end(signal.SIGKILL)
        if self.args.policy == "shrink":
            time.sleep(self.args.absent)
        time.sleep(self.rng.uniform(0, self.args.away))
        self.leaves[leaf].start()
        self._start_node(leaf)
        return f"leaf {leaf} SIGKILL", time.monotonic()

    def _start_node(self, node: int) -> None:
        """As a launcher does when a process has ended."""
        members = self.members[node * self.node_size:(node + 1) * self.node_size]
        for member in members:
            if member.process.poll() is None:
                member.end()
        for member in members:
            member.start()

    def _stop_member(self) -> tuple[str, float]:
        rank = self.rng.randrange(self.args.members)
        self.members[rank].process.send_signal(signal.SIGSTOP)
        time.sleep(self.rng.uniform(0, 3))
        self.members[rank].process.send_signal(signal.SIGCONT)
        return f"rank {rank} SIGSTOP", time.monotonic()

    def check_ledger(self) -> list[str]:
        command = [str(self.args.bin / "gradwirectl"), "--address", self.address, "-o", "json",
                   "session", "ledger", "chaos"]
        told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        if not told.stdout:
            return [f"no ledger: {told.stderr.strip()}"]
        answer = json.loads(told.stdout)
        rows = [row.get("row", {}) for row in answer["ledger"]["rows"]]
        norms = {name: math.sqrt(sum(row.get(f"{name}_squares", 0) for row in rows))
                 for name in ("contributed", "residual", "skipped", "dropped", "lost")}
        print(f"ledger up to step {answer['ledger']['settled']}: "
              + ", ".join(f"{name} {norm:.3g}" for name, norm in norms.items())
              + f"; {answer['ledger'].get('incomplete') or 'everything is known'}")
        return [] if told.returncode == 0 and answer["closes"] else [f"the ledger does not close: {told.stdout}"]

    def end(self) -> None:
        for member in self.members:
            member.end()
        for daemon in [*self.leaves, *self.daemons]:
            daemon.end(signal.SIGKILL)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=Path, help="folder of gradwired and gradwire_test_member")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--every", type=float, default=60, help="seconds from one fault to the next, on average")
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--elements", type=int, default=100_000)
    parser.add_argument("--late-ms", type=int, default=20, help="what a step computes")
    parser.add_argument("--away", type=float, default=0.5, help="seconds until the next daemon begins, at most")
    parser.add_argument("--wait", dest="policy", action="store_const", const="wait", default="fail",
                        help="members are lost, too: --on-member-loss wait")
    parser.add_argument("--shrink", dest="policy", action="store_const", const="shrink",
                        help="members are lost, too: --on-member-loss shrink")
    parser.add_argument("--absent", type=float, default=5, help="with --shrink: seconds until the successor comes")
    parser.add_argument("--keep", action="store_true", help="members keep their gradients")
    parser.add_argument("--hook", default="", help="such as power_sgd,start_powerSGD_iter=5")
    parser.add_argument("--leave", action="store_true", help="half of the lost members get SIGTERM")
    parser.add_argument("--shards", type=int, default=1, help="daemons of the session")
    parser.add_argument("--nodes", type=int, default=0,
                        help="leaf daemons, with --wait or --shrink; members are divided among them")
    parser.add_argument("--unix", action="store_true", help="shared memory instead of TCP")
    parser.add_argument("--quiet", type=float, default=15,
                        help="seconds without faults before the first and after the last, to compare with")
    parser.add_argument("--return-limit", type=float, default=2)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    args = parser.parse_args()
    if args.nodes and (args.policy == "fail" or args.members % args.nodes or args.leave):
        parser.error("--nodes: allowed: with --wait or --shrink, without --leave, a divisor of --members")
    rng = random.Random(args.seed)
    print(f"seed {args.seed}: {args.members} members, {args.minutes:g} minutes, a fault every {args.every:g} s")

    with tempfile.TemporaryDirectory() as name:
        chaos = Chaos(args, rng, Path(name))
        chaos.await_first_step()
        quiet = [chaos.quiet_rate(args.quiet)]

        begin = time.monotonic()
        end = begin + 60 * args.minutes
        waits, wrong = [], []
        while not wrong:
            time.sleep(max(0.0, min(rng.uniform(0.5, 1.5) * args.every, end - time.monotonic())))
            if time.monotonic() >= end:
                break
            what, back = chaos.fault()
            times = [member.concluded_after(back, back + 30) for member in chaos.members]
            if None in times:
                wrong.append(f"rank {times.index(None)} concludes no step within 30 s after {what}")
                break
            waits.append(max(times) - back)
            print(f"{time.monotonic() - begin:7.1f} s: {what}; the next step ends {waits[-1]:.2f} s after the "
                  "return", flush=True)
        disturbed = rate(chaos.members, begin, time.monotonic())
        if not wrong:
            quiet.append(chaos.quiet_rate(args.quiet))
        wrong += check(chaos.members, chaos.may_be_skipped)
        wrong += chaos.check_ledger()
        chaos.end()
        if args.keep:
            again = chaos.daemons[0].count_in_logs("is reduced again")
            print(f"{again} steps were reduced again after a loss")

    if waits:
        print(f"{len(waits)} faults; the next step ended {statistics.median(waits):.2f} s [{min(waits):.2f} - "
              f"{max(waits):.2f}] after the return; {disturbed / statistics.mean(quiet):.1%} of the steps of "
              f"{args.quiet:g} s without faults before, and as many after ({disturbed:.1f} a second; "
              f"{', '.join(f'{one:.1f}' for one in quiet)})")
        if max(waits) > args.return_limit:
            wrong.append(f"a step took {max(waits):.2f} s after the return; allowed: {args.return_limit:g} s")
    for line in wrong:
        print(f"chaos: {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
