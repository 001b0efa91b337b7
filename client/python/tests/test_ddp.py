"""DistributedDataParallel's ways with buckets: the hook leaves gradients as they are without it.

At world 2 the mean is exact in any order, so the reference is a run without a hook, bit for bit.
"""

import gc

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

import gradwire
import gradwire.torch as gw
import training
import worlds


class _Bucket:
    """What a hook sees of a bucket, around any tensor."""

    def __init__(self, buffer, parameters, is_last=True):
        self._buffer, self._parameters, self._is_last = buffer, parameters, is_last

    def buffer(self):
        return self._buffer

    def set_buffer(self, buffer):
        self._buffer = buffer

    def parameters(self):
        return self._parameters

    def gradients(self):
        return [self._buffer]

    def index(self):
        return 0

    def is_last(self):
        return self._is_last


def _reduce_one(rank, buffer, before):
    model = torch.nn.Linear(9, 1, bias=False)
    with gw.SessionState(model=model) as state:
        result = state.reduce_bucket(_Bucket(buffer, [model.weight])).wait()
    # The reducer reads the result's storage from its beginning.
    view = result.as_strided((9,), (1,), 0)
    want = before.clone()
    dist.all_reduce(want)
    assert torch.equal(view, want / 2), (view, want / 2)


def _offset_bucket(rank):
    arena = torch.arange(200.0) + 1000 * rank
    _reduce_one(rank, arena[100:109], arena[100:109].clone())
    assert torch.equal(arena[:100], torch.arange(100.0) + 1000 * rank), "written outside the bucket"


def _strided_bucket(rank):
    arena = torch.arange(18.0) + 1000 * rank
    _reduce_one(rank, arena[::2], arena[::2].clone())
    assert torch.equal(arena[1::2], torch.arange(18.0)[1::2] + 1000 * rank), "written outside"


@pytest.mark.parametrize("case", [_offset_bucket, _strided_bucket])
def test_a_buffer_with_an_offset_or_gaps_is_reduced_as_it_reads(case):
    worlds.run(2, case)


def test_the_hook_passes_the_signature_check():
    annotations = gw.aggregate_hook.__annotations__
    assert annotations["bucket"] is dist.GradBucket
    assert annotations["return"] == torch.futures.Future[torch.Tensor]
    assert gw.aggregate_hook.__qualname__ == "aggregate_hook"


# ---- A configuration each: model, shape of a batch, options of DistributedDataParallel

SMALL = training.SMALL_BUCKETS


class _Branches(torch.nn.Module):
    """One branch a step, which ranks choose for themselves; a third that nobody ever takes."""

    def __init__(self):
        super().__init__()
        self.left = torch.nn.Linear(8, 8)
        self.right = torch.nn.Linear(8, 8)
        self.never = torch.nn.Linear(8, 8)
        self.last = torch.nn.Linear(8, 2)

    def forward(self, x):
        branch = self.left if x[0, 0] > 0 else self.right
        return self.last(branch(x))


def _channels_last():
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Tanh(), torch.nn.Conv2d(8, 4, 3))
    return model.to(memory_format=torch.channels_last)


def _frozen():
    model = training.Mlp()
    model.second.requires_grad_(False)
    return model


CASES = {
    "many_small_buckets_rebuilt": (training.Mlp, (), SMALL),
    "gradient_as_bucket_view": (training.Mlp, (), {"gradient_as_bucket_view": True}),
    "bucket_views_of_many_buckets": (
        training.Mlp,
        (),
        {"gradient_as_bucket_view": True, **SMALL},
    ),
    "unused_parameters": (_Branches, (), {"find_unused_parameters": True}),
    "unused_parameters_many_buckets": (
        _Branches,
        (),
        {"find_unused_parameters": True, **SMALL},
    ),
    "static_graph": (training.Mlp, (), {"static_graph": True, **SMALL}),
    # Two buckets of index 0, none of them the last, in the first step.
    "static_graph_two_dtypes": (training.TwoDtypes, (), {"static_graph": True}),
    "two_dtypes": (training.TwoDtypes, (), {}),
    "two_dtypes_many_buckets": (training.TwoDtypes, (), SMALL),
    "channels_last": (_channels_last, (4, 3, 8, 8), {}),
    "frozen_parameters": (_frozen, (), {}),
}


