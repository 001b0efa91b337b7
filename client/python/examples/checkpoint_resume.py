"""A run that is saved and goes on in new processes with the same numbers.

    torchrun --nproc_per_node 2 client/python/examples/checkpoint_resume.py FOLDER --steps 40
    torchrun --nproc_per_node 2 client/python/examples/checkpoint_resume.py FOLDER --steps 80

The second call goes on at step 40. Every rank keeps its own part: PowerSGD's residuals differ.
"""

import argparse
import pathlib

import digits
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradwire.torch as gw


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=40)
    arguments = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    images, labels, _, _ = digits.load()
    model = digits.network()
    ddp = DistributedDataParallel(model)
    state = gw.SessionState(comm_hook="power_sgd", comm_state_option={"start_powerSGD_iter": 5})
    ddp.register_comm_hook(state, gw.aggregate_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)

    arguments.folder.mkdir(parents=True, exist_ok=True)
    path = arguments.folder / f"rank{rank}.pt"
    done = 0
    if path.exists():
        saved = torch.load(path)
        done = saved["step"]
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        state.load_state_dict(saved["gradwire"])
        print(f"rank {rank} goes on at step {done}")

    step = 0
    epoch = 0
    while step < arguments.steps:
        epoch += 1
        for part in digits.batches(len(images), epoch, rank, world_size):
            if done <= step < arguments.steps:
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(ddp(images[part]), labels[part]).backward()
                if state.should_step:
                    optimizer.step()
            step += 1
    torch.save(
        {
            "step": arguments.steps,
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "gradwire": state.state_dict(),
        },
        path,
    )
    total = sum(parameter.double().sum().item() for parameter in model.parameters())
    print(f"rank {rank} saved step {arguments.steps}: sum of the parameters {total!r}")
    state.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
