"""What a rank's part of a checkpoint is made of: bytes, which torch.save wants as tensors."""

import ctypes

import torch

from gradwire._errors import Error


def coordinator_state(session) -> bytes:
    """Empty where the hook keeps no state on the coordinator."""
    try:
        return session.export_state()
    except Error as error:
        if error.code == "FAILED_PRECONDITION" and "keeps no state" in str(error):
            return b""
        raise


def to_tensor(data: bytes) -> torch.Tensor:
    if not data:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def to_bytes(tensor: torch.Tensor) -> bytes:
    host = tensor.to("cpu", torch.uint8).contiguous()
    return ctypes.string_at(host.data_ptr(), host.numel()) if host.numel() else b""
