"""Gradients that the daemon reduces where torch has them, against the same training with copies."""

import contextlib
import io
import os
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

import gradwire
import gradwire.torch as gw
import training
import worlds

COPIED = {"GRADWIRE_SHARED_GRADIENTS": "off"}
INPUT = (16, 200)
# Two buckets or more of some 400 KB, which DistributedDataParallel rebuilds after the first step.
BUCKETS = {"bucket_cap_mb": 0.4}


class Wide(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = torch.nn.Linear(200, 401)
        self.two = torch.nn.Linear(401, 301)
        self.last = torch.nn.Linear(301, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.two(torch.tanh(self.one(x)))))


def _shared_mappings() -> int:
    """Mappings of segments for torch's buffers, shared with the daemon: in place, and beside."""
    with open("/proc/self/maps") as maps:
        return sum("rw-s" in line and "gradwire-buckets" in line for line in maps)


def _shared_gradients(model: torch.nn.Module) -> int:
    """Gradients whose middle lies in a mapping that other processes share."""
    with open("/proc/self/maps") as maps:
        lines = [line.split() for line in maps]
    shared = [[int(end, 16) for end in line[0].split("-")] for line in lines if line[1] == "rw-s"]
    count = 0
    for gradient in (parameter.grad for parameter in model.parameters()):
        middle = gradient.data_ptr() + gradient.numel() * gradient.element_size() // 2
        count += any(begin <= middle < end for begin, end in shared)
    return count


def _in_place(state: gw.SessionState) -> list[bool]:
    return [bucket["in_place"] for bucket in state.metrics()["buckets"]]


def _why(state: gw.SessionState) -> set[str]:
    return {bucket["why_copied"] for bucket in state.metrics()["buckets"]}


@contextlib.contextmanager
def _ddp(view: bool = False, make=Wide, buckets=BUCKETS, **arguments):
    with gw.SessionState(**arguments) as state:
        ddp = training.distributed(make, gradient_as_bucket_view=view, **buckets)
        ddp.register_comm_hook(state, gw.aggregate_hook)
        yield state, ddp


class Negative(gw.Hook):
    def plan(self, parameters, step):
        numel = sum(int(torch.Size(p.shape).numel()) for p in parameters)
        return [[gw.Segment(torch.float32, numel)]]

    def run(self, bucket):
        (mean,) = yield [-bucket.buffer]
        bucket.buffer.copy_(mean)


HOOKS = {
    "no": {},
    "fp16": {"comm_hook": "fp16"},
    "bf16": {"comm_hook": "bf16"},
    "power_sgd": {
        "comm_hook": "power_sgd",
        "comm_state_option": {"start_powerSGD_iter": 3, "matrix_approximation_rank": 2},
    },
    "batched_power_sgd": {
        "comm_hook": "batched_power_sgd",
        "comm_state_option": {"start_powerSGD_iter": 3},
    },
    "wrapped": {"comm_hook": "no", "comm_wrapper": "fp16"},
    "negative": {"comm_hook": "negative"},
}
IN_PLACE = ("no", "fp16", "bf16")


def _by_ddp(rank, hook, view):
    with _ddp(view, **HOOKS[hook]) as (state, ddp):
        return training.train(ddp, rank, 6, shape=INPUT), _in_place(state), _why(state)


def _by_attach(rank, hook, _):
    torch.manual_seed(1)
    model = Wide()
    with gw.SessionState(**HOOKS[hook]) as state:
        gw.attach_(model, state)
        return training.train(model, rank, 6, shape=INPUT), _in_place(state), _why(state)


def _by_reduce(rank, hook, zeros):
    torch.manual_seed(1)
    model = Wide()
    optimizer = training.optimizer_of(model)
    seen = []
    with gw.SessionState(**HOOKS[hook]) as state:
        for step in range(6):
            optimizer.zero_grad(set_to_none=not zeros)
            model(training.batch(rank, step, *INPUT)).square().mean().backward()
            assert gw.reduce_grads_(model.parameters(), state)
            seen.append(training.gradients(model))
            optimizer.step()
        return seen, _in_place(state), _why(state)


