"""Accelerate: the handler, install() and checkpoints of all ranks' residuals."""

import datetime
import os
import socket
import warnings

import pytest
import torch

import worlds

accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")

import gradwire  # noqa: E402
import gradwire.torch as gw  # noqa: E402
from accelerate import Accelerator  # noqa: E402
from accelerate.utils import DDPCommunicationHookType, DistributedDataParallelKwargs  # noqa: E402
from gradwire.accelerate import AggregatorKwargs, install  # noqa: E402

POWER_SGD = {
    "comm_hook": "power_sgd",
    "comm_state_option": {"matrix_approximation_rank": 2, "start_powerSGD_iter": 2},
}


def run(world, function, *arguments):
    """In new processes, which make their process group as under torchrun."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    environments = [
        {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world),
            "LOCAL_WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
            "ACCELERATE_USE_CPU": "true",
        }
        for rank in range(world)
    ]  # fmt: skip
    return worlds.run(world, function, *arguments, group=False, fresh=True, environments=environments)


def model():
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(40, 30), torch.nn.Tanh(), torch.nn.Linear(30, 10))


def train(accelerator, network, optimizer, steps):
    for step in steps:
        generator = torch.Generator().manual_seed(1000 * accelerator.process_index + step)
        inputs = torch.randn(16, 40, generator=generator)
        optimizer.zero_grad()
        accelerator.backward(network(inputs).square().mean())
        optimizer.step()


def weights(network):
    return [parameter.detach().clone() for parameter in network.parameters()]


def equal(left, right):
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def prepared(accelerator):
    network = model()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.2, momentum=0.9)
    return accelerator.prepare(network, optimizer)


# ---- Training


def with_accelerates_own(rank, hook):
    handler = DistributedDataParallelKwargs(comm_hook=DDPCommunicationHookType(hook))
    accelerator = Accelerator(kwargs_handlers=[handler])
    network, optimizer = prepared(accelerator)
    train(accelerator, network, optimizer, range(6))
    accelerator.end_training()
    return weights(network)


def with_handler(rank, fields, how):
    if how == "install":
        accelerator = Accelerator()
        handler = install(accelerator, **fields)
    else:
        handler = AggregatorKwargs(**fields)
        accelerator = Accelerator(kwargs_handlers=[handler])
    assert accelerator.ddp_handler is handler
    network, optimizer = prepared(accelerator)
    assert network.bucket_bytes_cap == fields.get("bucket_cap_mb", 25) << 20
    assert network.static_graph == fields.get("static_graph", False)
    assert isinstance(handler.state, gw.SessionState)
    train(accelerator, network, optimizer, range(6))
    metrics = handler.state.metrics()
    accelerator.wait_for_everyone()
    accelerator.end_training()
    return weights(network), metrics["steps_applied"]


@pytest.mark.parametrize("how", ["kwargs_handlers", "install"])
@pytest.mark.parametrize("hook", ["no", "fp16"])
def test_trains_as_accelerates_own_hook_to_the_bit(how, hook):
    reference = run(2, with_accelerates_own, hook)
    fields = {"comm_hook": hook, "bucket_cap_mb": 10, "static_graph": True}
    ours = run(2, with_handler, fields, how)
    assert [steps for _, steps in ours] == [6, 6]
    assert all(equal(reference[0], one) for one, _ in ours)


def test_takes_accelerates_enum_for_hook_and_wrapper():
    fields = {
        **POWER_SGD,
        "comm_hook": DDPCommunicationHookType.POWER_SGD,
        "comm_wrapper": DDPCommunicationHookType.BF16,
    }
    by_enum = run(2, with_handler, fields, "kwargs_handlers")
    by_name = run(2, with_handler, {**POWER_SGD, "comm_wrapper": "bf16"}, "kwargs_handlers")
    assert equal(by_enum[0][0], by_enum[1][0])
    assert equal(by_enum[0][0], by_name[0][0])


def with_two_models(rank):
    handler = AggregatorKwargs(session="pair")
    accelerator = Accelerator(kwargs_handlers=[handler])
    networks = [model(), model()]
    optimizers = [torch.optim.SGD(network.parameters(), lr=0.2) for network in networks]
    networks = accelerator.prepare(*networks)
    for network, optimizer in zip(networks, optimizers):
        train(accelerator, network, optimizer, range(3))
    steps = [state.metrics()["steps_applied"] for state in handler.states]
    accelerator.wait_for_everyone()
    accelerator.end_training()
    return steps


def test_each_prepared_model_has_a_session():
    assert run(2, with_two_models) == [[3, 3], [3, 3]]


# ---- Checkpoints


def in_one_go(rank, fields):
    accelerator = Accelerator(kwargs_handlers=[AggregatorKwargs(**fields)])
    network, optimizer = prepared(accelerator)
    train(accelerator, network, optimizer, range(10))
    accelerator.wait_for_everyone()
    accelerator.end_training()
    return weights(network)


def first_half(rank, fields, folder):
    handler = AggregatorKwargs(**fields)
    accelerator = Accelerator(kwargs_handlers=[handler])
    network, optimizer = prepared(accelerator)
    accelerator.register_for_checkpointing(handler.state)
    train(accelerator, network, optimizer, range(5))
    accelerator.save_state(folder)
    accelerator.end_training()


def second_half(rank, fields, folder, with_residuals):
    handler = AggregatorKwargs(**fields)
    accelerator = Accelerator(kwargs_handlers=[handler])
    network, optimizer = prepared(accelerator)
    accelerator.register_for_checkpointing(handler.state if with_residuals else Nothing())
    accelerator.load_state(folder)
    again = folder + "-again"
    accelerator.save_state(again)  # before the first step: what was loaded
    train(accelerator, network, optimizer, range(5, 10))
    accelerator.wait_for_everyone()
    accelerator.end_training()
    return weights(network)


class Nothing:
    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


@pytest.mark.parametrize("world", [2, 3])
def test_new_processes_resume_to_the_bit(tmp_path, world):
    folder = str(tmp_path / "state")
    through = run(world, in_one_go, POWER_SGD)
    run(world, first_half, POWER_SGD, folder)
    resumed = run(world, second_half, POWER_SGD, folder, True)
    assert all(equal(through[0], one) for one in resumed)
    again = run(world, second_half, POWER_SGD, folder + "-again", True)
    assert all(equal(through[0], one) for one in again)
    without = run(world, second_half, POWER_SGD, folder, False)
    assert not equal(through[0], without[0]), "residuals made no difference"

    # One file, with each rank's own residuals.
    saved = torch.load(os.path.join(folder, "custom_checkpoint_0.pkl"), weights_only=True)
    assert len(saved["members"]) == world
    assert not torch.equal(saved["members"][0], saved["members"][1])


def load_of_other_world(rank, folder):
    handler = AggregatorKwargs(**POWER_SGD)
    accelerator = Accelerator(kwargs_handlers=[handler])
    prepared(accelerator)
    accelerator.register_for_checkpointing(handler.state)
    with pytest.raises(gradwire.InvalidArgument, match="of 2 ranks.*world size, 3"):
        accelerator.load_state(folder)
    accelerator.end_training()


def test_a_checkpoint_of_another_world_size_is_refused(tmp_path):
    folder = str(tmp_path / "state")
    run(2, first_half, POWER_SGD, folder)
    run(3, load_of_other_world, folder)


def test_a_single_ranks_checkpoint_is_refused():
    with pytest.warns(UserWarning):
        state = AggregatorKwargs().state
    with pytest.raises(gradwire.InvalidArgument, match="register_for_checkpointing"):
        state.load_state_dict(gw.SessionState().state_dict())


# ---- Construction


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"comm_hook": "fp17"}, ["comm_hook", "fp17", "power_sgd"]),
        ({"comm_hook": 42}, ["comm_hook", "42", "power_sgd"]),
        ({"comm_wrapper": "power_sgd"}, ["comm_wrapper", "power_sgd", "bf16"]),
        ({"comm_wrapper": DDPCommunicationHookType.POWER_SGD}, ["comm_wrapper", "power_sgd", "bf16"]),
        ({"comm_hook": "power_sgd", "comm_state_option": {"rank": 1}}, ["rank", "warm_start"]),
        ({"comm_state_option": 3}, ["comm_state_option", "3", "dict"]),
        ({"address": "agg"}, ["address", "agg", "host:port"]),
        ({"session": "a b"}, ["session", "a b", "A-Z"]),
        ({"bucket_cap_mb": 0}, ["bucket_cap_mb", "0", "above 0"]),
        ({"static_graph": 1}, ["static_graph", "1", "True"]),
        ({"dim": "x"}, ["dim", "x", "integers"]),
        ({"timeout": 5}, ["timeout", "5", "timedelta"]),
        ({"join_timeout": datetime.timedelta(0)}, ["join_timeout", "0:00", "more than 0"]),
        ({"connect_timeout": 10}, ["connect_timeout", "10", "timedelta"]),
    ],
)
def test_a_wrong_field_is_named_at_construction(fields, said):
    with pytest.raises(gradwire.InvalidArgument) as raised:
        AggregatorKwargs(**fields)
    for word in said:
        assert word in str(raised.value)


def test_a_process_that_is_alone_says_so():
    with pytest.warns(UserWarning) as said:
        handler = AggregatorKwargs(address="agg:29610", comm_hook="fp16")
    text = str(said[0].message)
    assert "trains alone" in text
    assert (
        "gw.attach_(model, gw.SessionState(address='agg:29610', comm_hook='fp16', rank=RANK,"
        " world_size=SIZE))" in text
    )
    assert said[0].filename == __file__
    handler.state.load_state_dict(handler.state.state_dict())  # a script that saves runs on


def test_one_of_several_processes_says_nothing(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        AggregatorKwargs()


def test_only_ddps_own_fields_reach_ddp(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    handler = AggregatorKwargs(address="agg:1", session="s", comm_hook="fp16", bucket_cap_mb=10)
    assert handler.to_kwargs() == {"bucket_cap_mb": 10}
    assert AggregatorKwargs(address="agg:1").to_kwargs() == {}


class Stub:
    """As much of an Accelerator as install() asks."""

    class distributed_type:  # noqa: N801
        name = "MULTI_CPU"

    def __init__(self, handler=None, models=()):
        self.ddp_handler = handler
        self._models = list(models)


def test_install_keeps_the_fields_of_a_handler_that_is_there(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    there = DistributedDataParallelKwargs(
        static_graph=True, bucket_cap_mb=10, comm_hook=DDPCommunicationHookType.FP16
    )
    handler = install(Stub(there), bucket_cap_mb=5)
    assert handler.to_kwargs() == {"static_graph": True, "bucket_cap_mb": 5}
    assert handler.comm_hook == DDPCommunicationHookType.FP16


def test_install_after_prepare_is_refused():
    with pytest.raises(gradwire.InvalidArgument, match="1 prepared models.*before"):
        install(Stub(models=[object()]))


def test_install_where_accelerate_builds_no_ddp_is_refused(monkeypatch):
    monkeypatch.setattr(Stub.distributed_type, "name", "FSDP")
    with pytest.raises(gradwire.InvalidArgument, match="FSDP.*MULTI_GPU"):
        install(Stub())
