"""Gradwire's C++ SDK."""

from collections.abc import Mapping, Sequence


def check_hook(comm_hook: str, comm_wrapper: str, comm_state_option: Mapping[str, bool | int | float | str]) -> None:
    """Raises InvalidArgument, with what is allowed, unless this is a hook."""

def register_hook(name: str, make: object) -> None: ...

def hook_names() -> list[str]: ...

def takes_several_daemons(comm_hook: str, comm_wrapper: str, comm_state_option: Mapping[str, bool | int | float | str], device: str) -> bool:
    """
    Whether a session with this hook on this device can have several daemons.
    """

def parameter_digest(memory: Sequence[tuple[int, int]]) -> int:
    """As ParameterDigest, of addresses and their bytes."""

def make_certificate(host: str) -> tuple[str, str]:
    """
    (certificate, key), PEM: signed by itself, for this IP address or DNS name.
    """

def join(address: str, session: str, rank: int, world_size: int, parameters: Sequence[tuple[str, Sequence[int], str]], comm_hook: str = 'no', comm_wrapper: str = 'no', comm_state_option: Mapping[str, bool | int | float | str] = {}, tls_ca: str = '', tls_cert: str = '', tls_key: str = '', token_file: str = '', device: str = 'cpu', node_group: str = '', keep_gradients: bool = False, connect_timeout: float = 10.0, join_timeout: float = 300.0, step_timeout: float = 1800.0, on_wait: object | None = None) -> Session:
    """
    Waits. `on_wait` is called with a line that says for what, when that takes long.
    """

class SharedGradients:
    def release(self) -> None: ...

class Session:
    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    @property
    def step(self) -> int: ...

    def all_reduce(self, id: int, data: int, numel: int, dtype: str, positions: Sequence[int], stream: int = 0) -> None: ...

    def share_gradients(self, data: int, numel: int, dtype: str, owner: object) -> tuple:
        """
        As Client::ShareGradients: (SharedGradients, ""), or (None, why the memory is not shared).
        """

    def end_step(self, id: int) -> None: ...

    @property
    def membership_change(self) -> tuple[list[int], int, list[int]] | None: ...

    @property
    def members(self) -> list[int]: ...

    @property
    def skip_reason(self) -> str: ...

    def check_parameters(self, digest: int) -> None: ...

    @property
    def parameter_drift(self) -> str: ...

    def set_draw_plan(self, buckets: Sequence[Sequence[int]]) -> None:
        """
        As Client::SetDrawPlan. A session that is over tells so in other calls.
        """

    def take(self, seconds: float) -> list:
        """
        Outcomes as (id, code, message, applied). Empty when time is up or after close.
        """

    @property
    def closed(self) -> bool: ...

    def broadcast(self, root: int, data: int, bytes: int) -> None: ...

    def barrier(self) -> None: ...

    def leave(self) -> None: ...

    def hand_over_and_leave(self, seconds: float) -> tuple[int | None, str]:
        """As Client::HandOverAndLeave: the rank, or None, and why nobody."""

    def export_state(self) -> bytes: ...

    def import_state(self, state: bytes) -> None: ...

    def state_dict(self) -> bytes: ...

    def load_state_dict(self, state: bytes) -> None: ...

    def set_loss_scale(self, scale: float) -> None: ...

    def metrics(self) -> dict: ...

    def report(self) -> list: ...

    def close(self) -> None: ...

    def abandon(self) -> None: ...

__version__: str