def _both(rank, train, hook, option):
    if hook == "negative":
        gw.register_hook("negative", Negative)
    got, in_place, why = train(rank, hook, option)
    assert all(in_place) == any(in_place) == (hook in IN_PLACE), (in_place, why)
    assert hook in IN_PLACE or all("computes with gradients" in one for one in why), why
    with worlds.environment(COPIED):
        want, in_place, why = train(rank, hook, option)
    assert (any(in_place), why) == (False, {"shared gradients are off (GRADWIRE_SHARED_GRADIENTS)"})
    training.expect_same(got, want)
    assert _shared_mappings() == 0


# With and without gradients as views of buckets, or zeros as what is accumulated to.
@pytest.mark.parametrize(
    "train, option",
    [(_by_ddp, False), (_by_ddp, True), (_by_attach, None), (_by_reduce, False), (_by_reduce, True)],
)
@pytest.mark.parametrize("hook", HOOKS)
def test_gradients_are_those_of_copies(train, option, hook):
    worlds.run(2, _both, train, hook, option, fresh=hook == "negative")


def _both_over(rank, settings, *arguments):
    with worlds.environment(settings):
        _both(rank, *arguments)


# Each daemon writes its part of every bucket; or one does, and the other's part is sent.
@pytest.mark.parametrize("train", [_by_ddp, _by_attach, _by_reduce])
@pytest.mark.parametrize("hook", IN_PLACE)
@pytest.mark.parametrize("mixed", [False, True])
def test_gradients_of_several_daemons_are_those_of_copies(two_daemons, train, hook, mixed):
    here, there = two_daemons
    settings = {
        "GRADWIRE_ADDRESS": f"{there.tcp if mixed else there.address},{here.address}",
        "GRADWIRE_LOCAL_SOCKET": "off",
    }
    worlds.run(2, _both_over, settings, train, hook, True)


# ---- DistributedDataParallel's buckets


