"""What a step should send over each link: shapes, hooks, topologies. Pure; knows neither torch nor the network."""

import dataclasses
import math
from collections.abc import Callable

# Ethernet, IPv4 and TCP with timestamps, for at most 1448 bytes of TCP's payload.
HEADER_BYTES = 66
SEGMENT_BYTES = 1448
# torch's default, and Gradwire's: a matrix is compressed only if it becomes smaller than by this factor.
MIN_COMPRESSION_RATE = 2
ELEMENT_BYTES = {"no": 4, "fp16": 2, "bf16": 2, "noop": 0}
HOOKS = ("no", "fp16", "bf16", "power_sgd:1", "power_sgd:2", "power_sgd:4", "noop")


def resnet18(classes: int = 10) -> list[tuple[int, ...]]:
    """ResNet-18 for images of 32 x 32: 11,173,962 parameters, 44.7 MB of float32."""
    shapes = [(64, 3, 3, 3), (64,), (64,)]
    before = 64
    for width in (64, 128, 256, 512):
        for _ in range(2):
            shapes += [(width, before, 3, 3), (width,), (width,)]
            shapes += [(width, width, 3, 3), (width,), (width,)]
            if before != width:
                shapes += [(width, before, 1, 1), (width,), (width,)]
            before = width
    return shapes + [(classes, 512), (classes,)]


def power_sgd_rank(hook: str) -> int | None:
    """Of "power_sgd:4"; None for other hooks."""
    name, _, rank = hook.partition(":")
    if name != "power_sgd":
        return None
    if not rank.isdigit() or int(rank) < 1:
        raise ValueError(f'the hook is "{hook}"; PowerSGD is written power_sgd:RANK, with a rank of 1 and up')
    return int(rank)


def payload_bytes(shapes: list[tuple[int, ...]], hook: str) -> int:
    """What one member contributes in a step."""
    rank = power_sgd_rank(hook)
    if rank is None:
        if hook not in ELEMENT_BYTES:
            raise ValueError(f'the hook is "{hook}"; allowed are {", ".join(HOOKS)}')
        return ELEMENT_BYTES[hook] * sum(map(math.prod, shapes))
    elements = 0
    for shape in shapes:
        rows, columns = shape[0], math.prod(shape[1:])
        r = min(rank, rows, columns)
        low = (rows + columns) * r
        compressed = len(shape) > 1 and low * MIN_COMPRESSION_RATE < rows * columns
        elements += low if compressed else rows * columns
    return 4 * elements


def ring_share(members: int) -> float:
    """A ring all-reduce sends, and receives, so many times the payload on each member's link."""
    return 2 * (members - 1) / members


def seconds_on_link(payload: float, rate: float | None) -> float:
    return 8 * payload / rate if rate else 0.0


def with_headers(payload: float) -> float:
    """Bytes on the link, in full packets; acknowledgements and gRPC's own frames not counted."""
    return payload * (1 + HEADER_BYTES / SEGMENT_BYTES)


@dataclasses.dataclass(frozen=True)
class Daemon:
    name: str
    host: str
    # From the addresses of the daemons before this one: a leaf's name its root.
    flags: Callable[[dict[str, str]], list[str]] = lambda addresses: []
    # Its address is a unix socket, which members on its host share memory with.
    on_socket: bool = False


@dataclasses.dataclass(frozen=True)
class Topology:
    name: str
    about: str
    members: tuple[str, ...]  # the host of each rank
    daemons: tuple[Daemon, ...]  # in the order of their starts
    # What a rank is given, of the addresses of all daemons by name.
    address: Callable[[int, dict[str, str]], str]
    # For each host, how many times the payload of one member it sends and receives in a step.
    traffic: dict[str, tuple[float, float]]
    # The host to which plain TCP carries the same bytes, as a baseline; "": there is none such.
    plain_tcp_to: str = ""

    @property
    def hosts(self) -> list[str]:
        return list(dict.fromkeys((*self.members, *(daemon.host for daemon in self.daemons))))

    @property
    def shares_memory(self) -> bool:
        return any(daemon.on_socket for daemon in self.daemons)

    @property
    def takes_relays(self) -> bool:
        """Members of a session over several daemons must be given the same addresses, and relays have their own."""
        return len(self.daemons) == 1

    @property
    def busiest(self) -> float:
        return max(max(both) for both in self.traffic.values())


