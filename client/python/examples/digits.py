"""What the examples share: handwritten digits, a small network, its accuracy and a progress line."""

import hashlib
import os
import pathlib
import sys
import time

import torch

DATA = pathlib.Path(__file__).resolve().parents[2] / "examples" / "data" / "digits.csv"
BATCH = 128  # of all members together


def load(path: pathlib.Path = DATA) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Images and digits for training, and for the test: one fifth."""
    rows = [[int(n) for n in line.split(",")] for line in path.read_text().splitlines()]
    table = torch.tensor(rows)[torch.randperm(len(rows), generator=torch.Generator().manual_seed(7))]
    images, digits = table[:, :64].float() / 16, table[:, 64]
    train = len(rows) * 4 // 5
    return images[:train], digits[:train], images[train:], digits[train:]


def network() -> torch.nn.Module:
    """The same on every member."""
    torch.manual_seed(1)
    return torch.nn.Sequential(
        torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 128), torch.nn.ReLU(),
        torch.nn.Linear(128, 10),
    )  # fmt: skip


def batches(count: int, epoch: int, rank: int, world_size: int):
    """This member's part of each of the epoch's batches, as indices."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(epoch))
    share = BATCH // world_size
    for begin in range(0, count - BATCH + 1, BATCH):
        yield order[begin + rank * share : begin + (rank + 1) * share]


def accuracy(model: torch.nn.Module, images: torch.Tensor, digits: torch.Tensor) -> float:
    with torch.no_grad():
        return float((model(images).argmax(1) == digits).float().mean())


def checksum(model: torch.nn.Module) -> str:
    """Of all parameters; members of one session have the same."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    return digest.hexdigest()


class Progress:
    """One line that is rewritten, on rank 0 of a terminal; GRADWIRE_PROGRESS=off or on decides."""

    def __init__(self, rank: int, epochs: int) -> None:
        wish = os.environ.get("GRADWIRE_PROGRESS", "auto")
        self._shown = rank == 0 and (wish == "on" or (wish != "off" and sys.stdout.isatty()))
        self._epochs = epochs
        self._began = time.monotonic()

    def show(self, epoch: int, loss: float, metrics: dict[str, float]) -> None:
        if not self._shown:
            return
        saved = 1 - metrics.get("bytes_sent", 0) / max(metrics.get("gradient_bytes", 0), 1)
        seconds = time.monotonic() - self._began
        end = "\n" if epoch == self._epochs else ""
        print(
            f"\repoch {epoch:3}/{self._epochs}  loss {loss:.3f}  {saved:4.0%} of the bytes saved"
            f"  {seconds:5.1f} s",
            end=end, flush=True,
        )  # fmt: skip


def finish(rank: int, model: torch.nn.Module, metrics: dict[str, float], right: float) -> None:
    """Rank 0's last words; ends with an error if the training did not work."""
    if rank != 0:
        return
    sent, whole = metrics["bytes_sent"], metrics["gradient_bytes"]
    print(
        f"accuracy {right:.4f}; each member sent {sent:,} bytes for {whole:,} bytes of gradients"
        f" ({1 - sent / whole:.0%} saved)"
    )
    if right < 0.95:
        sys.exit(f"accuracy {right:.4f} is below 0.95")
