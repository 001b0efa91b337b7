"""Daemons and an environment without Gradwire's variables, for all tests."""

import contextlib
import os
import subprocess

import pytest
import torch

import gradwire
import worlds
from gradwire import _daemon

for name in list(os.environ):
    if name.startswith(("GRADWIRE_", "TORCHELASTIC_")) and name != "GRADWIRE_DAEMON":
        del os.environ[name]
for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
    os.environ.pop(name, None)


_reports: dict[str, list[str]] = {}


@pytest.fixture
def report():
    """report(title, line): a line of a table that is shown after all tests."""
    return lambda title, line: _reports.setdefault(title, []).append(line)


def pytest_terminal_summary(terminalreporter):
    for title, lines in _reports.items():
        terminalreporter.write_line(title)
        for line in lines:
            terminalreporter.write_line("  " + line)


def pytest_report_header():
    return f"gradwire {gradwire.__version__}, torch {torch.__version__}"


# Members of a daemon that a test kills look for the next one only so long.
SHORT_GRACE = ("--coordinator-grace", "3s")


class Daemon:
    """A gradwired on 127.0.0.1 and on a unix socket; it ends with this object."""

    def __init__(self, folder, *words) -> None:
        self.address = f"unix:{folder}/daemon.sock"
        listen = ["--listen", "127.0.0.1:0", "--listen", self.address]
        self._child = subprocess.Popen(
            [_daemon.gradwired_path(), *listen, "--stop-on-eof", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for line in self._child.stdout:
            if b"grpc" not in line:
                continue
            if self.address.encode() in line:
                return
            self.tcp = line.decode().split()[-1]
        raise AssertionError("gradwired did not start")

    @property
    def pid(self) -> int:
        return self._child.pid

    def kill(self) -> None:
        self._child.kill()
        self._child.wait()

    def close(self) -> None:
        self.kill()
        self._child.stdin.close()
        self._child.stdout.close()


@pytest.fixture
def new_daemon(tmp_path):
    """One for this test alone."""
    with contextlib.closing(Daemon(tmp_path, *SHORT_GRACE)) as daemon:
        yield daemon


@pytest.fixture
def two_daemons(tmp_path_factory):
    """For sessions over several."""
    folders = [tmp_path_factory.mktemp("gradwired") for _ in range(2)]
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(contextlib.closing(Daemon(folder, *SHORT_GRACE))) for folder in folders]


@pytest.fixture(scope="session")
def daemon(tmp_path_factory):
    """One for all tests that bring names for their sessions."""
    with contextlib.closing(Daemon(tmp_path_factory.mktemp("gradwired"))) as daemon:
        yield daemon


@pytest.fixture(scope="session", autouse=True)
def _processes():
    yield
    worlds.end_all()
