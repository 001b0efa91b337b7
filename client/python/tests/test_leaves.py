"""Members behind a leaf daemon, and one at the root: what they do together beside reductions."""

import contextlib

import pytest
import torch

import gradwire.torch as gw
import training
import worlds
from conftest import Daemon


def _of_rank(rank):
    torch.manual_seed(rank)
    return training.Mlp()


def _share(rank, root):
    model = _of_rank(rank)
    with gw.SessionState(session=f"leaves-{root}") as state:
        gw.broadcast_parameters_(model, state, root)
        for got, want in zip(model.parameters(), _of_rank(root).parameters(), strict=True):
            assert torch.equal(got, want)
        model(training.batch(0, 0)).square().sum().backward()
        assert gw.reduce_grads_(model.parameters(), state)


@pytest.mark.parametrize("root", [1, 2])
def test_a_broadcast_reaches_all_from_behind_a_leaf_and_from_the_root(daemon, tmp_path, root):
    with contextlib.closing(Daemon(tmp_path, "--upstream", daemon.address)) as leaf:
        variables = [
            {
                "RANK": str(rank),
                "WORLD_SIZE": "3",
                "LOCAL_RANK": str(rank % 2),
                "LOCAL_WORLD_SIZE": "2" if rank < 2 else "1",
                "GRADWIRE_ADDRESS": (leaf if rank < 2 else daemon).address,
            }
            for rank in range(3)
        ]
        worlds.run(3, _share, root, group=False, environments=variables)
