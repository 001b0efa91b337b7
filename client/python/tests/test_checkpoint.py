"""A run that is saved and resumed in new processes goes on with the bits of one that was not."""

import datetime

import pytest
import torch

import gradwire
import gradwire.torch as gw
import training
import worlds

STEPS, SAVED_AT = 20, 10
SHAPE = (16, 3, 6, 6)

# Options of the hook and of DistributedDataParallel. batched_power_sgd keeps its factors for a
# bucket's list of parameters, which DistributedDataParallel changes once after a start, unless it
# looks for unused ones.
RUNS = {
    "fp16": ("fp16", {}, {}),
    "power_sgd": (
        "power_sgd",
        {"matrix_approximation_rank": 2, "start_powerSGD_iter": 4},
        training.SMALL_BUCKETS,
    ),
    "power_sgd cold": (
        "power_sgd",
        {"start_powerSGD_iter": 4, "warm_start": False},
        training.SMALL_BUCKETS,
    ),
    "batched_power_sgd": (
        "batched_power_sgd",
        {"matrix_approximation_rank": 2, "start_powerSGD_iter": 4},
        {"find_unused_parameters": True},
    ),
}


class _Run:
    def __init__(self, name, **state_options):
        hook, option, ddp_options = RUNS[name]
        self.state = gw.SessionState(comm_hook=hook, comm_state_option=option, **state_options)
        self.ddp = training.distributed(training.ConvNet, **ddp_options)
        self.ddp.register_comm_hook(self.state, gw.aggregate_hook)
        self.optimizer = torch.optim.SGD(self.ddp.parameters(), lr=0.01, momentum=0.9)

    def train(self, rank, first, steps):
        return training.train(self.ddp, rank, steps, first, SHAPE, self.optimizer)

    def save(self, path):
        parts = {"model": self.ddp.module, "optimizer": self.optimizer, "gradwire": self.state}
        torch.save({name: part.state_dict() for name, part in parts.items()}, path)

    def load(self, path):
        saved = torch.load(path)
        self.ddp.module.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.state.load_state_dict(saved["gradwire"])


def _undisturbed(rank, name, folder):
    run = _Run(name)
    with run.state:
        run.train(rank, 0, SAVED_AT)
        run.save(folder / f"rank{rank}.pt")
        return run.train(rank, SAVED_AT, STEPS - SAVED_AT)


def _resumed(rank, name, folder):
    run = _Run(name)
    run.load(folder / f"rank{rank}.pt")
    # What is loaded and not yet used is what a save now has.
    again = run.state.state_dict()
    assert again["step"] == SAVED_AT, again["step"]
    with run.state:
        return run.train(rank, SAVED_AT, STEPS - SAVED_AT)


def test_a_resumed_run_has_the_bits_of_the_undisturbed_one(tmp_path):
    wants = {}
    for name in RUNS:
        folder = tmp_path / name.replace(" ", "-")
        folder.mkdir()
        wants[name] = worlds.run(2, _undisturbed, name, folder)
    for name, want in wants.items():
        fresh = name == "fp16"  # the processes that wait from then on are new
        if fresh:
            worlds.end_all()
        got = worlds.run(2, _resumed, name, tmp_path / name.replace(" ", "-"))
        for rank in range(2):
            training.expect_same(got[rank], want[rank])


def _saved_at(rank, name, folder, address):
    run = _Run(name, address=address, session="moved")
    with run.state:
        run.train(rank, 0, SAVED_AT)
        run.save(folder / f"rank{rank}.pt")
        return run.train(rank, SAVED_AT, STEPS - SAVED_AT)


def _resumed_at(rank, name, folder, address):
    run = _Run(name, address=address, session="moved")
    run.load(folder / f"rank{rank}.pt")
    with run.state:
        return run.train(rank, SAVED_AT, STEPS - SAVED_AT)


@pytest.mark.parametrize("name", ["fp16", "power_sgd", "power_sgd cold"])
def test_a_checkpoint_fits_any_number_of_daemons(tmp_path, two_daemons, name):
    one, two = two_daemons[0].address, ",".join(each.address for each in two_daemons)
    for before, after in ((one, two), (two, one)):
        want = worlds.run(2, _saved_at, name, tmp_path, before)
        got = worlds.run(2, _resumed_at, name, tmp_path, after)
        for rank in range(2):
            training.expect_same(got[rank], want[rank])


def _forgets(rank, name, folder):
    """Resumes without Gradwire's part."""
    run = _Run(name)
    run.state.load_state_dict = lambda state: None
    run.load(folder / f"rank{rank}.pt")
    with run.state:
        return run.train(rank, SAVED_AT, STEPS - SAVED_AT)


def test_without_the_states_part_the_bits_are_others(tmp_path):
    want = worlds.run(2, _undisturbed, "power_sgd", tmp_path)
    got = worlds.run(2, _forgets, "power_sgd", tmp_path)
    with pytest.raises(AssertionError, match="apart"):
        training.expect_same(got[0], want[0])


