"""Gradwire for PyTorch.

    state = gradwire.torch.SessionState()
    ddp.register_comm_hook(state, gradwire.torch.aggregate_hook)
"""

from gradwire.torch._grads import attach_, broadcast_parameters_, reduce_grads_
from gradwire.torch._heal import MembershipChange, heal_
from gradwire.torch._hooks import Bucket, Hook, Parameter, Segment, register_hook
from gradwire.torch._state import SessionState, aggregate_hook
from gradwire.torch._stop import StopSignal

__all__ = [
    "Bucket",
    "Hook",
    "MembershipChange",
    "Parameter",
    "Segment",
    "SessionState",
    "StopSignal",
    "aggregate_hook",
    "attach_",
    "broadcast_parameters_",
    "heal_",
    "reduce_grads_",
    "register_hook",
]
