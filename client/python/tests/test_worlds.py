"""What the other tests rely on: a run ends, and says what each rank said."""

import threading

import pytest
import torch
import torch.distributed as dist

import worlds


def _sum(rank, more):
    tensor = torch.tensor([rank + more])
    dist.all_reduce(tensor)
    return rank, tensor.item()


def _hang(rank):
    print(f"I am {rank}", flush=True)
    threading.Event().wait()


def _fail(rank):
    if rank == 1:
        raise ValueError("rank 1 is not well")
    threading.Event().wait()


def test_results_come_in_rank_order():
    assert worlds.run(2, _sum, 10) == [(0, 21), (1, 21)]


def test_a_deadline_ends_all_ranks_and_shows_their_output():
    with pytest.raises(worlds.Failed) as failed:
        worlds.run(2, _hang, deadline=3, group=False, fresh=True)
    text = str(failed.value)
    for rank in range(2):
        assert f"rank {rank}: it had not ended" in text and f"I am {rank}" in text
    assert text.count("in _hang") == 2


def test_a_failure_ends_ranks_that_wait(monkeypatch):
    monkeypatch.setattr(worlds, "_AFTER_FAILURE_SECONDS", 0.5)
    with pytest.raises(worlds.Failed, match="rank 1 is not well") as failed:
        worlds.run(2, _fail, group=False, fresh=True)
    assert "rank 0: it had not ended" in str(failed.value)
