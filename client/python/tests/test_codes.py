"""The codes at the end of the exceptions' messages."""

import pickle
import re

import pytest
import torch

import gradwire
import gradwire.torch as gw
from gradwire import _native
from gradwire._codes import coded
from gradwire._errors import from_status


def code_of(error: BaseException) -> str:
    tags = re.findall(r" \[(GW[1-9][0-9]{2})\]", str(error))
    assert len(tags) == 1, str(error)
    assert str(error).endswith(f" [{tags[0]}]"), str(error)
    return tags[0]


def test_a_message_keeps_one_code_at_its_end():
    assert coded("GW204", "taken") == "taken [GW204]"
    assert coded("GW204", "taken [GW204]") == "taken [GW204]"
    assert coded("GW101", "it drains [GW109]; is it there?") == "it drains; is it there? [GW109]"
    assert coded("GW309", "ended: x [GW300]") == "ended: x [GW309]"
    assert coded("GW200", "a [GW2] [gw203] (GW204)") == "a [GW2] [gw203] (GW204) [GW200]"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (gradwire.Error("x"), "GW800"),
        (gradwire.InvalidArgument("x"), "GW400"),
        (gradwire.Unavailable("x"), "GW101"),
        (gradwire.InvalidArgument("x", "GW803"), "GW803"),
        (from_status(10, "rank 2 was lost [GW301]"), "GW301"),
        (from_status(3, "x"), "GW400"),
        (pickle.loads(pickle.dumps(gradwire.InvalidArgument("x", "GW803"))), "GW803"),
    ],
)
def test_every_error_ends_in_a_code(error, code):
    assert code_of(error) == code


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda: _native.check_hook("fp17", "no", {}), "GW401"),
        (lambda: _native.check_hook("power_sgd", "no", {"matrix_approximation_rank": 0}), "GW402"),
        (lambda: gw.SessionState(address="nowhere"), "GW400"),
        (lambda: gw.SessionState(comm_hook="fp17"), "GW401"),
        (lambda: gw.register_hook("mine", 3), "GW405"),
        (lambda: gw.SessionState(address="unix:/nonexistent/s", rank=0, world_size=1).connect(), "GW801"),
        (lambda: gw.reduce_grads_(3, None), "GW404"),
        (
            lambda: _native.join(
                "unix:/nonexistent/s", "s", 0, 1, [("w", [2], "float32")], connect_timeout=0.3
            ),
            "GW101",
        ),
    ],
)
def test_mistakes_have_codes_of_their_own(call, code):
    with pytest.raises(gradwire.Error) as raised:
        call()
    assert code_of(raised.value) == code


def test_a_hook_that_the_session_does_not_have(daemon):
    def state(hook):
        return gw.SessionState(
            address=daemon.address, session="codes", rank=0, world_size=1, comm_hook=hook,
            model=torch.nn.Linear(2, 1),
        )  # fmt: skip

    with state("no") as first:
        first.connect()
        with pytest.raises(gradwire.InvalidArgument) as raised:
            state("fp16").connect()
        assert code_of(raised.value) == "GW201"
