"""Futures whose failure reaches the caller of backward() as the original exception.

DistributedDataParallel treats an exception in a future as a value ("Unable to cast"), and torch
turns an exception that a callback raises into a RuntimeError with a stack trace in its text.
Therefore, during backward(), the future of a failed reduction holds the unreduced bucket,
DistributedDataParallel finishes its own work, and then backward() raises. value(), wait() and
then() of the future raise the exception too.
"""

import torch


class Reduction(torch.futures.Future):
    """The future of a bucket that is being reduced during backward()."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(devices=_devices(device))
        self._error: BaseException | None = None
        self.told = False  # the exception has been raised to a caller

    def end(self, error: BaseException | None, value: torch.Tensor) -> None:
        self._error = error
        self.set_result(value)

    @property
    def error(self) -> BaseException | None:
        return self._error

    def check(self) -> None:
        if self._error is not None:
            self.told = True
            raise self._error

    def value(self) -> torch.Tensor:
        self.check()
        return super().value()

    def wait(self) -> torch.Tensor:
        value = super().wait()
        self.check()
        return value

    def then(self, callback) -> torch.futures.Future:
        def checked(_: torch.futures.Future) -> object:
            self.check()
            return callback(self)

        return super().then(checked)


class DetachedReduction:
    """A reduction outside backward(): `future` itself fails."""

    def __init__(self, device: torch.device) -> None:
        self._outcome = torch.futures.Future(devices=_devices(device))
        self.future = self._outcome.then(_value_or_raise)

    def end(self, error: BaseException | None, value: torch.Tensor) -> None:
        self._outcome.set_result(error or value)


def call_after_ddp(call) -> bool:
    """Calls `call` at the end of this backward(), after DistributedDataParallel's own callback.

    Returns False outside backward().
    """
    engine = torch.autograd.Variable._execution_engine
    try:
        # The engine runs callbacks in order. DistributedDataParallel queues its own after its last
        # bucket's hook, so `call` is queued by a first callback and therefore comes later.
        engine.queue_callback(lambda: engine.queue_callback(call))
    except RuntimeError:  # a rank that has joined early goes through the others' buckets
        return False
    return True


def _devices(device: torch.device) -> list[torch.device] | None:
    return None if device.type == "cpu" else [device]


def _value_or_raise(future: torch.futures.Future) -> torch.Tensor:
    value = future.value()
    if isinstance(value, BaseException):
        raise value
    return value
