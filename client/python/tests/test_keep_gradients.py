"""keep_gradients: a training that loses its daemon has the bits of one that does not."""

import contextlib
import re

import pytest

import gradwire
import gradwire.torch as gw
from conftest import Daemon
from elastic_ranks import Rank

EPOCHS_BEFORE_A_LOSS = (1, 3, 6)


def _train(folder, losses, **variables) -> list[str]:
    words = ["--on-coordinator-loss", "resume", "--coordinator-grace", "30s"]
    with contextlib.ExitStack() as stack:
        daemon = stack.enter_context(contextlib.closing(Daemon(folder, *words)))
        ranks = [stack.enter_context(contextlib.closing(Rank(daemon.address, rank, **variables))) for rank in range(2)]
        for epoch in losses:
            ranks[0].wait_for(f"epoch {epoch} is over")
            daemon.kill()
            daemon = stack.enter_context(contextlib.closing(Daemon(folder, *words)))
        return [rank.finish() for rank in ranks]


def _checksums(printed: list[str]) -> set[str]:
    return {re.search(r"parameters (\w+)", text)[1] for text in printed}


def test_losing_the_daemon_changes_no_bit_of_the_model(tmp_path):
    undisturbed = _train(tmp_path, losses=())
    disturbed = _train(tmp_path, losses=EPOCHS_BEFORE_A_LOSS, GRADWIRE_KEEP_GRADIENTS="on")
    assert len(_checksums(undisturbed)) == 1
    assert _checksums(disturbed) == _checksums(undisturbed), disturbed


@pytest.mark.parametrize("value", ["on", 1, None])
def test_it_is_true_or_false(value):
    with pytest.raises(gradwire.InvalidArgument, match=f"keep_gradients is {value!r}; allowed are True and False"):
        gw.SessionState(keep_gradients=value)