def _as_without(rank, name):
    make, shape, options = CASES[name]
    want = training.plain(make, rank, 5, shape, **options)
    got = training.ours(make, rank, 5, shape, **options)
    training.expect_same(got, want)


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_a_run_without_the_hook(name):
    worlds.run(2, _as_without, name)


class _Counting:
    """The hook, with a count of its calls and of the buckets called the last of a step."""

    def __init__(self):
        self.calls = []

    def hook(self):
        def hook(state, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
            self.calls.append((bucket.index(), bucket.is_last(), len(bucket.parameters())))
            return gw.aggregate_hook(state, bucket)

        return hook


def _bucket_calls(rank, name):
    make, shape, options = CASES[name]
    counting = _Counting()
    training.ours(make, rank, 5, shape, hook=counting.hook(), **options)
    return counting.calls


def test_small_buckets_are_indeed_rebuilt():
    calls = worlds.run(2, _bucket_calls, "many_small_buckets_rebuilt")[0]
    assert calls[0] == (0, True, 6)  # the first step: all in one bucket
    assert len(calls) >= 1 + 4 * 2  # the others: several each


def test_a_static_graph_with_two_dtypes_indeed_has_no_last_bucket_at_first():
    calls = worlds.run(2, _bucket_calls, "static_graph_two_dtypes")[0]
    assert [call[:2] for call in calls[:2]] == [(0, False), (0, False)]


def _count_steps(rank, name):
    make, shape, options = CASES[name]
    with gw.SessionState() as state:
        ddp = training.distributed(make, **options)
        ddp.register_comm_hook(state, gw.aggregate_hook)
        training.train(ddp, rank, 5, shape=shape)
        return state.step, state.metrics()["steps_applied"]


@pytest.mark.parametrize(
    "name", ["static_graph_two_dtypes", "many_small_buckets_rebuilt", "unused_parameters"]
)
def test_a_step_is_counted_once_however_its_buckets_are(name):
    assert worlds.run(2, _count_steps, name) == [(5, 5)] * 2


# ---- torch's wrappers around the hook


def _wrapped(rank, wrapper, reference):
    """`reference` is torch's own hook, which that wrapper around its all-reduce is."""
    ddp = training.distributed(training.TwoDtypes)
    ddp.register_comm_hook(None, reference)
    want = training.train(ddp, rank)
    training.expect_same(training.ours(training.TwoDtypes, rank, hook=wrapper), want)


def _fp16_wrapper(rank):
    wrapper = default_hooks.fp16_compress_wrapper(gw.aggregate_hook)
    _wrapped(rank, wrapper, default_hooks.fp16_compress_hook)


def _bf16_wrapper(rank):
    # On CPUs torch refuses these by their names.
    wrapper = default_hooks.bf16_compress_wrapper(gw.aggregate_hook)

    def ours(state, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        return wrapper(state, bucket)

    def mean_in_bf16(state, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        halves = bucket.buffer().to(torch.bfloat16).div_(dist.get_world_size())
        gathered = [torch.empty_like(halves, dtype=torch.float32) for _ in range(2)]
        dist.all_gather(gathered, halves.float())
        future = torch.futures.Future()
        future.set_result(sum(gathered).to(torch.bfloat16).to(bucket.buffer().dtype))
        return future

    _wrapped(rank, ours, mean_in_bf16)


@pytest.mark.parametrize("case", [_fp16_wrapper, _bf16_wrapper])
def test_a_wrapper_of_torchs_around_the_hook_casts_as_it_does_around_torchs_own(case):
    worlds.run(2, case)


# ---- Accumulation, uneven inputs, several models


def _accumulate(ddp, rank):
    optimizer = training.optimizer_of(ddp)
    seen = []
    for step in range(4):
        optimizer.zero_grad(set_to_none=True)
        with ddp.no_sync():
            ddp(training.batch(rank, 2 * step)).square().mean().backward()
        ddp(training.batch(rank, 2 * step + 1)).square().mean().backward()
        seen.append(training.gradients(ddp))
        optimizer.step()
    return seen


def _no_sync(rank):
    want = _accumulate(training.distributed(training.Mlp), rank)
    with gw.SessionState() as state:
        ddp = training.distributed(training.Mlp)
        ddp.register_comm_hook(state, gw.aggregate_hook)
        training.expect_same(_accumulate(ddp, rank), want)
        assert state.step == 4, state.step


def test_gradients_accumulate_in_no_sync():
    worlds.run(2, _no_sync)


def _uneven(ddp, rank):
    optimizer = training.optimizer_of(ddp)
    seen = []
    with ddp.join():
        for step in range(3 + 2 * rank):
            optimizer.zero_grad(set_to_none=True)
            ddp(training.batch(rank, step)).square().mean().backward()
            seen.append(training.gradients(ddp))
            optimizer.step()
    seen.append({name: tensor.clone() for name, tensor in ddp.state_dict().items()})
    return seen


def _join(rank):
    want = _uneven(training.distributed(training.Mlp, **training.SMALL_BUCKETS), rank)
    # A rank without inputs makes no steps, and that is no drift.
    with gw.SessionState(check_parameters_every=1, on_parameter_drift="fail") as state:
        ddp = training.distributed(training.Mlp, **training.SMALL_BUCKETS)
        ddp.register_comm_hook(state, gw.aggregate_hook)
        training.expect_same(_uneven(ddp, rank), want)


def test_join_covers_for_ranks_that_have_run_out_of_inputs():
    worlds.run(2, _join)


def _two_models(rank):
    makes = [training.Mlp, training.TwoDtypes]
    wants = [training.plain(make, rank) for make in makes]
    with gw.SessionState() as one, gw.SessionState() as other:
        models = [training.distributed(make) for make in makes]
        for model, state in zip(models, [one, other]):
            model.register_comm_hook(state, gw.aggregate_hook)
        # In turns: a generator and a discriminator.
        gots = [[], []]
        optimizers = [training.optimizer_of(model) for model in models]
        for step in range(4):
            for model, optimizer, got in zip(models, optimizers, gots):
                got += training.train(model, rank, 1, step, optimizer=optimizer)
    for got, want in zip(gots, wants):
        training.expect_same(got, want)


@pytest.mark.parametrize("name", [None, "gan"])
def test_two_models_in_one_process_have_a_session_each(name):
    variables = {} if name is None else {"GRADWIRE_SESSION": name}
    worlds.run(2, _two_models, environments=[variables] * 2)


def _two_of_three(rank):
    """Ranks 0 and 2 train in a group of their own, and rank 1 alone."""
    groups = [dist.new_group([0, 2]), dist.new_group([1])]
    group = groups[rank % 2]
    want = training.plain(training.Mlp, rank, process_group=group)
    with gw.SessionState(group) as state:
        ddp = training.distributed(training.Mlp, process_group=group)
        ddp.register_comm_hook(state, gw.aggregate_hook)
        training.expect_same(training.train(ddp, rank), want)
        assert (state.rank, state.world_size) == (dist.get_rank(group), [2, 1][rank % 2])


def test_a_group_of_some_ranks_has_a_session_of_its_own():
    worlds.run(3, _two_of_three)


# ---- Names


def _named_by(rank, which):
    ddp = training.distributed(training.Mlp)
    given = {"nothing": None, "module": ddp.module, "ddp": ddp}[which]
    with gw.SessionState(model=given) as state:
        ddp.register_comm_hook(state, gw.aggregate_hook)
        got = training.train(ddp, rank)
        names = {line["first_parameter"] for line in state.report()}
    training.expect_same(got, training.plain(training.Mlp, rank))
    assert names and names <= set(dict(ddp.module.named_parameters())), names


@pytest.mark.parametrize("which", ["nothing", "module", "ddp"])
def test_parameters_have_the_models_own_names(which):
    worlds.run(2, _named_by, which)


def _hidden_ddp(rank):
    with gw.SessionState() as state:
        ddp = training.distributed(training.Mlp)
        ddp.register_comm_hook(state, gw.aggregate_hook)
        gc.freeze()  # from here on the collector, which knows all objects, does not show these
        try:
            training.train(ddp, rank)
        except gradwire.InvalidArgument as error:
            return str(error)
        finally:
            gc.unfreeze()


def test_a_model_that_is_not_found_is_asked_for_with_the_line_to_write():
    for text in worlds.run(2, _hidden_ddp):
        assert "SessionState(model=model)" in text
