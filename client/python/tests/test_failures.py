"""What a user sees when something goes wrong: a skipped step, a lost member, a lost daemon."""

import ctypes
import datetime
import logging
import os
import re
import signal
import subprocess
import sys
import time

import pytest
import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

import gradwire
import gradwire.torch as gw
import training
import worlds

NAMED_WITHIN_SECONDS = 5.0


def _attached(state, make=training.Mlp, hook=gw.aggregate_hook, **options):
    ddp = training.distributed(make, **options)
    ddp.register_comm_hook(state, hook)
    return ddp


# ---- Steps that do not count


def _skip(rank, hook, option):
    with gw.SessionState(comm_hook=hook, comm_state_option=option) as state:
        ddp = _attached(state, **training.SMALL_BUCKETS)
        optimizer = training.optimizer_of(ddp)
        verdicts = []
        for step in range(6):
            optimizer.zero_grad(set_to_none=True)
            x = training.batch(rank, step)
            if step == 3 and rank == 1:
                x[0, 0] = float("nan")
            ddp(x).square().sum().backward()
            verdicts.append(state.should_step)
            names_both = re.fullmatch(r'.*rank 1 contributed \d+ NaN, first in "first\.(weight|bias)".*', state.skip_reason)
            assert bool(names_both) == (step == 3), state.skip_reason
            is_finite = all(g.isfinite().all() for g in training.gradients(ddp).values())
            assert is_finite == state.should_step, (step, is_finite, state.should_step)
            if state.should_step:
                optimizer.step()
        metrics = state.metrics()
        assert (metrics["steps_applied"], metrics["steps_skipped"]) == (5, 1), metrics
    return verdicts, [p.detach().clone() for p in ddp.parameters()]


@pytest.mark.parametrize(
    "hook, option",
    [("no", {}), ("fp16", {}), ("power_sgd", {"start_powerSGD_iter": 2})],
)
def test_one_ranks_nan_skips_the_step_on_all_and_leaves_no_trace(hook, option):
    (verdicts, weights), (other_verdicts, other_weights) = worlds.run(2, _skip, hook, option)
    assert verdicts == other_verdicts == [True, True, True, False, True, True]
    assert all(torch.equal(a, b) for a, b in zip(weights, other_weights))
    assert all(weight.isfinite().all() for weight in weights)


# ---- A rank dies


def _error_of_backward(ddp, x):
    loss = ddp(x).square().sum()
    try:
        loss.backward()
    except RuntimeError as error:
        return error


def _lose_a_rank(rank, path):
    wrapper = default_hooks.fp16_compress_wrapper(gw.aggregate_hook)
    state, wrapped_state = gw.SessionState(), gw.SessionState()
    ddp = _attached(state, **training.SMALL_BUCKETS)
    wrapped = _attached(wrapped_state, hook=wrapper, **training.SMALL_BUCKETS)
    training.train(ddp, rank, 3)
    training.train(wrapped, rank, 3)

    def die_between_buckets(gradient):
        path.write_text(repr(time.time()))
        worlds.die()

    if rank == 2:
        ddp.module.first.weight.register_hook(die_between_buckets)
    error = _error_of_backward(ddp, training.batch(rank, 3))
    took = time.time() - float(path.read_text())
    error_again = _error_of_backward(ddp, training.batch(rank, 4))
    wrapped_error = _error_of_backward(wrapped, training.batch(rank, 3))
    errors = [error, error_again, wrapped_error, state.last_error, wrapped_state.last_error]
    state.close()
    wrapped_state.close()
    return took, [(type(one), str(one)) for one in errors]


def test_a_killed_rank_is_named_in_an_exception_and_nobody_hangs(tmp_path, report):
    path = tmp_path / "time_of_death"
    *results, lost = worlds.run(3, _lose_a_rank, path, dies=(2,))
    assert lost is None
    for took, errors in results:
        report("failures, seconds until backward() raised", f"{took:.2f} {errors[0][1]}")
        assert took < NAMED_WITHIN_SECONDS
        assert all("rank 2" in text for _, text in errors), errors
        # torch makes an exception of its own out of one in a chain of futures, as wrappers have it.
        own = [gradwire.Error, gradwire.Error, RuntimeError, gradwire.Error, gradwire.Error]
        assert [kind for kind, _ in errors] == own


# ---- A rank hangs


HANG = datetime.timedelta(seconds=17)  # longer than the 15 s of silence after which a member is lost


def _hang_with_the_gil(rank, path):
    with gw.SessionState(timeout=HANG) as state:
        ddp = _attached(state)
        training.train(ddp, rank, 2)
        if rank == 1:
            # Called in this way a function keeps the lock, so that no Python thread runs until rank 0 has its error.
            ctypes.PyDLL(None).read(os.open(path, os.O_RDWR), ctypes.create_string_buffer(1), 1)
        error = _error_of_backward(ddp, training.batch(rank, 2))
        if rank == 0:
            path.write_bytes(b"x")
        return error.code, str(error)


def test_a_rank_that_hangs_with_the_gil_is_heard_and_named_after_the_timeout(tmp_path):
    path = tmp_path / "awake"
    os.mkfifo(path)
    for code, text in worlds.run(3, _hang_with_the_gil, path, fresh=True):
        assert code == "DEADLINE_EXCEEDED"
        assert "waits for rank 1" in text and text.endswith("[GW303]"), text


