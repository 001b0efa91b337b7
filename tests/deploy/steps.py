"""A member of restarts.py: trains with power_sgd, whose factors the next daemon needs, and prints each step. It runs in
the trainer's image, with its examples."""
import os
import time

import digits
import torch

import gradwire.torch as gw

STEPS = int(os.environ["STEPS"])
PAUSE_SECONDS = float(os.environ["PAUSE_SECONDS"])
OPTION = {"matrix_approximation_rank": 2, "start_powerSGD_iter": 2}


def parts(count, state):
    """This member's part of each step's batch."""
    epoch = 0
    while True:
        epoch += 1
        yield from digits.batches(count, epoch, state.rank, state.world_size)


def main():
    images, labels, *_ = digits.load()
    model = digits.network()
    with gw.SessionState(comm_hook="power_sgd", comm_state_option=OPTION, model=model) as state:
        gw.broadcast_parameters_(model, state)
        gw.attach_(model, state)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        begin = time.monotonic()
        for step, part in zip(range(STEPS), parts(len(images), state)):
            time.sleep(PAUSE_SECONDS)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images[part]), labels[part]).backward()
            if state.should_step:
                optimizer.step()
            end = time.monotonic()
            print(f"step {step} {'apply' if state.should_step else 'skip'} {end - begin:.3f} s", flush=True)
            begin = end
        print(f"rejoins {state.metrics()['rejoins']}, parameters {digits.checksum(model)}", flush=True)


if __name__ == "__main__":
    main()
