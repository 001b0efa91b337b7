"""One process of a short training session is killed (SIGKILL) and started again, in session after session.

Each session has 2 or 3 members and a daemon of its own, a third of them two, with --on-coordinator-loss resume and
--on-member-loss wait; several run side by side. A seed decides on the session, the victim (the daemon or a member) and the
moment: while the members join, in the first steps, in the middle, or in the last steps and while they leave.
--seed and --only repeat one; when the signal comes also depends on the machine. The table has the moments that
it came in: before the first step, in the first three, after them, and in the last one or later.

Prints what became of the sessions, and a table. Exits with 1 if in any session
* a process does not end in time, or ends with an error that the limits below do not allow;
* a step ends differently for two members: applied or skipped, or with another model; or a member misses one;
* a model is not that of an undisturbed session, although no step was skipped;
* more steps are skipped than the loss may cost: one for a daemon, two for a member.
Half of the sessions that lose their daemon compute each mean themselves instead of comparing models.

Sessions whose end is one of these limits (server/README.md, deploy/errors) are counted by themselves:
* a process is lost before the session has begun: the next one may be refused while the rank is held (GW204),
  and a member that has not heard of the beginning is unknown to the next daemon (GW309). It is started again;
* the daemon is lost when the session has begun for some members only. The next one may begin anew with the others,
  and refuses these, who have no step yet (GW309); one of several daemons is not waited for longer than a second
  (GW308). They are started again, and are new to those who have begun; where members do not train, these have no
  model to give (GW320);
* the daemon is lost while members leave: a member may end with an error although it has done all steps;
* a member is lost after others have left: its successor has nobody to train with.
"""

import argparse
import collections
import copy
import dataclasses
import itertools
import random
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from processes import Daemon, Life, Member, NotStarted, free_port

MOMENTS = ("join", "first steps", "middle", "end")
HOOKS = ("no", "no", "power_sgd,start_powerSGD_iter=3")
ELEMENTS = 5000
LAST = 16  # steps of the longest session
GRACE = 10.0  # seconds that a lost process' place is held
LIMIT = 60.0  # seconds that a session may take
WENT_ON = "went on"
MISSED = "nothing left to kill"
REFUSED = "limit: joined at a second try"
BEGUN = "limit: begun for some only"
NO_MODEL = "limit: new beside members without a model to give"
LEAVING = "limit: an error while leaving"
ALONE = "limit: too late for the last step"


@dataclasses.dataclass(frozen=True)
class Plan:
    """What the seed decides about a session."""

    number: int
    members: int
    steps: int
    hook: str
    unix: bool
    victim: int  # a rank; -1: the daemon; None: nobody
    moment: str
    after: int  # steps, and then
    delay: float  # seconds until the signal
    away: float  # seconds until the next life
    trains: bool  # models are compared, or else means are checked
    shards: int  # daemons of the session
    shard: int  # that is the victim, if a daemon is

    @property
    def name(self) -> str:
        daemon = f"shard {self.shard} of {self.shards}" if self.shards > 1 else "daemon"
        return daemon if self.victim == -1 else f"rank {self.victim}"


def draw(seed: int, number: int) -> Plan:
    rng = random.Random(f"{seed}/{number}")
    members, steps = rng.choice((2, 3)), rng.randint(10, LAST)
    victim = rng.choice((-1, rng.randrange(members)))
    moment = rng.choice(MOMENTS)
    after = {"join": 0, "first steps": rng.randint(1, 3), "middle": rng.randint(4, steps - 4),
             "end": steps - rng.randint(0, 2)}[moment]
    # A process needs about 0.1 s until it has joined, and a step some 10 ms.
    delay = rng.uniform(0, {"join": 0.12, "end": 0.008}.get(moment, 0.012))
    plan = Plan(number=number, members=members, steps=steps, hook=rng.choice(HOOKS), unix=rng.random() < 0.5,
                victim=victim, moment=moment, after=after, delay=delay, away=rng.uniform(0, 0.2),
                trains=victim >= 0 or rng.random() < 0.5, shards=1, shard=0)
    # Drawn last, so that a seed has the sessions that it had with one daemon each.
    shards = rng.choice((1, 1, 2))
    return dataclasses.replace(plan, shards=shards, shard=rng.randrange(shards))


