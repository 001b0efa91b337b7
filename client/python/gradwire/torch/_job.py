"""The daemons of a job on several hosts: one on each, found and started through the process group's store.

Four rounds (see _meeting): which ranks share a host; which hosts there are, and with which certificates;
which of them have a daemon; which daemons all hosts reach. Private keys never leave their host.
"""

import concurrent.futures
import contextlib
import dataclasses
import logging
import os
import secrets
import socket
import ssl
import weakref
from multiprocessing import util

from gradwire import _native
from gradwire._codes import plain
from gradwire._daemon import EmbeddedDaemon, Public
from gradwire._errors import InvalidArgument, Unavailable
from gradwire._folder import AUTHORITIES, CERTIFICATE, KEY, TOKEN, TOKENS, Folder
from gradwire.torch import _hosts
from gradwire.torch._meeting import ALL, Meeting

_logger = logging.getLogger("gradwire")

MAX_DAEMONS = 64  # shards of a session
_MAX_HOSTS = 1024  # whose certificates fit into one file
_ROUND_SECONDS = 60.0  # a daemon's start or the probes, on a busy host
_PROBE_SECONDS = 5.0
_MOST_NAMED = 8
_MOST_PEERS = 3
_ELSEWHERE = ("192.0.2.1", "2001:db8::1")  # where the default route goes: nobody has these addresses
_HOSTS = "hosts"  # the part of an answer that is for the first rank of each host


@dataclasses.dataclass(frozen=True)
class Access:
    """How a member reaches a session's daemons: arguments of `_native.join`."""

    address: str
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    token_file: str = ""


