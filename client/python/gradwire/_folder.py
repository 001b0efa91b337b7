"""The folder of an embedded daemon, and the removal of folders whose owners were killed."""

import contextlib
import fcntl
import os
import tempfile

_PREFIX = "gradwire-daemon-"
SOCKET, LOG = "daemon.sock", "daemon.log"


class Folder:
    """A private folder for a daemon's socket and log.

    The process that creates it and the daemon, which inherits `lock`, hold a lock on it. The kernel
    releases the lock when both have ended, even if they were killed. A folder without a lock is
    stale, and the next process that creates a folder removes it.
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

    def remove(self) -> None:
        _remove(self.path)
        self.release()

    def release(self) -> None:
        """Closes this process's descriptor of the lock."""
        os.close(self.lock)


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
    """Removes the folder if it has nothing but a daemon's files."""
    if set(os.listdir(path)) <= {SOCKET, LOG}:
        for name in os.listdir(path):
            os.unlink(os.path.join(path, name))
        os.rmdir(path)
