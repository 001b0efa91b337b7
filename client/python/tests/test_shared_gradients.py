"""Gradients that the daemon reduces where torch has them, against the same training with copies."""

import io
import os

import pytest
import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

import gradwire.torch as gw
import training
import worlds
from wide import BUCKETS, COPIED, INPUT, Wide, aggregating, buckets_in_place, reasons_copied, shared_mappings


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
    with aggregating(view, **HOOKS[hook]) as (state, ddp):
        return training.train(ddp, rank, 6, shape=INPUT), buckets_in_place(state), reasons_copied(state)


def _by_attach(rank, hook, _):
    torch.manual_seed(1)
    model = Wide()
    with gw.SessionState(**HOOKS[hook]) as state:
        gw.attach_(model, state)
        return training.train(model, rank, 6, shape=INPUT), buckets_in_place(state), reasons_copied(state)


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
        return seen, buckets_in_place(state), reasons_copied(state)


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
    assert shared_mappings() == 0


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
    with aggregating(view=True) as (state, ddp):
        counts = []
        for step in range(5):
            training.train(ddp, rank, 1, first=step, shape=INPUT)
            counts.append((any(buckets_in_place(state)), shared_mappings() // 2))
        # Rebuilt after the first step, and met again in the third.
        assert counts == [(False, 0), (False, 0)] + [(True, len(buckets_in_place(state)))] * 3, counts
        # Another layout: the old buckets are let go, and the new ones shared in their turn.
        other = training.distributed(lambda: ddp.module, bucket_cap_mb=50)
        other.register_comm_hook(state, gw.aggregate_hook)
        for step in range(4):
            training.train(other, rank, 1, first=step, shape=INPUT)
        assert buckets_in_place(state) == [True], state.metrics()["buckets"]
        assert shared_mappings() == 2
    assert shared_mappings() == 0


def test_rebuilt_buckets_are_shared_and_old_ones_let_go():
    worlds.run(2, _rebuilt)


def _small(rank):
    with aggregating(make=training.Mlp, buckets={}) as (state, ddp):
        training.train(ddp, rank, 4)
        assert len(reasons_copied(state)) == 1 and "shared are 65536 and more" in reasons_copied(state).pop()


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
    with aggregating(address=address, session="copied") as (state, ddp):
        training.train(ddp, rank, 4, shape=INPUT)
        assert reasons_copied(state) == {"payloads do not travel in shared memory"}


def test_buckets_over_tcp_are_copied(daemon):
    worlds.run(2, _over_tcp, daemon.tcp, fresh=True)


# ---- What a trainer does with gradients


def _saved(rank):
    with aggregating(view=True) as (state, ddp):
        training.train(ddp, rank, 4, shape=INPUT)
        assert all(buckets_in_place(state))
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
            assert buckets_in_place(state) == [True]
            for i, parameter in enumerate(model.parameters()):
                assert torch.equal(parameter.grad, torch.full_like(parameter, i + 0.5))
                assert parameter.grad.stride() == parameter.stride()
        storages = {p.grad.storage().data_ptr() for p in model.parameters()}
        assert len(storages) == 2, "all but one are views"
    assert shared_mappings() == 0
    for i, parameter in enumerate(model.parameters()):  # they outlive the session
        parameter.grad += 1
        assert torch.equal(parameter.grad, torch.full_like(parameter, i + 1.5))


def test_reduced_gradients_become_views_that_outlive_the_session():
    worlds.run(2, _views)


def _moved(rank):
    """Tensors of multiprocessing's queues do this."""
    with aggregating(view=True) as (state, ddp):
        training.train(ddp, rank, 4, shape=INPUT)
        next(ddp.parameters()).grad.share_memory_()
        got = training.train(ddp, rank, 3, shape=INPUT)
    with worlds.environment(COPIED), aggregating(view=True) as (state, ddp):
        training.train(ddp, rank, 4, shape=INPUT)
        training.expect_same(got, training.train(ddp, rank, 3, shape=INPUT))


def test_storage_that_moves_is_met_at_its_new_place():
    worlds.run(2, _moved, fresh=True)