@dataclasses.dataclass
class Ended:
    """One process of a rank, in the end."""

    steps: list[tuple[int, tuple[str, ...]]]  # number, verdict and the model's digest
    words: list[str]
    code: int | None  # none: it was still running when all others had ended, or at the limit

    @staticmethod
    def of(life: Life, code: int | None) -> "Ended":
        return Ended([(number, outcome) for _, number, outcome in life.steps], list(life.words), code)

    @property
    def done(self) -> bool:
        return self.code == 0 and self.words[-1:] == ["done"]

    @property
    def error(self) -> str:
        return next((line for line in self.words if line.startswith("error: ")), "")

    @property
    def model(self) -> str:
        return next((line for line in self.words if line.startswith("model ")), "")


@dataclasses.dataclass
class Record:
    """What is left of a session."""

    plan: Plan
    ranks: list[list[Ended]] = dataclasses.field(default_factory=list)
    moment: str = ""  # when the signal came
    hit: bool = False  # the signal has ended a living process of a session that was not over
    refused: int = 0  # processes that were started again because they could not join
    begun: int = 0  # of these: the session had begun for some, or was lost on one of several daemons only
    late: bool = False  # the limit has passed
    trouble: str = ""  # in this program or with the daemon
    seconds: float = 0.0


class Session:
    """The processes of a plan."""

    def __init__(self, args: argparse.Namespace, plan: Plan, folder: Path) -> None:
        self.plan, self.record = plan, Record(plan)
        # Ports of 127.0.0.1 may be taken by anybody's connection while the daemon is away.
        host = f"127.77.{1 + plan.number % 250}.1"
        grace = f"{GRACE:g}s"
        self.daemons = []
        for shard in range(plan.shards):
            own = folder / f"shard{shard}"
            own.mkdir()
            address = f"unix:{own}/daemon.sock" if plan.unix else f"{host}:{free_port(host)}"
            daemon = Daemon(args.bin / "gradwired", address, own,
                            ["--on-member-loss", "wait", "--coordinator-grace", grace, "--member-grace", grace])
            daemon.start()
            self.daemons.append(daemon)
        address = ",".join(daemon.address for daemon in self.daemons)
        self.limit = time.monotonic() + LIMIT
        command = [str(args.bin / "gradwire_test_member"), "--address", address, "--session", "cycle",
                   "--world-size", str(plan.members), "--elements", str(ELEMENTS), "--steps", str(plan.steps),
                   "--late-ms", "5", *(["--trains", "1"] if plan.trains else []),
                   *(["--hook", plan.hook] if plan.hook != "no" else [])]
        self.members = [Member([*command, "--rank", str(rank)], folder) for rank in range(plan.members)]

    def run(self) -> None:
        if self.plan.victim is not None and self._await_moment():
            self._lose()
        self._await_end()

    def _await_moment(self) -> bool:
        while max(len(member.life.steps) for member in self.members) < self.plan.after:
            if time.monotonic() > self.limit or all(one.process.poll() is not None for one in self.members):
                return False
            time.sleep(0.001)
        time.sleep(self.plan.delay)
        return True

    def _lose(self) -> None:
        running = any(member.process.poll() is None for member in self.members)
        done = max(len(member.life.steps) for member in self.members)
        self.record.moment = next(name for name, end in zip(MOMENTS, (1, 4, self.plan.steps - 1, 10**9), strict=True)
                                  if done < end)
        if self.plan.victim == -1:
            victim = self.daemons[self.plan.shard]
            victim.end(signal.SIGKILL)
        else:
            victim = self.members[self.plan.victim]
            victim.end()
        self.record.hit = running and victim.process.returncode == -signal.SIGKILL
        if self.record.hit:
            time.sleep(self.plan.away)
            victim.start()

    def _await_end(self) -> None:
        while time.monotonic() < self.limit:
            self._start_refused()
            if all(member.process.poll() is not None for member in self.members) or self._is_alone():
                return
            time.sleep(0.005)
        self.record.late = True

    def _start_refused(self) -> None:
        """As a launcher does with a process that could not join."""
        if not self.record.hit or self.record.refused >= 50:
            return
        for member in self.members:
            if member.process.poll() != 1 or not member.life.wait(1) or member.life.steps:
                continue
            text = " ".join(member.life.words)
            joined = "joined" in member.life.words
            refused = not joined and ("[GW204]" in text or "[GW309]" in text)
            daemon_joins = self.plan.victim < 0 and self.plan.moment == "join"
            begun = daemon_joins and ((joined and "[GW309]" in text) or (self.plan.shards > 1 and "[GW308]" in text))
            if refused or begun:
                self.record.refused += 1
                self.record.begun += begun
                time.sleep(0.2)
                member.start()

    def _is_alone(self) -> bool:
        """The others have done all steps while a successor is still without any."""
        if not self.record.hit or self.plan.victim < 0:
            return False
        others = [one for rank, one in enumerate(self.members) if rank != self.plan.victim]
        own = self.members[self.plan.victim].life
        if any(one.process.poll() != 0 for one in others) or own.steps:
            return False
        # It may be about to end, too.
        own.wait(0.5)
        return "joined" not in own.words or own.wait(self.limit - time.monotonic())

    def end(self) -> None:
        for member in self.members:
            code = member.process.poll()
            member.end()
            codes = [life.process.returncode for life in member.lives[:-1]] + [code]
            self.record.ranks.append([Ended.of(life, code) for life, code in zip(member.lives, codes, strict=True)])
        for daemon in self.daemons:
            daemon.end(signal.SIGKILL)


