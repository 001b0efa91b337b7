"""What a step of a model of many parameters costs, counted in operations: buckets, collectives, calls."""

import pytest
import torch

import gradwire.torch as gw
import worlds
from gradwire.torch import _grads

ALONE = {"rank": 0, "world_size": 1}


class _Counted(torch.nn.Parameter):
    """Counts how often its size is asked for."""

    asked = 0

    def numel(self) -> int:
        _Counted.asked += 1
        return super().numel()


def _of_parameters(count: int, kind=torch.nn.Parameter) -> list[torch.nn.Parameter]:
    parameters = [kind(torch.zeros(2)) for _ in range(count)]
    for i, parameter in enumerate(parameters):
        parameter.grad = torch.full((2,), float(i))
    return parameters


def _asked_in_a_step(daemon, count: int) -> int:
    parameters = _of_parameters(count, _Counted)
    with gw.SessionState(address=daemon.address, session=f"asked-{count}", **ALONE) as state:
        _Counted.asked = 0
        assert gw.reduce_grads_(parameters, state)
    return _Counted.asked


def test_the_first_step_is_linear_in_the_number_of_parameters(daemon):
    few, many = _asked_in_a_step(daemon, 100), _asked_in_a_step(daemon, 400)
    assert 0 < many <= 4 * few, (few, many)


@pytest.fixture
def built(monkeypatch):
    """How many parameters each bucket had that was built."""
    sizes = []
    build = _grads._Bucket.__init__

    def noting(bucket, parameters, state):
        sizes.append(len(parameters))
        build(bucket, parameters, state)

    monkeypatch.setattr(_grads._Bucket, "__init__", noting)
    return sizes


def test_buckets_are_built_once_and_again_when_the_parameters_change(daemon, built):
    model = torch.nn.ParameterList(_of_parameters(5))
    with gw.SessionState(address=daemon.address, session="built", model=model, **ALONE) as state:

        def step(parameters):
            for parameter in parameters:
                parameter.grad = torch.ones(2)
            assert gw.reduce_grads_(parameters, state)
            assert all(torch.equal(one.grad, torch.ones(2)) for one in parameters)

        for _ in range(3):
            step(list(model))
        assert built == [5]
        model[1].grad = None  # it takes part all the same
        assert gw.reduce_grads_(list(model), state)
        assert built == [5] and torch.equal(model[1].grad, torch.zeros(2))
        step(list(model)[:3])
        assert built == [5, 3]
        for _ in range(3):  # in turns, like a generator and a discriminator
            step(list(model)[3:])
            step(list(model)[:3])
        assert built == [5, 3, 2]
        model[4].requires_grad_(False)
        step(list(model)[:4])
        assert gw.reduce_grads_(list(model), state)
        assert built == [5, 3, 2, 4]


def test_a_parameter_that_became_another_dtype_is_not_reduced_in_the_old_one(daemon, built):
    model = torch.nn.ParameterList(_of_parameters(3))
    with gw.SessionState(address=daemon.address, session="dtypes", model=model, **ALONE) as state:
        assert gw.reduce_grads_(list(model), state)
        fine = 1.0 + 2.0**-40
        model[0].grad = None
        model[0].data = model[0].data.double()
        model[0].grad = torch.full((2,), fine, dtype=torch.float64)
        assert gw.reduce_grads_(list(model), state)
        assert built == [3, 1, 2]
        assert model[0].grad.dtype == torch.float64


def test_buckets_that_are_still_under_way_are_not_used_again(daemon, built):
    parameters = _of_parameters(2)
    with gw.SessionState(address=daemon.address, session="under-way", **ALONE) as state:
        assert gw.reduce_grads_(parameters, state)
        submit, state.submit = state.submit, _interrupted
        with pytest.raises(KeyboardInterrupt):  # Ctrl-C; the reduction goes on without the caller
            gw.reduce_grads_(parameters, state)
        state.submit = submit
        assert gw.reduce_grads_(parameters, state)
    assert built == [2, 2]
    assert torch.equal(parameters[1].grad, torch.ones(2))


def _interrupted(*_):
    raise KeyboardInterrupt


class _CountingSession:
    """The session, with a count of its broadcasts."""

    def __init__(self, session) -> None:
        self._session = session
        self.bytes: list[int] = []

    def broadcast(self, root, data, size):
        self.bytes.append(size)
        return self._session.broadcast(root, data, size)

    def __getattr__(self, name):
        return getattr(self._session, name)


def _broadcast_many(rank):
    model = torch.nn.ParameterList(
        torch.nn.Parameter(torch.full((7,), 100.0 * rank + i)) for i in range(300)
    )
    with gw.SessionState(model=model) as state:
        state.connect()
        state._session = session = _CountingSession(state._session)
        gw.broadcast_parameters_(model, state, root=1)
        for i, parameter in enumerate(model):
            assert torch.equal(parameter, torch.full((7,), 100.0 + i)), i
        return session.bytes


def test_small_tensors_are_broadcast_together():
    for sizes in worlds.run(2, _broadcast_many):
        assert sizes == [300 * 7 * 4]


def _broadcast_in_pieces(rank):
    """Pieces of 64 bytes at most; tensors of more go alone."""
    before, _grads._BUCKET_BYTES = _grads._BUCKET_BYTES, 64
    numels = [4, 4, 8, 8, 100, 1, 1]
    try:
        model = torch.nn.ParameterList(
            torch.nn.Parameter(torch.full((numel,), 10.0 * rank + i))
            for i, numel in enumerate(numels)
        )
        with gw.SessionState(model=model) as state:
            state.connect()
            state._session = session = _CountingSession(state._session)
            gw.broadcast_parameters_(model, state)
            for i, parameter in enumerate(model):
                assert torch.equal(parameter, torch.full((numels[i],), float(i))), i
            return session.bytes
    finally:
        _grads._BUCKET_BYTES = before


def test_a_broadcast_goes_in_pieces_of_a_limited_size():
    for sizes in worlds.run(2, _broadcast_in_pieces):
        assert sizes == [64, 32, 400, 8]
