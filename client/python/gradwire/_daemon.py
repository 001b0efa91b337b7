"""Finds gradwired, and runs it as rank 0's child for jobs on one host."""

import contextlib
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import time
from multiprocessing import util

from gradwire._errors import Unavailable
from gradwire._folder import LOG, SOCKET, Folder

_START_SECONDS = 20.0


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


class EmbeddedDaemon:
    """A child process on a unix socket that only this user can reach.

    It ends when this process ends, even if that is killed: its standard input is a pipe whose other
    end this process holds.
    """

    def __init__(self) -> None:
        program = gradwired_path()
        self._folder = Folder()
        path = os.path.join(self._folder.path, SOCKET)
        self.address = "unix:" + path
        self._log = os.path.join(self._folder.path, LOG)
        try:
            self._child = self._start(program)
        except OSError as error:
            self._folder.remove()
            raise Unavailable(f"{program} did not start: {error}", "GW804") from None
        # Not atexit, which a process of multiprocessing does not run.
        self._at_exit = util.Finalize(None, self.close, exitpriority=10)
        self._wait_until_listening(path)

    def _start(self, program: str) -> subprocess.Popen:
        # The files in these variables are the member's; a unix socket needs none. The addresses and the mode are
        # those of this host's daemon.
        others = ("GRADWIRE_TLS_", "GRADWIRE_ADMIN_LISTEN", "GRADWIRE_SOCKET_MODE")
        env = {name: value for name, value in os.environ.items() if not name.startswith(others)}
        with open(self._log, "wb") as log:
            return subprocess.Popen(
                # No file, which is for this host's daemon, and no second port for metrics.
                [program, "--config=", "--listen", self.address, "--http-listen=off", "--stop-on-eof",
                 "--drain-timeout", "10s", "--log-level", "warning"],
                stdin=subprocess.PIPE, stdout=log, stderr=log, env=env,
                start_new_session=True,  # Ctrl-C is for the trainer, which leaves first
                pass_fds=[self._folder.lock],
            )  # fmt: skip

    def _wait_until_listening(self, path: str) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            with socket.socket(socket.AF_UNIX) as probe:
                try:
                    probe.connect(path)
                    return
                except OSError:
                    pass
            if self._child.poll() is not None or time.monotonic() > deadline:
                said = pathlib.Path(self._log).read_text(errors="replace").strip()
                self.close()
                raise Unavailable(
                    f"the embedded gradwired did not start: {said or 'it said nothing'}", "GW804"
                )
            time.sleep(0.01)

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
        with contextlib.suppress(OSError):
            self._folder.remove()
