"""Gradient aggregation over ordinary networks, with PyTorch's communication hooks."""

from gradwire._errors import DeadlineExceeded, Error, InvalidArgument, Unavailable
from gradwire._native import __version__

__all__ = ["DeadlineExceeded", "Error", "InvalidArgument", "Unavailable", "__version__"]
