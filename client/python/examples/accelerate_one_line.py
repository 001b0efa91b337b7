"""Accelerate with Gradwire: the line with `kwargs_handlers` is the only one.

    accelerate launch --cpu --num_processes 2 client/python/examples/accelerate_one_line.py
"""

import digits
import torch
from accelerate import Accelerator

from gradwire.accelerate import AggregatorKwargs

EPOCHS = 15
OPTIONS = {"matrix_approximation_rank": 2, "start_powerSGD_iter": 20}


def main() -> None:
    handler = AggregatorKwargs(comm_hook="power_sgd", comm_state_option=OPTIONS)
    accelerator = Accelerator(kwargs_handlers=[handler])

    images, labels, test_images, test_labels = digits.load()
    model = digits.network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, optimizer = accelerator.prepare(model, optimizer)
    rank, world_size = accelerator.process_index, accelerator.num_processes
    progress = digits.Progress(rank, EPOCHS)
    for epoch in range(1, EPOCHS + 1):
        for part in digits.batches(len(images), epoch, rank, world_size):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images[part]), labels[part])
            accelerator.backward(loss)
            if handler.state.should_step:
                optimizer.step()
        progress.show(epoch, loss.item(), handler.state.metrics())
    right = digits.accuracy(model, test_images, test_labels)
    digits.finish(rank, model, handler.state.metrics(), right)
    handler.state.close()
    accelerator.end_training()


if __name__ == "__main__":
    main()
