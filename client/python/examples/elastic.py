"""Training that goes on when a process is killed and started again, without a process group.

    gradwired --listen unix:/tmp/gradwire.sock --on-coordinator-loss resume --on-member-loss wait &
    export GRADWIRE_ADDRESS=unix:/tmp/gradwire.sock WORLD_SIZE=2
    RANK=0 python client/python/examples/elastic.py &
    RANK=1 python client/python/examples/elastic.py &

Kill one of the two, and start it again with the same RANK: it gets the model, the optimizer's state and the
place in the data from the other, which waits for it. With SIGTERM, too; the step is then ended in good
order, and PowerSGD's residuals go to the other process.
"""

import argparse
import time

import digits
import torch

import gradwire.torch as gw


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds before each step, to have time to kill")
    arguments = parser.parse_args()

    images, labels, test_images, test_labels = digits.load()
    model = digits.network()
    option = {"start_powerSGD_iter": 5}
    with gw.SessionState(session="elastic", comm_hook="power_sgd", comm_state_option=option, model=model) as state:
        gw.broadcast_parameters_(model, state)
        gw.attach_(model, state)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        progress = digits.Progress(state.rank, arguments.epochs)
        at = {"epoch": 1, "batch": 0}
        stop = gw.StopSignal()
        while at["epoch"] <= arguments.epochs:
            if state.membership_change is not None:
                print(f"rank {state.rank}: {state.membership_change}", flush=True)
                at = gw.heal_(model, optimizer, state, at)
            parts = list(digits.batches(len(images), at["epoch"], state.rank, state.world_size))
            part = parts[at["batch"]]
            time.sleep(arguments.pause)
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images[part]), labels[part])
            loss.backward()
            if state.should_step:
                optimizer.step()
            progress.show(at["epoch"], loss.item(), state.metrics())
            at["batch"] += 1
            if at["batch"] == len(parts):
                at = {"epoch": at["epoch"] + 1, "batch": 0}
                print(f"rank {state.rank}: epoch {at['epoch'] - 1} is over", flush=True)
            if stop:
                rank = state.rank
                print(f"rank {rank}: leaves; its residuals go to rank {state.leave()}", flush=True)
                return
        print(f"rank {state.rank}: parameters {digits.checksum(model)}")
        right = digits.accuracy(model, test_images, test_labels)
        digits.finish(state.rank, model, state.metrics(), right)


if __name__ == "__main__":
    main()
