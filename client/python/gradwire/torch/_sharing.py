"""Gradients in memory that is shared with the daemon, where torch has allocated them.

The C++ SDK gives the whole pages of a tensor's memory to a segment that the daemon maps too
(client/memory/shared_pages.h), and holds the tensor until they are private again. This module
decides which buffers, and remembers why others are copied.

A bucket of DistributedDataParallel is shared when its buffer comes for the second time, because DDP
replaces its first buckets after one step. Buffers that change from step to step are copied.
"""

import mmap
import weakref

import torch

from gradwire._errors import Error, InvalidArgument

_NEW = "the buffer is new; it is shared when it comes again"
_MAX_CHANGES = 3
_CHANGES = "the buffer changes from step to step"
_ENDED = "the session has ended"
_REFUSED = "the daemon has not taken this memory"


class Handle:
    """Memory that is shared until release(), or until nobody has the handle any more."""

    def __init__(self, native: object) -> None:
        self._native = native

    @property
    def shared(self) -> bool:
        return self._native is not None

    def release(self) -> None:
        """Makes the memory private. No reduction in it may be under way. Idempotent."""
        native, self._native = self._native, None
        if native is not None:
            native.release()


class _Met:
    """A bucket's buffer, as it came last."""

    def __init__(self, positions: list[int], place: tuple[int, int], changes: int) -> None:
        self.positions = positions
        self.place = place
        self.changes = changes
        self.handle: Handle | None = None
        self.under_way = 0
        self.forgotten = False

    def begin(self) -> None:
        self.under_way += 1

    def end(self) -> None:
        self.under_way -= 1
        if self.forgotten:
            self.release()

    def release(self) -> None:
        """Now, or when no reduction is under way."""
        self.forgotten = True
        if self.handle is not None and self.under_way == 0:
            self.handle.release()


class Sharing:
    """What one session shares. The caller locks, but for metrics."""

    def __init__(self, session) -> None:
        self._session = session
        self._met: dict[int, _Met] = {}  # by the bucket's first parameter
        self._handles: "weakref.WeakSet[Handle]" = weakref.WeakSet()
        self._why: dict[int, str] = {}  # a bucket is copied, by its first parameter
        self._closed = False

    def allocate(
        self, numel: int, like: torch.Tensor, positions: list[int]
    ) -> tuple[torch.Tensor, Handle | None]:
        """A flat tensor for these parameters' gradients, with a mapping of its own as its memory if
        that can be shared. Its handle; None, if the gradients are copied."""
        size = numel * like.element_size()
        if numel == 0 or like.device.type != "cpu":
            flat = torch.empty(numel, dtype=like.dtype, device=like.device)
            return flat, self.share(flat, positions, flat)
        # A tensor that moves out of it, for instance to another process, leaves it to the handle.
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        flat = torch.frombuffer(memory, dtype=like.dtype, count=numel)
        return flat, self.share(flat, positions, memory)

    def share(self, memory: torch.Tensor, positions: list[int], owner: object) -> Handle | None:
        """Shares the memory, a flat tensor that holds these parameters' gradients; None, if they
        are copied. `owner` keeps the memory where it is."""
        native, why = None, _ENDED if self._closed else _why_not(memory)
        if not why:
            dtype = str(memory.dtype).removeprefix("torch.")
            native, why = self._session.share_gradients(
                memory.data_ptr(), memory.numel(), dtype, owner
            )
        self._why[positions[0]] = why or _REFUSED
        if native is None:
            return None
        handle = Handle(native)
        self._handles.add(handle)
        return handle

    def meet(self, memory: torch.Tensor, positions: list[int]) -> _Met:
        """Of each reduction in memory that is not this package's: shares it if it comes again."""
        place = (memory.data_ptr(), memory.numel() * memory.element_size())
        met = self._met.get(positions[0])
        if met is not None and met.place == place and met.positions == positions:
            if self._why.get(positions[0]) is _NEW:
                met.handle = self.share(memory, positions, memory)
            return met
        same_bucket = met is not None and met.positions == positions
        changes = met.changes + 1 if same_bucket else 0
        self._forget(set(positions))
        met = self._met[positions[0]] = _Met(positions, place, changes)
        self._why[positions[0]] = _NEW if changes < _MAX_CHANGES else _CHANGES
        return met

    def _forget(self, positions: set[int]) -> None:
        """Lets go of other buckets with these parameters, which a new layout has replaced."""
        for first, met in list(self._met.items()):
            if not positions.isdisjoint(met.positions):
                del self._met[first]
                self._why.pop(first, None)
                met.release()

    def close(self) -> None:
        """Makes all memory private again, and shares no other."""
        self._closed = True
        for met in self._met.values():
            met.release()
        self._met.clear()
        for handle in list(self._handles):
            handle.release()

    def paths(self, reports: list[dict[str, object]], names: list[str]) -> list[dict[str, object]]:
        """For each bucket of the last step: in place or copied, and why it is copied."""
        first = {name: position for position, name in enumerate(names)}
        lines = []
        for report in reports:
            name = report["first_parameter"]
            line = {"first_parameter": name, "in_place": report["in_place"], "why_copied": ""}
            if not line["in_place"]:
                line["why_copied"] = self._why.get(first.get(name, -1)) or _REFUSED
            lines.append(line)
        return lines


def ends(error: BaseException) -> bool:
    """Whether the session is over after this failure of a reduction."""
    return isinstance(error, Error) and not isinstance(error, InvalidArgument)


def _why_not(memory: torch.Tensor) -> str:
    if memory.device.type != "cpu":
        return "gradients on a GPU do not travel in shared memory"
    if memory.is_pinned():
        return "the memory is pinned for a GPU"
    return ""
