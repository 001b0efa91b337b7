"""Finds gradwired, and runs it as a child for a job: rank 0's, or one on each host."""

import contextlib
import dataclasses
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import time
from multiprocessing import util

from gradwire._errors import Unavailable
from gradwire._folder import LOG, SOCKET, Folder

START_SECONDS = 20.0
_RANGE_SECONDS = 20.0  # for a port of a range to become free
# A port of a range may still be that of a daemon which drains after its job was restarted.
_BETWEEN_TRIES = 0.5
_IN_USE = re.compile(r"address already in use", re.IGNORECASE)


def gradwired_path() -> str:
    """Returns $GRADWIRE_DAEMON, the packaged gradwired, or the one on the PATH, in this order."""
    named = os.environ.get("GRADWIRE_DAEMON")
    if named:
        if not os.access(named, os.X_OK):
            raise Unavailable(f"GRADWIRE_DAEMON is {named!r}, which is not executable", "GW804")
        return named
    packaged = pathlib.Path(__file__).parent / "bin" / "gradwired"
    for candidate in (str(packaged), shutil.which("gradwired")):
        if candidate and os.access(candidate, os.X_OK):
            return candidate
    raise Unavailable(
        f"gradwired is not at {packaged} and not on the PATH; install it, name it in"
        " GRADWIRE_DAEMON, or say with address= where a daemon runs",
        "GW804",
    )


def run_gradwired() -> None:
    """Entry point of the `gradwired` command."""
    path = gradwired_path()
    os.execv(path, [path, *sys.argv[1:]])


def run_gradwirectl() -> None:
    """Entry point of the `gradwirectl` command. Only the installed package has the program."""
    path = str(pathlib.Path(__file__).parent / "bin" / "gradwirectl")
    os.execv(path, [path, *sys.argv[1:]])


@dataclasses.dataclass(frozen=True)
class Public:
    """How a daemon can be reached from other hosts: over TLS, with a certificate and a token."""

    host: str  # an IP address or a name of this host
    ports: range  # range(0, 1): one that the kernel chooses
    certificate: str  # paths, as are the others
    key: str
    authorities: str  # of those that may connect
    tokens: str
    folder: Folder  # for its socket and its log too


def address_of(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class EmbeddedDaemon:
    """A child process on a unix socket that only this user can reach, and if need be on a port.

    It ends when this process ends, even if that is killed: its standard input is a pipe whose other
    end this process holds.
    """

    def __init__(self, public: Public | None = None) -> None:
        program = gradwired_path()
        self.public_address = ""  # "host:port"
        for port in _ports(public, time.monotonic() + _RANGE_SECONDS):
            self._folder = Folder() if public is None else public.folder
            self._owns_folder = public is None
            path = os.path.join(self._folder.path, SOCKET)
            self.address = "unix:" + path
            self._log = os.path.join(self._folder.path, LOG)
            try:
                self._child = self._start(program, _flags(public, port))
            except OSError as error:
                self._remove_folder()
                raise Unavailable(f"{program} did not start: {error}", "GW804") from None
            # Not atexit, which a process of multiprocessing does not run.
            self._at_exit = util.Finalize(None, self.close, exitpriority=10)
            said = self._wait_until_listening(path, public)
            if said is None:
                return
            self.close()
            if not port or not _IN_USE.search(said):
                break
        raise Unavailable(f"the embedded gradwired did not start: {said or 'it said nothing'}", "GW804")

    def _start(self, program: str, flags: list[str]) -> subprocess.Popen:
        # The files in these variables are the member's; a unix socket needs none. The addresses and the mode are
        # those of this host's daemon, and so is what happens after a loss: this one ends with its job.
        others = ("GRADWIRE_TLS_", "GRADWIRE_ADMIN_LISTEN", "GRADWIRE_SOCKET_MODE", "GRADWIRE_TOKEN", "GRADWIRE_ON_",
                  "GRADWIRE_MIN_MEMBERS", "GRADWIRE_ARBITER")  # fmt: skip
        env = {name: value for name, value in os.environ.items() if not name.startswith(others)}
        with open(self._log, "wb") as log:
            return subprocess.Popen(
                # No file, which is for this host's daemon, and no second port for metrics. Nobody would start it
                # again, so that members need not look for the next one.
                [program, "--config=", "--listen", self.address, "--http-listen=off", "--stop-on-eof",
                 "--on-coordinator-loss=fail", "--drain-timeout", "10s", "--log-level", "warning", *flags],
                stdin=subprocess.PIPE, stdout=log, stderr=log, env=env,
                start_new_session=True,  # Ctrl-C is for the trainer, which leaves first
                pass_fds=[self._folder.lock],
            )  # fmt: skip

    def _wait_until_listening(self, path: str, public: Public | None) -> str | None:
        """None: it listens. Else what it said."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            ended = self._child.poll() is not None
            if not ended and self._listens(path, public):
                return None
            if ended or time.monotonic() > deadline:
                return self._said().strip()
            time.sleep(0.01)

    def _listens(self, path: str, public: Public | None) -> bool:
        if public is not None:
            found = re.search(r"^  grpc  (?!unix:)(\S+)\n", self._said(), re.MULTILINE)
            if found is None:
                return False
            self.public_address = address_of(public.host, int(found[1].rpartition(":")[2]))
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(path)
                return True
            except OSError:
                return False

    def _said(self) -> str:
        return pathlib.Path(self._log).read_text(errors="replace")

    def after_fork(self) -> None:
        """Called in a forked child. Closes its copies of the pipe and of the folder's lock, so that
        daemon and folder still end with the parent."""
        self._child.stdin.close()
        self._folder.release()

    def close(self) -> None:
        """Ends the daemon after a drain, because other members may not have left yet."""
        self._at_exit.cancel()
        if self._child.stdin is not None and not self._child.stdin.closed:
            self._child.stdin.close()
        try:
            self._child.wait(timeout=12)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._remove_folder()

    def _remove_folder(self) -> None:
        if self._owns_folder:
            with contextlib.suppress(OSError):
                self._folder.remove()


def _flags(public: Public | None, port: int) -> list[str]:
    if public is None:
        return []
    return [
        "--listen", address_of(public.host, port), "--tls-cert", public.certificate, "--tls-key", public.key,
        "--tls-client-ca", public.authorities, "--tokens", public.tokens,
    ]  # fmt: skip


def _ports(public: Public | None, deadline: float):
    """The ports to try, again and again until the deadline if they are of a range."""
    if public is None or public.ports == range(0, 1):
        yield 0
        return
    while True:
        yield from public.ports
        if time.monotonic() > deadline:
            return
        time.sleep(_BETWEEN_TRIES)
