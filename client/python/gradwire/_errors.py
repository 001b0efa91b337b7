"""The exceptions that calls raise."""

from gradwire._codes import coded

_NAMES = {
    1: "CANCELLED", 2: "UNKNOWN", 3: "INVALID_ARGUMENT", 4: "DEADLINE_EXCEEDED", 5: "NOT_FOUND",
    6: "ALREADY_EXISTS", 7: "PERMISSION_DENIED", 8: "RESOURCE_EXHAUSTED",
    9: "FAILED_PRECONDITION", 10: "ABORTED", 11: "OUT_OF_RANGE", 12: "UNIMPLEMENTED",
    13: "INTERNAL", 14: "UNAVAILABLE", 15: "DATA_LOSS", 16: "UNAUTHENTICATED",
}  # fmt: skip


class Error(RuntimeError):
    """Base class. `code` is the gRPC code's name, for example "ABORTED" if a member was lost. The
    message ends in a code such as [GW301], which `gradwirectl explain GW301` explains."""

    code = "UNKNOWN"
    _general = "GW800"

    def __init__(self, message: str = "", number: str | None = None) -> None:
        super().__init__(coded(number or self._general, message))

    def __reduce__(self):
        return (_rebuild, (type(self), str(self), self.code))


class InvalidArgument(Error, ValueError):
    """An argument is wrong. The message names the argument, its value and what is allowed."""

    _general = "GW400"


class DeadlineExceeded(Error, TimeoutError):
    """A deadline passed. The message names the members that were missing."""


class Unavailable(Error, ConnectionError):
    """The daemon cannot be reached."""

    _general = "GW101"


_CLASSES = {
    "INVALID_ARGUMENT": InvalidArgument,
    "DEADLINE_EXCEEDED": DeadlineExceeded,
    "UNAVAILABLE": Unavailable,
}


def _rebuild(kind: type, message: str, code: str) -> Error:
    error = kind(message)
    error.code = code
    return error


def from_status(code: int, message: str) -> Error:
    name = _NAMES.get(code, "UNKNOWN")
    return _rebuild(_CLASSES.get(name, Error), message, name)
