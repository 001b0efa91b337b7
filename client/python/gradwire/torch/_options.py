"""What SessionState takes from the environment and the process group where no argument says it."""

import os
import secrets
import socket

import torch.distributed as dist

from gradwire._daemon import EmbeddedDaemon
from gradwire._errors import InvalidArgument, Unavailable

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

    def hosts(self, key: str) -> set[str]:
        """The names of all hosts that members run on."""
        own = socket.gethostname()
        if self.size == 1 or self.store is None:
            return {own}
        self.store.set(f"gradwire/{self.group}/{key}/{self.rank}", own)
        keys = [f"gradwire/{self.group}/{key}/{rank}" for rank in range(self.size)]
        return {self.store.get(one).decode() for one in keys}


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


def daemon_address(given: str | None, world: World) -> str:
    """The argument, GRADWIRE_ADDRESS, or that of a daemon which rank 0 starts."""
    address = given or os.environ.get("GRADWIRE_ADDRESS")
    if address:
        return address
    hosts = world.hosts(f"hosts/{_next(world, 'hosts')}")
    if len(hosts) > 1:
        raise InvalidArgument(
            f"address is not given, GRADWIRE_ADDRESS is not set, and members are on {len(hosts)}"
            f" hosts ({', '.join(sorted(hosts))}); start gradwired on one of them and pass"
            ' address="HOST:PORT"',
            "GW403",
        )
    if world.size > 1 and world.store is None:
        raise InvalidArgument(
            "address is not given, GRADWIRE_ADDRESS is not set, and there is no process group to"
            " share an embedded daemon through; start gradwired and pass address=",
            "GW403",
        )
    return world.share(f"address/{_next(world, 'address')}", _embedded_address)


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
    _counts.clear()
