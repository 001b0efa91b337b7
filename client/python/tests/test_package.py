"""What the package says without a daemon."""

import pickle

import pytest

import gradwire
from gradwire import _native
from gradwire._errors import from_status


def test_versions_agree():
    assert gradwire.__version__ == _native.__version__


@pytest.mark.parametrize(
    ("hook", "wrapper", "options", "said"),
    [
        ("fp17", "no", {}, ["comm_hook", "fp17", "power_sgd"]),
        ("no", "fp32", {}, ["comm_wrapper", "fp32", "bf16"]),
        ("power_sgd", "no", {"matrix_approximation_rank": 0}, ["matrix_approximation_rank", "0", "1"]),
        ("power_sgd", "no", {"rank": 1}, ["rank"]),
        ("fp16", "no", {"matrix_approximation_rank": 1}, ["matrix_approximation_rank"]),
    ],
)
def test_a_wrong_hook_is_named_with_what_is_allowed(hook, wrapper, options, said):
    with pytest.raises(gradwire.InvalidArgument) as raised:
        _native.check_hook(hook, wrapper, options)
    for word in said:
        assert word in str(raised.value)
    assert isinstance(raised.value, ValueError)


@pytest.mark.parametrize(
    ("code", "kind", "name"),
    [
        (3, gradwire.InvalidArgument, "INVALID_ARGUMENT"),
        (4, gradwire.DeadlineExceeded, "DEADLINE_EXCEEDED"),
        (10, gradwire.Error, "ABORTED"),
        (14, gradwire.Unavailable, "UNAVAILABLE"),
        (99, gradwire.Error, "UNKNOWN"),
    ],
)
def test_errors_keep_kind_code_and_text_through_pickle(code, kind, name):
    error = pickle.loads(pickle.dumps(from_status(code, "rank 2 was lost [GW301]")))
    assert type(error) is kind
    assert error.code == name
    assert str(error) == "rank 2 was lost [GW301]"


def test_no_daemon_is_an_error_within_the_timeout():
    with pytest.raises(gradwire.Unavailable, match="unix:/nonexistent"):
        _native.join("unix:/nonexistent", "s", 0, 1, [("w", [2], "float32")], connect_timeout=0.3)
