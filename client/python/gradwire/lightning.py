"""Gradwire for Lightning.

    state = gradwire.torch.SessionState()
    strategy = DDPStrategy(ddp_comm_state=state, ddp_comm_hook=gradwire.torch.aggregate_hook)

On GPUs, Lightning's own DDPStrategy works in the same way. On CPUs it ignores the two arguments;
the DDPStrategy of this module does not.
"""

from collections.abc import Callable

try:
    from lightning.pytorch.strategies import DDPStrategy as _DDPStrategy
except ImportError:
    from pytorch_lightning.strategies import DDPStrategy as _DDPStrategy

__all__ = ["DDPStrategy"]


class DDPStrategy(_DDPStrategy):
    """Lightning's DDPStrategy, but with the communication hook registered on every device."""

    def __init__(
        self,
        *arguments: object,
        ddp_comm_state: object = None,
        ddp_comm_hook: Callable | None = None,
        **options: object,
    ) -> None:
        super().__init__(
            *arguments, ddp_comm_state=ddp_comm_state, ddp_comm_hook=ddp_comm_hook, **options
        )
        self._hook = (ddp_comm_state, ddp_comm_hook, options.get("ddp_comm_wrapper"))

    def configure_ddp(self) -> None:
        super().configure_ddp()
        state, hook, wrapper = self._hook
        if hook is None or getattr(self.model, "_comm_hooks", None):  # none, or registered already
            return
        self.model.register_comm_hook(state, hook if wrapper is None else wrapper(hook))
