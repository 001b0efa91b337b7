"""Futures whose failure reaches the caller of backward() as the exception that it is.

DistributedDataParallel takes an exception in a future for a value ("Unable to cast"), and torch
makes a RuntimeError with a stack in its text of one that a callback raises. So during backward() a
failed reduction's future holds the bucket as it is, DistributedDataParallel ends its own work, and
then backward() raises. Whoever asks the future in Python, or chains something to it, gets the
exception.
"""

import torch


class Reduction(torch.futures.Future):
    """A bucket on its way, during backward()."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(devices=_devices(device))
        self._error: BaseException | None = None
        self.told = False  # somebody has had the exception

    def end(self, error: BaseException | None, value: torch.Tensor) -> None:
        self._error = error
        self.set_result(value)

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
    """The same where there is no backward(): `future` itself fails."""

    def __init__(self, device: torch.device) -> None:
        self._outcome = torch.futures.Future(devices=_devices(device))
        self.future = self._outcome.then(_value_or_raise)

    def end(self, error: BaseException | None, value: torch.Tensor) -> None:
        self._outcome.set_result(error or value)


def call_after_ddp(call) -> bool:
    """At the end of this backward(), after DistributedDataParallel. False if there is none."""
    engine = torch.autograd.Variable._execution_engine
    try:
        # They run in order. DistributedDataParallel queues its own after its last bucket's hook,
        # which is before the first of these queues the second.
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
