"""One rank of compare_gloo.py: several DistributedDataParallel models of the same shapes, one for
each way to reduce their gradients, of which the parent has one at a time do a step."""

import contextlib
import datetime
import math
import os
import sys
import time
import traceback

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import (
    debugging_hooks,
    default_hooks,
    powerSGD_hook as power_sgd,
)
from torch.nn.parallel import DistributedDataParallel

import gradwire.torch as gw

TIMEOUT = datetime.timedelta(seconds=60)  # to join, and of one step
POWER_SGD = {"matrix_approximation_rank": 2, "start_powerSGD_iter": 2}
OPTIONS = {"no": {}, "fp16": {}, "power_sgd": POWER_SGD}
ONE_BUCKET_MB = 1000  # torch's PowerSGD hangs on gloo with more than one
BASELINE = "no communication"


def resnet18() -> list[tuple[int, ...]]:
    """The parameters' shapes in torchvision's order, 11.7 million elements."""
    shapes = [(64, 3, 7, 7), (64,), (64,)]
    before = 64
    for width in (64, 128, 256, 512):
        for block in range(2):
            shapes += [(width, before, 3, 3), (width,), (width,)]
            shapes += [(width, width, 3, 3), (width,), (width,)]
            if before != width:
                shapes += [(width, before, 1, 1), (width,), (width,)]
            before = width
    return shapes + [(1000, 512), (1000,)]


def gradients(rank: int) -> list[torch.Tensor]:
    """Matrices of rank two with factors that all members share, so that PowerSGD of rank two gives
    their mean but for rounding, whichever Q it begins with."""
    shared = torch.Generator().manual_seed(1)
    own = torch.Generator().manual_seed(2 + rank)
    made = []
    for shape in resnet18():
        rows, columns = shape[0], math.prod(shape[1:])
        left = torch.randn(rows, 2, generator=shared)
        right = torch.randn(2, columns, generator=shared)
        weights = 0.5 + torch.rand(2, generator=own)
        made.append(((left * weights) @ right).view(shape).contiguous())
    return made


class _Give(torch.autograd.Function):
    """Costs nothing forward; backward hands each parameter the gradient made for it."""

    @staticmethod
    def forward(context, given: list[torch.Tensor], *parameters: torch.Tensor) -> torch.Tensor:
        context.given = given
        return torch.zeros(())

    @staticmethod
    def backward(context, _: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return None, *context.given


class Model(torch.nn.Module):
    def __init__(self, given: list[torch.Tensor]) -> None:
        super().__init__()
        self.given = given
        self.weights = torch.nn.ParameterList(
            torch.nn.Parameter(torch.zeros(one.shape)) for one in given
        )

    def forward(self) -> torch.Tensor:
        return _Give.apply(self.given, *self.weights)


@contextlib.contextmanager
def _environment(changes: dict[str, str]):
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class Rank:
    """`transports` has for each name a daemon's address and the member's environment."""

    def __init__(self, hook: str, transports: dict[str, tuple[str, dict[str, str]]]) -> None:
        self.given = gradients(dist.get_rank())
        self.models = {}
        self.states: dict[str, gw.SessionState] = {}
        # Torch's default buckets, unless its own hook cannot do with them.
        self.buckets = {"bucket_cap_mb": ONE_BUCKET_MB} if hook == "power_sgd" else {}
        if self.buckets:
            dist._DEFAULT_FIRST_BUCKET_BYTES = ONE_BUCKET_MB << 20  # the first has its own limit
        if hook == "power_sgd":
            state = power_sgd.PowerSGDState(None, **POWER_SGD)
            self._add("gloo", state, power_sgd.powerSGD_hook)
        elif hook == "fp16":
            self._add("gloo", None, default_hooks.fp16_compress_hook)
        else:
            self._add("gloo", None, default_hooks.allreduce_hook)
        self._add(BASELINE, None, debugging_hooks.noop_hook)
        for name, (address, changes) in transports.items():
            self._add_gradwire(name, address, changes, hook)

    def _add(self, name: str, state: object, hook) -> DistributedDataParallel:
        # Copies between gradients and buckets would cost both sides as much as a reduction.
        ddp = DistributedDataParallel(
            Model(self.given), gradient_as_bucket_view=True, **self.buckets
        )
        ddp.register_comm_hook(state, hook)
        self.models[name] = ddp
        return ddp

    def _add_gradwire(self, name: str, address: str, changes: dict[str, str], hook: str) -> None:
        state = gw.SessionState(
            address=address,
            session=name,
            comm_hook=hook,
            comm_state_option=OPTIONS[hook],
            timeout=TIMEOUT,
            join_timeout=TIMEOUT,
        )
        ddp = self._add(name, state, gw.aggregate_hook)
        with _environment(changes):
            state.connect(list(ddp.parameters()))
        self.states[name] = state

    def clear(self, name: str) -> None:
        self.models[name].zero_grad(set_to_none=False)

    def step(self, name: str) -> float:
        begin = time.perf_counter()
        self.models[name]().backward()
        return time.perf_counter() - begin

    def compare(self, name: str, other: str) -> tuple[float, bool]:
        """The largest relative distance of a gradient, and whether all bits are the same."""
        worst, same = 0.0, True
        pairs = zip(self.models[name].parameters(), self.models[other].parameters())
        for got, want in pairs:
            same = same and torch.equal(got.grad, want.grad)
            distance = (got.grad - want.grad).norm() / want.grad.norm()
            worst = max(worst, distance.item())
        return worst, same

    def compare_mean(self, name: str) -> float:
        """The distance from the mean of all ranks' gradients, computed here."""
        world = dist.get_world_size()
        means = [sum(parts) / world for parts in zip(*map(gradients, range(world)))]
        grads = [parameter.grad for parameter in self.models[name].parameters()]
        pairs = zip(grads, means)
        return max(((got - want).norm() / want.norm()).item() for got, want in pairs)

    def in_place(self, name: str) -> bool:
        """Whether no bucket of the last step was copied."""
        return all(bucket["in_place"] for bucket in self.states[name].metrics()["buckets"])

    def close(self) -> None:
        for state in self.states.values():
            state.close()


def serve(connection, rank: int, world: int, store: str, hook: str, transports: dict) -> None:
    """Does what it is told, a method's name and its arguments, until "close"."""
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    try:
        dist.init_process_group(
            "gloo", init_method=f"file://{store}", rank=rank, world_size=world, timeout=TIMEOUT
        )
        member = Rank(hook, transports)
        connection.send((True, None))
        while True:
            method, *arguments = connection.recv()
            connection.send((True, getattr(member, method)(*arguments)))
            if method == "close":
                return
    except EOFError:
        return
    except Exception:
        connection.send((False, traceback.format_exc()))
