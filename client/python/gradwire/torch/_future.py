"""Futures that end with an exception of its own type and text.

DistributedDataParallel takes a future's exception for a value and fails with "Unable to cast". An
exception that a callback raises reaches the caller of backward() as it is.
"""

import torch


def make(device: torch.device) -> torch.futures.Future:
    """To be ended with a tensor or an exception by `set_result`; give out `checked` of it."""
    if device.type == "cpu":
        return torch.futures.Future()
    return torch.futures.Future(devices=[device])


def _value_or_raise(future: torch.futures.Future) -> torch.Tensor:
    value = future.value()
    if isinstance(value, BaseException):
        raise value
    return value


def checked(future: torch.futures.Future) -> torch.futures.Future:
    return future.then(_value_or_raise)


def failed(error: BaseException) -> torch.futures.Future:
    future = torch.futures.Future()
    given = checked(future)
    future.set_result(error)
    return given
