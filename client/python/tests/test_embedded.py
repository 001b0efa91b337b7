"""The daemon that rank 0 starts: where it is found, and what it leaves behind."""

import os
import pathlib
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time

import pytest

import gradwire
from gradwire import _daemon

SECONDS_TO_GO = 8.0  # of a daemon whose owner is gone

PROGRAM = """
import torch
import gradwire.torch as gw

model = torch.nn.Linear(3, 3)
with gw.SessionState(model=model) as state:
    gw.broadcast_parameters_(model, state)
    print(state.step)
"""


def test_the_package_brings_its_daemon_also_in_a_build_tree():
    package = pathlib.Path(gradwire.__file__).parents[1]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GRADWIRE_")}
    child = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={
            **kept, "PYTHONPATH": str(package), "PATH": "/usr/bin:/bin", "RANK": "0",
            "WORLD_SIZE": "1", "GRADWIRE_SESSION": "found",
        },  # fmt: skip
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (child.returncode, child.stdout) == (0, "0\n"), child.stderr


# ---- What is left of daemons whose owners were killed

KILLED = """
import os, signal, sys
from gradwire._daemon import EmbeddedDaemon

daemon = EmbeddedDaemon()
print(daemon._child.pid, flush=True)
if sys.argv[1] == "stop":
    os.kill(daemon._child.pid, signal.SIGSTOP)
if sys.argv[1] == "all":
    daemon._folder._keeper.kill()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where embedded daemons have their folders during this test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def _names(folder) -> set[str]:
    return {path.name for path in folder.iterdir()}


def _killed_owner(folder, how: str = "go") -> int:
    """A descriptor of the daemon's process."""
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, how],
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
    )
    with child:
        return os.pidfd_open(int(child.stdout.readline()))


def _wait_for_end(daemon: int) -> None:
    assert select.select([daemon], [], [], SECONDS_TO_GO)[0], "the daemon outlives its owner"
    os.close(daemon)


def test_the_folder_is_removed_after_owner_and_daemon_were_killed(folder):
    daemon = _killed_owner(folder, "stop")
    assert len(_names(folder)) == 1
    signal.pidfd_send_signal(daemon, signal.SIGKILL)
    _wait_for_end(daemon)
    deadline = time.monotonic() + SECONDS_TO_GO
    while _names(folder) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert _names(folder) == set()


def test_the_next_daemon_clears_up_after_one_of_which_everything_was_killed(folder):
    _wait_for_end(_killed_owner(folder, "all"))
    (left,) = _names(folder)
    daemon = _daemon.EmbeddedDaemon()
    (own,) = _names(folder)
    assert own != left and own in daemon.address
    daemon.close()
    assert _names(folder) == set()


def test_a_folder_is_in_use_as_long_as_its_daemon_runs(folder):
    daemon = _killed_owner(folder, "stop")
    (left,) = _names(folder)
    _daemon.EmbeddedDaemon().close()
    assert _names(folder) == {left}
    signal.pidfd_send_signal(daemon, signal.SIGCONT)
    _wait_for_end(daemon)
    _daemon.EmbeddedDaemon().close()
    assert _names(folder) == set()


def test_daemons_of_two_owners_leave_each_other_alone(folder):
    one, other = _daemon.EmbeddedDaemon(), _daemon.EmbeddedDaemon()
    assert len(_names(folder)) == 2
    one.close()
    with socket.socket(socket.AF_UNIX) as probe:
        probe.connect(other.address.partition(":")[2])
    other.close()
    assert _names(folder) == set()


def test_what_no_daemon_left_is_not_removed(folder):
    results = folder / "gradwire-daemon-results"
    results.mkdir()
    (results / "weights.pt").write_text("years of work")
    target = folder / "elsewhere"
    target.mkdir()
    (target / "daemon.log").write_text("somebody's")
    (folder / "gradwire-daemon-link").symlink_to(target)
    (folder / "gradwire-daemon-file").write_text("")
    before = _names(folder)
    _daemon.EmbeddedDaemon().close()
    assert _names(folder) == before
    assert (results / "weights.pt").exists() and (target / "daemon.log").exists()


def test_what_this_hosts_daemon_does_after_a_loss_is_not_a_jobs(folder, monkeypatch):
    for name, value in (("ON_MEMBER_LOSS", "wait"), ("MIN_MEMBERS", "1"), ("ARBITER", str(folder))):
        monkeypatch.setenv(f"GRADWIRE_{name}", value)
    daemon = _daemon.EmbeddedDaemon()
    with socket.socket(socket.AF_UNIX) as probe:
        probe.connect(daemon.address.partition(":")[2])
    daemon.close()


def test_a_daemon_that_does_not_start_leaves_nothing(folder, monkeypatch):
    for path, said in (("/nowhere/gradwired", "GRADWIRE_DAEMON"), ("/bin/false", "did not start")):
        monkeypatch.setenv("GRADWIRE_DAEMON", path)
        with pytest.raises(gradwire.Unavailable, match=said):
            _daemon.EmbeddedDaemon()
    assert _names(folder) == set()


# ---- What of this host's own daemon counts for it


def test_it_reads_no_file_and_serves_no_status_page(monkeypatch):
    monkeypatch.setenv("GRADWIRE_CONFIG", "/nowhere/gradwired.yaml")
    monkeypatch.setenv("GRADWIRE_HTTP_LISTEN", "127.0.0.1:0")
    daemon = _daemon.EmbeddedDaemon()
    try:
        log = pathlib.Path(daemon._log)
        deadline = time.monotonic() + SECONDS_TO_GO
        # gradwired prints all its addresses at once.
        while "  grpc  " not in log.read_text() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert log.read_text().splitlines()[1:] == [f"  grpc  {daemon.address}"]
    finally:
        daemon.close()
