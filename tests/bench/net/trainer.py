"""One rank of convergence_bench.py: trains a task through a daemon, with DistributedDataParallel."""

import time

from torch.nn.parallel import DistributedDataParallel

import gradwire.torch as gw
import member
import tasks


class Trainer:
    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world

    def train(self, task, hook, seed, steps, name, address, limit_seconds):
        """Rank 0 returns the loss and seconds of each step, and [steps done, quality]. Evaluation is not timed."""
        work = tasks.TASKS[task](self.rank, self.world, seed)
        ddp = DistributedDataParallel(work.model)
        losses, seconds, qualities = [], [], []
        with member.session(address, name, hook, work.start_power_sgd, limit_seconds) as state:
            ddp.register_comm_hook(state, gw.aggregate_hook)
            for step in range(steps):
                begin = time.perf_counter()
                work.optimizer.zero_grad()
                loss = work.loss(ddp)
                loss.backward()
                if state.should_step:
                    work.optimizer.step()
                    work.schedule.step()
                seconds.append(time.perf_counter() - begin)
                losses.append(loss.item())
                if self.rank == 0 and (step + 1) % work.evaluate_every == 0:
                    qualities.append([step + 1, work.quality()])
        parameters = sum(parameter.numel() for parameter in work.model.parameters())
        if self.rank == 0:
            return {"losses": losses, "seconds": seconds, "qualities": qualities, "parameters": parameters}
        return None


if __name__ == "__main__":
    member.serve(Trainer)
