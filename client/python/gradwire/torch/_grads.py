"""Reduction without DistributedDataParallel."""

import collections.abc
import threading

import torch

from gradwire._errors import InvalidArgument
from gradwire.torch import _names
from gradwire.torch._state import SessionState

_BUCKET_BYTES = 25 << 20
_ALLOWED = "allowed are an iterable of tensors, or of dicts whose params are"


def reduce_grads_(parameters, state: SessionState) -> bool:
    """Replaces each parameter's gradient by the mean over all members, as one step. Waits.

    `parameters` as an optimizer takes them. One without a gradient contributes zeros and gets the
    others' mean, so that all members agree. Returns whether the step counts: False after a
    non-finite gradient anywhere, and then the weights must not be updated.
    """
    wanted = [parameter for parameter in _flat(parameters) if parameter.requires_grad]
    buckets = _Buckets(wanted, state)
    with torch.no_grad():
        for bucket in buckets.all:
            bucket.start(is_last=bucket is buckets.all[-1])
        buckets.wait()
    return state.should_step


def attach_(model: torch.nn.Module, state: SessionState) -> "Attached":
    """Reduces each bucket of the model's gradients as soon as backward() has made it.

    backward() returns when all are there. Undo with the result's `detach()`.
    """
    return Attached(model, state)


def broadcast_parameters_(model: torch.nn.Module, state: SessionState, root: int = 0) -> None:
    """Gives every member rank `root`'s parameters and buffers."""
    state.attach_model(model)
    session = state._need()
    tensors = {id(t): t for t in [*model.parameters(), *model.buffers()]}
    with torch.no_grad():
        for tensor in tensors.values():
            host = tensor.detach().to("cpu").contiguous()
            if host.numel() > 0:
                session.broadcast(root, host.data_ptr(), host.numel() * host.element_size())
            if host.data_ptr() != tensor.data_ptr():
                tensor.copy_(host)


def _flat(parameters) -> list[torch.Tensor]:
    """Of an iterable of tensors or of an optimizer's groups."""
    if isinstance(parameters, torch.Tensor) or not isinstance(parameters, collections.abc.Iterable):
        raise InvalidArgument(f"parameters is a {type(parameters).__name__}; {_ALLOWED}")
    flat = []
    for one in parameters:
        if isinstance(one, dict) and "params" in one:
            inner = one["params"]
            flat += [inner] if isinstance(inner, torch.Tensor) else _flat(inner)
        elif isinstance(one, torch.Tensor):
            flat.append(one)
        else:
            raise InvalidArgument(f"parameters has a {type(one).__name__}; {_ALLOWED}")
    return flat


class _Bucket:
    """Parameters of one dtype and device, reduced as a unit."""

    def __init__(self, parameters: list[torch.nn.Parameter], state: SessionState) -> None:
        self.parameters = parameters
        self._state = state
        self._flat: torch.Tensor | None = None
        self._done = threading.Event()
        self._error: BaseException | None = None

    def start(self, is_last: bool) -> None:
        self._done.clear()
        first = self.parameters[0]
        if self._flat is None:
            numel = sum(parameter.numel() for parameter in self.parameters)
            self._flat = torch.empty(numel, dtype=first.dtype, device=first.device)
        for parameter, view in self._views():
            if parameter.grad is None:
                view.zero_()
            else:
                view.copy_(parameter.grad)
        positions = self._state.positions(self.parameters)
        self._state.submit(self._flat, positions, is_last, self._finish)

    def _views(self):
        offset = 0
        for parameter in self.parameters:
            yield parameter, self._flat[offset : offset + parameter.numel()].view(parameter.shape)
            offset += parameter.numel()

    def _finish(self, error: BaseException | None) -> None:
        self._error = error
        self._done.set()

    def wait(self) -> None:
        self._done.wait()  # the session's own deadlines end it
        if self._error is not None:
            raise self._error
        for parameter, view in self._views():
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            parameter.grad.copy_(view)


class _Buckets:
    def __init__(self, parameters: list[torch.nn.Parameter], state: SessionState) -> None:
        self.all: list[_Bucket] = []
        state.attach_parameters(parameters)
        groups: dict[tuple, list[torch.nn.Parameter]] = {}
        for parameter in parameters:
            key = (parameter.dtype, parameter.device)
            group = groups.setdefault(key, [])
            group.append(parameter)
            size = sum(one.numel() * one.element_size() for one in group)
            if size >= _BUCKET_BYTES:
                self.all.append(_Bucket(groups.pop(key), state))
        self.all += [_Bucket(group, state) for group in groups.values()]

    def wait(self) -> None:
        for bucket in self.all:
            bucket.wait()


class Attached:
    """Hooks on a model's gradients; `detach()` removes them."""

    def __init__(self, model: torch.nn.Module, state: SessionState) -> None:
        state.attach_model(model)
        parameters = [parameter for _, parameter in _names.named(model)]
        # The last parameters' gradients come first.
        self._buckets = _Buckets(parameters[::-1], state)
        self._bucket_of = {id(p): bucket for bucket in self._buckets.all for p in bucket.parameters}
        self._missing: dict[int, set[int]] = {}
        self._armed = False
        self._enabled = True
        self._handles = []
        for parameter in parameters:
            self._handles.append(_after_accumulation(parameter, self._on_gradient))
        self._state = state
        state.attachments.append(self)

    def no_sync(self) -> "_NoSync":
        """A context in which gradients only accumulate, as DistributedDataParallel's."""
        return _NoSync(self)

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        if self in self._state.attachments:
            self._state.attachments.remove(self)

    def _on_gradient(self, parameter: torch.nn.Parameter) -> None:
        if not self._enabled:
            return
        if not self._armed:
            self._armed = True
            self._missing = {
                id(bucket): {id(p) for p in bucket.parameters} for bucket in self._buckets.all
            }
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)
        bucket = self._bucket_of[id(parameter)]
        missing = self._missing[id(bucket)]
        missing.discard(id(parameter))
        if not missing:
            self._missing.pop(id(bucket))
            with torch.no_grad():
                bucket.start(is_last=not self._missing)

    def _finish(self) -> None:
        self._armed = False
        with torch.no_grad():
            for bucket in self._buckets.all:  # of parameters that this backward() did not reach
                if self._missing.pop(id(bucket), None) is not None:
                    bucket.start(is_last=not self._missing)
            self._buckets.wait()


class _NoSync:
    def __init__(self, attached: Attached) -> None:
        self._attached = attached

    def __enter__(self) -> None:
        self._before = self._attached._enabled
        self._attached._enabled = False

    def __exit__(self, *_: object) -> None:
        self._attached._enabled = self._before


class _Handles:
    def __init__(self, *handles) -> None:
        self._handles = handles

    def remove(self) -> None:
        for handle in self._handles:
            if hasattr(handle, "remove"):
                handle.remove()


def _after_accumulation(parameter: torch.nn.Parameter, call):
    if not parameter.is_leaf:
        raise InvalidArgument("a parameter is not a leaf of the graph; allowed are leaves")
    if hasattr(parameter, "register_post_accumulate_grad_hook"):
        return parameter.register_post_accumulate_grad_hook(call)
    # torch before 2.1: the node that accumulates, which lives as long as somebody holds it.
    node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
    return _Handles(node.register_hook(lambda *_: call(parameter)), node)