def _load_in_the_middle(rank, name):
    """Back to step 5 in the session that has gone on."""
    run = _Run(name)
    with run.state:
        run.train(rank, 0, 5)
        saved = run.state.state_dict()
        weights = {key: value.clone() for key, value in run.ddp.module.state_dict().items()}
        optimizer = torch.optim.SGD(run.ddp.parameters(), lr=0.01)
        want = training.train(run.ddp, rank, 3, 5, SHAPE, optimizer)
        run.state.load_state_dict(saved)
        run.ddp.module.load_state_dict(weights)
        training.expect_same(training.train(run.ddp, rank, 3, 5, SHAPE, optimizer), want)


def test_a_running_session_can_go_back_to_a_state():
    worlds.run(2, _load_in_the_middle, "power_sgd")


# ---- What is refused


def _saved(rank, name):
    run = _Run(name)
    with run.state:
        run.train(rank, 0, 5)
        return run.state.state_dict()


def _error_of(ddp, rank, shape):
    try:
        training.train(ddp, rank, 1, shape=shape)
    except gradwire.Error as error:
        return str(error)


def _refusals(rank, states):
    """What the first step says after such a load, and what the next one does."""
    texts = {}
    for what, (saved, make, hook, option) in states.items():
        with gw.SessionState(
            comm_hook=hook, comm_state_option=option, timeout=datetime.timedelta(seconds=20)
        ) as state:
            ddp = training.distributed(make)
            ddp.register_comm_hook(state, gw.aggregate_hook)
            state.load_state_dict(saved[rank])
            shape = SHAPE if make is training.ConvNet else ()
            texts[what] = [_error_of(ddp, rank, shape) for _ in range(2)]
    return texts


def test_a_state_of_something_else_is_refused_by_name_on_all_ranks():
    saved = worlds.run(2, _saved, "power_sgd")
    hook, option, _ = RUNS["power_sgd"]
    damaged = [
        {**one, "coordinator": one["coordinator"][:-1], "member": one["member"][:-1]}
        for one in saved
    ]
    states = {
        "layout": (saved, training.Mlp, hook, option),
        "option": (saved, training.ConvNet, hook, {**option, "matrix_approximation_rank": 3}),
        "hook": (saved, training.ConvNet, "batched_power_sgd", option),
        "another rank": (saved[::-1], training.ConvNet, hook, option),
        "damage": (damaged, training.ConvNet, hook, option),
        "damage on rank 1": ([saved[0], damaged[1]], training.ConvNet, hook, option),
    }
    words = {
        "layout": "first.weight",
        "option": "matrix_approximation_rank",
        "hook": "batched",
        "another rank": "saved by rank 1; rank 0 takes only its own",
        "damage": "bytes",
        "damage on rank 1": "rank 1",
    }
    results = worlds.run(2, _refusals, states)
    for what, word in words.items():
        texts = [result[what][0] for result in results]
        assert None not in texts, (what, texts)
        assert any(word in text for text in texts), (what, texts)
        # Nobody trains on without what was asked for.
        assert None not in [result[what][1] for result in results], what


def _refused_while_running(rank, name):
    """Rank 1's part is damaged. What the load says, and what a step says afterwards."""
    run = _Run(name)
    with run.state:
        run.train(rank, 0, 5)
        saved = run.state.state_dict()
        if rank == 1:
            saved["member"] = saved["member"][:-1]
        with pytest.raises(gradwire.Error) as refused:
            run.state.load_state_dict(saved)
        return str(refused.value), _error_of(run.ddp, rank, SHAPE)


def test_one_ranks_damage_ends_a_running_session_for_all():
    others, own = worlds.run(2, _refused_while_running, "power_sgd")
    assert "safetensors" in own[0]
    assert "rank 1" in others[0] and "left" in others[0]
    for _, later in (others, own):
        assert "a checkpoint was not loaded" in later


@pytest.mark.parametrize(
    "saved, words",
    [
        ({"version": 2, "step": 0}, ["version", "2", "allowed", "1"]),
        ({"step": 0}, ["version", "None"]),
        ({"version": 1, "step": 3}, ["coordinator"]),
        ([1, 2], ["dict"]),
        (
            {"version": 1, "step": 3, "coordinator": "text", "member": torch.zeros(1)},
            ["coordinator", "tensor"],
        ),
    ],
)
def test_what_is_no_state_is_refused_by_name(saved, words):
    with pytest.raises(gradwire.InvalidArgument) as refused:
        gw.SessionState().load_state_dict(saved)
    for word in words:
        assert word in str(refused.value)


def _save_alone(rank, folder):
    """With a model= too, a save before the first step waits for nobody."""
    if rank == 0:
        state = gw.SessionState(model=training.Mlp())
        assert state.state_dict()["step"] == 0


def test_saving_needs_no_other_rank(tmp_path):
    worlds.run(2, _save_alone, tmp_path, deadline=20)
