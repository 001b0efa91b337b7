"""Gives the SDK access to tensors.

A tensor of the wire's dtype on the session's device is used in place. A tensor of another dtype is
cast. In a session whose device is the CPU, a CUDA tensor is copied through pinned memory on a
separate stream.
"""

import queue
import threading

import torch

_stagers: dict[int, "_Stager"] = {}
_stagers_lock = threading.Lock()


class Stage:
    """One tensor that is sent and receives its result."""

    def __init__(self, target: torch.Tensor, wire: torch.dtype, on_gpu: bool) -> None:
        self._target = target
        self._wire = wire
        self._stager = None
        self._memory = target
        self._is_cuda = target.device.type == "cuda"
        if self._is_cuda and not on_gpu:
            self._stager = _stager_of(target.device)
        elif target.dtype != wire:
            self._memory = target.to(wire)

    @property
    def in_place(self) -> bool:
        """Whether the tensor's own memory is what is sent."""
        return self._stager is None and self._memory is self._target

    def begin(self, send) -> None:
        """Calls `send` with the memory: the host's once it holds the tensor, or a GPU's and the
        stream that computes it."""
        if self._is_cuda and self._stager is None:
            send(self._memory, torch.cuda.current_stream(self._target.device).cuda_stream)
        elif self._stager is None:
            send(self._memory)
        else:
            self._stager.copy_out(self, send)

    def after(self, call) -> None:
        """Calls `call` after this and every earlier tensor's `send`."""
        if self._stager is None:
            call()
        else:
            self._stager.put(call)

    def finish(self, error: BaseException | None, done) -> None:
        """Copies the result to the tensor, then calls `done`."""
        if self._stager is not None:
            self._stager.copy_back(self, error, done)
            return
        if self._is_cuda:
            # The SDK's work on the tensor is over. A future records this thread's stream, so that
            # must not be one that computes.
            with torch.cuda.stream(_idle_stream(self._target.device)):
                if error is None and self._memory is not self._target:
                    self._target.copy_(self._memory, non_blocking=True)
                done(error)
            return
        if error is None and self._memory is not self._target:
            self._target.copy_(self._memory)
        done(error)


class _Stager:
    """Copies between one GPU and pinned memory, in order, on its own stream and thread."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._calls: "queue.SimpleQueue" = queue.SimpleQueue()
        self._free: list[torch.Tensor] = []
        threading.Thread(target=self._run, name="gradwire-staging", daemon=True).start()

    def _run(self) -> None:
        while True:
            self._calls.get()()

    def put(self, call) -> None:
        self._calls.put(call)

    def copy_out(self, stage: Stage, send) -> None:
        stage._memory = self._pinned(stage._target.numel(), stage._wire)
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            stage._memory.copy_(stage._target, non_blocking=True)
            copied = torch.cuda.Event()
            copied.record(self._stream)
        stage._target.record_stream(self._stream)

        def wait_and_send() -> None:
            copied.synchronize()
            send(stage._memory)

        self.put(wait_and_send)

    def copy_back(self, stage: Stage, error: BaseException | None, done) -> None:
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            if error is None:
                stage._target.copy_(stage._memory, non_blocking=True)
            done(error)  # a future records this stream, so its readers wait for the copy
            copied = torch.cuda.Event()
            copied.record(self._stream)

        def recycle() -> None:
            copied.synchronize()
            self._free.append(stage._memory)

        self.put(recycle)

    def _pinned(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        for i, memory in enumerate(self._free):
            if memory.numel() == numel and memory.dtype == dtype:
                return self._free.pop(i)
        return torch.empty(numel, dtype=dtype, pin_memory=True)


_idle_streams: dict[torch.device, torch.cuda.Stream] = {}


def _idle_stream(device: torch.device) -> torch.cuda.Stream:
    if device not in _idle_streams:
        _idle_streams[device] = torch.cuda.Stream(device)
    return _idle_streams[device]


def _stager_of(device: torch.device) -> _Stager:
    index = device.index if device.index is not None else torch.cuda.current_device()
    with _stagers_lock:
        if index not in _stagers:
            _stagers[index] = _Stager(torch.device("cuda", index))
        return _stagers[index]