# ---- The daemon is gone


def _lose_the_daemon(rank, address, pid):
    with gw.SessionState(address=address, session="lost-daemon") as state:
        ddp = _attached(state)
        training.train(ddp, rank, 2)
        torch.distributed.barrier()
        if rank == 0:
            os.kill(pid, signal.SIGKILL)
        torch.distributed.barrier()
        began = time.monotonic()
        try:
            training.train(ddp, rank, 1)
        except gradwire.Error as error:
            return time.monotonic() - began, error.code, str(error)


def test_a_lost_daemon_is_an_error_that_says_so(new_daemon, report):
    results = worlds.run(2, _lose_the_daemon, new_daemon.address, new_daemon.pid)
    for took, code, text in results:
        report("failures, seconds until backward() raised", f"{took:.2f} {text}")
        assert code == "UNAVAILABLE"
        assert new_daemon.address in text


class _Lines(logging.Handler):
    """What is logged, line by line."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append((record.levelname, record.getMessage()))


def _no_daemon_there(rank):
    heard = _Lines()
    logging.getLogger("gradwire").addHandler(heard)
    with gw.SessionState(
        address="unix:/nowhere/daemon.sock",
        session="nobody",
        connect_timeout=datetime.timedelta(seconds=1.5),
    ) as state:
        ddp = _attached(state)
        began = time.monotonic()
        try:
            training.train(ddp, rank, 1)
        except gradwire.Unavailable as error:
            return time.monotonic() - began, str(error), heard.lines


def test_a_daemon_that_is_not_there_is_waited_for_aloud_and_is_an_error_with_the_address():
    for took, text, lines in worlds.run(2, _no_daemon_there, fresh=True):
        assert 1.4 < took < NAMED_WITHIN_SECONDS
        assert "could not join through unix:/nowhere/daemon.sock within 1.5s: " in text
        assert text.endswith("; is gradwired running there? [GW101]")
        ((level, line),) = lines
        assert level == "WARNING"
        assert " waits up to 1.5s for gradwired at unix:/nowhere/daemon.sock: " in line


INTERRUPTED = """
import logging, os, signal
import torch
import gradwire.torch as gw

class Interrupt(logging.Handler):
    def emit(self, record):
        os.kill(os.getpid(), signal.SIGINT)

# A program that was started in the background may have inherited that it ignores the signal.
signal.signal(signal.SIGINT, signal.default_int_handler)
logging.getLogger("gradwire").addHandler(Interrupt())
model = torch.nn.Linear(3, 3)
gw.SessionState(model=model, connect_timeout=__import__("datetime").timedelta(seconds=2)).connect()
"""


def test_ctrl_c_while_a_daemon_is_waited_for_ends_the_program():
    variables = {
        "RANK": "0", "WORLD_SIZE": "1", "GRADWIRE_ADDRESS": "unix:/nowhere/daemon.sock",
        "GRADWIRE_SESSION": "nobody",
    }  # fmt: skip
    child = subprocess.run(
        [sys.executable, "-c", INTERRUPTED],
        env={**os.environ, **variables},
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    assert child.returncode == -signal.SIGINT, child.stderr
    assert child.stderr.splitlines()[-1] == "KeyboardInterrupt", child.stderr


# ---- Members that do not agree


SHORTLY = datetime.timedelta(seconds=3)


def _different_hooks(rank):
    with gw.SessionState(comm_hook=["no", "fp16"][rank], join_timeout=SHORTLY) as state:
        try:
            training.train(_attached(state), rank, 1)
        except gradwire.Error as error:
            return str(error)


def _different_models(rank):
    model = [training.Mlp, training.TwoDtypes][rank]()
    with gw.SessionState(model=model, join_timeout=SHORTLY) as state:
        try:
            state.connect()
        except gradwire.Error as error:
            return str(error)


def test_ranks_with_different_hooks_are_all_told_the_difference():
    for text in worlds.run(2, _different_hooks):
        assert "comm_hook" in text and '"no"' in text and '"fp16"' in text, text


def test_ranks_with_different_models_are_all_told_the_first_difference():
    for text in worlds.run(2, _different_models):
        assert "first.weight" in text and "single.weight" in text, text


# ---- After the end


def _use_after_close(rank):
    state = gw.SessionState()
    ddp = _attached(state)
    with state as entered:
        assert entered is state
        training.train(ddp, rank, 1)
    state.close()  # once more does no harm
    texts = []
    calls = [
        lambda: training.train(ddp, rank, 1),
        lambda: gw.reduce_grads_(ddp.parameters(), state),
        lambda: gw.broadcast_parameters_(ddp.module, state),
        lambda: state.barrier(),
        lambda: state.step,
        lambda: state.state_dict(),
        lambda: state.connect(),
    ]
    for call in calls:
        try:
            call()
            texts.append("nothing")
        except gradwire.InvalidArgument as error:
            texts.append(str(error))
    return texts, state.metrics()


def test_a_closed_state_says_so_whatever_is_asked_of_it():
    for texts, metrics in worlds.run(2, _use_after_close):
        assert texts == ["this state is closed [GW316]"] * len(texts)
        assert metrics == {}


def _never_used(rank):
    with gw.SessionState() as state:
        pass
    state.close()
    return state.metrics(), state.report()


def test_a_state_that_was_never_used_closes():
    assert worlds.run(2, _never_used) == [({}, [])] * 2
