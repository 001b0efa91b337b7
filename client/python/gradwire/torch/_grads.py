"""Reduction without DistributedDataParallel."""

import collections
import collections.abc
import threading
from collections.abc import Iterator

import torch

from gradwire._errors import InvalidArgument
from gradwire.torch import _names
from gradwire.torch._state import SessionState

_BUCKET_BYTES = 25 << 20
_KEPT_LAYOUTS = 4  # of reduce_grads_: a generator and a discriminator, say, take turns
_ALLOWED = "allowed are an iterable of tensors, or of dicts whose params are"


def reduce_grads_(parameters, state: SessionState) -> bool:
    """Replaces each parameter's gradient by the mean over all members, as one step. Waits.

    `parameters` has the form that optimizers take. A parameter without a gradient contributes zeros
    and receives the mean, so that all members agree. Returns whether the step is applied: False if
    any member has a non-finite gradient; do not update the weights then.

    The state keeps the buckets, with memory for the gradients, for the next call with the same
    parameters. Where the daemon reads and writes that memory itself (metrics()["buckets"]), the
    gradients of contiguous parameters become views of it, as with DistributedDataParallel's
    gradient_as_bucket_view: the next call overwrites what was kept of them.
    """
    wanted = [parameter for parameter in _flat(parameters) if parameter.requires_grad]
    with torch.no_grad():
        buckets = _kept(wanted, state)
        buckets.check()
        for bucket in buckets.all:
            bucket.start(is_last=bucket is buckets.all[-1])
        buckets.wait()
    return state.should_step


def attach_(model: torch.nn.Module, state: SessionState) -> "Attached":
    """Reduces each bucket of the model's gradients as soon as backward() has computed it.

    backward() returns when all buckets are reduced. `detach()` of the result undoes it. Gradients may
    become views, as with reduce_grads_.
    """
    return Attached(model, state)


def broadcast_parameters_(model: torch.nn.Module, state: SessionState, root: int = 0) -> None:
    """Gives every member rank `root`'s parameters and buffers.

    Does nothing in a process that has come for a lost member: the others are not here, and heal_ has
    all of it.
    """
    state.attach_model(model)
    session = state._need()
    change = state.membership_change
    if change is not None and session.rank in change.newcomers:
        return
    named = {id(t): (name, t) for name, t in [*model.named_parameters(), *model.named_buffers()]}
    for name, tensor in named.values():
        if tensor.layout is not torch.strided:
            raise InvalidArgument(
                f'"{name}" is {tensor.layout}; allowed are dense tensors', "GW803"
            )
    with torch.no_grad():
        for piece in _pieces([tensor for _, tensor in named.values() if tensor.numel() > 0]):
            _broadcast(piece, session, root)


