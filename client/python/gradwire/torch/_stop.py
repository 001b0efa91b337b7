"""A signal that tells a trainer to stop when it can."""

import signal
import time
import types


class StopSignal:
    """True once the process has got SIGTERM, or another of `signals`: end the step, and leave.

    Schedulers and clouds send it before they take a host away. One that comes `again_after` seconds after
    the first, or later, does what it would have done without this; those before count as the first, since
    torchrun hands SIGTERM on to processes that systemd or a shutdown has sent it already. Make it in the
    main thread. Python handles signals between two of its own instructions: while the main thread waits in
    torch or Gradwire for other members, nothing happens, not even at the second signal.
    """

    def __init__(self, *signals: int, again_after: float = 5.0) -> None:
        self._first: float | None = None
        self._again_after = again_after
        self._before = {number: signal.getsignal(number) for number in signals or (signal.SIGTERM,)}
        for number in self._before:
            signal.signal(number, self._on)

    def _on(self, number: int, _frame: types.FrameType | None) -> None:
        now = time.monotonic()
        if self._first is None:
            self._first = now
        elif now - self._first >= self._again_after:
            signal.signal(number, self._before[number])
            signal.raise_signal(number)

    def __bool__(self) -> bool:
        return self._first is not None
