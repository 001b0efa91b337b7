"""Lightning's DDPStrategy with its two arguments."""

import socket

import pytest
import torch

import worlds

pytest.importorskip("lightning", reason="lightning is not installed")

import gradwire.torch as gw  # noqa: E402
from gradwire.lightning import DDPStrategy  # noqa: E402
from lightning.pytorch import LightningModule, Trainer  # noqa: E402
from lightning.pytorch.strategies import DDPStrategy as LightningsDDPStrategy  # noqa: E402

STEPS = 5


class Module(LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.layers = torch.nn.Sequential(torch.nn.Linear(20, 12), torch.nn.Linear(12, 4))

    def training_step(self, batch, _):
        return self.layers(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(strategy, accelerator):
    module = Module()
    data = torch.randn(4 * 2 * STEPS, 20, generator=torch.Generator().manual_seed(5))
    trainer = Trainer(
        strategy=strategy,
        accelerator=accelerator,
        devices=2 if accelerator == "cpu" else 1,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=4))
    return [parameter.detach().cpu().clone() for parameter in module.parameters()]


def on_two_cpus(rank, how):
    state = None
    if how == "lightning's own":
        strategy = LightningsDDPStrategy(process_group_backend="gloo")
    else:
        state = gw.SessionState(comm_hook="fp16" if how == "fp16" else "no")
        wrapper = None
        if how == "wrapped":
            from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_wrapper

            wrapper = fp16_compress_wrapper
        strategy = DDPStrategy(
            ddp_comm_state=state,
            ddp_comm_hook=gw.aggregate_hook,
            ddp_comm_wrapper=wrapper,
            process_group_backend="gloo",
        )
    weights = fit(strategy, "cpu")
    metrics = state.metrics() if state is not None else {}
    torch.distributed.barrier()
    if state is not None:
        state.close()
    return weights, metrics


def run(how):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    environments = [
        {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "GROUP_RANK": "0",
            "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
            "TORCHELASTIC_RUN_ID": "none",
        }
        for rank in range(2)
    ]  # fmt: skip
    return worlds.run(2, on_two_cpus, how, group=False, fresh=True, environments=environments)


def equal(left, right):
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def test_trains_on_two_cpus_as_lightnings_own_to_the_bit():
    (reference, _), _ = run("lightning's own")
    for weights, metrics in run("no"):
        assert metrics["steps_applied"] == STEPS
        assert equal(weights, reference)


@pytest.mark.parametrize("how", ["fp16", "wrapped"])
def test_half_the_bytes_travel(how):
    ranks = run(how)
    for weights, metrics in ranks:
        assert metrics["steps_applied"] == STEPS
        gradients = STEPS * 4 * sum(one.numel() for one in weights)
        assert metrics["bytes_sent"] < 0.75 * gradients
    assert equal(ranks[0][0], ranks[1][0])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("strategy", [LightningsDDPStrategy, DDPStrategy])
def test_trains_on_a_gpu_through_either_strategy(strategy, monkeypatch):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        monkeypatch.setenv("MASTER_PORT", str(probe.getsockname()[1]))
    with gw.SessionState() as state:
        fit(strategy(ddp_comm_state=state, ddp_comm_hook=gw.aggregate_hook), "gpu")
        assert state.metrics()["steps_applied"] == 2 * STEPS
    torch.distributed.destroy_process_group()
