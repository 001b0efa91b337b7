"""The model for processes that come in the place of lost members."""

import collections.abc
import io
import json
from typing import TYPE_CHECKING, NamedTuple

import torch

from gradwire._errors import Error, InvalidArgument

if TYPE_CHECKING:
    from gradwire.torch._state import SessionState

_SIZE_BYTES = 8


class MembershipChange(NamedTuple):
    """Lost members have successors, or the session goes on without them."""

    newcomers: list[int]  # ranks, ascending, which do not have the model
    root: int  # the lowest rank that has it
    members: list[int]  # ranks that are in the session from now on, ascending


def heal_(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    state: "SessionState",
    progress: dict[str, object] | None = None,
) -> dict[str, object] | None:
    """Gives every member the root's model, its optimizer's state and `progress`.

    All members call it between two steps, when `state.membership_change` is set; without newcomers it
    does nothing. `progress` is what else a trainer needs to go on: tensors, numbers, strings, lists
    and dicts of them, such as the epoch and the batch. Returns the root's, or without newcomers what was
    given. Not only newcomers take it: a broadcast that a lost member was in may have reached some.

    If a member is lost meanwhile, nobody is healed: the next step is skipped, and has the next change,
    unless all newcomers are lost.
    """
    change = state.membership_change
    if change is None or not change.newcomers:
        return progress
    session = state._need()
    content = b""
    if session.rank == change.root:
        content = _packed([model.state_dict(), optimizer.state_dict(), progress])
    try:
        content = _broadcast(session, change.root, content)
    except Error as error:
        # GW314: the session goes on without the root, as all members hear that are in it.
        if "[GW320]" not in str(error) and "goes on without it" not in str(error):
            raise
        return progress
    if session.rank == change.root:
        return progress
    weights, optimizer_state, roots_progress = _unpacked(content)
    model.load_state_dict(weights)
    optimizer.load_state_dict(optimizer_state)
    return roots_progress


# Other members' bytes must not be able to run code here, as unpickling would: JSON has the structure,
# and a list of tensors alone is what torch.load reads without running any.


def _packed(value: object) -> bytes:
    tensors: list[torch.Tensor] = []
    structure = json.dumps(_described(value, tensors)).encode()
    file = io.BytesIO()
    torch.save(tensors, file)
    return len(structure).to_bytes(_SIZE_BYTES, "little") + structure + file.getvalue()


def _unpacked(content: bytes) -> object:
    end = _SIZE_BYTES + int.from_bytes(content[:_SIZE_BYTES], "little")
    tensors = torch.load(io.BytesIO(content[end:]), map_location="cpu", weights_only=True)
    return _built(json.loads(content[_SIZE_BYTES:end]), tensors)


def _described(value: object, tensors: list[torch.Tensor]) -> object:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, torch.Tensor):
        tensors.append(value.detach())
        return {"tensor": len(tensors) - 1}
    if isinstance(value, (list, tuple)):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_described(one, tensors) for one in value]}
    if isinstance(value, collections.abc.Mapping):
        return {"dict": [[_described(key, tensors), _described(one, tensors)] for key, one in value.items()]}
    raise InvalidArgument(
        f"heal_ cannot send a {type(value).__name__}; allowed are tensors, numbers, strings, None, and"
        " lists, tuples and dicts of them",
        "GW404",
    )


def _built(description: object, tensors: list[torch.Tensor]) -> object:
    if not isinstance(description, dict):
        return description
    ((kind, content),) = description.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {_built(key, tensors): _built(one, tensors) for key, one in content}
    parts = [_built(one, tensors) for one in content]
    return parts if kind == "list" else tuple(parts)


def _broadcast(session, root: int, content: bytes) -> bytes:
    """The root's bytes, whose number only the root knows."""
    size = torch.tensor([len(content)], dtype=torch.int64)
    session.broadcast(root, size.data_ptr(), _SIZE_BYTES)
    if session.rank == root:
        memory = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    else:
        memory = torch.empty(int(size), dtype=torch.uint8)
    session.broadcast(root, memory.data_ptr(), memory.numel())
    return memory.numpy().tobytes()
