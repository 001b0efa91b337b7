"""The folders of an embedded daemon and of a job's keys, and the removal of those whose owners were killed."""

import contextlib
import fcntl
import os
import subprocess
import sys
import tempfile

_PREFIX = "gradwire-daemon-"
SOCKET, LOG = "daemon.sock", "daemon.log"
AUTHORITIES, CERTIFICATE, KEY = "ca.pem", "cert.pem", "key.pem"
TOKEN, TOKENS = "token", "tokens"
_KEEPER_SECONDS = 5.0  # for its end, once the folder is gone
_OURS = {SOCKET, LOG, AUTHORITIES, CERTIFICATE, KEY, TOKEN, TOKENS}


class Folder:
    """A private folder for a daemon's socket and log, or for the keys of a host in a job.

    The process that creates it and the daemon, which inherits `lock`, hold a lock on it. The kernel
    releases the lock when both have ended, even if they were killed. A folder without a lock is
    stale. A small process of its own, this file as a program, waits for that and then removes the
    folder. If it was killed too, the next process that creates a folder does.
    """

    def __init__(self) -> None:
        _remove_left_over()
        lock = None
        while lock is None:  # retries if another process took the new folder for a stale one
            self.path = tempfile.mkdtemp(prefix=_PREFIX)  # 0700
            with contextlib.suppress(FileNotFoundError):
                lock = _open(self.path)
                try:
                    if not _locks(lock, self.path):
                        os.close(lock)
                        lock = None
                except OSError:
                    pass  # no locks on this file system: stale folders there stay
        self.lock = lock
        self._keeper = _start_keeper(self.path)

    def write(self, name: str, text: str) -> str:
        """A new file that only this user can read. Returns its path."""
        path = os.path.join(self.path, name)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
        return path

    def remove(self) -> None:
        try:
            _remove(self.path)
        finally:
            self.release()
            keeper, self._keeper = self._keeper, None
            if keeper is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    keeper.wait(timeout=_KEEPER_SECONDS)

    def release(self) -> None:
        """Closes this process's descriptors of the lock and of the pipe that tells of its end. Idempotent."""
        lock, self.lock = self.lock, -1
        if lock >= 0:
            os.close(lock)
        if self._keeper is not None:
            self._keeper.stdin.close()


def _start_keeper(path: str) -> subprocess.Popen | None:
    """None: there is no interpreter to start."""
    with contextlib.suppress(OSError, TypeError):
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", __file__, path],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/",
            start_new_session=True,  # outlives a Ctrl-C
        )  # fmt: skip
    return None


def _keep(path: str) -> None:
    """Waits for the end of the pipe, which its owner holds, and of the lock; then removes the folder."""
    sys.stdin.buffer.read()
    with contextlib.suppress(OSError):
        fcntl.flock(_open(path), fcntl.LOCK_EX)
        _remove(path)


def _open(folder: str) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)


def _locks(descriptor: int, folder: str) -> bool:
    """Takes the folder's lock. False if another process has it or has removed the folder."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(descriptor), os.lstat(folder))
    except (BlockingIOError, FileNotFoundError):
        return False


def _remove_left_over() -> None:
    folder = tempfile.gettempdir()
    for name in os.listdir(folder):
        if not name.startswith(_PREFIX):
            continue
        path = os.path.join(folder, name)
        with contextlib.suppress(OSError):  # not a folder, another user's, or without locks
            descriptor = _open(path)
            try:
                if os.fstat(descriptor).st_uid == os.geteuid() and _locks(descriptor, path):
                    _remove(path)
            finally:
                os.close(descriptor)


def _remove(path: str) -> None:
    """Removes the folder if it has nothing but files of ours."""
    if set(os.listdir(path)) <= _OURS:
        for name in os.listdir(path):
            os.unlink(os.path.join(path, name))
        os.rmdir(path)


if __name__ == "__main__":
    _keep(sys.argv[1])
