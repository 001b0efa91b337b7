"""A trainer on one host of a network: an ordinary script whose one line is Gradwire's.

It says a line of JSON after its first steps and after the others, and goes on at each line of its input.
"""

import hashlib
import json
import logging
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradwire.torch as gw
from gradwire.torch import _options

WIDTH = 1024
FIRST_STEPS = 3  # DistributedDataParallel arranges its buckets again meanwhile
STEPS = 6
PARAMETERS = 2 * WIDTH * WIDTH


def _say(**words):
    print(json.dumps(words), flush=True)
    sys.stdin.readline()


def main():
    logging.basicConfig(stream=sys.stderr)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    layers = [torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2)]
    ddp = DistributedDataParallel(torch.nn.Sequential(*layers))
    state = gw.SessionState(comm_hook=sys.argv[1])
    ddp.register_comm_hook(state, gw.aggregate_hook)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=2.0)
    inputs = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(dist.get_rank()))

    def train(steps):
        losses = []
        for _ in range(steps):
            optimizer.zero_grad()
            loss = (ddp(inputs) - inputs).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    losses = train(FIRST_STEPS)
    ((_, job),) = _options._jobs.values()
    _say(addresses=job.addresses, daemon=job._daemon is not None, shared_memory=state.metrics()["shared_memory"])
    losses += train(STEPS)
    weights = b"".join(parameter.detach().numpy().tobytes() for parameter in ddp.parameters())
    _say(losses=losses, weights=hashlib.sha256(weights).hexdigest())
    state.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
