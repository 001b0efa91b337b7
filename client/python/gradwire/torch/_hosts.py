"""What a rank knows of its host: who shares it, and how others reach it."""

import contextlib
import ipaddress
import os
import re
import secrets
import socket
import tempfile

from gradwire._errors import InvalidArgument

_NAME = re.compile(r"[A-Za-z0-9._-]{1,253}")
_RANGE = re.compile(r"(\d{1,5})-(\d{1,5})")
_ANY_PORT = 9  # no packet is sent to it
_BACKLOG = 4096  # as many ranks as there may be; nobody accepts


class Proof:
    """Shows other ranks that they share this rank's host: its kernel, its network, its user and its folder
    for temporary files. Then they reach its daemon's unix socket.

    It is a listening socket in Linux' abstract namespace, which belongs to one network namespace of
    one kernel, with a name that cannot be guessed. A rank that can connect is there. Names of hosts and boot
    ids prove nothing: images and snapshots of virtual machines share them.
    """

    def __init__(self) -> None:
        name = "gradwire-" + secrets.token_hex(16)
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind("\0" + name)
        self._socket.listen(_BACKLOG)
        folder = tempfile.gettempdir()
        self.word = {"name": name, "user": os.geteuid(), "folder": folder, "file": _identity(folder)}

    def close(self) -> None:
        self._socket.close()

    @staticmethod
    def holds(word: dict[str, object]) -> bool:
        """Whether the rank that says this word is on this process's host."""
        if word["user"] != os.geteuid():
            return False
        with socket.socket(socket.AF_UNIX) as probe:
            probe.setblocking(False)  # a connect ends at once, one way or the other
            try:
                probe.connect("\0" + str(word["name"]))
            except OSError:
                return False
        # The same kernel, so that these numbers are of one file system or another.
        return _identity(str(word["folder"])) == word["file"]


def _identity(folder: str) -> list[int]:
    try:
        found = os.stat(folder)
    except OSError:
        return []
    return [found.st_dev, found.st_ino]


def likely_host() -> str:
    """The same for all ranks of a host, and rarely for others': who should compare proofs."""
    boot, network = "", ""
    with contextlib.suppress(OSError):
        boot = open("/proc/sys/kernel/random/boot_id").read().strip()
        network = os.readlink("/proc/self/ns/net")
    return f"{boot}-{''.join(filter(str.isdigit, network))}"


def master_of(store: object) -> str:
    """The host of a process group's store; "" if it has none, such as one in a file."""
    while store is not None and not hasattr(store, "host"):
        store = getattr(store, "underlying_store", None)
    return getattr(store, "host", "") or os.environ.get("MASTER_ADDR", "")


def given_address() -> str:
    """GRADWIRE_HOST_ADDRESS: an IP address or a name with which other hosts reach this one."""
    text = os.environ.get("GRADWIRE_HOST_ADDRESS", "")
    if not text:
        return ""
    with contextlib.suppress(ValueError):
        return str(ipaddress.ip_address(text))
    if not _NAME.fullmatch(text):
        raise InvalidArgument(
            f"GRADWIRE_HOST_ADDRESS is {text!r:.200}; allowed is an IP address or a host's name, without a port"
        )
    return text


def given_ports() -> range:
    """GRADWIRE_PORT_RANGE, "29700-29799"; range(0, 1): any port that the kernel chooses."""
    text = os.environ.get("GRADWIRE_PORT_RANGE", "")
    if not text:
        return range(0, 1)
    found = _RANGE.fullmatch(text)
    ports = range(int(found[1]), int(found[2]) + 1) if found else range(0)
    if not ports or ports[0] < 1 or ports[-1] > 65535:
        raise InvalidArgument(
            f"GRADWIRE_PORT_RANGE is {text!r:.200}; allowed is FIRST-LAST, with ports from 1 to 65535"
        )
    return ports


def address_towards(targets: list[str]) -> str:
    """This host's address on the way to the first target that is elsewhere; "" if there is none."""
    for target in targets:
        with contextlib.suppress(OSError, UnicodeError):
            for family, kind, _, _, where in socket.getaddrinfo(target, _ANY_PORT, type=socket.SOCK_DGRAM):
                with contextlib.suppress(OSError), socket.socket(family, kind) as probe:
                    probe.connect(where)  # chooses a route and sends nothing
                    found = probe.getsockname()[0]
                    if _reaches_others(found):
                        return found
    return ""


def _reaches_others(address: str) -> bool:
    try:
        known = ipaddress.ip_address(address)
    except ValueError:  # with a scope
        return False
    return not (known.is_loopback or known.is_unspecified or known.is_link_local)
