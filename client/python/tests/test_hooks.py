"""Users' own hooks in Python, in a world of threads: each member has a thread and a session."""

import itertools
import math
import threading

import pytest
import torch

import gradwire
import gradwire.torch as gw
from gradwire._daemon import EmbeddedDaemon

WORLD = 3
_numbers = itertools.count()


@pytest.fixture(scope="module")
def address():
    daemon = EmbeddedDaemon()
    yield daemon.address
    daemon.close()


def numel(parameters):
    return sum(math.prod(parameter.shape) for parameter in parameters)


class Half(gw.Hook):
    """What the built-in fp16 does, by hand: divide, cast, sum."""

    def plan(self, parameters, step):
        return [[gw.Segment(torch.float16, numel(parameters), "sum")]]

    def run(self, bucket):
        (total,) = yield [(bucket.buffer.to(torch.float16) / bucket.world_size)]
        bucket.buffer.copy_(total)


class TwoRounds(gw.Hook):
    """Signs of the gradients, scaled by the mean of their sizes; keeps what a step left over."""

    def __init__(self, momentum=0.0):
        self.momentum = momentum
        self.left = None
        self.commits = 0

    def plan(self, parameters, step):
        size = numel(parameters)
        return [
            [gw.Segment(torch.float64, 1), gw.Segment(torch.float32, size)],
            [gw.Segment(torch.bfloat16, size, "sum")],
        ]

    def run(self, bucket):
        value = bucket.buffer + (0 if self.left is None else self.left)
        size, mean = yield [value.abs().mean(dtype=torch.float64).view(1), value]
        (signs,) = yield [torch.sign(value).to(torch.bfloat16)]
        bucket.buffer.copy_(signs.float() / bucket.world_size * size.float() + self.momentum * mean)
        left = value - bucket.buffer

        def commit():
            self.left = left
            self.commits += 1

        return commit


gw.register_hook("half_by_hand", Half)
gw.register_hook("two_rounds", TwoRounds)


def train(address, hook, options, steps, poisoned=()):
    """The reduced gradients of each member and step, and its should_step."""
    session = f"hooks-{next(_numbers)}"
    results = [[] for _ in range(WORLD)]
    errors = [None] * WORLD

    def member(rank):
        try:
            torch.manual_seed(0)
            model = torch.nn.Sequential(torch.nn.Linear(9, 7), torch.nn.Linear(7, 5))
            with gw.SessionState(
                address=address, session=session, comm_hook=hook, comm_state_option=options,
                model=model, rank=rank, world_size=WORLD,
            ) as state:  # fmt: skip
                generator = torch.Generator().manual_seed(rank)
                for step in range(steps):
                    for parameter in model.parameters():
                        parameter.grad = torch.randn(parameter.shape, generator=generator)
                    if step in poisoned and rank == 1:
                        next(model.parameters()).grad[0, 0] = math.nan
                    counts = gw.reduce_grads_(model.parameters(), state)
                    grads = torch.cat([p.grad.reshape(-1) for p in model.parameters()])
                    results[rank].append((counts, grads))
        except Exception as error:
            errors[rank] = error

    threads = [threading.Thread(target=member, args=(rank,)) for rank in range(WORLD)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()
    return results, errors


def gradients(rank, steps):
    generator = torch.Generator().manual_seed(rank)
    shapes = [(7, 9), (7,), (5, 7), (5,)]
    return [
        torch.cat([torch.randn(s, generator=generator).reshape(-1) for s in shapes])
        for _ in range(steps)
    ]


def test_the_built_in_hook_by_hand_has_its_bits(address):
    own, errors = train(address, "half_by_hand", None, 4)
    assert errors == [None] * WORLD
    built_in, errors = train(address, "fp16", None, 4)
    assert errors == [None] * WORLD
    for rank in range(WORLD):
        for (_, a), (_, b) in zip(own[rank], built_in[rank]):
            assert torch.equal(a, b)


def test_two_rounds_with_state_and_a_skipped_step(address):
    results, errors = train(address, "two_rounds", {"momentum": 0.5}, 6, poisoned=(3,))
    assert errors == [None] * WORLD
    values = [gradients(rank, 6) for rank in range(WORLD)]
    left = [0.0] * WORLD
    for step in range(6):
        for rank in range(WORLD):
            assert results[rank][step][0] == (step != 3)
        if step == 3:
            continue
        corrected = [values[rank][step] + left[rank] for rank in range(WORLD)]
        size = sum(c.abs().mean(dtype=torch.float64) for c in corrected) / WORLD
        mean = sum(c.double() for c in corrected) / WORLD
        signs = sum(torch.sign(c) for c in corrected)
        expected = signs.double() / WORLD * size + 0.5 * mean
        for rank in range(WORLD):
            torch.testing.assert_close(results[rank][step][1].double(), expected, rtol=1e-5, atol=1e-6)
            assert torch.equal(results[rank][step][1], results[0][step][1])
            left[rank] = corrected[rank] - results[rank][step][1]


class Broken(Half):
    def run(self, bucket):
        raise KeyError("no such table")
        yield


class TooFew(gw.Hook):
    def plan(self, parameters, step):
        return [[gw.Segment(torch.float32, numel(parameters))]] * 2

    def run(self, bucket):
        yield [bucket.buffer]


class WrongSize(Half):
    def run(self, bucket):
        yield [bucket.buffer]


class BadCommit(Half):
    def run(self, bucket):
        yield from super().run(bucket)

        def commit():
            raise OSError("disk full")

        return commit


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Broken, "no such table"),
        (TooFew, "ended after 1 of 2 planned rounds"),
        (WrongSize, "planned are 110 torch.float16"),
        (BadCommit, "disk full"),
    ],
)
def test_what_a_hook_raises_ends_the_session_for_all(address, kind, said):
    name = f"bad_{kind.__name__.lower()}"
    gw.register_hook(name, kind)
    _, errors = train(address, name, None, 2)
    assert all(isinstance(error, gradwire.Error) for error in errors)
    assert any(said in str(error) for error in errors)


def test_names_and_options_are_checked():
    with pytest.raises(gradwire.Error, match="fp16"):
        gw.register_hook("fp16", Half)
    with pytest.raises(gradwire.InvalidArgument, match="factory is 3"):
        gw.register_hook("three", 3)
    with pytest.raises(gradwire.InvalidArgument, match="unexpected keyword argument 'speed'"):
        gw.SessionState(comm_hook="two_rounds", comm_state_option={"speed": 1})
    with pytest.raises(gradwire.InvalidArgument, match="two_rounds"):
        gw.SessionState(comm_hook="three_rounds")
