"""Gradwire for Accelerate.

    handler = gradwire.accelerate.AggregatorKwargs(comm_hook="power_sgd")
    accelerator = Accelerator(kwargs_handlers=[handler])

Gradwire then reduces DistributedDataParallel's gradients. To include the compression's residuals in
`save_state` and `load_state`, call `accelerator.register_for_checkpointing(handler.state)`.
"""

import array
import copy
import dataclasses
import datetime
import os
import warnings

import torch
import torch.distributed as dist
from accelerate import Accelerator, PartialState
from accelerate.utils import DistributedDataParallelKwargs
from accelerate.utils.environment import get_int_from_env

from gradwire._errors import InvalidArgument
from gradwire.torch import SessionState, _checkpoint, aggregate_hook
from gradwire.torch._options import World

__all__ = ["AggregatorKwargs", "CheckpointedState", "install"]

_HOOK_FIELDS = ("comm_hook", "comm_wrapper", "comm_state_option")
_DDP_FIELDS = {field.name: field for field in dataclasses.fields(DistributedDataParallelKwargs)}
_SIZES = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
_NO_DDP = ("DEEPSPEED", "FSDP", "MEGATRON_LM", "XLA", "TP")


class CheckpointedState(SessionState):
    """A SessionState whose checkpoint is one file for all ranks.

    Accelerate asks every rank for its state, writes only the main process's, and gives that file to
    all ranks. Therefore the file has the residuals of every rank. Loading it with another number of
    ranks is an error.
    """

    def state_dict(self) -> dict[str, object]:
        """Collects the state. All ranks call it together, between two steps."""
        if self._session is None and self._model is None:
            return {"version": 1, "step": 0, "coordinator": _checkpoint.to_tensor(b""), "members": []}
        session = self._need()
        own = super().state_dict()
        writes = PartialState().is_local_main_process
        members = []
        for rank in range(session.world_size):
            part = _share(session, rank, own["member"])
            if writes:
                members.append(part)
        return {
            "version": 1,
            "step": own["step"],
            "coordinator": own["coordinator"],
            "members": members,
        }

    def load_state_dict(self, state: dict[str, object]) -> None:
        """All ranks call it with the same state, between two steps or before the first."""
        members = state.get("members")
        if state.get("version") != 1 or not isinstance(members, list):
            raise InvalidArgument(
                f"this checkpoint has version {state.get('version')!r} and the fields"
                f" {sorted(state)}; allowed is version 1, as register_for_checkpointing() saves it",
                "GW502",
            )
        if not members:  # saved before a model was prepared
            return
        world = World(self._group, self._settings["rank"], self._settings["world_size"])
        if len(members) != world.size:
            raise InvalidArgument(
                f"this checkpoint is of {len(members)} ranks; allowed is this session's world size,"
                f" {world.size}",
                "GW503",
            )
        super().load_state_dict({**state, "member": members[world.rank]})


def _share(session, root: int, own: torch.Tensor) -> torch.Tensor:
    """Returns rank `root`'s `own`. Broadcasts through the session, which works on any device."""
    size = array.array("q", [own.numel()])
    session.broadcast(root, size.buffer_info()[0], 8)
    part = own.clone() if session.rank == root else torch.empty(size[0], dtype=torch.uint8)
    if size[0] > 0:
        session.broadcast(root, part.data_ptr(), size[0])
    return part


