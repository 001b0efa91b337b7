"""Where a session keeps gradients: the choice, its errors, and, on a machine with a GPU, the result."""

import collections

import pytest
import torch
import torch.distributed as dist

import gradwire
import gradwire.torch as gw
import worlds
from gradwire import _native
from gradwire.torch import _devices

_On = collections.namedtuple("_On", "device")


def _on(*devices):
    return [_On(torch.device(device)) for device in devices]


@pytest.mark.parametrize(
    ("asked", "hook", "devices", "chosen"),
    [
        (None, "no", ["cpu", "cpu"], "cpu"),
        (None, "power_sgd", ["cuda:1", "cuda:1"], "cuda:1"),
        (None, "no", ["cuda:0", "cuda:1"], "cpu"),
        (None, "no", ["cuda:0", "cpu"], "cpu"),
        (None, "somebodys_own", ["cuda:0"], "cpu"),
        ("cpu", "no", ["cuda:0"], "cpu"),
        ("cuda:1", "no", ["cpu"], "cuda:1"),
        (None, "no", ["meta"], "cpu"),
    ],
)
def test_the_device_is_the_models_where_that_is_one(asked, hook, devices, chosen):
    assert _devices.of_session(asked, hook, _on(*devices)) == chosen


@pytest.mark.parametrize("device", ["gpu", "cuda", "cuda:-1", ""])
def test_the_sdk_refuses_other_names(device):
    with pytest.raises(gradwire.InvalidArgument, match='"cpu", "cuda:0" and up'):
        _native.join("unix:/nowhere", "devices", 0, 1, [("weight", [1], "float32")], device=device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_cannot_be_used_is_an_error_that_says_what_to_do(daemon):
    state = gw.SessionState(
        address=daemon.address, session="no-gpu", rank=0, world_size=1,
        model=torch.nn.Linear(2, 1), device="cuda:0",
    )  # fmt: skip
    with pytest.raises(gradwire.Error) as raised:
        state.connect()
    assert raised.value.code == "FAILED_PRECONDITION"
    message = str(raised.value)
    assert message.startswith("device cuda:0: "), message
    assert "no GPU can be used: " in message or "build Gradwire where nvcc" in message, message
    assert message.endswith('SessionState(device="cpu") [GW903]'), message


@pytest.mark.parametrize("node_group", ["", "a b", "x" * 129, 7])
def test_a_node_group_has_a_name(node_group):
    with pytest.raises(gradwire.InvalidArgument, match='"off", "auto", and a name of 1 to 128'):
        gw.SessionState(node_group=node_group)


def test_a_member_on_the_cpu_is_in_no_named_node_group(daemon):
    state = gw.SessionState(
        address=daemon.address, session="no-group", rank=0, world_size=1,
        model=torch.nn.Linear(2, 1), node_group="a",
    )  # fmt: skip
    with pytest.raises(gradwire.InvalidArgument, match='node_group is "a" with device "cpu"'):
        state.connect()


def test_auto_goes_without_a_node_group_on_the_cpu(daemon):
    state = gw.SessionState(
        address=daemon.address, session="auto-group", rank=0, world_size=1,
        model=torch.nn.Linear(2, 1), node_group="auto",
    )  # fmt: skip
    state.connect()
    state.close()


def _reduce_on_gpu(rank, address, hook, options):
    """The mean of both ranks' gradients, in fp64, and what the session made of them."""
    torch.cuda.set_device(0)
    torch.manual_seed(rank)
    model = torch.nn.Linear(300, 40, device="cuda")
    with gw.SessionState(
        address=address, session=f"gpu-{hook}", model=model, comm_hook=hook, comm_state_option=options
    ) as state:
        results = []
        for _ in range(4):
            gradient = torch.randn(300 * 40 + 40, device="cuda")
            want = gradient.double().cpu()
            dist.all_reduce(want)
            bucket = _Bucket(gradient, list(model.parameters()))
            result = state.reduce_bucket(bucket).wait()
            results.append((want / 2, result.double().cpu()))
        return results, state.metrics()["shared_memory"]


class _Bucket:
    def __init__(self, buffer, parameters):
        self._buffer, self._parameters = buffer, parameters

    def buffer(self):
        return self._buffer

    def parameters(self):
        return self._parameters

    def is_last(self):
        return True


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize(
    ("hook", "options", "tolerance"),
    [("no", {}, 1e-6), ("fp16", {}, 2e-3), ("bf16", {}, 2e-2), ("power_sgd", {"start_powerSGD_iter": 2}, None)],
)
def test_gradients_on_a_gpu_are_reduced_there(daemon, hook, options, tolerance):
    ranks = worlds.run(2, _reduce_on_gpu, daemon.address, hook, options)
    for results, shared_memory in ranks:
        assert not shared_memory
        for step, (want, got) in enumerate(results):
            if tolerance is None and step >= 2:
                assert torch.isfinite(got).all()  # low rank: close to nothing else
                continue
            assert torch.allclose(got, want, atol=tolerance or 1e-6)
    for (_, left), (_, right) in zip(ranks[0][0], ranks[1][0], strict=True):
        assert torch.equal(left, right)
