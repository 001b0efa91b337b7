"""Shared gradients beside other processes, and after their session: they are the trainer's alone."""

import contextlib
import os
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist

import gradwire
import gradwire.torch as gw
import training
import worlds
from wide import COPIED, INPUT, Wide, aggregating, buckets_in_place, shared_gradients, shared_mappings


# ---- Forks


def _fork(call) -> int:
    child = os.fork()
    if child == 0:
        code = 9
        try:
            code = call()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _forked(rank, attach):
    torch.manual_seed(1)
    with contextlib.ExitStack() as stack:
        if attach:
            state = stack.enter_context(gw.SessionState())
            model = Wide()
            gw.attach_(model, state)
        else:
            state, model = stack.enter_context(aggregating(view=True))
        training.train(model, rank, 4, shape=INPUT)
        assert all(buckets_in_place(state))
        before = training.gradients(model)

        def spoil() -> int:
            for parameter, gradient in zip(model.parameters(), before.values()):
                if not torch.equal(parameter.grad, gradient):
                    return 1
                parameter.grad.fill_(7.0)
                parameter.grad = None
            return 0

        assert _fork(spoil) == 0
        after = training.gradients(model)
        assert all(torch.equal(after[name], gradient) for name, gradient in before.items())
        got = training.train(model, rank, 2, shape=INPUT)
        assert all(buckets_in_place(state))
    with worlds.environment(COPIED):
        with aggregating(view=True) as (state, model):
            training.train(model, rank, 4, shape=INPUT)
            training.expect_same(got, training.train(model, rank, 2, shape=INPUT))


@pytest.mark.parametrize("attach", [False, True])
def test_a_forked_child_has_gradients_of_its_own(attach):
    worlds.run(2, _forked, attach, fresh=True)


LOADER_SCRIPT = """
import os
import torch
import gradwire.torch as gw
from torch.utils.data import DataLoader

class Spoiling(torch.utils.data.Dataset):
    # Its workers have a copy of the model, as those that augment with it do.
    def __init__(self, model):
        self.model = model
    def __len__(self):
        return 12
    def __getitem__(self, i):
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad.zero_()
                parameter.grad = None
        return torch.full((1, 300), float(i))

def train(share, workers):
    os.environ["GRADWIRE_SHARED_GRADIENTS"] = share
    torch.manual_seed(0)
    model = torch.nn.Linear(300, 300)
    with gw.SessionState(session=share) as state:
        gw.attach_(model, state)
        model(torch.ones(1, 300)).square().sum().backward()
        loader = DataLoader(Spoiling(model if workers else torch.nn.Identity()), batch_size=None,
                            num_workers=workers)
        for batch in loader:  # gradients accumulate
            model(batch).square().mean().backward()
        assert state.metrics()["buckets"][0]["in_place"] == (share == "on"), state.metrics()
    return model.weight.grad

assert torch.equal(train("on", 2), train("off", 0))
print("well")
"""


def test_workers_of_a_data_loader_do_not_touch_gradients(daemon):
    _run_alone(LOADER_SCRIPT, daemon)


# ---- Ends


def _closed(rank):
    with aggregating(view=True) as (state, ddp):
        training.train(ddp, rank, 4, shape=INPUT)
        assert shared_mappings() > 0
        before = training.gradients(ddp)
    assert shared_mappings() == 0
    after = training.gradients(ddp)
    assert all(torch.equal(after[name], gradient) for name, gradient in before.items())
    for parameter in ddp.parameters():
        parameter.grad.fill_(2.0)


def test_after_close_the_memory_is_private_and_the_gradients_stay():
    worlds.run(2, _closed)


class _Fails(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        raise ValueError("in a backward of the user's")


def _raises(rank):
    """Rank 0's backward() fails after its first bucket; rank 1 waits for the others."""
    with aggregating(view=True) as (state, ddp):
        training.train(ddp, rank, 4, shape=INPUT)
        assert shared_gradients(ddp) > 0
        x = training.batch(rank, 9, *INPUT)
        if rank == 0:
            inner = ddp.module
            hidden = _Fails.apply(torch.tanh(inner.one(x)))
            forward, inner.forward = inner.forward, lambda _: inner.last(torch.tanh(inner.two(hidden)))
            with pytest.raises(ValueError, match="of the user's"):
                ddp(x).square().mean().backward()
            inner.forward = forward
            state.close()
        else:
            with pytest.raises(gradwire.Error):
                ddp(x).square().mean().backward()
        assert shared_gradients(ddp) == 0
        for parameter in ddp.parameters():
            parameter.grad.fill_(2.0)
        assert all((parameter.grad == 2.0).all() for parameter in ddp.parameters())


def test_an_exception_in_a_step_leaves_private_memory():
    worlds.run(2, _raises, fresh=True)


def _daemon_dies(rank, address, pid, attach):
    with contextlib.ExitStack() as stack:
        if attach:
            state = stack.enter_context(gw.SessionState(address=address, session="dies"))
            model = Wide()
            gw.attach_(model, state)
        else:
            arguments = {"address": address, "session": "dies"}
            state, model = stack.enter_context(aggregating(view=True, **arguments))
        training.train(model, rank, 4, shape=INPUT)
        assert shared_gradients(model) > 0
        dist.barrier()
        if rank == 0:
            os.kill(pid, 9)
        with pytest.raises(gradwire.Error):
            for step in range(100):
                training.train(model, rank, 1, shape=INPUT)
        assert shared_gradients(model) == 0
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
    assert shared_mappings() == 0


@pytest.mark.parametrize("attach", [False, True])
def test_a_session_that_ends_leaves_private_memory(new_daemon, attach):
    worlds.run(2, _daemon_dies, new_daemon.address, new_daemon.pid, attach, fresh=True)


@pytest.mark.parametrize("attach", [False, True])
def test_one_daemon_of_several_that_dies_leaves_private_memory(two_daemons, attach):
    first, second = two_daemons
    address = f"{first.address},{second.address}"
    worlds.run(2, _daemon_dies, address, second.pid, attach, fresh=True)


DROPPING_SCRIPT = """
import gc
import torch
import gradwire.torch as gw

def train():
    model = torch.nn.Linear(300, 300)
    state = gw.SessionState(session="dropped")
    gw.attach_(model, state)
    for _ in range(3):
        model(torch.ones(1, 300)).sum().backward()
    assert all(bucket["in_place"] for bucket in state.metrics()["buckets"])
    return model.weight.grad

gradient = train()
gc.collect()
blocks = [torch.full((300, 300), float(i)) for i in range(50)]
assert float(gradient[0, 0]) == 3.0, gradient
assert all(float(block.mean()) == i for i, block in enumerate(blocks))
print("well")
"""


def test_a_state_that_is_dropped_without_close_does_no_harm(daemon):
    _run_alone(DROPPING_SCRIPT, daemon)


def _run_alone(script, daemon):
    variables = {"GRADWIRE_ADDRESS": daemon.address, "RANK": "0", "WORLD_SIZE": "1"}
    ended = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ended.returncode, ended.stdout) == (0, "well\n"), ended.stderr
