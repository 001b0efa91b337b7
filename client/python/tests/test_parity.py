"""Training with torch's hooks on gloo and with ours: same seeds, each step's gradients compared.

Nothing is handed over from torch to us between steps, so rounding differences grow as either's own
do. How fast that is, is measured: torch's hook once more, with the gradients of its first
compressed step moved by about one rounding. That first step is also computed in fp64, from the same
gradients and the same drawn Q: whose result is nearer to it shows whose rounding a difference is.
"""

from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import (
    debugging_hooks,
    default_hooks,
    powerSGD_hook as power_sgd,
)

import gradwire.torch as gw
import training
import worlds

STEPS = 8
SHAPE = (32, 3, 6, 6)
START = 2
ROUNDING = 2.0**-22
# Relative Frobenius, from fp64. 1e-6 is asked between torch's fp32 result and ours: they are nearer
# than that unless torch's own is farther than this from fp64 (nearly collinear columns).
FIRST_COMPRESSED_STEP = 5e-7
DRIFT_FACTOR = 5  # times what torch drifts from itself


def _with(state, hook, **options):
    ddp = training.distributed(training.ConvNet, **options)
    ddp.register_comm_hook(state, hook)
    return training.train(ddp, dist.get_rank(), STEPS, shape=SHAPE)


# ---- Hooks that must agree to the last bit

# Ours, its wrapper, torch's. At world 2 there is one sum, and torch rounds it as we do.
SIMPLE = {
    "no": ("no", "no", default_hooks.allreduce_hook),
    "fp16": ("fp16", "no", default_hooks.fp16_compress_hook),
    "fp16 around no": (
        "no",
        "fp16",
        default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook),
    ),
    "noop": ("noop", "no", debugging_hooks.noop_hook),
}


def _simple(rank, name):
    hook, wrapper, reference = SIMPLE[name]
    for options in ({}, training.SMALL_BUCKETS):
        want = _with(None, reference, **options)
        with gw.SessionState(comm_hook=hook, comm_wrapper=wrapper) as state:
            training.expect_same(_with(state, gw.aggregate_hook, **options), want)
    if name == "no":
        # Without a hook torch multiplies by 1/2, which is exact.
        training.expect_same(training.plain(training.ConvNet, rank, STEPS, SHAPE), want)


@pytest.mark.parametrize("name", SIMPLE)
def test_simple_hooks_are_torchs_bit_for_bit(name):
    worlds.run(2, _simple, name)


# ---- PowerSGD

POWER_SGD = {
    "rank 1": {"matrix_approximation_rank": 1},
    "rank 2": {"matrix_approximation_rank": 2},
    "rank 4": {"matrix_approximation_rank": 4},
    "rank 1, no error feedback": {"matrix_approximation_rank": 1, "use_error_feedback": False},
    "rank 2, cold": {"matrix_approximation_rank": 2, "warm_start": False},
    "rank 4, cold, no error feedback": {
        "matrix_approximation_rank": 4,
        "warm_start": False,
        "use_error_feedback": False,
    },
    "rank 2, rate 4": {"matrix_approximation_rank": 2, "min_compression_rate": 4},
    "rank 4, rate 0.5": {"matrix_approximation_rank": 4, "min_compression_rate": 0.5},
}

# An ordinary script's buckets, and several.
BUCKETS = {"one": {}, "several": training.SMALL_BUCKETS}