class Job:
    """This rank's part in the daemons of a job.

    `addresses`: those that all hosts reach, in the same order on all ranks; empty if the job has one
    host. The first rank of each host holds the host's keys and its daemon, until close() or the end of
    its process.
    """

    def __init__(self, meeting: Meeting, rank: int, store: object, seconds: float) -> None:
        self.addresses: list[str] = []
        self._meeting = meeting
        self._rank = rank
        self._master = _hosts.master_of(store)
        self._seconds = seconds
        self._keys: Folder | None = None
        self._daemon: EmbeddedDaemon | None = None
        self._folder = ""  # of the host's keys
        self._address = ""  # of this host, on its first rank
        self._private = ""  # its key, there
        self._hosts: list[dict[str, object]] = []  # on rank 0
        self.users: weakref.WeakSet = weakref.WeakSet()  # states that are in a session of these daemons
        # Not atexit, which a process of multiprocessing does not run.
        self._at_exit = util.Finalize(None, self.close, exitpriority=9)
        try:
            self._meet()
        except BaseException:
            self.close()
            raise

    def access(self, several: bool) -> Access:
        """To all daemons, or to the first one."""
        addresses = self.addresses if several else self.addresses[:1]
        in_folder = lambda name: os.path.join(self._folder, name)  # noqa: E731
        return Access(
            ",".join(addresses), in_folder(AUTHORITIES), in_folder(CERTIFICATE), in_folder(KEY), in_folder(TOKEN)
        )

    def after_fork(self) -> None:
        """Called in a forked child, which holds nothing of its parent's."""
        if self._daemon is not None:
            self._daemon.after_fork()
        if self._keys is not None:
            self._keys.release()
        self._daemon = self._keys = None

    def close(self) -> None:
        self._at_exit.cancel()
        daemon, self._daemon = self._daemon, None
        keys, self._keys = self._keys, None
        if daemon is not None:
            daemon.close()
        if keys is not None:
            with contextlib.suppress(OSError):
                keys.remove()

    # ---- The rounds

    def _meet(self) -> None:
        with contextlib.ExitStack() as proofs:  # until all ranks of this host have tried it
            leader, peers = self._find_leader(proofs)
            hosts = self._find_hosts(leader, peers)
        if hosts is None:
            return
        leads = leader == self._rank
        candidates = self._start(hosts if leads else None)
        self._probe(candidates if leads else None, leader)

    def _find_leader(self, proofs: contextlib.ExitStack) -> tuple[int, list[str]]:
        """The first rank of this host, and some other hosts' addresses."""
        own = _hosts.likely_host()

        def say() -> dict[str, object]:
            _hosts.given_ports()  # a mistake is an error before anything starts
            return {
                "likely": own,
                "name": socket.gethostname(),
                "address": _hosts.given_address() or _hosts.address_towards([self._master]),
                "proof": proofs.enter_context(contextlib.closing(_hosts.Proof())).word,
            }

        likely = self._meeting.round("ranks", say, self._by_likely_host, self._seconds, "say where it runs", own)
        others = (rank for rank, word in likely["ranks"] if rank < self._rank and _hosts.Proof.holds(word))
        return next(others, self._rank), likely["peers"]

    def _by_likely_host(self, words: list) -> dict[str, object]:
        self._meeting.name({rank: word["name"] for rank, word in enumerate(words)})
        parts: dict[str, dict[str, list]] = {}
        for rank, word in enumerate(words):
            part = parts.setdefault(word["likely"], {"ranks": [], "peers": []})
            part["ranks"].append([rank, word["proof"]])
        addresses = {word["address"]: word["likely"] for word in words if word["address"]}
        for likely, part in parts.items():
            others = [address for address, host in addresses.items() if host != likely]
            part["peers"] = others[:_MOST_PEERS]
        return parts

    def _find_hosts(self, leader: int, peers: list[str]) -> dict[str, object] | None:
        """All hosts and the token, on the first rank of each host; None if there is one host."""

        def say() -> dict[str, object]:
            if leader != self._rank:
                return {"leader": leader}
            address = _hosts.given_address() or _hosts.address_towards([self._master, *peers, *_ELSEWHERE])
            self._address = address
            certificate, self._private = _native.make_certificate(address or "localhost")
            name = socket.gethostname()
            return {"leader": leader, "name": name, "address": address, "certificate": certificate}

        found = self._meeting.round(
            "hosts", say, _all_hosts, _ROUND_SECONDS, "find the ranks of its host",
            _HOSTS if leader == self._rank else ALL,
        )  # fmt: skip
        return None if found["count"] == 1 else found

    def _start(self, hosts: dict[str, object] | None) -> dict[str, object] | None:
        """Starts this host's daemon. Returns the hosts that have one, or why not; None unless this
        rank is the first of its host."""

        def say() -> dict[str, object] | None:
            if hosts is None:
                return None
            self._write_keys(hosts)
            own = [host["leader"] for host in hosts["hosts"]].index(self._rank)
            if own >= MAX_DAEMONS:
                return {"folder": self._folder, "why": f"a session has at most {MAX_DAEMONS} daemons"}
            if not self._address:
                return {"folder": self._folder, "why": "no address of this host is known to others"}
            try:
                self._daemon = EmbeddedDaemon(self._public())
            except Unavailable as error:
                return {"folder": self._folder, "why": plain(str(error))}
            return {"folder": self._folder, "daemon": self._daemon.public_address}

        def answer(words: list) -> dict[str, object]:
            hosts_of = {host["leader"]: host for host in hosts["hosts"]}
            for rank, word in enumerate(words):
                if word is not None:
                    hosts_of[rank].update(word)
            self._hosts = list(hosts_of.values())
            tried = [{**host, "certificate": ""} for host in self._hosts]
            return {ALL: None, _HOSTS: tried}

        return self._meeting.round(
            "daemons", say, answer, _ROUND_SECONDS, "start a daemon", ALL if hosts is None else _HOSTS
        )

    def _write_keys(self, hosts: dict[str, object]) -> None:
        self._keys = Folder()
        self._folder = self._keys.path
        own = next(host for host in hosts["hosts"] if host["leader"] == self._rank)
        self._keys.write(AUTHORITIES, "".join(host["certificate"] for host in hosts["hosts"]))
        self._keys.write(CERTIFICATE, own["certificate"])
        self._keys.write(KEY, self._private)
        self._keys.write(TOKEN, hosts["token"] + "\n")
        self._keys.write(TOKENS, f"job member * {hosts['token']}\n")

    def _public(self) -> Public:
        path = lambda name: os.path.join(self._folder, name)  # noqa: E731
        return Public(
            self._address, _hosts.given_ports(), path(CERTIFICATE), path(KEY), path(AUTHORITIES), path(TOKENS), self._keys
        )

    def _probe(self, candidates: list[dict[str, object]] | None, leader: int) -> None:
        """Finds the daemons that all hosts reach, and ends this host's if it is not one of them."""

        def say() -> dict[str, str] | None:
            return None if candidates is None else _reach(candidates, self._folder)

        def answer(words: list) -> dict[str, object]:
            usable = choose(self._hosts, {rank: word for rank, word in enumerate(words) if word is not None})
            folders = {str(host["leader"]): host["folder"] for host in self._hosts}
            return {leader: {"folder": folder, "daemons": usable} for leader, folder in folders.items()}

        found = self._meeting.round("reached", say, answer, _ROUND_SECONDS, "try the daemons", str(leader))
        self.addresses = found["daemons"]
        self._folder = found["folder"]
        if self._daemon is not None and self._daemon.public_address not in self.addresses:
            daemon, self._daemon = self._daemon, None
            daemon.close()


