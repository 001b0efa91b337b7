"""Reduction without DistributedDataParallel: against it, and against sums by hand."""

import pytest
import torch
import torch.distributed as dist

import gradwire
import gradwire.torch as gw
import training
import worlds
from gradwire.torch import _grads


def _train_by(rank, make, reduce):
    """Steps like training.train's, whose gradients `reduce(model)` makes the mean."""
    torch.manual_seed(1)
    model = make()
    optimizer = training.optimizer_of(model)
    seen = []
    for step in range(4):
        optimizer.zero_grad(set_to_none=True)
        model(training.batch(rank, step)).square().mean().backward()
        assert reduce(model) is True
        seen.append(training.gradients(model))
        optimizer.step()
    return seen


def _reduce_like_ddp(rank, make):
    want = training.plain(make, rank)
    with gw.SessionState() as state:
        got = _train_by(rank, make, lambda model: gw.reduce_grads_(model.parameters(), state))
        assert state.step == 4
    training.expect_same(got, want)


@pytest.mark.parametrize("make", [training.Mlp, training.TwoDtypes])
def test_reduced_gradients_are_ddps(make):
    worlds.run(2, _reduce_like_ddp, make)


def _reduce_without_a_group(rank, address):
    """Like a script that one process per node runs, started with RANK and WORLD_SIZE."""
    assert not dist.is_initialized()
    torch.manual_seed(rank)
    model = training.Mlp()
    with gw.SessionState(address=address, session="no-group") as state:
        gw.broadcast_parameters_(model, state)
        weights = [parameter.detach().clone() for parameter in model.parameters()]
        model(training.batch(rank, 0)).square().mean().backward()
        local = training.gradients(model)
        assert gw.reduce_grads_(model.parameters(), state)
        assert (state.rank, state.world_size) == (rank, 2)
        return weights, local, training.gradients(model)


def test_a_run_without_any_process_group_broadcasts_and_reduces(daemon):
    variables = [{"RANK": str(rank), "WORLD_SIZE": "2"} for rank in range(2)]
    one, other = worlds.run(
        2, _reduce_without_a_group, daemon.address, group=False, environments=variables
    )
    torch.manual_seed(0)
    first = list(training.Mlp().parameters())
    for weights, _, _ in (one, other):
        assert all(torch.equal(a, b) for a, b in zip(weights, first))
    for name, local in one[1].items():
        mean = (local + other[1][name]) / 2
        assert torch.equal(one[2][name], mean) and torch.equal(other[2][name], mean), name


def _reduce_missing(rank):
    model = training.Mlp()
    with gw.SessionState() as state:
        first, second = model.first.weight, model.second.weight
        if rank == 0:
            first.grad = torch.ones_like(first)
        second.grad = torch.full_like(second, 2.0 * rank)
        gw.reduce_grads_([first, second], state)
        assert torch.equal(first.grad, torch.full_like(first, 0.5)), first.grad
        assert torch.equal(second.grad, torch.ones_like(second)), second.grad


def test_a_parameter_without_a_gradient_contributes_zeros_and_gets_the_mean():
    worlds.run(2, _reduce_missing)


def _reduce_groups(rank):
    model = training.Mlp()
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, float(rank))
    groups = [
        {"params": list(model.first.parameters()), "lr": 0.1},
        {"params": model.second.parameters()},
        {"params": model.last.weight},
        {"params": [model.last.bias]},
    ]
    with gw.SessionState() as state:
        gw.reduce_grads_(groups, state)
    for parameter in model.parameters():
        assert torch.equal(parameter.grad, torch.full_like(parameter, 0.5))


def test_parameters_come_in_all_forms_that_an_optimizer_takes():
    worlds.run(2, _reduce_groups)


@pytest.mark.parametrize("parameters", [torch.ones(3), [torch.ones(3), "weight"], [{"lr": 1}], 5])
def test_what_an_optimizer_does_not_take_is_refused(parameters):
    with pytest.raises(gradwire.InvalidArgument, match="parameters"):
        gw.reduce_grads_(parameters, gw.SessionState())