def _pieces(tensors: list[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Splits the tensors, in order, into pieces of at most _BUCKET_BYTES, the same on all ranks."""
    piece: list[torch.Tensor] = []
    size = 0
    for tensor in tensors:
        bytes_ = tensor.numel() * tensor.element_size()
        if piece and size + bytes_ > _BUCKET_BYTES:
            yield piece
            piece, size = [], 0
        piece.append(tensor)
        size += bytes_
    if piece:
        yield piece


def _broadcast(piece: list[torch.Tensor], session, root: int) -> None:
    """Broadcasts all tensors of a piece in one round trip, as concatenated bytes."""
    alone = piece[0].detach()
    in_place = len(piece) == 1 and alone.device.type == "cpu" and alone.is_contiguous()
    if in_place:
        host = alone
    else:
        # Put together where the tensors are: one copy from a GPU, not one for each tensor.
        host = torch.cat([_bytes_of(tensor).to(alone.device) for tensor in piece]).cpu()
    session.broadcast(root, host.data_ptr(), host.numel() * host.element_size())
    if in_place or session.rank == root:
        return
    received = host.to(alone.device)
    offset = 0
    for tensor in piece:
        end = offset + tensor.numel() * tensor.element_size()
        # A copy, since a view in another dtype must begin at a multiple of its elements' size.
        tensor.copy_(received[offset:end].clone().view(tensor.dtype).view(tensor.shape))
        offset = end


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def _flat(parameters) -> list[torch.Tensor]:
    """Flattens an iterable of tensors or of an optimizer's groups."""
    if isinstance(parameters, torch.Tensor) or not isinstance(parameters, collections.abc.Iterable):
        raise InvalidArgument(f"parameters is a {type(parameters).__name__}; {_ALLOWED}", "GW404")
    flat = []
    for one in parameters:
        if isinstance(one, dict) and "params" in one:
            inner = one["params"]
            flat += [inner] if isinstance(inner, torch.Tensor) else _flat(inner)
        elif isinstance(one, torch.Tensor):
            flat.append(one)
        else:
            raise InvalidArgument(f"parameters has a {type(one).__name__}; {_ALLOWED}", "GW404")
    return flat


class _Bucket:
    """Parameters of one dtype and device, reduced as a unit, with memory for their gradients."""

    def __init__(self, parameters: list[torch.nn.Parameter], state: SessionState) -> None:
        self.parameters = parameters
        self._state = state
        self._positions = state.positions(parameters)
        sizes = [parameter.numel() for parameter in parameters]
        # The handle is held until nobody has this bucket any more.
        self._flat, self._share = state.allocate(sum(sizes), parameters[0], self._positions)
        self._views = [
            view.view(parameter.shape)
            for parameter, view in zip(parameters, self._flat.split(sizes))
        ]
        self._done = threading.Event()
        self._done.set()
        self._error: BaseException | None = None
        self._arrival: torch.cuda.Event | None = None

    @property
    def under_way(self) -> bool:
        """Whether the session may still read and write this bucket's memory."""
        return not self._done.is_set()

    def check(self) -> None:
        """Raises if a gradient is sparse."""
        for parameter in self.parameters:
            if parameter.grad is not None:
                self._state.check_dense(parameter.grad, [parameter])

    def start(self, is_last: bool) -> None:
        self._error = None
        for parameter, view in zip(self.parameters, self._views):
            if parameter.grad is None:
                view.zero_()
            elif not _is_same(parameter.grad, view):
                view.copy_(parameter.grad)
        self._done.clear()
        self._state.submit(self._flat, self._positions, is_last, self.finish)

    def finish(self, error: BaseException | None) -> None:
        self._error = error
        if error is None and self._flat.is_cuda:  # on the stream that brings the result back
            self._arrival = torch.cuda.current_stream(self._flat.device).record_event()
        self._done.set()

    def wait(self) -> None:
        self._done.wait()  # the session's own deadlines end it

    def take(self) -> None:
        """Makes the means the parameters' gradients. Call wait() first."""
        if self._error is not None:
            self._state.on_failure(self._error)
            raise self._error
        shared = self._share is not None and self._share.shared
        if self._arrival is not None:
            torch.cuda.current_stream(self._flat.device).wait_event(self._arrival)
        for parameter, view in zip(self.parameters, self._views):
            if parameter.grad is not None and _is_same(parameter.grad, view):
                continue
            if shared and parameter.is_contiguous():
                parameter.grad = view
                continue
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            parameter.grad.copy_(view)


def _is_same(gradient: torch.Tensor, view: torch.Tensor) -> bool:
    """Whether the gradient already lies in the bucket."""
    return (
        gradient.data_ptr() == view.data_ptr()
        and gradient.dtype == view.dtype
        and gradient.stride() == view.stride()
    )


class _Buckets:
    def __init__(self, parameters: list[torch.nn.Parameter], state: SessionState) -> None:
        state.attach_parameters(parameters)
        self.all: list[_Bucket] = []
        groups: dict[tuple, list[torch.nn.Parameter]] = {}
        sizes: collections.Counter = collections.Counter()
        for parameter in parameters:
            key = (parameter.dtype, parameter.device)
            groups.setdefault(key, []).append(parameter)
            sizes[key] += parameter.numel() * parameter.element_size()
            if sizes[key] >= _BUCKET_BYTES:
                self.all.append(_Bucket(groups.pop(key), state))
                del sizes[key]
        self.all += [_Bucket(group, state) for group in groups.values()]

    def check(self) -> None:
        for bucket in self.all:
            bucket.check()

    def wait(self) -> None:
        """Waits for all, also after a failure: their memory is used again."""
        for bucket in self.all:
            bucket.wait()
        for bucket in self.all:
            bucket.take()


def _kept(parameters: list[torch.nn.Parameter], state: SessionState) -> _Buckets:
    """This layout's buckets, of an earlier call if there was one."""
    # Kept buckets hold their parameters, so that no other object has the id of one of them.
    layout = tuple((id(one), one.dtype, one.device, one.shape) for one in parameters)
    kept = state.layouts.pop(layout, None)
    # After an interrupted call they may be in use; the reductions hold what they need.
    if kept is None or any(bucket.under_way for bucket in kept.all):
        kept = _Buckets(parameters, state)
    state.layouts[layout] = kept  # the last is the one used last
    if len(state.layouts) > _KEPT_LAYOUTS:
        del state.layouts[next(iter(state.layouts))]
    return kept


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
            self._start(bucket)

    def _start(self, bucket: _Bucket) -> None:
        self._missing.pop(id(bucket))
        with torch.no_grad():
            try:
                bucket.check()
                bucket.start(is_last=not self._missing)
            except Exception as error:
                bucket.finish(error)  # backward() raises it when the other buckets are done

    def _finish(self) -> None:
        self._armed = False
        for bucket in self._buckets.all:  # of parameters that this backward() did not reach
            if id(bucket) in self._missing:
                self._start(bucket)
        with torch.no_grad():
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
        raise InvalidArgument("a parameter is not a leaf of the graph; allowed are leaves", "GW404")
    if hasattr(parameter, "register_post_accumulate_grad_hook"):
        return parameter.register_post_accumulate_grad_hook(call)
    # torch before 2.1: the node that accumulates, which lives as long as somebody holds it.
    node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
    return _Handles(node.register_hook(lambda *_: call(parameter)), node)
