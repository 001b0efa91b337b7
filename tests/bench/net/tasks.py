"""Two small tasks for convergence_bench.py: models, data, and what counts as quality."""

import csv
import math
import pathlib
import subprocess

import torch
from torch import nn

DIGITS = pathlib.Path(__file__).resolve().parents[3] / "client" / "examples" / "data" / "digits.csv"
TEXT_COMMAND = ("bible", "-f", "gen1:1-rev22:21")  # of Debian's bible-kjv, which reads bible-kjv-text's file
TEXT_SECONDS = 30
SPLIT_SEED = 7  # of training and test data; the same for all seeds


class Digits:
    """A small convolutional network; the quality is the share of the test's digits that it recognises."""

    name, quality_name, higher_is_better = "digits", "test accuracy", True
    target, steps, evaluate_every, start_power_sgd = 0.97, 160, 5, 2
    batch = 32  # of each member

    def __init__(self, rank: int, world: int, seed: int) -> None:
        rows = torch.tensor([[int(cell) for cell in row] for row in csv.reader(DIGITS.open())])
        rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(SPLIT_SEED))]
        images, labels = rows[:, :64].float().view(-1, 1, 8, 8) / 16, rows[:, 64]
        train = len(rows) * 4 // 5
        self._train, self._test = (images[:train], labels[:train]), (images[train:], labels[train:])
        self._own = (rank, world)
        self._order = torch.Generator().manual_seed(seed)
        torch.manual_seed(seed)
        self.model = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(64 * 16, 256), nn.ReLU(), nn.Linear(256, 10),
        )  # fmt: skip
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 1)

    def loss(self, model: nn.Module) -> torch.Tensor:
        images, labels = self._train
        rank, world = self._own
        drawn = torch.randint(len(images), (world, self.batch), generator=self._order)[rank]
        return nn.functional.cross_entropy(model(images[drawn]), labels[drawn])

    def quality(self) -> float:
        images, labels = self._test
        with torch.no_grad():
            return (self.model(images).argmax(1) == labels).float().mean().item()


def verses(text: str) -> str:
    """What `bible -f` prints, without the references at the beginnings of its lines."""
    return "".join(line.split(" ", 1)[1] + "\n" for line in text.splitlines() if " " in line)


def read_text() -> str:
    printed = subprocess.run(TEXT_COMMAND, capture_output=True, text=True, check=True, timeout=TEXT_SECONDS).stdout
    text = verses(printed)
    if len(text) < 4_000_000:
        raise ValueError(f"{' '.join(TEXT_COMMAND)} prints {len(text)} characters of text; 4 millions are expected")
    return text


class Language:
    """A network of three layers that predicts the next character from those before it; the quality is bits per
    character on text that it has not seen. It learns from a short text until that is exhausted, with a rate that
    rises and then falls to zero: quality is compared where more steps no longer help."""

    name, quality_name, higher_is_better = "language", "test bits per character", False
    target, steps, evaluate_every, start_power_sgd = 2.5, 1200, 20, 2
    batch, context = 32, 10  # of each member; characters before the one to guess
    letters_used, test_windows = 60_000, 2000
    rate, warm_up = 0.2, 20

    def __init__(self, rank: int, world: int, seed: int) -> None:
        text = read_text()[: self.letters_used]
        letters = sorted(set(text))
        number = {letter: i for i, letter in enumerate(letters)}
        data = torch.tensor([number[letter] for letter in text])
        self._window = torch.arange(self.context + 1)
        # The last tenth is for the test: windows at equal distances.
        train = len(data) * 9 // 10
        self._train, test = data[:train], data[train:]
        distance = (len(test) - self.context) // self.test_windows
        self._test = test[distance * torch.arange(self.test_windows)[:, None] + self._window]
        self._own = (rank, world)
        self._order = torch.Generator().manual_seed(seed)
        torch.manual_seed(seed)
        self.model = nn.Sequential(
            nn.Embedding(len(letters), 24), nn.Flatten(), nn.Linear(24 * self.context, 512), nn.ReLU(),
            nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, len(letters)),
        )  # fmt: skip
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=self.rate, momentum=0.9)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self._share_of_rate)

    def _share_of_rate(self, step: int) -> float:
        return min(1, (step + 1) / self.warm_up) * (1 + math.cos(math.pi * min(1, step / self.steps))) / 2

    @staticmethod
    def _cross_entropy(model: nn.Module, windows: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(model(windows[:, :-1]), windows[:, -1])

    def loss(self, model: nn.Module) -> torch.Tensor:
        rank, world = self._own
        starts = torch.randint(len(self._train) - self.context, (world, self.batch), generator=self._order)[rank]
        return self._cross_entropy(model, self._train[starts[:, None] + self._window])

    def quality(self) -> float:
        with torch.no_grad():
            return self._cross_entropy(self.model, self._test).item() / math.log(2)


TASKS = {task.name: task for task in (Digits, Language)}
