"""Communication hooks that users write in Python."""

import ctypes
from collections.abc import Callable, Generator
from typing import NamedTuple

import torch

from gradwire import _native
from gradwire._errors import InvalidArgument

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class Parameter(NamedTuple):
    name: str
    shape: list[int]
    dtype: torch.dtype


class Segment(NamedTuple):
    """Consecutive elements of a round. The coordinator reduces them by `op`, "mean" or "sum"."""

    dtype: torch.dtype
    numel: int
    op: str = "mean"


class Bucket(NamedTuple):
    buffer: torch.Tensor  # flat; becomes the result
    parameters: list[Parameter]
    step: int
    world_size: int
    rank: int

    def gradients(self) -> list[torch.Tensor]:
        """Returns one view for each parameter."""
        views = []
        offset = 0
        for parameter in self.parameters:
            numel = int(torch.Size(parameter.shape).numel())
            views.append(self.buffer[offset : offset + numel].view(parameter.shape))
            offset += numel
        return views


Rounds = Generator[list[torch.Tensor], list[torch.Tensor], Callable[[], None] | None]


class Hook:
    """Base class of hooks. One object serves a session; one thread at a time calls its methods.

    `plan` returns a list of segments for each round; it must be the same on all members. `run` is a
    generator: it yields each round's contributions, receives the results, and leaves the reduced
    gradient in `bucket.buffer`. If it returns a function, that is called when the step is applied.
    Change state only there, so that a skipped or failed step leaves no trace. Do not change a
    contribution before its result has arrived.

        class Half(Hook):
            def plan(self, parameters, step):
                return [[Segment(torch.float16, sum(math.prod(p.shape) for p in parameters))]]

            def run(self, bucket):
                (mean,) = yield [bucket.buffer.to(torch.float16)]
                bucket.buffer.copy_(mean)
    """

    def plan(self, parameters: list[Parameter], step: int) -> list[list[Segment]]:
        raise NotImplementedError

    def run(self, bucket: Bucket) -> Rounds:
        raise NotImplementedError


def register_hook(name: str, factory: Callable[..., Hook]) -> None:
    """Registers `comm_hook=name` in this process; `factory(**comm_state_option)` makes the hook."""
    if not callable(factory):
        raise InvalidArgument(f"factory is {factory!r}; allowed is what makes a Hook", "GW405")
    _native.register_hook(name, lambda options: _Adapter(factory(**options)))


def _tensor(address: int, numel: int, dtype: torch.dtype) -> torch.Tensor:
    if numel == 0:
        return torch.empty(0, dtype=dtype)
    size = numel * torch.empty(0, dtype=dtype).element_size()
    return torch.frombuffer((ctypes.c_byte * size).from_address(address), dtype=dtype)


def _parameters(given: list[tuple[str, list[int], str]]) -> list[Parameter]:
    return [Parameter(name, list(shape), DTYPES[dtype]) for name, shape, dtype in given]


class _Adapter:
    """The object that the C++ side calls; it wraps a Hook."""

    def __init__(self, hook: Hook) -> None:
        self._hook = hook
        self.failed: tuple[int, BaseException] | None = None  # a step's change of state

    def plan(self, parameters, step: int) -> list[list[tuple[str, int, str]]]:
        if self.failed is not None:
            raise RuntimeError(
                f"the change of state after step {self.failed[0]} raised {self.failed[1]!r}"
            ) from self.failed[1]
        return [
            [(_NAMES[segment.dtype], segment.numel, segment.op) for segment in round_]
            for round_ in self._hook.plan(_parameters(parameters), step)
        ]

    def start(self, address: int, numel: int, dtype: str, parameters, step: int) -> "_Run":
        buffer = _tensor(address, numel, DTYPES[dtype])
        return _Run(self, self._hook, buffer, _parameters(parameters), step)


class _Run:
    def __init__(
        self,
        adapter: _Adapter,
        hook: Hook,
        buffer: torch.Tensor,
        parameters: list[Parameter],
        step: int,
    ) -> None:
        self._adapter = adapter
        self._hook = hook
        self._buffer = buffer
        self._parameters = parameters
        self._step = step
        self._plans = hook.plan(parameters, step)
        self._round = 0
        self._generator: Rounds | None = None
        self._contributions: list[torch.Tensor] = []
        self._results: list[torch.Tensor] = []
        self._committed: Callable[[], None] | None = None

    def next(self, world_size: int, rank: int) -> list[tuple[int, int]]:
        """Starts the next round: the last one's results have arrived. Returns the addresses of each
        segment's contribution and result."""
        try:
            with torch.no_grad():
                if self._generator is None:
                    bucket = Bucket(self._buffer, self._parameters, self._step, world_size, rank)
                    self._generator = self._hook.run(bucket)
                    given = next(self._generator)
                else:
                    given = self._generator.send(self._results)
        except StopIteration as end:
            if self._round < len(self._plans):
                raise InvalidArgument(
                    f"run ended after {self._round} of {len(self._plans)} planned rounds", "GW406"
                ) from None
            self._committed = end.value
            return []
        if self._round == len(self._plans):
            raise InvalidArgument(f"run has more than the {len(self._plans)} planned rounds", "GW406")
        self._take(given)
        self._round += 1
        return [(c.data_ptr(), r.data_ptr()) for c, r in zip(self._contributions, self._results)]

    def _take(self, given: list[torch.Tensor]) -> None:
        segments = self._plans[self._round]
        if len(given) != len(segments):
            raise InvalidArgument(
                f"round {self._round} has {len(segments)} segments in the plan and {len(given)} here",
                "GW406",
            )
        for tensor, segment in zip(given, segments):
            if tensor.dtype != segment.dtype or tensor.numel() != segment.numel:
                raise InvalidArgument(
                    f"round {self._round} has a contribution of {tensor.numel()} {tensor.dtype};"
                    f" planned are {segment.numel} {segment.dtype}",
                    "GW406",
                )
        self._contributions = [tensor.detach().cpu().contiguous().view(-1) for tensor in given]
        self._results = [torch.empty_like(tensor) for tensor in self._contributions]

    def commit(self) -> None:
        try:
            if self._committed is not None:
                self._committed()
        except Exception as error:  # the step is already applied, so the next plan() raises
            self._adapter.failed = (self._step, error)
        self._close()

    def abort(self) -> None:
        self._close()

    def _close(self) -> None:
        if self._generator is not None:
            self._generator.close()