def follow(plan: Plan, rank: int, lives: list[Ended]) -> list[str]:
    """Whether a rank's steps come one after another, from the first one to the last."""
    wrong, following = [], 0
    for number, life in enumerate(lives):
        for step, outcome in life.steps:
            lost = number > 0 and step == life.steps[0][0]  # its predecessor may have missed some
            if step < following or (step > following and not lost):
                wrong.append(f"rank {rank}: step {step} comes where {following} should")
            if len(outcome) != 1 + plan.trains or outcome[0] not in ("apply", "skip"):
                wrong.append(f"rank {rank}: step {step} ends with {outcome}")
            following = step + 1
    if lives[-1].done and lives[-1].steps and following != plan.steps:
        wrong.append(f"rank {rank}: done before step {following} of {plan.steps}")
    return wrong


def outcomes_of(record: Record) -> dict[int, set[tuple[str, ...]]]:
    outcomes: dict[int, set[tuple[str, ...]]] = {}
    for lives in record.ranks:
        for life in lives:
            for step, outcome in life.steps:
                outcomes.setdefault(step, set()).add(outcome)
    return outcomes


def compare(record: Record, reference: list[str]) -> list[str]:
    """Members with each other, and with an undisturbed session."""
    plan, outcomes = record.plan, outcomes_of(record)
    wrong = [f"step {step} ends differently: {sorted(both)}" for step, both in outcomes.items() if len(both) > 1]
    ends = {step: min(both) for step, both in outcomes.items()}
    skipped = sum(end[0] == "skip" for end in ends.values())
    has_newcomer = plan.victim != -1 or record.refused
    may_be_skipped = (2 if has_newcomer else 1) if record.hit else 0
    if skipped > may_be_skipped:
        wrong.append(f"{skipped} steps are skipped; allowed: {may_be_skipped}")
    if plan.trains:
        for step in sorted(ends):
            if ends[step][0] != "apply":
                break
            if ends[step][1:] != (reference[step],):
                wrong.append(f"step {step} has another model than in an undisturbed session")
        models = {life.model for lives in record.ranks for life in lives if life.model and life.steps}
        last = {f"model {end[1]}" for step, end in ends.items() if step == plan.steps - 1 and len(end) == 2}
        if models - last:
            wrong.append(f"other models in the end: {sorted(models)}")
    return wrong


def has_all_steps(plan: Plan, life: Ended) -> bool:
    return bool(life.steps) and life.steps[-1][0] == plan.steps - 1


