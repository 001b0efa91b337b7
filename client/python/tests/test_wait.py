"""A process that is killed, and its successor: examples/elastic.py with a daemon that waits."""

import contextlib
import pickle
import re
import signal

import pytest
import torch

import gradwire
import gradwire.torch as gw
from conftest import Daemon
from elastic_ranks import Rank
from gradwire.torch import _heal

def _start(stack, folder, shards, policy) -> str:
    """The address of so many daemons."""
    addresses = []
    for number in range(shards):
        own = folder / f"shard{number}"
        own.mkdir()
        daemon = Daemon(own, "--on-coordinator-loss", "resume", "--on-member-loss", policy)
        addresses.append(stack.enter_context(contextlib.closing(daemon)).address)
    return ",".join(addresses)


@pytest.mark.parametrize(("killed", "shards"), [(1, 1), (0, 1), (0, 2)])
def test_a_successor_gets_the_model_and_the_training_ends_alike_on_all(tmp_path, killed, shards):
    with contextlib.ExitStack() as stack:
        address = _start(stack, tmp_path, shards, "wait")
        ranks = [stack.enter_context(contextlib.closing(Rank(address, rank))) for rank in range(2)]
        ranks[killed].wait_for("epoch 2 is over")
        ranks[killed].kill()
        ranks[killed] = stack.enter_context(contextlib.closing(Rank(address, killed)))
        printed = [rank.finish() for rank in ranks]
    change = f"MembershipChange(newcomers=[{killed}], root={1 - killed}, members=[0, 1])"
    assert all(change in text for text in printed), printed
    assert "epoch 1 is over" not in printed[killed], "it began from the other's place"
    checksums = [re.search(r"parameters (\w+)", text)[1] for text in printed]
    assert checksums[0] == checksums[1]
    # PowerSGD's residuals begin anew with the successor, so the model is another than without its loss.
    assert float(re.search(r"accuracy ([0-9.]+)", printed[0])[1]) > 0.95


@pytest.mark.parametrize("shards", [1, 2])
def test_the_others_go_on_without_a_lost_rank(tmp_path, shards):
    with contextlib.ExitStack() as stack:
        address = _start(stack, tmp_path, shards, "shrink")
        ranks = [stack.enter_context(contextlib.closing(Rank(address, rank, 3))) for rank in range(3)]
        ranks[0].wait_for("epoch 2 is over")
        ranks[0].kill()
        printed = [rank.finish() for rank in ranks[1:]]
    assert all("MembershipChange(newcomers=[], root=1, members=[1, 2])" in text for text in printed), printed
    checksums = [re.search(r"parameters (\w+)", text)[1] for text in printed]
    assert checksums[0] == checksums[1]


@pytest.mark.parametrize("shards", [1, 2])
def test_a_rank_that_is_told_to_stop_hands_its_residuals_over(tmp_path, shards):
    with contextlib.ExitStack() as stack:
        address = _start(stack, tmp_path, shards, "shrink")
        ranks = [stack.enter_context(contextlib.closing(Rank(address, rank, 3))) for rank in range(3)]
        ranks[1].wait_for("epoch 2 is over")
        ranks[1].stop()
        assert "rank 1: leaves; its residuals go to rank 0" in ranks[1].finish()
        printed = [rank.finish() for rank in (ranks[0], ranks[2])]
    assert all("members=[0, 2])" in text for text in printed), printed
    checksums = [re.search(r"parameters (\w+)", text)[1] for text in printed]
    assert checksums[0] == checksums[1]


def test_a_stop_signal_that_comes_twice_at_once_is_one():
    got = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: got.append(number))
    try:
        stop = gw.StopSignal(signal.SIGUSR1, again_after=3600)
        for _ in range(3):
            signal.raise_signal(signal.SIGUSR1)
        assert stop
        assert got == []
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_stop_signal_is_true_once_and_then_as_before():
    got = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: got.append(number))
    try:
        stop = gw.StopSignal(signal.SIGUSR1, again_after=0)
        assert not stop
        signal.raise_signal(signal.SIGUSR1)
        assert stop
        assert got == []
        signal.raise_signal(signal.SIGUSR1)
        assert got == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_leaving_alone_says_that_nobody_takes_residuals(tmp_path, caplog):
    with contextlib.ExitStack() as stack:
        address = _start(stack, tmp_path, 1, "shrink")
        model = torch.nn.Linear(40, 40)
        option = {"start_powerSGD_iter": 1}
        state = gw.SessionState(
            address=address, session="alone", model=model, rank=0, world_size=1, comm_hook="power_sgd",
            comm_state_option=option,
        )  # fmt: skip
        gw.attach_(model, state)
        for _ in range(4):
            model(torch.randn(8, 40)).square().mean().backward()
            assert state.should_step
        assert state.leave() is None
        assert state.leave() is None
    assert "nobody is known to have its residuals or late gradients: no other member is there" in caplog.text


def test_without_a_change_nobody_is_healed(daemon):
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with gw.SessionState(
        address=daemon.address, session="unchanged", model=model, rank=0, world_size=1
    ) as state:
        assert state.membership_change is None
        assert state.members == [0]
        before = model.weight.detach().clone()
        assert gw.heal_(model, optimizer, state, {"epoch": 3}) == {"epoch": 3}
        assert torch.equal(model.weight, before)


def test_what_is_healed_comes_back_as_it_was_and_runs_no_code():
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.ones(3))], lr=0.1)
    optimizer.param_groups[0]["params"][0].grad = torch.ones(3)
    optimizer.step()
    value = [optimizer.state_dict(), {"epoch": 3, 7: (1.5, None, float("inf"), True), "text": "ü"}]
    back = _heal._unpacked(_heal._packed(value))
    assert back[1] == value[1]
    assert back[0]["param_groups"] == value[0]["param_groups"]
    state = back[0]["state"][0]
    assert all(torch.equal(torch.as_tensor(state[k]), torch.as_tensor(v)) for k, v in value[0]["state"][0].items())
    with pytest.raises(gradwire.InvalidArgument, match="cannot send a set"):
        _heal._packed({"seen": {1, 2}})
    structure = b'{"tensor": 0}'
    spoiled = len(structure).to_bytes(8, "little") + structure + pickle.dumps(print)
    with pytest.raises(Exception, match="(?i)weights|invalid|failed"):
        _heal._unpacked(spoiled)
