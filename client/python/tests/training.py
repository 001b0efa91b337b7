"""Models, batches and loops for a run with DistributedDataParallel alone and one with us."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

import gradwire.torch as gw


class Mlp(torch.nn.Module):
    def __init__(self, inputs: int = 8) -> None:
        super().__init__()
        self.first = torch.nn.Linear(inputs, 16)
        self.second = torch.nn.Linear(16, 16)
        self.last = torch.nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.second(torch.tanh(self.first(x)))))


class ConvNet(torch.nn.Module):
    """Matrices that compress, two of the same shape among them, and vectors that do not."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3)
        self.one = torch.nn.Linear(8 * 4 * 4, 24)
        self.two = torch.nn.Linear(24, 24)
        self.three = torch.nn.Linear(24, 24)
        self.last = torch.nn.Linear(24, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.conv(x)).flatten(1)
        x = torch.tanh(self.one(x))
        return self.last(torch.tanh(self.three(torch.tanh(self.two(x)))))


class TwoDtypes(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.single = torch.nn.Linear(8, 16)
        self.wide = torch.nn.Linear(16, 4).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.wide(torch.tanh(self.single(x)).double())


SMALL_BUCKETS = {"bucket_cap_mb": 0.0005}


def distributed(make, **options) -> DDP:
    """With the same weights whenever called. A size of buckets is that of the first one too."""
    torch.manual_seed(1)
    before = dist._DEFAULT_FIRST_BUCKET_BYTES  # torch before 2.4 has its own for the first
    try:
        if "bucket_cap_mb" in options:
            dist._DEFAULT_FIRST_BUCKET_BYTES = int(options["bucket_cap_mb"] * 2**20)
        return DDP(make(), **options)
    finally:
        dist._DEFAULT_FIRST_BUCKET_BYTES = before


def batch(rank: int, step: int, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(*(shape or (16, 8)), generator=generator)


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """By the names that the parameters have without DistributedDataParallel."""
    model = model.module if isinstance(model, DDP) else model
    return {
        name: parameter.grad.clone()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def optimizer_of(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05)


def train(model, rank: int, steps: int = 4, first: int = 0, shape: tuple = (), optimizer=None):
    """Some steps on batches of this rank's own; the gradients of each step."""
    optimizer = optimizer or optimizer_of(model)
    seen = []
    for step in range(first, first + steps):
        optimizer.zero_grad(set_to_none=True)
        model(batch(rank, step, *shape)).square().mean().backward()
        seen.append(gradients(model))
        optimizer.step()
    return seen


def plain(make, rank: int, steps: int = 4, shape: tuple = (), **options):
    """What DistributedDataParallel does by itself: gloo's all-reduce."""
    return train(distributed(make, **options), rank, steps, shape=shape)


def ours(make, rank: int, steps: int = 4, shape: tuple = (), hook=gw.aggregate_hook, **options):
    with gw.SessionState() as state:
        ddp = distributed(make, **options)
        ddp.register_comm_hook(state, hook)
        return train(ddp, rank, steps, shape=shape)


def expect_same(got: list, want: list) -> None:
    """The same gradients in each step, bit for bit."""
    assert len(got) == len(want) > 0, (len(got), len(want))
    for step, (mine, reference) in enumerate(zip(got, want)):
        assert mine.keys() == reference.keys(), (step, mine.keys(), reference.keys())
        for name, tensor in reference.items():
            assert mine[name].dtype == tensor.dtype, (step, name, mine[name].dtype)
            difference = (mine[name] - tensor).abs().max()
            assert torch.equal(mine[name], tensor), f"step {step}, {name}: {difference} apart"