def classify(record: Record) -> str | None:
    """How it ended; None: in a way that is not allowed."""
    plan, last = record.plan, [lives[-1] for lives in record.ranks]
    complete = [has_all_steps(plan, life) for life in last]
    if all(life.done for life in last) and all(complete):
        went_on = BEGUN if record.begun else REFUSED if record.refused else WENT_ON
        return went_on if record.hit else MISSED
    if not record.hit:
        return None
    if plan.victim >= 0:
        others = [rank for rank in range(plan.members) if rank != plan.victim]
        own = last[plan.victim]
        # Two steps may have ended that the lost one had no time to print, and one is dropped.
        near = len(record.ranks[plan.victim][0].steps) >= plan.steps - 3
        alone = near and not own.steps and all(last[rank].done and complete[rank] for rank in others)
        return ALONE if alone and (own.done or (own.code is None and not own.words)) else None
    # The daemon. Who was started again is new to members that have begun, and these have no model to give.
    lacks = record.refused and plan.moment == "join" and not plan.trains
    if lacks and all("[GW320]" in life.error for life in last):
        return NO_MODEL
    # Who has all steps may fail to leave.
    left = all(life.done or life.error.startswith("error: UNAVAILABLE") for life in last)
    return LEAVING if all(complete) and left else None


def judge(record: Record, reference: list[str]) -> tuple[str, list[str]]:
    """How the session ended, and what is wrong with that."""
    if record.trouble:
        return "trouble", [record.trouble]
    wrong = [line for rank, lives in enumerate(record.ranks) for line in follow(record.plan, rank, lives)]
    wrong += compare(record, reference)
    outcome = classify(record)
    if record.late:
        wrong.append(f"not over within {LIMIT:g} s")
    elif outcome is None:
        ends = {f"rank {rank}": (lives[-1].code, lives[-1].words[-1:], len(lives[-1].steps))
                for rank, lives in enumerate(record.ranks)}
        wrong.append(f"ends in a way that is not allowed: {ends}")
    return outcome or "violation", wrong


class Runner:
    """Runs and judges sessions; several threads do so."""

    def __init__(self, args: argparse.Namespace, root: Path) -> None:
        self.args, self.root = args, root
        self.references: dict[tuple[int, str], Record] = {}

    def run(self, plan: Plan, name: str) -> Record:
        folder = self.root / name
        folder.mkdir()
        begin, session = time.monotonic(), None
        try:
            session = Session(self.args, plan, folder)
            session.run()
        except NotStarted as error:
            return Record(plan, trouble=str(error))
        finally:
            if session:
                session.end()
        session.record.seconds = time.monotonic() - begin
        for rank, lives in enumerate(session.members):
            for number, life in enumerate(lives.lives):
                lines = [f"step {step} {' '.join(outcome)}" for _, step, outcome in life.steps]
                text = "\n".join([*life.words[:1], *lines, *life.words[1:], ""])
                (folder / f"member{rank}-{number + 1}.out").write_text(text, "utf-8")
        return session.record

    def make_references(self) -> None:
        """Undisturbed sessions."""
        for members in (2, 3):
            for hook in set(HOOKS):
                plan = Plan(0, members, LAST, hook, unix=False, victim=None, moment="", after=0, delay=0, away=0,
                            trains=True, shards=1, shard=0)
                record = self.run(plan, f"undisturbed-{members}-{hook.partition(',')[0]}")
                self.references[members, hook] = record
                outcome, wrong = judge(record, self.digests(plan))
                if wrong or outcome != MISSED:
                    self.show(plan, f"undisturbed-{members}-{hook.partition(',')[0]}")
                    raise SystemExit(f"cycles: an undisturbed session: {outcome} {wrong}")

    def digests(self, plan: Plan) -> list[str]:
        return [outcome[1] for _, outcome in self.references[plan.members, plan.hook].ranks[0][0].steps]

    def show(self, plan: Plan, name: str) -> None:
        print(f"---- {plan}")
        for log in sorted((self.root / name).glob("*.*")):
            if log.is_file():
                print(f"---- {log.name}\n{log.read_text('utf-8', errors='replace')}")
        sys.stdout.flush()