def _rebuilt(rank):
    with _ddp(view=True) as (state, ddp):
        counts = []
        for step in range(5):
            training.train(ddp, rank, 1, first=step, shape=INPUT)
            counts.append((any(_in_place(state)), _shared_mappings() // 2))
        # Rebuilt after the first step, and met again in the third.
        assert counts == [(False, 0), (False, 0)] + [(True, len(_in_place(state)))] * 3, counts
        # Another layout: the old buckets are let go, and the new ones shared in their turn.
        other = training.distributed(lambda: ddp.module, bucket_cap_mb=50)
        other.register_comm_hook(state, gw.aggregate_hook)
        for step in range(4):
            training.train(other, rank, 1, first=step, shape=INPUT)
        assert _in_place(state) == [True], state.metrics()["buckets"]
        assert _shared_mappings() == 2
    assert _shared_mappings() == 0


def test_rebuilt_buckets_are_shared_and_old_ones_let_go():
    worlds.run(2, _rebuilt)


def _small(rank):
    with _ddp(make=training.Mlp, buckets={}) as (state, ddp):
        training.train(ddp, rank, 4)
        assert len(_why(state)) == 1 and "shared are 65536 and more" in _why(state).pop()


def test_a_bucket_smaller_than_a_page_is_copied():
    worlds.run(2, _small)


def _wrapped_by_torch(rank):
    def train():
        with gw.SessionState() as state:
            ddp = training.distributed(Wide, **BUCKETS)
            ddp.register_comm_hook(state, default_hooks.fp16_compress_wrapper(gw.aggregate_hook))
            return training.train(ddp, rank, 12, shape=INPUT)

    got = train()
    with worlds.environment(COPIED):
        training.expect_same(got, train())


def test_buffers_that_change_from_step_to_step_are_reduced_all_the_same():
    worlds.run(2, _wrapped_by_torch)


def _over_tcp(rank, address):
    os.environ["GRADWIRE_LOCAL_SOCKET"] = "off"
    with _ddp(address=address, session="copied") as (state, ddp):
        training.train(ddp, rank, 4, shape=INPUT)
        assert _why(state) == {"payloads do not travel in shared memory"}


def test_buckets_over_tcp_are_copied(daemon):
    worlds.run(2, _over_tcp, daemon.tcp, fresh=True)


# ---- What a trainer does with gradients


def _saved(rank):
    with _ddp(view=True) as (state, ddp):
        training.train(ddp, rank, 4, shape=INPUT)
        assert all(_in_place(state))
        file = io.BytesIO()
        torch.save([parameter.grad for parameter in ddp.parameters()], file)
        file.seek(0)
        for parameter, loaded in zip(ddp.parameters(), torch.load(file)):
            assert torch.equal(parameter.grad, loaded)


def test_gradients_can_be_saved():
    worlds.run(2, _saved)


def _views(rank):
    model = Wide()
    model.one.weight = torch.nn.Parameter(torch.empty(200, 401).t())  # not contiguous
    for parameter in model.parameters():
        torch.nn.init.ones_(parameter)
    with gw.SessionState() as state:
        for _ in range(2):
            for i, parameter in enumerate(model.parameters()):
                parameter.grad = torch.full_like(parameter, float(rank + i))
            gw.reduce_grads_(model.parameters(), state)
            assert _in_place(state) == [True]
            for i, parameter in enumerate(model.parameters()):
                assert torch.equal(parameter.grad, torch.full_like(parameter, i + 0.5))
                assert parameter.grad.stride() == parameter.stride()
        storages = {p.grad.storage().data_ptr() for p in model.parameters()}
        assert len(storages) == 2, "all but one are views"
    assert _shared_mappings() == 0
    for i, parameter in enumerate(model.parameters()):  # they outlive the session
        parameter.grad += 1
        assert torch.equal(parameter.grad, torch.full_like(parameter, i + 1.5))


def test_reduced_gradients_become_views_that_outlive_the_session():
    worlds.run(2, _views)


def _moved(rank):
    """Tensors of multiprocessing's queues do this."""
    with _ddp(view=True) as (state, ddp):
        training.train(ddp, rank, 4, shape=INPUT)
        next(ddp.parameters()).grad.share_memory_()
        got = training.train(ddp, rank, 3, shape=INPUT)
    with worlds.environment(COPIED), _ddp(view=True) as (state, ddp):
        training.train(ddp, rank, 4, shape=INPUT)
        training.expect_same(got, training.train(ddp, rank, 3, shape=INPUT))


def test_storage_that_moves_is_met_at_its_new_place():
    worlds.run(2, _moved, fresh=True)


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
            state, model = stack.enter_context(_ddp(view=True))
        training.train(model, rank, 4, shape=INPUT)
        assert all(_in_place(state))
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
        assert all(_in_place(state))
    with worlds.environment(COPIED):
        with _ddp(view=True) as (state, model):
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
                            num_workers=workers, prefetch_factor=2)
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
    with _ddp(view=True) as (state, ddp):
        training.train(ddp, rank, 4, shape=INPUT)
        assert _shared_mappings() > 0
        before = training.gradients(ddp)
    assert _shared_mappings() == 0
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
    with _ddp(view=True) as (state, ddp):
        training.train(ddp, rank, 4, shape=INPUT)
        assert _shared_gradients(ddp) > 0
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
        assert _shared_gradients(ddp) == 0
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
            state, model = stack.enter_context(_ddp(view=True, **arguments))
        training.train(model, rank, 4, shape=INPUT)
        assert _shared_gradients(model) > 0
        dist.barrier()
        if rank == 0:
            os.kill(pid, 9)
        with pytest.raises(gradwire.Error):
            for step in range(100):
                training.train(model, rank, 1, shape=INPUT)
        assert _shared_gradients(model) == 0
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
    assert _shared_mappings() == 0


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
