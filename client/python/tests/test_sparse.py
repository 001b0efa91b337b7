"""Sparse gradients are refused by name on every path, and an interpreter that ends so ends quietly."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import sys
import torch
import torch.distributed as dist
import gradwire.torch as gw
from torch.nn.parallel import DistributedDataParallel

class Words(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(3, 3)
        self.embedding = torch.nn.Embedding(10, 3, sparse=True)

    def forward(self, words):
        return self.first(self.embedding(words))

how = sys.argv[1]
model = Words()
words = torch.tensor([1, 2])
state = gw.SessionState(model=model, session="sparse-" + how)
if how in ("ddp", "ddp_wrapped", "accelerate"):
    store = dist.TCPStore("127.0.0.1", 0, 1, True, wait_for_workers=False)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
if how == "accelerate":
    from accelerate.utils import DistributedDataParallelKwargs
    from gradwire.accelerate import AggregatorKwargs
    handler = AggregatorKwargs()
    ddp = DistributedDataParallel(model)
    handler.register_comm_hook(ddp)  # what prepare() does
    ddp(words).sum().backward()
elif how.startswith("ddp"):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    ddp = DistributedDataParallel(model)
    wrap = default_hooks.fp16_compress_wrapper if how == "ddp_wrapped" else lambda hook: hook
    ddp.register_comm_hook(state, wrap(gw.aggregate_hook))
    ddp(words).sum().backward()
elif how == "attach_":
    gw.attach_(model, state)
    model(words).sum().backward()
else:
    model(words).sum().backward()
    gw.reduce_grads_(model.parameters(), state)
"""


def _errors_of(script: str, *arguments: str, **variables: str) -> str:
    """What an interpreter says that ends with an exception."""
    child = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={**os.environ, "RANK": "0", "WORLD_SIZE": "1", **variables},
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    assert child.returncode == 1, child.stderr
    return child.stderr


@pytest.mark.parametrize("how", ["ddp", "ddp_wrapped", "attach_", "reduce_grads_", "accelerate"])
def test_a_sparse_gradient_is_refused_by_its_parameters_name(daemon, how):
    if how == "accelerate":
        pytest.importorskip("accelerate", reason="accelerate is not installed")
    said = _errors_of(SCRIPT, how, GRADWIRE_ADDRESS=daemon.address)
    (error,) = [line for line in said.splitlines() if "InvalidArgument: " in line]
    for word in ("embedding.weight", "(10, 3)", "sparse=False"):
        assert word in error, said
    # Not so in a wrapper, where torch puts the text into a RuntimeError of its own.
    assert how == "ddp_wrapped" or "gradwire._errors.InvalidArgument: " in error, said
    assert "leak" not in said, said


RAISING = """
import ctypes
import torch
import gradwire.torch as gw

model = torch.nn.Linear(3, 3)
state = gw.SessionState(model=model, session="raising")
gw.broadcast_parameters_(model, state)
# Never destroyed, as what DistributedDataParallel's reducer holds, through an error's traceback.
ctypes.pythonapi.Py_IncRef(ctypes.py_object(state._session))
raise ValueError("enough")
"""


def test_an_interpreter_that_an_exception_ends_says_nothing_after_it(daemon):
    said = _errors_of(RAISING, GRADWIRE_ADDRESS=daemon.address)
    assert said.splitlines()[-1] == "ValueError: enough", said
