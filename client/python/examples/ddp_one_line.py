"""DistributedDataParallel with Gradwire: the line with `register_comm_hook` is the only one.

    torchrun --nproc_per_node 4 client/python/examples/ddp_one_line.py [--hook power_sgd]

Without GRADWIRE_ADDRESS the job starts its daemons itself, on several hosts one on each.
"""

import argparse
import sys

import digits
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradwire.torch as gw

EPOCHS = 15
OPTIONS = {"power_sgd": {"matrix_approximation_rank": 2, "start_powerSGD_iter": 20}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hook", default="power_sgd")
    hook = parser.parse_args().hook

    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    images, labels, test_images, test_labels = digits.load()
    model = digits.network()
    ddp = DistributedDataParallel(model)
    state = gw.SessionState(comm_hook=hook, comm_state_option=OPTIONS.get(hook))
    ddp.register_comm_hook(state, gw.aggregate_hook)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    progress = digits.Progress(rank, EPOCHS)
    for epoch in range(1, EPOCHS + 1):
        for part in digits.batches(len(images), epoch, rank, world_size):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(ddp(images[part]), labels[part])
            loss.backward()
            if state.should_step:
                optimizer.step()
        progress.show(epoch, loss.item(), state.metrics())

    weights = torch.cat([parameter.detach().view(-1) for parameter in model.parameters()])
    everybody = [torch.empty_like(weights) for _ in range(world_size)]
    dist.all_gather(everybody, weights)
    if not all(torch.equal(weights, other) for other in everybody):
        sys.exit(f"rank {rank}: the members' parameters differ")
    if rank == 0:
        print(f"torch {torch.__version__}, {world_size} members, parameters identical on all")
    digits.finish(rank, model, state.metrics(), digits.accuracy(model, test_images, test_labels))
    state.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
