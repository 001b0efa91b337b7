"""Training with torch's hooks on gloo and with ours: same seeds, each step's gradients compared.

Nothing is handed over from torch to us between steps, so rounding differences grow as either's own
do. How fast that is, is measured: torch's hook once more, with the gradients of its first
compressed step moved by about one rounding.
"""

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
# Relative Frobenius; or what torch's own first compressed step makes of one rounding of the gradients,
# where that is more: their columns are nearly collinear on some processors.
FIRST_COMPRESSED_STEP = 1e-6
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

# torch draws the first Q in the order of its bucket, ours in that of the model. They are the same
# while DistributedDataParallel does not rebuild its bucket, which it never does with this.
ONE_BUCKET = {"find_unused_parameters": True}
OUR_BUCKETS = {"one": ONE_BUCKET, "several": training.SMALL_BUCKETS}


def _and_wait(state, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """torch's hook, which waits for its own end.

    Else several of its buckets hang on gloo, and a search for unused parameters, which all-reduces
    too, meets its rounds in another order on each rank.
    """
    future = power_sgd.powerSGD_hook(state, bucket)
    future.wait()
    return future


class _Torch:
    """torch's hook in one bucket, with notes of what it saw."""

    def __init__(self, nudged=False, **option):
        self.state = power_sgd.PowerSGDState(None, start_powerSGD_iter=START, **option)
        self.local = []  # for each step the norm of each gradient of this rank
        self._nudged = nudged
        ddp = training.distributed(training.ConvNet, **ONE_BUCKET)
        names = {id(parameter): name for name, parameter in ddp.module.named_parameters()}

        def hook(state, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
            assert bucket.is_last() and bucket.index() == 0
            self._note(names, bucket)
            return _and_wait(state, bucket)

        ddp.register_comm_hook(self.state, hook)
        self.gradients = training.train(ddp, dist.get_rank(), STEPS, shape=SHAPE)

    def _note(self, names, bucket):
        pairs = zip(bucket.parameters(), bucket.gradients())
        self.local.append({names[id(parameter)]: g.norm().item() for parameter, g in pairs})
        if self._nudged and self.state.iter == START:
            generator = torch.Generator().manual_seed(5)
            signs = torch.randint(0, 2, bucket.buffer().shape, generator=generator) * 2 - 1
            bucket.buffer().mul_(1 + ROUNDING * signs)


def _apart(got, want, local):
    """For each step the largest distance of a gradient, on the scale of this rank's own."""
    return [
        max((mine[name] - one[name]).norm().item() / max(norms[name], 1e-30) for name in one)
        for mine, one, norms in zip(got, want, local)
    ]


def _power_sgd(rank, name):
    option = POWER_SGD[name]
    reference = _Torch(**option)
    own = _apart(_Torch(nudged=True, **option).gradients, reference.gradients, reference.local)
    distances, counts = {}, {}
    for buckets, options in OUR_BUCKETS.items():
        with gw.SessionState(
            comm_hook="power_sgd", comm_state_option={"start_powerSGD_iter": START, **option}
        ) as state:
            got = _with(state, gw.aggregate_hook, **options)
            distances[buckets] = _apart(got, reference.gradients, reference.local)
            counts[buckets] = len(state.report())
    saved = reference.state.compression_stats()[0]
    return own, distances, counts, saved


@pytest.mark.parametrize("name", POWER_SGD)
def test_power_sgd_is_torchs_up_to_rounding_and_its_drift(name, report):
    results = worlds.run(2, _power_sgd, name)
    saved = results[0][3]
    assert saved > 1, saved  # torch did compress
    for _, _, buckets, _ in results:
        assert buckets["one"] == 1 and buckets["several"] > 1
    drift = max(max(own) for own, *_ in results)
    conditioning = max(own[START] for own, *_ in results)
    for buckets in OUR_BUCKETS:
        steps = [max(both) for both in zip(*(distances[buckets] for _, distances, *_ in results))]
        first = steps[START]
        report(
            "power_sgd: largest relative difference from torch's in one bucket",
            f"{name:32}{buckets:>8} of ours: first {first:.1e}, all {max(steps):.1e},"
            f" torch's own drift {conditioning:.1e}, {drift:.1e}; {saved:.1f} times smaller",
        )
        assert steps[:START] == [0.0] * START  # a mean, before compression begins
        assert first <= max(FIRST_COMPRESSED_STEP, conditioning)
        assert max(steps) <= DRIFT_FACTOR * drift


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
