"""What SessionState takes from the environment and the process group where no argument says it."""

import os
import secrets

import torch.distributed as dist

from gradwire._daemon import EmbeddedDaemon
from gradwire._errors import InvalidArgument, Unavailable
from gradwire.torch._job import Access, Job
from gradwire.torch._meeting import ALL, Meeting

_counts: dict[tuple[str, str], int] = {}  # of states in this process, by group and name


class World:
    """Rank, world size and a way to tell the others something: a process group's store."""

    def __init__(self, group: object, rank: int | None, world_size: int | None) -> None:
        self.store = None
        self.group = "world"  # part of what members tell each other
        if dist.is_available() and dist.is_initialized():
            self.rank = dist.get_rank(group)
            self.size = dist.get_world_size(group)
            self.store = dist.distributed_c10d._get_default_store()
            if group is not None and self.size < dist.get_world_size():
                ranks = dist.get_process_group_ranks(group)
                self.group = "ranks-" + "-".join(map(str, ranks))
        else:
            self.rank = _environment("RANK", rank)
            self.size = _environment("WORLD_SIZE", world_size)
        for name, given, found in (
            ("rank", rank, self.rank),
            ("world_size", world_size, self.size),
        ):
            if given is not None and given != found:
                raise InvalidArgument(
                    f"{name} is {given}; the process group says {found}, and both must agree",
                    "GW802",
                )

    def share(self, key: str, value: object) -> str:
        """What rank 0 says; `value()` is asked there only."""
        if self.size == 1 or self.store is None:
            return value()
        key = f"gradwire/{self.group}/{key}"
        if self.rank == 0:
            try:
                said = value()
            except Exception as error:
                self.store.set(key, f"error:{error}")
                raise
            self.store.set(key, f"value:{said}")
            return said
        kind, _, said = self.store.get(key).decode().partition(":")
        if kind == "error":
            raise Unavailable(f"rank 0: {said}")
        return said

    def meeting(self, key: str) -> Meeting:
        return Meeting(self.store, f"{self.group}/{key}", self.rank, self.size)


def _environment(name: str, given: int | None) -> int:
    if given is not None:
        return given
    text = os.environ.get(name)
    if text is None:
        argument = name.lower()
        raise InvalidArgument(
            f"{argument} is not given, there is no process group, and {name} is not set;"
            f" pass {argument}=, initialise torch.distributed, or start with torchrun",
            "GW403",
        )
    try:
        return int(text)
    except ValueError:
        raise InvalidArgument(f"{name} is {text!r}; allowed are integers") from None


def session_name(given: str | None, world: World) -> str:
    """The argument, GRADWIRE_SESSION, torchrun's run id, or a random name that rank 0 shares."""
    if given is not None:
        return given
    base = os.environ.get("GRADWIRE_SESSION")
    if not base:
        base = os.environ.get("TORCHELASTIC_RUN_ID", "none")
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        if base != "none" and attempt != "0":
            base = f"{base}.{attempt}"
    if base == "none":
        if world.size > 1 and world.store is None:
            raise InvalidArgument(
                "session is not given, GRADWIRE_SESSION is not set and there is no process group"
                " to share a name through; pass session=, the same on all ranks",
                "GW403",
            )
        number = _next(world, "")
        return world.share(f"session/{number}", lambda: "job-" + secrets.token_hex(6))
    if world.group != "world":
        base = f"{base}.{world.group}"
    number = _next(world, base)  # several models in one process have a session each
    return base if number == 0 else f"{base}.{number}"


def _next(world: World, name: str) -> int:
    number = _counts.get((world.group, name), 0)
    _counts[world.group, name] = number + 1
    return number


_embedded: EmbeddedDaemon | None = None
_jobs: dict[str, tuple[object, Job]] = {}  # by group: its store, and the daemons of its hosts


def daemons(world: World, several: bool, seconds: float, user: object) -> Access:
    """How a member without an address reaches its session's daemon or daemons: that which rank 0 starts, or
    on several hosts one on each of them.

    `several`: whether this rank's hook and device take several daemons; if one rank's do not, the session
    has one. `seconds`: how long others are waited for. `user`: keeps the daemons until release(user).
    """
    if world.size == 1:
        return Access(_embedded_address())
    if world.store is None:
        raise InvalidArgument(
            "address is not given, GRADWIRE_ADDRESS is not set, and there is no process group to"
            " share an embedded daemon through; start gradwired and pass address=",
            "GW403",
        )
    job = _job_of(world, seconds)
    if not job.addresses:
        return Access(world.share(f"address/{_next(world, 'address')}", _embedded_address))
    several = world.meeting(f"hook/{_next(world, 'hook')}").round(
        "several", lambda: several, lambda words: {ALL: all(words)}, seconds, "say which hook it has"
    )
    job.users.add(user)
    return job.access(several)


def release(user: object) -> None:
    for _, job in _jobs.values():
        job.users.discard(user)


def _job_of(world: World, seconds: float) -> Job:
    known = _jobs.get(world.group)
    if known is not None and known[0] is world.store:
        return known[1]
    if known is not None and not known[1].users:  # of a process group before this one
        known[1].close()
    job = Job(world.meeting(f"job/{_next(world, 'job')}"), world.rank, world.store, seconds)
    _jobs[world.group] = (world.store, job)
    return job


def _embedded_address() -> str:
    global _embedded
    if _embedded is None:
        _embedded = EmbeddedDaemon()
    return _embedded.address


def after_fork() -> None:
    global _embedded
    if _embedded is not None:
        _embedded.after_fork()
    _embedded = None
    for _, job in _jobs.values():
        job.after_fork()
    _jobs.clear()
    _counts.clear()