@dataclasses.dataclass(repr=False)
class AggregatorKwargs(DistributedDataParallelKwargs):
    """DistributedDataParallelKwargs with the session that reduces the gradients.

    `comm_hook` and `comm_wrapper` are Accelerate's enum, strings, or a registered hook's name. The
    other added fields are SessionState's. All fields are checked here, not in `prepare()`.

    `state` is the first prepared model's SessionState; `states` has one for each.
    """

    comm_hook: object = "no"
    comm_wrapper: object = "no"
    device: torch.device | str | None = None
    node_group: str | None = None
    keep_gradients: bool = False
    check_parameters_every: int | None = None
    on_parameter_drift: str = "warn"
    address: str | None = None
    session: str | None = None
    tls_ca: str | os.PathLike[str] | None = None
    tls_cert: str | os.PathLike[str] | None = None
    tls_key: str | os.PathLike[str] | None = None
    token_file: str | os.PathLike[str] | None = None
    timeout: datetime.timedelta = datetime.timedelta(minutes=30)
    join_timeout: datetime.timedelta = datetime.timedelta(minutes=5)
    connect_timeout: datetime.timedelta = datetime.timedelta(seconds=10)

    def __post_init__(self) -> None:
        for name, field in _DDP_FIELDS.items():
            if name not in _HOOK_FIELDS:
                _check_field(name, getattr(self, name), field.default)
        self.states = [self._make_state(self.session)]
        _warn_if_alone(self)

    @property
    def __class__(self) -> type:
        # Accelerate looks its handlers up by their exact class.
        return DistributedDataParallelKwargs

    def __repr__(self) -> str:
        fields = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self))
        return f"AggregatorKwargs({fields})"

    @property
    def state(self) -> CheckpointedState:
        return self.states[0]

    def to_dict(self, ignore_keys: tuple[str, ...] = _HOOK_FIELDS) -> dict[str, object]:
        """Returns only DistributedDataParallel's arguments."""
        names = [name for name in _DDP_FIELDS if name not in ignore_keys]
        return {name: copy.deepcopy(getattr(self, name)) for name in names}

    def register_comm_hook(self, model: torch.nn.parallel.DistributedDataParallel) -> None:
        """Accelerate calls it with each model that it has wrapped."""
        state = self.states[0]
        if state._model is not None:
            number = len(self.states)
            name = None if self.session is None else f"{self.session}.{number}"
            state = self._make_state(name)
            self.states.append(state)
        state._model = model
        model.register_comm_hook(state, aggregate_hook)

    def _make_state(self, session: str | None) -> CheckpointedState:
        return CheckpointedState(
            address=self.address,
            session=session,
            tls_ca=self.tls_ca,
            tls_cert=self.tls_cert,
            tls_key=self.tls_key,
            token_file=self.token_file,
            comm_hook=self.comm_hook,
            comm_wrapper=self.comm_wrapper,
            comm_state_option=self.comm_state_option,
            device=self.device,
            node_group=self.node_group,
            keep_gradients=self.keep_gradients,
            check_parameters_every=self.check_parameters_every,
            on_parameter_drift=self.on_parameter_drift,
            timeout=self.timeout,
            join_timeout=self.join_timeout,
            connect_timeout=self.connect_timeout,
        )


def install(accelerator: Accelerator, **fields: object) -> AggregatorKwargs:
    """Gives an existing accelerator an AggregatorKwargs with these fields.

    Call it before `prepare()`. If the accelerator has a DistributedDataParallelKwargs, its fields
    are kept unless `fields` overrides them.
    """
    if getattr(accelerator, "_models", None):
        raise InvalidArgument(
            f"this accelerator has {len(accelerator._models)} prepared models; allowed is none:"
            " call install() before accelerator.prepare()",
            "GW805",
        )
    kind = accelerator.distributed_type.name
    if kind in _NO_DDP:
        raise InvalidArgument(
            f"distributed_type is {kind}; allowed are those where Accelerate wraps the model in"
            " DistributedDataParallel, such as MULTI_GPU and MULTI_CPU",
            "GW805",
        )
    if accelerator.ddp_handler is not None:
        kept = {name: getattr(accelerator.ddp_handler, name) for name in _DDP_FIELDS}
        fields = {**kept, **fields}
    accelerator.ddp_handler = AggregatorKwargs(**fields)
    return accelerator.ddp_handler


def _check_field(name: str, value: object, default: object) -> None:
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise InvalidArgument(f"{name} is {value!r}; allowed are True and False")
    elif name == "bucket_cap_mb":
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not value > 0:
            raise InvalidArgument(f"{name} is {value!r}; allowed are numbers of MiB above 0")
    elif isinstance(default, int) and (not isinstance(value, int) or isinstance(value, bool)):
        raise InvalidArgument(f"{name} is {value!r}; allowed are integers")


def _warn_if_alone(handler: AggregatorKwargs) -> None:
    if dist.is_available() and dist.is_initialized():
        size = dist.get_world_size()
    else:
        size = get_int_from_env(_SIZES, 1)
    if size > 1:
        return
    fields = ("address", "session", "comm_hook", "comm_wrapper", "comm_state_option")
    arguments = [
        f"{name}={value!r}"
        for name, value in handler.state._settings.items()
        if name in fields and value not in (None, "no", {})
    ]
    arguments += ["rank=RANK", "world_size=SIZE"]
    warnings.warn(
        "WORLD_SIZE is unset or 1, so Accelerate builds no DistributedDataParallel and this process"
        " trains alone, without Gradwire. Start the script with torchrun or `accelerate launch`, or"
        " let it take part as one of several such processes with"
        " `import gradwire.torch as gw` and"
        f" `gw.attach_(model, gw.SessionState({', '.join(arguments)}))`.",
        stacklevel=4,
    )