def _all_hosts(words: list) -> dict[str, object]:
    hosts = [word for rank, word in enumerate(words) if word["leader"] == rank]
    if len(hosts) > _MAX_HOSTS:
        raise InvalidArgument(
            f"address is not given, GRADWIRE_ADDRESS is not set, and members are on {len(hosts)} hosts; without an"
            f' address at most {_MAX_HOSTS} are allowed: start gradwired and pass address="HOST:PORT"',
            "GW403",
        )
    count = {"count": len(hosts)}
    return {ALL: count, _HOSTS: {**count, "hosts": hosts, "token": secrets.token_hex(32)}}


def _reach(hosts: list[dict[str, object]], folder: str) -> dict[str, str]:
    """Tries all daemons at once. Why not, by the first rank of their hosts; "" for one that is reached."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(os.path.join(folder, AUTHORITIES))
    context.load_cert_chain(os.path.join(folder, CERTIFICATE), os.path.join(folder, KEY))
    context.set_alpn_protocols(["h2"])
    # In this version a handshake ends after the daemon has checked this host's certificate.
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    tried = [host for host in hosts if "daemon" in host]
    with concurrent.futures.ThreadPoolExecutor(max_workers=max(len(tried), 1)) as threads:
        found = threads.map(lambda host: _why_not(host["daemon"], host["address"], context), tried)
        return {str(host["leader"]): why for host, why in zip(tried, found)}


def _why_not(daemon: str, host: str, context: ssl.SSLContext) -> str:
    try:
        port = int(daemon.rpartition(":")[2])
        with socket.create_connection((host, port), _PROBE_SECONDS) as plain:
            with context.wrap_socket(plain, server_hostname=host):
                return ""
    except TimeoutError:
        return f"no answer within {_PROBE_SECONDS:.0f} s"
    except OSError as error:
        return error.strerror or str(error)


def choose(hosts: list[dict[str, object]], reached: dict[int, dict[str, str]]) -> list[str]:
    """The daemons that all hosts reach. `reached`: what `_reach` said, by the first rank of the host that
    tried. Unavailable if there is none."""
    names = {host["leader"]: host["name"] for host in hosts}
    usable, others = [], []
    for host in hosts:
        place = f"{host['name']} ({host.get('daemon') or host['address'] or 'no address'})"
        if "daemon" not in host:
            others.append(f"{place} has no daemon: {host['why']}")
            continue
        failed = [(names[rank], why) for rank, word in reached.items() if (why := word[str(host["leader"])])]
        if not failed:
            usable.append(host["daemon"])
            continue
        tried = ", ".join(f"{name}: {why}" for name, why in failed[:_MOST_NAMED])
        others.append(f"{place} cannot be reached by {tried}")
    said = "; ".join(others[:_MOST_NAMED]) + ("; …" if len(others) > _MOST_NAMED else "")
    if not usable:
        raise Unavailable(
            f"no host of the job can be reached by all others: {said}; open a range of ports and name it in"
            " GRADWIRE_PORT_RANGE, or start gradwired and pass address=",
            "GW806",
        )
    if others and len(usable) < min(len(hosts), MAX_DAEMONS):
        _logger.warning("this job has %d daemons on %d hosts: %s", len(usable), len(hosts), said)
    return usable
