"""A state's life: nothing before the first call, forks, copies, and the daemon that rank 0 runs."""

import contextlib
import datetime
import os
import pickle
import select
import stat
import subprocess
import sys
import threading

import pytest

import gradwire
import gradwire.torch as gw
import training
import worlds
from gradwire.torch import _options

SECONDS_TO_GO = 8.0  # of a daemon whose owner is gone


def _children(pid: int) -> list[int]:
    """gradwired processes that this process started."""
    found = []
    for child in open(f"/proc/{pid}/task/{pid}/children").read().split():
        if open(f"/proc/{child}/comm").read().strip() == "gradwired":
            found.append(int(child))
    return found


# ---- Before the first call


def _nothing_before_the_first_call(rank):
    before = threading.enumerate(), len(os.listdir("/proc/self/task"))
    sockets = _sockets()
    state = gw.SessionState()
    ddp = training.distributed(training.Mlp)
    ddp.register_comm_hook(state, gw.aggregate_hook)
    assert (threading.enumerate(), len(os.listdir("/proc/self/task"))) == before
    assert _sockets() == sockets
    assert _children(os.getpid()) == []
    assert (state.metrics(), state.report(), state.state_dict()["step"]) == ({}, [], 0)
    training.train(ddp, rank, 1)
    assert "gradwire" in {thread.name for thread in threading.enumerate()}
    assert (len(_children(os.getpid())) == 1) == (rank == 0)
    state.close()
    assert threading.enumerate() == before[0]


def _sockets() -> set[str]:
    links = (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))
    return {os.readlink(link) for link in links if os.path.islink(link)} - {"/proc/self/fd"}


def test_no_thread_connection_or_daemon_is_there_before_the_first_call():
    worlds.run(2, _nothing_before_the_first_call, fresh=True)


def _no_daemon_to_start(rank):
    running, _options._embedded = _options._embedded, None  # of tests before this one
    try:
        return _error_of_first_call(rank)
    finally:
        _options._embedded = running


def _error_of_first_call(rank):
    state = gw.SessionState()
    ddp = training.distributed(training.Mlp)
    ddp.register_comm_hook(state, gw.aggregate_hook)
    loss = ddp(training.batch(rank, 0)).sum()
    try:
        loss.backward()
    except gradwire.Unavailable as error:
        return str(error)


def test_a_daemon_that_cannot_be_started_is_an_error_of_the_first_call_on_all_ranks():
    nowhere = {"GRADWIRE_DAEMON": "/nowhere/gradwired"}
    for text in worlds.run(2, _no_daemon_to_start, environments=[nowhere] * 2):
        assert "GRADWIRE_DAEMON" in text and "/nowhere/gradwired" in text


# ---- Forks


FORKING_SCRIPT = """
import os
import torch
import gradwire
import gradwire.torch as gw

model = torch.nn.Linear(3, 3)
for parameter in model.parameters():
    parameter.grad = torch.ones_like(parameter)
state = gw.SessionState(session="fork")
gw.reduce_grads_(model.parameters(), state)
child = os.fork()
if child == 0:
    try:
        gw.reduce_grads_(model.parameters(), state)
    except gradwire.Error as error:
        print("child:", error, flush=True)
    raise SystemExit(7)  # by way of all that an interpreter does at its end
_, status = os.waitpid(child, 0)
assert gw.reduce_grads_(model.parameters(), state)
print("parent:", os.waitstatus_to_exitcode(status), state.step, flush=True)
# No close(): the interpreter's end leaves the session.
"""


