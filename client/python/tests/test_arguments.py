"""A wrong argument is an error of the constructor, with field, value and what is allowed."""

import datetime
import enum

import pytest
import torch

import gradwire
import gradwire.torch as gw

SECOND = datetime.timedelta(seconds=1)

# An argument's name, a value, and what the message must have besides the name and the value.
WRONG = [
    ("address", 5, "str"),
    ("address", b"unix:/a", "str"),
    ("address", "", "host:port"),
    ("address", "nowhere", "host:port"),
    ("address", "host:99999", "65535"),
    ("address", "host:29610,nowhere", "with commas"),
    ("address", "host-{0..}:29610", "host-{0..3}:port"),
    ("address", "dns-all:///name", "dns-all:///name:port"),
    ("address", "dns-all:name:29610", "dns-all:///name:port"),
    ("address", "dns-all:///name:29610?", "dns-all:///name:port"),
    ("address", "dns-all:///name:99999", "65535"),
    ("session", 7, "str"),
    ("session", "", "A-Z"),
    ("session", "my job", "A-Z"),
    ("session", "a/b", "A-Z"),
    ("session", "x" * 129, "128"),
    ("comm_hook", "powersgd", "power_sgd"),
    ("comm_hook", 3, "power_sgd"),
    ("comm_hook", ["fp16"], "power_sgd"),
    ("comm_hook", "", "power_sgd"),
    ("comm_wrapper", "int8", '"fp16"'),
    ("comm_wrapper", "power_sgd", '"bf16"'),
    ("comm_wrapper", 16, "fp16"),
    ("comm_state_option", "rank=2", "dict"),
    ("comm_state_option", [("rank", 2)], "dict"),
    ("comm_state_option", {"warm_start": True}, "no options"),
    ("model", "a model", "Module"),
    ("model", [torch.ones(1)], "Module"),
    ("device", "gpu", "cuda:1"),
    ("device", "meta", "cuda:1"),
    ("device", 1.5, "cuda:1"),
    ("rank", "0", "int"),
    ("rank", 1.0, "int"),
    ("rank", True, "int"),
    ("rank", -1, "0"),
    ("world_size", "2", "int"),
    ("world_size", 0, "1"),
    ("world_size", -2, "1"),
    ("timeout", 30, "timedelta"),
    ("timeout", None, "timedelta"),
    ("timeout", datetime.timedelta(0), "more than 0"),
    ("timeout", -SECOND, "more than 0"),
    ("join_timeout", 1.5, "timedelta"),
    ("join_timeout", datetime.timedelta(0), "more than 0"),
    ("connect_timeout", 10, "timedelta"),
    ("connect_timeout", datetime.timedelta(0), "more than 0"),
    ("process_group", "world", "ProcessGroup"),
    ("process_group", 0, "ProcessGroup"),
]


@pytest.mark.parametrize(
    "field, value, allowed", WRONG, ids=[f"{field}-{value!r:.20}" for field, value, _ in WRONG]
)
def test_a_wrong_argument_is_refused_by_the_constructor(field, value, allowed):
    with pytest.raises(gradwire.InvalidArgument) as refused:
        gw.SessionState(**{field: value})
    text = str(refused.value)
    shown = str(value) if isinstance(value, (str, datetime.timedelta)) else repr(value)
    if isinstance(value, dict):
        shown = next(iter(value))
    for word in (field, shown[:100], "allowed", allowed):
        assert word in text, text


POWER_SGD_WRONG = [
    ("matrix_approximation_rank", 0, "from 1"),
    ("matrix_approximation_rank", 2.5, "integers"),
    ("matrix_approximation_rank", None, "int"),
    ("matrix_approximation_rank", [1], "int"),
    ("start_powerSGD_iter", -1, "from 0"),
    ("min_compression_rate", 0, "above 0"),
    ("min_compression_rate", float("nan"), "finite"),
    ("use_error_feedback", "yes", "true, false"),
    ("warm_start", 1, "true, false"),
    ("orthogonalization_epsilon", -0.5, "from 0"),
    ("random_seed", 2**32, "4294967295"),
    ("random_seed", 2**70, "4294967295"),
    ("compression_stats_logging_frequency", 0, "from 1"),
    ("error_feedback", "global", "aggregate"),
    ("rounds", 3, "1 to 2"),
    ("start_powersgd_iter", 10, "start_powerSGD_iter"),  # another spelling
]


@pytest.mark.parametrize("name, value, allowed", POWER_SGD_WRONG)
@pytest.mark.parametrize("hook", ["power_sgd", "batched_power_sgd"])
def test_a_wrong_option_is_refused_by_the_constructor(hook, name, value, allowed):
    with pytest.raises(gradwire.InvalidArgument) as refused:
        gw.SessionState(comm_hook=hook, comm_state_option={name: value})
    text = str(refused.value)
    shown = "e+21" if value == 2**70 else str(value)[:6]
    for word in ("comm_state_option", name, shown, "allowed", allowed):
        assert word in text, text


def test_an_options_name_is_a_string():
    with pytest.raises(gradwire.InvalidArgument, match="comm_state_option.*5"):
        gw.SessionState(comm_hook="power_sgd", comm_state_option={5: 1})


def test_rank_and_world_size_must_fit():
    with pytest.raises(gradwire.InvalidArgument, match="rank is 2; allowed .*world_size 2"):
        gw.SessionState(rank=2, world_size=2)


def test_an_unknown_argument_is_pythons_own_error():
    with pytest.raises(TypeError, match="comm_hooks"):
        gw.SessionState(comm_hooks="fp16")
    with pytest.raises(TypeError):
        gw.SessionState(None, "unix:/a")  # all but the group are by name


class _AcceleratesEnum(str, enum.Enum):
    """As accelerate.utils.DDPCommunicationHookType is."""

    NO = "no"
    FP16 = "fp16"
    POWER_SGD = "power_sgd"


@pytest.mark.parametrize("hook", list(_AcceleratesEnum))
def test_an_enum_names_a_hook_by_its_value(hook):
    gw.SessionState(comm_hook=hook, comm_wrapper=_AcceleratesEnum.NO)


@pytest.mark.parametrize(
    "accepted",
    [
        {"address": "unix:/run/gradwire.sock"},
        {"address": "localhost:29610"},
        {"address": "a:29610, b:29610"},
        {"address": "gradwired-{0..3}.gradwired:29610"},
        {"address": "dns:///host.example:29610"},
        {"address": "dns-all:///host.example:29610"},
        {"address": "dns-all:///host.example:29610?n=4&ip=6"},
        {"address": "[::1]:29610"},
        {"session": "A.b_c-9" + "x" * 121},
        {"comm_hook": None, "comm_wrapper": None, "comm_state_option": None},
        {"comm_hook": "power_sgd", "comm_state_option": {"matrix_approximation_rank": 2}},
        {"comm_hook": "noop"},
        {"comm_hook": "bf16"},
        {"comm_wrapper": "bf16"},
        {"model": torch.nn.Linear(1, 1), "rank": 0, "world_size": 1},
        {"timeout": datetime.timedelta(hours=9), "join_timeout": SECOND},
        {"connect_timeout": datetime.timedelta(minutes=2)},
    ],
    ids=str,
)
def test_what_is_allowed_is_accepted(accepted):
    gw.SessionState(**accepted)
