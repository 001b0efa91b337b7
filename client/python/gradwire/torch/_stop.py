"""A signal that tells a trainer to stop when it can."""

import signal
import types


class StopSignal:
    """True once the process has got SIGTERM, or another of `signals`: end the step, and leave.

    Schedulers and clouds send it before they take a host away. The second one does what it would have
    done without this. Make it in the main thread.
    """

    def __init__(self, *signals: int) -> None:
        self._is_set = False
        self._before = {number: signal.getsignal(number) for number in signals or (signal.SIGTERM,)}
        for number in self._before:
            signal.signal(number, self._on)

    def _on(self, number: int, _frame: types.FrameType | None) -> None:
        self._is_set = True
        signal.signal(number, self._before[number])

    def __bool__(self) -> bool:
        return self._is_set
