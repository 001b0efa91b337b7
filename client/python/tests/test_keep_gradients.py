"""keep_gradients: a training that loses its daemon has the bits of one that does not."""

import contextlib
import re

import pytest

import gradwire
import gradwire.torch as gw
from conftest import Daemon
from elastic_ranks import Rank

EPOCHS_BEFORE_A_LOSS = (1, 3, 6)


def _train(folder, losses, shards=1, **variables) -> list[str]:
    """One daemon after another is lost."""
    words = ["--on-coordinator-loss", "resume", "--coordinator-grace", "30s"]
    folders = [folder / f"shard{number}" for number in range(shards)]
    with contextlib.ExitStack() as stack:
        def start(number: int) -> Daemon:
            folders[number].mkdir(exist_ok=True)
            return stack.enter_context(contextlib.closing(Daemon(folders[number], *words)))

        daemons = [start(number) for number in range(shards)]
        address = ",".join(daemon.address for daemon in daemons)
        ranks = [stack.enter_context(contextlib.closing(Rank(address, rank, **variables))) for rank in range(2)]
        for loss, epoch in enumerate(losses):
            ranks[0].wait_for(f"epoch {epoch} is over")
            daemons[loss % shards].kill()
            daemons[loss % shards] = start(loss % shards)
        return [rank.finish() for rank in ranks]


def _checksums(printed: list[str]) -> set[str]:
    return {re.search(r"parameters (\w+)", text)[1] for text in printed}


@pytest.mark.parametrize("shards", [1, 2])
def test_losing_a_daemon_changes_no_bit_of_the_model(tmp_path, shards):
    undisturbed = _train(tmp_path, losses=())
    disturbed = _train(tmp_path, EPOCHS_BEFORE_A_LOSS, shards, GRADWIRE_KEEP_GRADIENTS="on")
    assert len(_checksums(undisturbed)) == 1
    assert _checksums(disturbed) == _checksums(undisturbed), disturbed


@pytest.mark.parametrize("value", ["on", 1, None])
def test_it_is_true_or_false(value):
    with pytest.raises(gradwire.InvalidArgument, match=f"keep_gradients is {value!r}; allowed are True and False"):
        gw.SessionState(keep_gradients=value)