def _skip(rank):
    model = training.Mlp()
    with gw.SessionState(model=model) as state:
        verdicts = []
        for value in (1.0, float("inf") if rank == 0 else 1.0, 3.0):
            for parameter in model.parameters():
                parameter.grad = torch.full_like(parameter, value)
            verdicts.append(gw.reduce_grads_(model.parameters(), state))
        assert torch.equal(model.last.bias.grad, torch.full((4,), 3.0))
    return verdicts


def test_a_step_that_does_not_count_returns_false():
    assert worlds.run(2, _skip) == [[True, False, True]] * 2


# ---- attach_


def _attach(rank, make):
    torch.manual_seed(1)
    model = make()
    with gw.SessionState() as state:
        gw.attach_(model, state)
        got = training.train(model, rank)
        assert state.step == 4, state.step
    training.expect_same(got, training.plain(make, rank))


@pytest.mark.parametrize("make", [training.Mlp, training.TwoDtypes])
def test_attached_gradients_are_ddps(make):
    worlds.run(2, _attach, make)


def _attach_accumulating(rank):
    def steps(model, no_sync):
        optimizer = training.optimizer_of(model)
        seen = []
        for step in range(3):
            optimizer.zero_grad(set_to_none=True)
            with no_sync():
                model(training.batch(rank, 2 * step)).square().mean().backward()
            model(training.batch(rank, 2 * step + 1)).square().mean().backward()
            seen.append(training.gradients(model))
            optimizer.step()
        return seen

    ddp = training.distributed(training.Mlp)
    want = steps(ddp, ddp.no_sync)
    torch.manual_seed(1)
    model = training.Mlp()
    with gw.SessionState() as state:
        attached = gw.attach_(model, state)
        training.expect_same(steps(model, attached.no_sync), want)
        assert state.step == 3, state.step


def test_attached_gradients_accumulate_in_no_sync():
    worlds.run(2, _attach_accumulating)