def _and_wait(state, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """torch's hook, which waits for its own end.

    Else several of its buckets hang on gloo, and a search for unused parameters, which all-reduces
    too, meets its rounds in another order on each rank.
    """
    future = power_sgd.powerSGD_hook(state, bucket)
    future.wait()
    return future


class _Wide:
    """A bucket with the gradients of another one, in fp64."""

    def __init__(self, bucket: dist.GradBucket, names: list[str]) -> None:
        self._buffer = bucket.buffer().double()
        self._shapes = [gradient.shape for gradient in bucket.gradients()]
        self._index, self._is_last = bucket.index(), bucket.is_last()
        self._names = names

    def buffer(self) -> torch.Tensor:
        return self._buffer

    def gradients(self) -> list[torch.Tensor]:
        flat = self._buffer.split([shape.numel() for shape in self._shapes])
        return [part.view(shape) for part, shape in zip(flat, self._shapes)]

    def index(self) -> int:
        return self._index

    def is_last(self) -> bool:
        return self._is_last

    def named(self) -> dict[str, torch.Tensor]:
        return dict(zip(self._names, self.gradients()))


def _draw_singly(*shape, dtype, draw=torch.randn, **options):
    """torch.randn with the values that it has in fp32, whatever the type."""
    return draw(*shape, dtype=torch.float32, **options).to(dtype)


class _Torch:
    """torch's hook, one bucket at a time, with notes of what it saw."""

    def __init__(self, nudged=False, buckets=None, **option):
        self.state = power_sgd.PowerSGDState(None, start_powerSGD_iter=START, **option)
        self.local = []  # for each step the norm of each gradient of this rank
        self._nudged = nudged
        self._option = option
        self._first = []  # the buckets of the first compressed step, in fp64
        ddp = training.distributed(training.ConvNet, **(buckets or {}))
        names = {id(parameter): name for name, parameter in ddp.module.named_parameters()}

        def hook(state, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
            self._note(names, bucket)
            return _and_wait(state, bucket)

        ddp.register_comm_hook(self.state, hook)
        self.gradients = training.train(ddp, dist.get_rank(), STEPS, shape=SHAPE)

    @property
    def buckets(self) -> int:
        return len(self._first)

    def _note(self, names, bucket):
        if bucket.index() == 0:
            self.local.append({})
        found = [names[id(parameter)] for parameter in bucket.parameters()]
        self.local[-1].update(zip(found, (g.norm().item() for g in bucket.gradients())))
        if len(self.local) != START + 1:
            return
        self._first.append(_Wide(bucket, found))
        if self._nudged:
            generator = torch.Generator().manual_seed(5)
            signs = torch.randint(0, 2, bucket.buffer().shape, generator=generator) * 2 - 1
            bucket.buffer().mul_(1 + ROUNDING * signs)

    def exact_first(self):
        """The gradients of the first compressed step by the same hook, in fp64. Once only."""
        state = power_sgd.PowerSGDState(None, start_powerSGD_iter=START, **self._option)
        state.iter = START
        exact = {}
        with mock.patch.object(torch, "randn", _draw_singly):
            for bucket in self._first:
                _and_wait(state, bucket)
                exact.update(bucket.named())
        return exact


def _apart(got, want, local):
    """For each step the largest distance of a gradient, on the scale of this rank's own."""
    return [
        max((mine[name] - one[name]).norm().item() / max(norms[name], 1e-30) for name in one)
        for mine, one, norms in zip(got, want, local)
    ]


def _option(**option):
    return {
        "comm_hook": "power_sgd",
        "comm_state_option": {"start_powerSGD_iter": START, **option},
    }


def _power_sgd(rank, name):
    option = POWER_SGD[name]
    results = {}
    for layout, buckets in BUCKETS.items():
        reference = _Torch(buckets=buckets, **option)
        nudged = _Torch(nudged=True, buckets=buckets, **option)
        exact, norms = [reference.exact_first()], reference.local[START:]
        with gw.SessionState(**_option(**option)) as state:
            got = _with(state, gw.aggregate_hook, **buckets)
            counts = reference.buckets, len(state.report())
        results[layout] = {
            "drift": _apart(nudged.gradients, reference.gradients, reference.local),
            "distances": _apart(got, reference.gradients, reference.local),
            "errors": (
                _apart(got[START:], exact, norms)[0],
                _apart(reference.gradients[START:], exact, norms)[0],
            ),
            "counts": counts,
            "saved": reference.state.compression_stats()[0],
        }
    return results


@pytest.mark.parametrize("name", POWER_SGD)
def test_power_sgd_is_torchs_up_to_rounding_and_its_drift(name, report):
    ranks = worlds.run(2, _power_sgd, name)
    for layout in BUCKETS:
        results = [result[layout] for result in ranks]
        saved = results[0]["saved"]
        assert saved > 1, saved  # torch did compress
        for result in results:
            torchs, ours = result["counts"]
            assert torchs == ours and (ours == 1 if layout == "one" else ours > 1)
        drift = max(max(result["drift"]) for result in results)
        steps = [max(both) for both in zip(*(result["distances"] for result in results))]
        error, of_torch = (max(both) for both in zip(*(result["errors"] for result in results)))
        first = steps[START]
        report(
            "power_sgd: largest relative difference from torch's, bucket for bucket",
            f"{name:32}{layout:>8}: first {first:.1e} (from fp64: ours {error:.1e},"
            f" torch's {of_torch:.1e}), all {max(steps):.1e}, torch's own drift {drift:.1e};"
            f" {saved:.1f} times smaller",
        )
        assert steps[:START] == [0.0] * START  # a mean, before compression begins
        assert error <= FIRST_COMPRESSED_STEP
        assert first <= max(1e-6, 2 * of_torch)
        assert max(steps) <= DRIFT_FACTOR * drift


def _static_graph(rank):
    # torch asks for a start after the step in which it rebuilds the buckets of a static graph.
    option = {"matrix_approximation_rank": 2, "start_powerSGD_iter": START + 1}
    distances = []
    for buckets in BUCKETS.values():
        static = {"static_graph": True, **buckets}
        want = _with(power_sgd.PowerSGDState(None, **option), _and_wait, **static)
        norms = [{name: one.norm().item() for name, one in step.items()} for step in want]
        with gw.SessionState(comm_hook="power_sgd", comm_state_option=option) as state:
            got = _with(state, gw.aggregate_hook, **static)
        distances.append(_apart(got, want, norms)[: START + 2])
    return distances


def test_a_static_graph_gets_torchs_numbers_too(report):
    distances = [steps for result in worlds.run(2, _static_graph) for steps in result]
    assert all(steps[: START + 1] == [0.0] * (START + 1) for steps in distances)
    first = max(steps[START + 1] for steps in distances)
    report("power_sgd: static_graph=True", f"first compressed step: {first:.1e}")
    assert 0 < first <= 1e-6


# ---- What the buckets of later steps, and a file between them, may not change


def _train_on(ddp, first, last, optimizer):
    steps = last - first
    return training.train(
        ddp, dist.get_rank(), steps, first=first, shape=SHAPE, optimizer=optimizer
    )


def _in_two_parts(cut, **buckets):
    """Ours in an ordinary script, until `cut`; then the same session with other buckets."""
    with gw.SessionState(**_option(matrix_approximation_rank=2)) as state:
        ddp = training.distributed(training.ConvNet)
        model, optimizer = ddp.module, training.optimizer_of(ddp)
        ddp.register_comm_hook(state, gw.aggregate_hook)
        seen = _train_on(ddp, 0, cut, optimizer)
        if cut < STEPS:
            del ddp
            ddp = torch.nn.parallel.DistributedDataParallel(model, **buckets)
            ddp.register_comm_hook(state, gw.aggregate_hook)
            seen += _train_on(ddp, cut, STEPS, optimizer)
    return seen


def _other_buckets(rank):
    want = _in_two_parts(STEPS)
    for cut in (START + 1, START + 3):
        training.expect_same(_in_two_parts(cut, **training.SMALL_BUCKETS), want)


def test_other_buckets_after_the_draw_change_nothing():
    worlds.run(2, _other_buckets)


def _saved(rank):
    want = _in_two_parts(STEPS)
    for cut in (START, START + 2):
        with gw.SessionState(**_option(matrix_approximation_rank=2)) as state:
            ddp = training.distributed(training.ConvNet)
            optimizer = training.optimizer_of(ddp)
            ddp.register_comm_hook(state, gw.aggregate_hook)
            got = _train_on(ddp, 0, cut, optimizer)
            saved = state.state_dict()
        again = training.distributed(training.ConvNet)
        again.load_state_dict(ddp.state_dict())
        with gw.SessionState(**_option(matrix_approximation_rank=2)) as state:
            state.load_state_dict(saved)
            again.register_comm_hook(state, gw.aggregate_hook)
            got += _train_on(again, cut, STEPS, training.optimizer_of(again))
        training.expect_same(got, want)


def test_a_checkpoint_between_plan_and_draw_or_after_it_changes_nothing():
    worlds.run(2, _saved)


def _serialised(rank):
    option = {"matrix_approximation_rank": 1, "warm_start": False, "use_error_feedback": False}
    # Before compression begins, and where nothing compresses, no Q is drawn: several buckets agree.
    never = {**option, "start_powerSGD_iter": START, "min_compression_rate": 1e6}
    want = _with(power_sgd.PowerSGDState(None, **never), _and_wait, **training.SMALL_BUCKETS)
    with gw.SessionState(comm_hook="power_sgd", comm_state_option=never) as state:
        got = _with(state, gw.aggregate_hook, **training.SMALL_BUCKETS)
    training.expect_same(got, want)


def test_several_buckets_of_torchs_serialised_hook_agree_where_nothing_is_drawn():
    worlds.run(2, _serialised)