def check_judge(runner: Runner) -> None:
    """Records with mistakes in them must be found."""
    original = runner.references[3, "no"]
    last = LAST - 1

    def spoil(spoiled: list[Ended], mistake: str) -> None:
        for life in spoiled:
            step, (verdict, digest) = life.steps[last - 3]
            if mistake == "model":
                life.steps[last - 3] = (step, (verdict, digest[::-1]))
            elif mistake == "verdict":
                life.steps[last - 3] = (step, ("skip", digest))
            elif mistake == "missing":
                del life.steps[last - 3]
            elif mistake == "last":
                del life.steps[last]
            elif mistake == "end":
                life.words = [line.replace("model ", "model 1") for line in life.words]
            elif mistake == "code":
                life.code = 1
            elif mistake == "running":
                life.code = None

    for mistake in ("model", "verdict", "missing", "last", "end", "code", "running"):
        for ranks in ([1], [0, 1, 2]):
            record = copy.deepcopy(original)
            spoil([record.ranks[rank][0] for rank in ranks], mistake)
            if not judge(record, runner.digests(original.plan))[1]:
                raise SystemExit(f"cycles: a wrong {mistake} of ranks {ranks} is not noticed")


def report(table: dict[tuple[str, str], collections.Counter]) -> None:
    outcomes = sorted({outcome for counts in table.values() for outcome in counts})
    for outcome in outcomes:
        print(f"{outcome}:")
        for victim in ("daemon", "member"):
            counts = [f"{moment} {table[moment, victim][outcome]}" for moment in MOMENTS]
            print(f"  {victim}: {', '.join(counts)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=Path, help="folder of gradwired and gradwire_test_member")
    parser.add_argument("--cycles", type=int, default=1000, help="processes to kill")
    parser.add_argument("--at-once", type=int, default=4, help="sessions side by side")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--only", type=int, help="one cycle, by its number")
    parser.add_argument("--moment", choices=MOMENTS, help="only cycles that kill then")
    parser.add_argument("--keep", type=Path, help="a new folder for the logs of sessions that did not go on")
    args = parser.parse_args()
    print(f"seed {args.seed}: {args.cycles} cycles, {args.at_once} at once", flush=True)
    if args.keep:
        args.keep.mkdir(parents=True)

    table: dict[tuple[str, str], collections.Counter] = collections.defaultdict(collections.Counter)
    lock, kills, violations, taken = threading.Lock(), [], [], 0
    matching = (number for number in itertools.count() if args.moment in (None, draw(args.seed, number).moment))
    numbers = iter([args.only]) if args.only is not None else itertools.islice(matching, 2 * args.cycles)
    begin = time.monotonic()

    with tempfile.TemporaryDirectory() as name:
        runner = Runner(args, args.keep or Path(name))
        runner.make_references()
        check_judge(runner)

        def work() -> None:
            nonlocal taken
            while True:
                with lock:
                    missing = args.cycles - len(kills)
                    number = next(numbers, None) if missing > 0 else None
                if number is None:
                    return
                plan = draw(args.seed, number)
                record = runner.run(plan, str(number))
                outcome, wrong = judge(record, runner.digests(plan) if plan.trains else [])
                with lock:
                    table[record.moment or plan.moment, "daemon" if plan.victim == -1 else "member"][outcome] += 1
                    kills.extend([record.seconds] * record.hit)
                    if wrong:
                        violations.append(number)
                        print(f"cycles: cycle {number}, {plan.name}, {plan.moment}: {'; '.join(wrong)}")
                        runner.show(plan, str(number))
                    elif outcome in (WENT_ON, MISSED):
                        shutil.rmtree(runner.root / str(number))
                    taken += 1
                    if taken % 100 == 0:
                        print(f"{time.monotonic() - begin:7.1f} s: {taken} sessions, {len(kills)} kills, "
                              f"{len(violations)} violations", flush=True)

        with ThreadPoolExecutor(args.at_once) as pool:
            for one in [pool.submit(work) for _ in range(args.at_once)]:
                one.result()

    report(table)
    print(f"{len(kills)} kills of living processes in {time.monotonic() - begin:.0f} s; {len(violations)} violations "
          f"{violations or ''}")
    if len(kills) < args.cycles and args.only is None:
        print(f"cycles: only {len(kills)} of {args.cycles} kills")
        return 1
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
