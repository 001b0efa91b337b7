"""Ranks that agree on something through the process group's store."""

import datetime
import json
import logging
import time
from collections.abc import Callable

from gradwire._errors import DeadlineExceeded, InvalidArgument, Unavailable

_logger = logging.getLogger("gradwire")

ALL = "all"  # the part of an answer that is for every rank

_PIECE = 1.0  # of a wait, so that Ctrl-C is heard, in seconds
_GLANCE = 0.05
_MOST_NAMED = 8
_ERRORS = {"deadline": DeadlineExceeded, "argument": InvalidArgument, "unavailable": Unavailable}
_SILENT_SECONDS = 3.0  # some ranks are always slower to start
_SLACK = 10.0  # rank 0 names who is missing before the others stop waiting for it


class Meeting:
    """Rounds in which every rank says a word, rank 0 makes an answer of them, and all get it.

    Every rank calls the same rounds in the same order. A rank whose word cannot be said, and an
    answer that cannot be made, are an error of that round on all ranks, with the same text. Not
    thread-safe. Words and answers are JSON.
    """

    def __init__(self, store: object, prefix: str, rank: int, size: int) -> None:
        self._store = store
        self._prefix = f"gradwire/{prefix}"
        self._rank = rank
        self._size = size
        self._names: dict[int, str] = {}

    def name(self, hosts: dict[int, str]) -> None:
        """From now on errors say on which host a rank is. For rank 0."""
        self._names = hosts

    def round(
        self,
        topic: str,
        say: Callable[[], object],
        answer: Callable[[list], dict[str, object]],
        seconds: float,
        about: str,
        part: str = ALL,
    ) -> object:
        """Returns this part of rank 0's answer.

        `about`: what a rank does in this round, for an error that names it: "say where it runs".
        `seconds`: how long rank 0 waits for the others' words.
        """
        try:
            word = {"said": say()}
        except Exception as error:
            word = {"error": str(error)}
        self._set(f"{topic}/{self._rank}", word)
        if self._rank == 0:
            self._answer(topic, answer, seconds, about)
        outcome = self._get(f"{topic}/answer", seconds + _SLACK, about)
        if "error" in outcome:
            raise _ERRORS[outcome["kind"]](outcome["error"])
        return self._get(f"{topic}/answer/{part}", _SLACK, about)

    def _answer(self, topic: str, answer, seconds: float, about: str) -> None:
        try:
            for part, text in answer(self._words(topic, seconds, about)).items():
                self._set(f"{topic}/answer/{part}", text)
            outcome = {}
        except Exception as error:
            kinds = [name for name, kind in _ERRORS.items() if isinstance(error, kind)]
            outcome = {"error": str(error), "kind": kinds[0] if kinds else "unavailable"}
        self._set(f"{topic}/answer", outcome)

    def _words(self, topic: str, seconds: float, about: str) -> list:
        keys = [f"{topic}/{rank}" for rank in range(self._size)]
        silent = min(_SILENT_SECONDS, seconds)
        if not self._wait(keys, silent):
            _logger.warning(
                "rank 0 waits up to %g s for %s to %s", seconds, self._missing(keys), about
            )
            if not self._wait(keys, seconds - silent):
                raise DeadlineExceeded(
                    f"{self._missing(keys)} did not {about} within {seconds:g} s", "GW807"
                )
        words = [self._read(key) for key in keys]
        failed = [f"{self._who(rank)}: {word['error']}" for rank, word in enumerate(words) if "error" in word]
        if failed:
            raise Unavailable("; ".join(failed[:_MOST_NAMED]), "GW807")
        return [word["said"] for word in words]

    def _who(self, rank: int) -> str:
        return f"rank {rank} ({self._names[rank]})" if rank in self._names else f"rank {rank}"

    def _missing(self, keys: list[str]) -> str:
        missing = []
        for rank, key in enumerate(keys):
            if not self._wait([key], _GLANCE):
                missing.append(self._who(rank))
            if len(missing) == _MOST_NAMED:
                break
        return ", ".join(missing) or "the last rank"

    def _get(self, key: str, seconds: float, about: str) -> dict:
        if not self._wait([key], seconds):
            raise DeadlineExceeded(
                f"rank 0 did not answer within {seconds:g} s; it waits for all ranks to {about}", "GW807"
            )
        return self._read(key)

    def _set(self, key: str, value: object) -> None:
        self._store.set(f"{self._prefix}/{key}", json.dumps(value))

    def _read(self, key: str) -> object:
        return json.loads(self._store.get(f"{self._prefix}/{key}"))

    def _wait(self, keys: list[str], seconds: float) -> bool:
        """False: they are not all there in time."""
        keys = [f"{self._prefix}/{key}" for key in keys]
        deadline = time.monotonic() + seconds
        while True:
            begin = time.monotonic()
            piece = max(min(_PIECE, deadline - begin), _GLANCE)
            try:
                self._store.wait(keys, datetime.timedelta(seconds=piece))
                return True
            except RuntimeError as error:
                now = time.monotonic()
                if now >= deadline:
                    return False
                if now - begin < piece / 2:  # not a timeout
                    raise Unavailable(f"the process group's store does not answer: {error}", "GW807") from None


