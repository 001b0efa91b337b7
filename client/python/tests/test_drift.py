"""check_parameters_every: the rank whose parameters differ is named, on all ranks."""

import logging

import pytest
import torch

import gradwire
import gradwire.torch as gw
import training
import worlds


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines = []

    def emit(self, record) -> None:
        self.lines.append(record.getMessage())


def _train(rank, way, policy, drifts_in, silent=None):
    """What each step said of drift, the log's lines, and the error, if one came."""
    lines = _Lines()
    logging.getLogger("gradwire").addHandler(lines)
    said, error = [], None
    every = None if rank == silent else 2
    with gw.SessionState(check_parameters_every=every, on_parameter_drift=policy) as state:
        if way == "ddp":
            model = training.distributed(training.Mlp, **training.SMALL_BUCKETS)
            model.register_comm_hook(state, gw.aggregate_hook)
        else:
            model = training.Mlp()
            gw.broadcast_parameters_(model, state)
        optimizer = training.optimizer_of(model)
        for step in range(7):
            if step == drifts_in and rank == 1:
                with torch.no_grad():
                    next(iter(model.parameters())).view(-1)[3] += 1e-3
            optimizer.zero_grad(set_to_none=True)
            try:
                model(training.batch(rank, step)).square().sum().backward()
                if way != "ddp":
                    gw.reduce_grads_(model.parameters(), state)
            except RuntimeError as raised:
                error = str(raised)
                break
            said.append(state.parameter_drift)
            optimizer.step()
        later = None
        if error is not None:
            try:
                gw.reduce_grads_(model.parameters(), state)
            except gradwire.Error as raised:
                later = str(raised)
    return said, lines.lines, error, later


@pytest.mark.parametrize("way", ["ddp", "grads"])
def test_the_rank_that_drifted_is_named(way):
    sentence = "the parameters of rank 1 have differed from the others' since a step between 2 and 4"
    for said, lines, error, _ in worlds.run(3, _train, way, "warn", 3):
        assert said == ["", "", "", "", sentence, "", sentence]
        assert lines == [sentence, sentence]
        assert error is None


def test_a_rank_that_sends_nothing_is_told_too():
    sentence = "the parameters of rank 1 have differed from the others' since before step 4"
    for said, lines, error, _ in worlds.run(4, _train, "grads", "warn", 3, 3):
        assert said == ["", "", "", "", sentence, "", sentence]
        assert lines == [sentence, sentence]
        assert error is None


@pytest.mark.parametrize("way", ["ddp", "grads"])
def test_the_session_ends_with_it_where_that_is_the_policy(way):
    for said, lines, error, later in worlds.run(3, _train, way, "fail", 1):
        assert said == ["", ""], said
        assert "the parameters of rank 1 have differed from the others' since a step between 0 and 2 [GW321]" in error
        assert "this session has ended: the parameters of rank 1 have differed" in later


@pytest.mark.parametrize("way", ["ddp", "grads"])
def test_equal_parameters_are_no_news(way):
    for said, lines, error, _ in worlds.run(2, _train, way, "fail", None):
        assert (said, lines, error) == ([""] * 7, [], None)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"check_parameters_every": 0}, "check_parameters_every is 0; allowed are None and integers from 1"),
        ({"check_parameters_every": True}, "check_parameters_every is True"),
        ({"on_parameter_drift": "stop"}, "on_parameter_drift is 'stop'; allowed are \"warn\" and \"fail\""),
    ],
)
def test_what_is_not_allowed_is_named(arguments, message):
    with pytest.raises(gradwire.InvalidArgument) as raised:
        gw.SessionState(**arguments)
    assert message in str(raised.value)


def test_a_state_that_was_closed_meanwhile_has_nothing_to_tell():
    state = gw.SessionState(check_parameters_every=1)
    state.close()
    assert state._take_drift() == ""
