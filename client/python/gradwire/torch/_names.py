"""Which name each parameter has: what members of a session know parameters by."""

import gc

import torch
from torch.nn.parallel import DistributedDataParallel

from gradwire._errors import InvalidArgument

_HINT = (
    "pass the model to the state, SessionState(model=model), so that its parameters have names"
)


def named(model: torch.nn.Module) -> list[tuple[str, torch.nn.Parameter]]:
    """The parameters that have gradients, in the model's order, each once."""
    ignored = set(getattr(model, "_ddp_params_and_buffers_to_ignore", ()))
    if isinstance(model, DistributedDataParallel):
        ignored |= set(getattr(model, "parameters_to_ignore", ()))
        model = model.module
        ignored |= set(getattr(model, "_ddp_params_and_buffers_to_ignore", ()))
    return [
        (name, parameter)
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and name not in ignored
    ]


def of_ddp_that_owns(
    parameters: list[torch.nn.Parameter],
) -> list[tuple[str, torch.nn.Parameter]]:
    """The names in the live DDP object that these parameters belong to."""
    wanted = {id(parameter) for parameter in parameters}
    for candidate in gc.get_objects():
        if type(candidate) is not DistributedDataParallel and not _is_ddp(candidate):
            continue
        found = named(candidate)
        if wanted <= {id(parameter) for _, parameter in found}:
            return found
    raise InvalidArgument(
        f"no DistributedDataParallel object owns this bucket's parameters; {_HINT}", "GW801"
    )


def _is_ddp(candidate: object) -> bool:
    # Not isinstance: it asks proxies for their __class__, and some of them answer with an error.
    return issubclass(type(candidate), DistributedDataParallel)
