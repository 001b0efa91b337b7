"""Daemons and members as processes that can be lost and have a next life."""

import signal
import socket
import subprocess
import threading
import time
from pathlib import Path


class NotStarted(SystemExit):
    """A daemon does not serve."""


class Daemon:
    """gradwired at one address, one life after another."""

    def __init__(self, binary: Path, address: str, folder: Path, options: list[str]) -> None:
        self.address = address
        self.command = [str(binary), "--listen", address, "--http-listen", "off",
                        "--on-coordinator-loss", "resume", *options]
        self.folder = folder
        self.lives = 0
        self.process: subprocess.Popen | None = None

    def start(self) -> float:
        """Returns when it serves."""
        self.lives += 1
        log = open(self.folder / f"daemon{self.lives}.log", "wb")  # noqa: SIM115
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=log, text=True)
        log.close()
        too_late = threading.Timer(30, self.process.kill)
        too_late.start()
        for line in self.process.stdout:
            if line.startswith("  grpc  "):
                too_late.cancel()
                return time.monotonic()
        too_late.cancel()
        raise NotStarted(f"chaos: gradwired did not start: see {log.name}")

    def end(self, signal_number: int) -> None:
        self.process.send_signal(signal_number)
        self.process.wait(timeout=60)
        self.process.stdout.close()

    def count_in_logs(self, text: str) -> int:
        """In all lives."""
        return sum(log.read_text().count(text) for log in self.folder.glob("daemon*.log"))


class Life:
    """One process of a member, and what it prints."""

    def __init__(self, command: list[str], errors: Path | None) -> None:
        self.steps: list[tuple[float, int, tuple[str, ...]]] = []  # when, number, verdict and the model's digest
        self.words: list[str] = []  # all other lines
        log = open(errors, "wb") if errors else None  # noqa: SIM115
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        if log:
            log.close()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            words = line.split()
            if not line.endswith("\n"):  # cut by SIGKILL
                break
            if words[:1] == ["step"]:
                self.steps.append((time.monotonic(), int(words[1]), tuple(words[2:])))
            elif words[:1] != ["heal"]:
                self.words.append(line.strip())
        self.process.stdout.close()

    def wait(self, seconds: float) -> bool:
        """Whether it has ended within that time; then all it printed is here."""
        try:
            self.process.wait(timeout=max(0.0, seconds))
        except subprocess.TimeoutExpired:
            return False
        self.reader.join(timeout=60)
        return True


class Member:
    """The lives of one rank: test members, which all-reduce a parameter in each step."""

    def __init__(self, command: list[str], folder: Path | None = None) -> None:
        self.command, self.folder = command, folder
        self.lives: list[Life] = []
        self.start()

    def start(self) -> None:
        rank = self.command[self.command.index("--rank") + 1]
        errors = self.folder / f"member{rank}-{len(self.lives) + 1}.log" if self.folder else None
        self.lives.append(Life(self.command, errors))

    @property
    def life(self) -> Life:
        return self.lives[-1]

    @property
    def process(self) -> subprocess.Popen:
        return self.life.process

    def steps(self) -> list[tuple[float, int, tuple[str, ...]]]:
        """Of all lives."""
        return [step for life in self.lives for step in life.steps]

    def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        self.process.send_signal(number)
        if not self.life.wait(60):
            raise subprocess.TimeoutExpired(self.command, 60)

    def concluded_after(self, when: float, deadline: float) -> float | None:
        """The time of its first step after `when`."""
        while time.monotonic() < deadline:
            if self.life.steps and self.life.steps[-1][0] > when:
                return next(at for at, _, _ in self.steps() if at > when)
            time.sleep(0.01)
        return None


def free_port(host: str = "127.0.0.1") -> int:
    with socket.socket() as one:
        one.bind((host, 0))
        return one.getsockname()[1]
