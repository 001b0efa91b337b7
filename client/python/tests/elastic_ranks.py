"""Processes of examples/elastic.py, which may be killed."""

import os
import pathlib
import signal
import subprocess
import sys
import threading

EXAMPLE = pathlib.Path(__file__).resolve().parents[1] / "examples" / "elastic.py"
DEADLINE = 120.0


class Rank:
    """One process of the example."""

    def __init__(self, address: str, rank: int, world_size: int = 2, **variables: str) -> None:
        environment = {
            **os.environ, "RANK": str(rank), "WORLD_SIZE": str(world_size), "GRADWIRE_ADDRESS": address,
            "OMP_NUM_THREADS": "1", **variables,
        }  # fmt: skip
        self.process = subprocess.Popen(
            [sys.executable, "-B", str(EXAMPLE), "--epochs", "20", "--pause", "0.01"],
            env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self._too_late = threading.Timer(DEADLINE, self.process.kill)
        self._too_late.start()
        self.printed: list[str] = []

    def wait_for(self, text: str) -> None:
        for line in self.process.stdout:
            self.printed.append(line)
            if text in line:
                return
        raise AssertionError(f"no {text!r} in:\n{''.join(self.printed)}")

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.close()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def close(self) -> None:
        self._too_late.cancel()
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def finish(self) -> str:
        self.printed += self.process.stdout.readlines()
        text = "".join(self.printed)
        assert self.process.wait() == 0, text
        return text
