"""The examples as they are, and README's Python lines, in processes as torchrun would start them."""

import os
import pathlib
import re
import socket
import subprocess
import sys
import time

import pytest

FOLDER = pathlib.Path(__file__).resolve().parents[1]
EXAMPLES = FOLDER / "examples"
README = FOLDER.parents[1] / "README.md"
DEADLINE = 240.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def launch(world_size: int, words: list[str], **environment: str) -> list[str]:
    """What each rank printed. torchrun of torch 1.13 does not start under Python 3.11."""
    port = str(free_port())
    processes = []
    for rank in range(world_size):
        own = {
            **os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size),
            "LOCAL_WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
            "OMP_NUM_THREADS": "1", **environment,
        }  # fmt: skip
        processes.append(
            subprocess.Popen(
                [sys.executable, "-B", *words], env=own, text=True, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )  # fmt: skip
        )
    deadline = time.monotonic() + DEADLINE
    printed = []
    try:
        for process in processes:
            printed.append(process.communicate(timeout=deadline - time.monotonic())[0])
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for rank, process in enumerate(processes):
        assert process.returncode == 0, f"rank {rank} of {words}:\n{printed[rank]}"
    return printed


def test_ddp_one_line_trains_with_a_daemon_of_its_own():
    printed = launch(4, [str(EXAMPLES / "ddp_one_line.py")], GRADWIRE_PROGRESS="on")
    assert "parameters identical on all" in printed[0]
    assert "of the bytes saved" in printed[0]
    assert float(re.search(r"accuracy (\S+);", printed[0])[1]) >= 0.95
    sent, whole = re.search(r"sent (\S+) bytes for (\S+) bytes", printed[0]).groups()
    assert int(sent.replace(",", "")) < int(whole.replace(",", "")) / 2
    assert printed[1] == ""


def test_checkpoint_resume_goes_on_with_the_same_numbers(tmp_path):
    script = str(EXAMPLES / "checkpoint_resume.py")
    launch(2, [script, str(tmp_path / "halves"), "--steps", "40"])
    resumed = launch(2, [script, str(tmp_path / "halves"), "--steps", "80"])
    whole = launch(2, [script, str(tmp_path / "whole"), "--steps", "80"])
    for rank in range(2):
        assert f"rank {rank} goes on at step 40" in resumed[rank]
        assert resumed[rank].splitlines()[-1] == whole[rank].splitlines()[-1]
        assert "saved step 80" in whole[rank]


def test_no_ddp_trains_without_a_process_group():
    from gradwire._daemon import EmbeddedDaemon

    daemon = EmbeddedDaemon()
    try:
        printed = launch(2, [str(EXAMPLES / "no_ddp.py")], GRADWIRE_ADDRESS=daemon.address)
    finally:
        daemon.close()
    assert "(50% saved)" in printed[0]
    sums = [re.search(r"rank \d: parameters (\w{64})$", text, re.MULTILINE)[1] for text in printed]
    assert sums[0] == sums[1]


def test_accelerate_one_line():
    pytest.importorskip("accelerate", reason="accelerate is not installed here")
    printed = launch(2, [str(EXAMPLES / "accelerate_one_line.py")], ACCELERATE_USE_CPU="true")
    assert float(re.search(r"accuracy (\S+);", printed[0])[1]) >= 0.95


def readme_blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)


SETTING = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = [(torch.randn(4, 8), torch.randn(4, 8)) for _ in range(3)]
loss_of = torch.nn.functional.mse_loss
"""
ENDING = """
assert state.metrics()["steps_applied"] == 3, state.metrics()
everybody = [torch.empty_like(model.weight) for _ in range(dist.get_world_size())]
dist.all_gather(everybody, model.weight.detach())
assert all(torch.equal(everybody[0], other) for other in everybody)
state.close()
"""


def test_readme_lines_run_as_they_stand(tmp_path):
    blocks = [block for block in readme_blocks("python") if "accelerate" not in block]
    assert len(blocks) == 2, "README has one block for DDP and one for training without it"
    for number, block in enumerate(blocks):
        script = tmp_path / f"readme{number}.py"
        script.write_text(SETTING + block + ENDING)
        launch(2, [str(script)])