class _TwoBranches(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.left = torch.nn.Linear(8, 4)
        self.right = torch.nn.Linear(8, 4)

    def forward(self, x, side):
        return (self.left if side == 0 else self.right)(x)


def _attach_unused(rank):
    torch.manual_seed(1)
    model = _TwoBranches()
    with gw.SessionState() as state:
        gw.attach_(model, state)
        model(torch.ones(1, 8), rank).sum().backward()
        assert state.step == 1, state.step
        for linear in (model.left, model.right):  # ones on one rank, zeros on the other
            assert torch.equal(linear.weight.grad, torch.full((4, 8), 0.5)), linear.weight.grad


def test_a_branch_that_one_rank_did_not_take_gets_the_mean_of_all():
    worlds.run(2, _attach_unused)


def _order_of_calls(rank):
    bytes_before, _grads._BUCKET_BYTES = _grads._BUCKET_BYTES, 1  # a bucket for each parameter
    try:
        return _calls_of_two_steps(rank)
    finally:
        _grads._BUCKET_BYTES = bytes_before


def _calls_of_two_steps(rank):
    torch.manual_seed(1)
    model = training.Mlp()
    calls = []
    with gw.SessionState() as state:
        submit = state.submit

        def noting(target, positions, is_last, finish):
            calls.append(("submit", state._names[positions[0]][0], is_last))
            submit(target, positions, is_last, finish)

        state.submit = noting
        gw.attach_(model, state)
        model.first.weight.register_hook(lambda gradient: calls.append("first.weight is computed"))
        training.train(model, rank, 2)
        del state.submit
    return calls


def test_a_bucket_is_on_its_way_before_backward_has_ended():
    for calls in worlds.run(2, _order_of_calls):
        first, second = calls[: len(calls) // 2], calls[len(calls) // 2 :]
        for step in (first, second):
            assert len(step) == 7
            computed = step.index("first.weight is computed")
            before = {call[1] for call in step[:computed]}
            assert {"last.weight", "last.bias", "second.weight", "second.bias"} <= before
            assert [call[2] for call in step if call[0] == "submit"] == [False] * 5 + [True]


def _detach(rank):
    torch.manual_seed(1)
    model = training.Mlp()
    with gw.SessionState() as state:
        attached = gw.attach_(model, state)
        training.train(model, rank, 1)
        attached.detach()
        model.zero_grad(set_to_none=True)
        x = training.batch(rank, 7)
        model(x).square().mean().backward()
        got = training.gradients(model)
        assert state.step == 1, state.step
    model.zero_grad(set_to_none=True)
    model(x).square().mean().backward()
    training.expect_same([got], [training.gradients(model)])


def test_detached_gradients_are_local_again():
    worlds.run(2, _detach)


def _attached_failure(rank):
    model = training.Mlp()
    with gw.SessionState() as state:
        gw.attach_(model, state)
        training.train(model, rank, 2)
        if rank == 1:
            worlds.die()
        try:
            training.train(model, rank, 1)
        except gradwire.Error as error:
            return str(error)


def test_an_attached_models_backward_raises_when_a_rank_is_lost():
    text, _ = worlds.run(2, _attached_failure, dies=(1,))
    assert "rank 1" in text


def _attached_to_a_closed_state(rank):
    model = training.Mlp()
    state = gw.SessionState()
    gw.attach_(model, state)
    training.train(model, rank, 1)
    state.close()
    texts = []
    for _ in range(2):
        try:
            training.train(model, rank, 1)
        except gradwire.InvalidArgument as error:
            texts.append(str(error))
    return texts


def test_an_attached_models_backward_raises_each_time_after_the_states_end():
    for texts in worlds.run(2, _attached_to_a_closed_state):
        assert texts == ["this state is closed [GW316]"] * 2


# ---- broadcast_parameters_


class _AllKinds(torch.nn.Module):
    """bf16, gaps in memory, shared weights, no dimensions; buffers of integers and booleans."""

    def __init__(self, seed):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)

        def random(*shape):
            return torch.randn(shape, generator=generator)

        self.bf16 = torch.nn.Parameter(random(5, 3).to(torch.bfloat16))
        self.turned = torch.nn.Parameter(random(4, 6).t())
        self.conv = torch.nn.Parameter(random(2, 3, 4, 4).to(memory_format=torch.channels_last))
        self.spread = torch.nn.Parameter(random(20)[::2])
        self.scale = torch.nn.Parameter(random())
        self.fp64 = torch.nn.Parameter(random(3).double())
        self.shared = self.turned
        self.frozen = torch.nn.Parameter(random(7), requires_grad=False)
        self.register_buffer("count", torch.tensor(seed))
        self.register_buffer("mask", random(9) > 0)
        self.register_buffer("nothing", torch.empty(0))


def _broadcast(rank, root, address):
    model = _AllKinds(rank)
    strides = {name: tensor.stride() for name, tensor in model.state_dict().items()}
    options = {} if address is None else {"address": address, "session": f"broadcast-{root}"}
    with gw.SessionState(**options) as state:
        gw.broadcast_parameters_(model, state, root)
        want = _AllKinds(root).state_dict()
        for name, tensor in model.state_dict().items():
            assert torch.equal(tensor, want[name]), name
            assert tensor.stride() == strides[name], name
        # The session goes on as one for reductions.
        loss = sum(parameter.float().sum() for parameter in model.parameters())
        loss.backward()
        assert gw.reduce_grads_([p for p in model.parameters() if p.requires_grad], state)
        assert torch.equal(model.bf16.grad, torch.ones(5, 3, dtype=torch.bfloat16))
        assert torch.equal(model.turned.grad, torch.ones(6, 4))


@pytest.mark.parametrize("root", [0, 1])
def test_a_broadcast_gives_all_kinds_of_tensors_to_all(root):
    worlds.run(2, _broadcast, root, None)


def test_a_broadcast_needs_no_process_group(daemon):
    variables = [{"RANK": str(rank), "WORLD_SIZE": "2"} for rank in range(2)]
    worlds.run(2, _broadcast, 1, daemon.address, group=False, environments=variables)


def _bad_root(rank):
    model = training.Mlp()
    with gw.SessionState(model=model) as state:
        try:
            gw.broadcast_parameters_(model, state, root=2)
        except gradwire.InvalidArgument as error:
            return str(error)


def test_a_root_that_is_no_rank_is_refused():
    for text in worlds.run(2, _bad_root):
        assert "root" in text and "2" in text, text
