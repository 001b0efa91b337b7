#!/usr/bin/env python3
"""Buckets on a GPU against the same buckets on the CPU, and the time of a step.

    check_torch.py [--device cuda|cpu] [--members N]

All members on one device. Exits 1 when numbers differ: casts and sums by a bit, PowerSGD, whose products
may differ in their last bits, by more than 1e-5.
"""

import argparse
import os
import queue
import socket
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch.nn.parallel import DistributedDataParallel

import gradwire.torch as gw

STEPS = 8
HOOKS = {
    "no": {},
    "fp16": {},
    "bf16": {},
    "power_sgd": {"start_powerSGD_iter": 2, "matrix_approximation_rank": 2},
}


def train(rank: int, device: torch.device, hook: str, width: int) -> tuple[list[torch.Tensor], float]:
    """Gradients of each step on the host, and the median time of backward()."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, width)
    ).to(device)
    ddp = DistributedDataParallel(model, bucket_cap_mb=1)
    state = gw.SessionState(comm_hook=hook, comm_state_option=HOOKS[hook] or None)
    ddp.register_comm_hook(state, gw.aggregate_hook)
    generator = torch.Generator().manual_seed(rank)
    gradients, seconds = [], []
    for _ in range(STEPS):
        model.zero_grad()
        # The gradient of a parameter is what it is multiplied with: the same on every device.
        given = [torch.randn(p.shape, generator=generator) for p in model.parameters()]
        loss = sum((p * g.to(device)).sum() for p, g in zip(model.parameters(), given))
        loss = loss + 0 * ddp(torch.zeros(1, width, device=device)).sum()
        begin = time.perf_counter()
        loss.backward()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
        gradients.append(torch.cat([p.grad.detach().cpu().reshape(-1) for p in model.parameters()]))
    state.close()
    return gradients, statistics.median(seconds)


def member(rank: int, world: int, port: int, device: str, answers) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    rows = []
    for hook in HOOKS:
        host, _ = train(rank, torch.device("cpu"), hook, 256)
        there, seconds = train(rank, torch.device(device), hook, 256)
        worst = max(
            float((a - b).norm() / a.norm()) for a, b in zip(host, there)
        )
        rows.append((hook, worst, seconds))
    if rank == 0:
        answers.put(rows)
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--members", type=int, default=2)
    arguments = parser.parse_args()
    device, world = arguments.device, arguments.members
    if device == "cuda" and not torch.cuda.is_available():
        sys.exit("check_torch: this torch sees no GPU")
    name = torch.cuda.get_device_name() if device == "cuda" else "no GPU: the script alone is tried"
    print(f"torch {torch.__version__}, {name}")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    processes = [
        context.Process(target=member, args=(rank, world, port, device, answers))
        for rank in range(world)
    ]
    for process in processes:
        process.start()
    try:
        rows = answers.get(timeout=400)
    except queue.Empty:
        sys.exit("check_torch: no answer within 400 s")
    finally:
        for process in processes:
            process.join(timeout=20)
            process.kill()
    print(f"{'hook':<12}{'largest difference':>20}{'backward, ms':>14}")
    for hook, worst, seconds in rows:
        print(f"{hook:<12}{worst:>20.3g}{seconds * 1000:>14.2f}")
    if any(worst > (1e-5 if hook == "power_sgd" else 0) for hook, worst, _ in rows):
        sys.exit("check_torch: gradients on the device differ from those on the CPU")
    print("gradients on the device are those on the CPU")


if __name__ == "__main__":
    main()
