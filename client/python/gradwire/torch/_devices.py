"""Where a session keeps gradients: on the GPU, or in the host's memory."""

import torch

from gradwire import _native
from gradwire._errors import Error

# Hooks that are registered later run on the host's memory only.
_BUILT_IN = frozenset(_native.hook_names())


def of_session(asked: str | None, hook: str, parameters: list[torch.nn.Parameter]) -> str:
    """Returns "cpu" or "cuda:1": the device that is asked for, or that all parameters are on."""
    if asked == "cuda":
        return f"cuda:{torch.cuda.current_device()}"
    if asked is not None:
        return asked
    devices = {parameter.device for parameter in parameters}
    if len(devices) != 1 or hook not in _BUILT_IN:
        return "cpu"
    (device,) = devices
    return str(device) if device.type == "cuda" else "cpu"


def explained(join, *arguments, device: str, **settings):
    """Joins. Where a GPU cannot be used, the error says how to do without."""
    try:
        return join(*arguments, device=device, **settings)
    except Error as error:
        if device == "cpu" or error.code != "FAILED_PRECONDITION" or "device " not in str(error):
            raise
        told = type(error)(
            f'{error}; or copy gradients through the host: SessionState(device="cpu")'
        )
        told.code = error.code
        raise told from None
