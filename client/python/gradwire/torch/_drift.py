"""A digest of a model's parameters, the same wherever their bits are."""

import torch

from gradwire import _native


def digest(parameters: list[torch.nn.Parameter]) -> int:
    """Of the values in host memory; those on a GPU are copied for it, and this waits for them."""
    with torch.no_grad():
        held = [parameter.detach().to("cpu").contiguous() for parameter in parameters]
        return _native.parameter_digest([(one.data_ptr(), one.numel() * one.element_size()) for one in held])