def member_hosts(members: int) -> tuple[str, ...]:
    return tuple(f"member{rank}" for rank in range(members))


def star(members: int) -> Topology:
    hosts = member_hosts(members)
    return Topology(
        name="star",
        about="one daemon on a host of its own",
        members=hosts,
        daemons=(Daemon("daemon", "daemon"),),
        address=lambda rank, addresses: addresses["daemon"],
        traffic={**dict.fromkeys(hosts, (1, 1)), "daemon": (members, members)},
        plain_tcp_to="daemon",
    )


def shards(name: str, about: str, members: int, hosts_of_daemons: tuple[str, ...]) -> Topology:
    """One session over all of these daemons, each of which reduces an equal part of every bucket."""
    hosts = member_hosts(members)
    daemons = tuple(Daemon(f"shard{i}", host) for i, host in enumerate(hosts_of_daemons))
    part = 1 / len(daemons)
    times = {}
    for host in dict.fromkeys((*hosts, *hosts_of_daemons)):
        member = part * sum(daemon.host != host for daemon in daemons) if host in hosts else 0
        daemon = part * sum(one != host for one in hosts) * hosts_of_daemons.count(host)
        times[host] = (member + daemon, member + daemon)
    return Topology(
        name=name,
        about=about,
        members=hosts,
        daemons=daemons,
        address=lambda rank, addresses: ",".join(addresses[daemon.name] for daemon in daemons),
        traffic=times,
    )


def own_shards(count: int) -> Callable[[int], Topology]:
    return lambda members: shards(
        f"own-{count}", f"{count} daemons on hosts of their own", members, tuple(f"daemon{i}" for i in range(count))
    )


def member_shards(members: int) -> Topology:
    return shards("shards", "a daemon on each member's host", members, member_hosts(members))


LEAF_MEMBERS = 2  # on each host


def behind_leaves(topology: Topology, name: str, about: str) -> Topology:
    """The same with two members on each host, and a leaf daemon that stands for both."""

    def upstream(host: int) -> Callable[[dict[str, str]], list[str]]:
        return lambda addresses: ["--upstream", topology.address(host, addresses)]

    leaves = tuple(
        Daemon(f"leaf{i}", host, upstream(i), on_socket=True) for i, host in enumerate(topology.members)
    )
    return dataclasses.replace(
        topology,
        name=name,
        about=about,
        members=tuple(host for host in topology.members for _ in range(LEAF_MEMBERS)),
        daemons=(*topology.daemons, *leaves),
        address=lambda rank, addresses: addresses[f"leaf{rank // LEAF_MEMBERS}"],
        plain_tcp_to="",
    )


def leaves(members: int) -> Topology:
    return behind_leaves(star(members), "leaves", "two members and a leaf on each host, one daemon as their root")


def shard_leaves(members: int) -> Topology:
    about = "two members, a leaf and a shard of the root on each host"
    return behind_leaves(member_shards(members), "shard-leaves", about)


TOPOLOGIES: dict[str, Callable[[int], Topology]] = {
    "star": star,
    "own-2": own_shards(2),
    "own-4": own_shards(4),
    "shards": member_shards,
    "leaves": leaves,
    "shard-leaves": shard_leaves,
}


@dataclasses.dataclass(frozen=True)
class Setting:
    """Of all links: a rate as tc writes it, and a round trip that relays add."""

    rate: str
    round_trip_ms: float = 0

    @property
    def name(self) -> str:
        return self.rate + (f"+{self.round_trip_ms:g}ms" if self.round_trip_ms else "")


def parse_setting(text: str, check_rate: Callable[[str], object]) -> Setting:
    """Of "100mbit", "unlimited" or "100mbit+25ms"."""
    rate, plus, delay = text.partition("+")
    check_rate(rate)
    if not plus:
        return Setting(rate)
    number = delay.removesuffix("ms")
    if not delay.endswith("ms") or not number.replace(".", "", 1).isdigit() or not 0 < float(number) <= 1000:
        raise ValueError(f'the round trip is "{delay}"; allowed are 0 to 1000 ms, such as 25ms')
    return Setting(rate, float(number))
