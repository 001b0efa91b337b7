"""Training without DistributedDataParallel and without a process group.

    gradwired --listen unix:/tmp/gradwire.sock &
    GRADWIRE_ADDRESS=unix:/tmp/gradwire.sock RANK=0 WORLD_SIZE=2 python client/python/examples/no_ddp.py &
    GRADWIRE_ADDRESS=unix:/tmp/gradwire.sock RANK=1 WORLD_SIZE=2 python client/python/examples/no_ddp.py
"""

import digits
import torch

import gradwire.torch as gw

EPOCHS = 12


def main() -> None:
    images, labels, test_images, test_labels = digits.load()
    model = digits.network()
    with gw.SessionState(session="no-ddp", comm_hook="fp16", model=model) as state:
        gw.broadcast_parameters_(model, state)
        gw.attach_(model, state)  # or, before optimizer.step(): gw.reduce_grads_(model.parameters(), state)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        progress = digits.Progress(state.rank, EPOCHS)
        for epoch in range(1, EPOCHS + 1):
            for part in digits.batches(len(images), epoch, state.rank, state.world_size):
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(images[part]), labels[part])
                loss.backward()
                if state.should_step:
                    optimizer.step()
            progress.show(epoch, loss.item(), state.metrics())
        print(f"rank {state.rank}: parameters {digits.checksum(model)}")
        right = digits.accuracy(model, test_images, test_labels)
        digits.finish(state.rank, model, state.metrics(), right)


if __name__ == "__main__":
    main()
