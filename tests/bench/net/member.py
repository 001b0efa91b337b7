"""One rank of net_bench.py.

Its models are DistributedDataParallel over ResNet-18's shapes with given gradients, one for each way to reduce
them. A step computes for a fixed time: it sleeps, as a processor that waits for its GPU.
"""

import datetime
import json
import os
import sys
import time
import traceback

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import debugging_hooks, default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import gradwire.torch as gw
import plain_tcp
import traffic

ONE_BUCKET_MB = 1000  # torch's PowerSGD hangs on gloo with more than one
START_POWER_SGD = 2  # torch's least
SCALE = 1e-3  # of the gradients
MEAN_TOLERANCE = 2e-3


class Layer(torch.autograd.Function):
    """Backward waits until the layer's share of the compute time is over, and gives its gradient."""

    @staticmethod
    def forward(context, before, weight, model, index):
        context.model, context.index = model, index
        return before.clone()

    @staticmethod
    def backward(context, gradient):
        context.model.wait_for_layer(context.index)
        return gradient, context.model.given[context.index], None, None


class Model(torch.nn.Module):
    def __init__(self, given: list[torch.Tensor]) -> None:
        super().__init__()
        self.given = given
        self.weights = torch.nn.ParameterList(torch.nn.Parameter(torch.zeros(one.shape)) for one in given)
        total, after = sum(one.numel() for one in given), 0
        self._due = []  # for each layer, the share of backward's time after which its gradient is there
        for one in reversed(given):
            after += one.numel() / total
            self._due.insert(0, after)
        self.forward_seconds = self.backward_seconds = 0.0
        self._began = 0.0

    def wait_for_layer(self, index: int) -> None:
        if self.backward_seconds:
            time.sleep(max(0.0, self._began + self._due[index] * self.backward_seconds - time.monotonic()))

    def forward(self) -> torch.Tensor:
        value = torch.zeros((), requires_grad=True)
        for index, weight in enumerate(self.weights):
            value = Layer.apply(value, weight, self, index)
        time.sleep(self.forward_seconds)
        self._began = time.monotonic()
        return value


def power_sgd_options(hook, start):
    rank = traffic.power_sgd_rank(hook)
    return {"matrix_approximation_rank": rank, "start_powerSGD_iter": start} if rank else None


def session(address, name, hook, start_power_sgd, limit_seconds) -> gw.SessionState:
    limit, options = datetime.timedelta(seconds=limit_seconds), power_sgd_options(hook, start_power_sgd)
    return gw.SessionState(
        address=address, session=name, comm_hook="power_sgd" if options else hook, comm_state_option=options,
        timeout=limit, join_timeout=limit)


class Rank:
    def __init__(self, rank: int, world: int) -> None:
        self.world = world
        generator = torch.Generator().manual_seed(1)
        self.base = [SCALE * torch.randn(shape, generator=generator) for shape in traffic.resnet18()]
        self.given = [one * (1 + rank / world) for one in self.base]
        self.models, self.states, self.plain = {}, {}, {}

    def build(self, name, side, hook, address=None, limit_seconds=60.0):
        """`side` is gradwire, gloo, tcp: the same bytes without reduction, or none: no communication."""
        if side == "tcp":
            self.plain[name] = plain_tcp.Peer(address, traffic.payload_bytes(traffic.resnet18(), hook))
            return
        rank = traffic.power_sgd_rank(hook)
        cap, first = None, dist._DEFAULT_FIRST_BUCKET_BYTES
        if side == "gloo" and rank:
            cap, dist._DEFAULT_FIRST_BUCKET_BYTES = ONE_BUCKET_MB, ONE_BUCKET_MB << 20
        ddp = DistributedDataParallel(
            Model(self.given), gradient_as_bucket_view=True, **({"bucket_cap_mb": cap} if cap else {}))
        dist._DEFAULT_FIRST_BUCKET_BYTES = first
        if side == "none":
            ddp.register_comm_hook(None, debugging_hooks.noop_hook)
        elif side == "gloo":
            state = powerSGD_hook.PowerSGDState(None, **power_sgd_options(hook, START_POWER_SGD)) if rank else None
            own = {"no": default_hooks.allreduce_hook, "fp16": default_hooks.fp16_compress_hook,
                   "bf16": default_hooks.bf16_compress_hook, "noop": debugging_hooks.noop_hook}
            ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook if rank else own[hook])
        else:
            state = session(address, name, hook, START_POWER_SGD, limit_seconds)
            ddp.register_comm_hook(state, gw.aggregate_hook)
            state.connect(list(ddp.parameters()))
            self.states[name] = state
        self.models[name] = ddp

    def step(self, name, compute_seconds, overlap=0.0):
        """`overlap` is the share of the compute time in which gradients come one by one."""
        if name in self.plain:
            time.sleep(compute_seconds)
            self.plain[name].step()
            return
        ddp = self.models[name]
        ddp.module.forward_seconds = compute_seconds * (1 - overlap)
        ddp.module.backward_seconds = compute_seconds * overlap
        ddp.zero_grad(set_to_none=False)
        ddp().backward()

    def check_mean(self, name):
        """Whether the last step left the mean of all ranks' gradients; not for PowerSGD."""
        mean = 1 + (self.world - 1) / (2 * self.world)
        for base, weight in zip(self.base, self.models[name].module.weights):
            distance = ((weight.grad - base * mean).norm() / (base * mean).norm()).item()
            if not distance <= MEAN_TOLERANCE:
                raise ValueError(f"{name}: a gradient of {tuple(base.shape)} is {distance:.1e} from the mean")

    def drop(self, name):
        if name in self.states:
            self.states.pop(name).close()
        if name in self.plain:
            self.plain.pop(name).close()
        self.models.pop(name, None)


def serve(make) -> None:
    """A program RANK WORLD_SIZE STORE: does what lines of JSON on standard input say with the methods of
    make(rank, world size), and answers each with one line."""
    rank, world, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # some versions of gloo print to standard output
    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            "gloo", init_method=f"file://{store}", rank=rank, world_size=world,
            timeout=datetime.timedelta(seconds=600))
        member = make(rank, world)
        print(json.dumps({"ok": None}), file=answers)
        for line in sys.stdin:
            order = json.loads(line)
            print(json.dumps({"ok": getattr(member, order.pop("do"))(**order)}), file=answers)
    except Exception:
        print(json.dumps({"error": traceback.format_exc()}), file=answers)
        answers.flush()
    os._exit(0)  # gloo's own end may wait for ranks that have gone already


if __name__ == "__main__":
    serve(Rank)