def test_a_forks_copy_of_a_state_says_so_and_both_processes_end_in_good_order(daemon):
    def start(rank):
        variables = {"GRADWIRE_ADDRESS": daemon.address, "RANK": str(rank), "WORLD_SIZE": "2"}
        return subprocess.Popen(
            [sys.executable, "-c", FORKING_SCRIPT],
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    children = [start(rank) for rank in range(2)]
    try:
        for child in children:
            out, err = child.communicate(timeout=60)
            assert child.returncode == 0, err
            child_line, parent_line = out.splitlines()
            assert "fork" in child_line and "SessionState" in child_line
            assert parent_line == "parent: 7 2"
    finally:
        for child in children:
            child.kill()


# ---- Copies


def _train_with_a_copy(rank):
    want = training.plain(training.Mlp, rank, 4)
    state = gw.SessionState(comm_hook="power_sgd", comm_state_option={"start_powerSGD_iter": 100})
    optimizer_steps = []
    ddp = training.distributed(training.Mlp)
    ddp.register_comm_hook(state, gw.aggregate_hook)
    optimizer = training.optimizer_of(ddp)
    optimizer_steps += training.train(ddp, rank, 2, optimizer=optimizer)
    copy = pickle.loads(pickle.dumps(state))
    state.close()
    again = training.distributed(training.Mlp)
    again.load_state_dict(ddp.state_dict())
    again.register_comm_hook(copy, gw.aggregate_hook)
    with copy:
        got = optimizer_steps + training.train(again, rank, 2, first=2)
        assert copy.step == 2, copy.step  # of a session of its own
    training.expect_same(got, want)


def test_a_pickled_copy_trains_on_in_a_session_of_its_own():
    worlds.run(2, _train_with_a_copy)


# ---- The embedded daemon


def _use_embedded(rank, path):
    with gw.SessionState(model=training.Mlp()) as state:
        state.connect()
        address = _options._embedded.address
        folder = os.path.dirname(address.partition(":")[2])
        path.write_text(f"{_children(os.getpid())[0]} {folder} {os.stat(folder).st_mode}")


def _ended(pid: int, seconds: float) -> bool:
    try:
        file = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        poll = select.poll()
        poll.register(file, select.POLLIN)
        return bool(poll.poll(1000 * seconds))
    finally:
        os.close(file)


def _use_and_die(rank, path, end):
    _use_embedded(rank, path)
    pipe = _options._embedded._child.stdin.fileno()
    if os.fork() == 0:  # outlives its parent, as a data loader's worker may
        for file in set(range(3, 256)) - {pipe}:
            with contextlib.suppress(OSError):
                os.close(file)
        open(end).read()
        os._exit(0)
    worlds.die()


@pytest.fixture
def private_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def test_the_embedded_daemon_is_in_a_folder_of_its_users_and_ends_with_its_owner(private_folder):
    path = private_folder / "daemon"
    worlds.run(1, _use_embedded, path, fresh=True)
    pid, folder, mode = path.read_text().split()
    assert stat.S_IMODE(int(mode)) == 0o700
    assert folder.startswith(str(private_folder)) and not os.path.exists(folder)
    assert not os.path.exists(f"/proc/{pid}")


def test_the_embedded_daemon_is_gone_soon_after_its_owner_was_killed(private_folder):
    path, end = private_folder / "daemon", private_folder / "end"
    os.mkfifo(end)
    worlds.run(1, _use_and_die, path, end, dies=(0,))
    try:
        assert _ended(int(path.read_text().split()[0]), SECONDS_TO_GO)
    finally:
        end.write_text("")  # the fork may end


# ---- Sessions' names


def _meet(rank, address, given):
    """Rank 0 takes its sessions' names from what is around, rank 1 is told them."""
    for name in given:
        model = training.Mlp()
        with gw.SessionState(
            address=address,
            session=name if rank == 1 else None,
            model=model,
            join_timeout=datetime.timedelta(seconds=5),
        ) as state:
            state.barrier()


@pytest.mark.parametrize(
    "variables, names",
    [
        ({"GRADWIRE_SESSION": "mine"}, ["mine", "mine.1", "mine.2"]),
        ({"TORCHELASTIC_RUN_ID": "run7"}, ["run7", "run7.1"]),
        ({"TORCHELASTIC_RUN_ID": "again", "TORCHELASTIC_RESTART_COUNT": "2"}, ["again.2"]),
        ({"GRADWIRE_SESSION": "ours", "TORCHELASTIC_RUN_ID": "run8"}, ["ours"]),
    ],
    ids=["GRADWIRE_SESSION", "torchrun", "a torchrun restart", "both"],
)
def test_a_session_is_named_by_its_environment(daemon, variables, names):
    worlds.run(2, _meet, daemon.address, names, environments=[variables] * 2)


def _meet_without_names(rank, address):
    for _ in range(2):
        with gw.SessionState(address=address, model=training.Mlp()) as state:
            state.barrier()


@pytest.mark.parametrize("variables", [{}, {"TORCHELASTIC_RUN_ID": "none"}])
def test_members_without_a_name_meet_under_a_random_one(daemon, variables):
    worlds.run(2, _meet_without_names, daemon.address, environments=[variables] * 2)


# ---- Without a process group


def _without_address(rank):
    try:
        with gw.SessionState(model=training.Mlp()) as state:
            state.connect()
    except gradwire.InvalidArgument as error:
        return str(error)


def test_ranks_without_a_process_group_are_asked_for_an_address():
    variables = [{"RANK": str(rank), "WORLD_SIZE": "2"} for rank in range(2)]
    for text in worlds.run(2, _without_address, group=False, environments=variables):
        assert "address=" in text and "gradwired" in text, text
