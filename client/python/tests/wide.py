"""A model with several buckets, and what tells where its gradients lie."""

import contextlib

import torch

import gradwire.torch as gw
import training

COPIED = {"GRADWIRE_SHARED_GRADIENTS": "off"}
INPUT = (16, 200)
# Two buckets or more of some 400 KB, which DistributedDataParallel rebuilds after the first step.
BUCKETS = {"bucket_cap_mb": 0.4}


class Wide(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = torch.nn.Linear(200, 401)
        self.two = torch.nn.Linear(401, 301)
        self.last = torch.nn.Linear(301, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.two(torch.tanh(self.one(x)))))


def shared_mappings() -> int:
    """Mappings of segments for torch's buffers, shared with the daemon: in place, and beside."""
    with open("/proc/self/maps") as maps:
        return sum("rw-s" in line and "gradwire-buckets" in line for line in maps)


def shared_gradients(model: torch.nn.Module) -> int:
    """Gradients whose middle lies in a mapping that other processes share."""
    with open("/proc/self/maps") as maps:
        lines = [line.split() for line in maps]
    shared = [[int(end, 16) for end in line[0].split("-")] for line in lines if line[1] == "rw-s"]
    count = 0
    for gradient in (parameter.grad for parameter in model.parameters()):
        middle = gradient.data_ptr() + gradient.numel() * gradient.element_size() // 2
        count += any(begin <= middle < end for begin, end in shared)
    return count


def buckets_in_place(state: gw.SessionState) -> list[bool]:
    return [bucket["in_place"] for bucket in state.metrics()["buckets"]]


def reasons_copied(state: gw.SessionState) -> set[str]:
    return {bucket["why_copied"] for bucket in state.metrics()["buckets"]}


@contextlib.contextmanager
def aggregating(view: bool = False, make=Wide, buckets=BUCKETS, **arguments):
    with gw.SessionState(**arguments) as state:
        ddp = training.distributed(make, gradient_as_bucket_view=view, **buckets)
        ddp.register_comm_hook(state, gw.aggregate_hook)
        yield state, ddp
