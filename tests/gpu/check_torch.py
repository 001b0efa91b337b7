#!/usr/bin/env python3
"""Buckets on a GPU against the same buckets on the CPU, and the time of a step.

    check_torch.py [--device cuda|cpu] [--members N] [--node-group NAME]

All members on one device. Exits 1 when numbers differ: casts and sums by a bit, PowerSGD, whose products
may differ in their last bits, by more than 1e-5. With a node group the members on the device are one
contributor, which rounds the group's mean once instead of each member's gradient; and all of them
together send no more than one would.
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


# What rounding a group's mean to the hook's dtype may change.
GROUPED = {"no": 1e-6, "fp16": 2e-3, "bf16": 2e-2, "power_sgd": 1e-4}


def train(
    rank: int, device: torch.device, hook: str, width: int, node_group: str = "off"
) -> tuple[list[torch.Tensor], float, int]:
    """Gradients of each step on the host, the median time of backward(), and the bytes sent."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, width)
    ).to(device)
    ddp = DistributedDataParallel(model, bucket_cap_mb=1)
    state = gw.SessionState(
        comm_hook=hook, comm_state_option=HOOKS[hook] or None, node_group=node_group
    )
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
    sent = torch.tensor([state.metrics()["bytes_sent"]])
    dist.all_reduce(sent)
    state.close()
    return gradients, statistics.median(seconds), int(sent)


def member(rank: int, world: int, port: int, device: str, node_group: str, answers) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    rows = []
    for hook in HOOKS:
        host, _, alone = train(rank, torch.device("cpu"), hook, 256)
        there, seconds, sent = train(rank, torch.device(device), hook, 256, node_group)
        worst = max(
            float((a - b).norm() / a.norm()) for a, b in zip(host, there)
        )
        rows.append((hook, worst, seconds, sent / alone))
    if rank == 0:
        answers.put(rows)
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--members", type=int, default=2)
    parser.add_argument("--node-group", default="off")
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
        context.Process(target=member, args=(rank, world, port, device, arguments.node_group, answers))
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
    grouped = arguments.node_group != "off" and device == "cuda"
    print(f"{'hook':<12}{'largest difference':>20}{'backward, ms':>14}{'bytes sent':>12}")
    for hook, worst, seconds, sent in rows:
        print(f"{hook:<12}{worst:>20.3g}{seconds * 1000:>14.2f}{sent:>12.3f}")
    allowed = GROUPED if grouped else {hook: 1e-5 if hook == "power_sgd" else 0 for hook in HOOKS}
    if any(worst > allowed[hook] for hook, worst, _, _ in rows):
        sys.exit("check_torch: gradients on the device differ from those on the CPU")
    expected = 1 / world if grouped else 1
    if any(abs(sent / expected - 1) > 0.01 for _, _, _, sent in rows):
        sys.exit(f"check_torch: members on the device send another part than {expected} of the bytes")
    print("gradients on the device are those on the CPU")


if __name__ == "__main__":
    main()
