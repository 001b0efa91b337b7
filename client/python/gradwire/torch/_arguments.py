"""Checks SessionState's arguments. Each error names the argument, its value and what is allowed."""

import datetime
import enum
import os
import re

import torch
import torch.distributed as dist

from gradwire import _native
from gradwire._errors import InvalidArgument

_HOST = r"(?:\[[0-9A-Fa-f:.]+\]|[^:/\[\]\s]+)"
_RANGE = re.compile(r"\{\d+\.\.\d+\}")  # of several daemons
_ADDRESS = re.compile(rf"unix:.+|(?:dns:///)?{_HOST}:(?P<port>[0-9]{{1,5}})")
_NAME = re.compile(r"dns-all:///[A-Za-z0-9._-]+:(?P<port>[0-9]{1,5})(?:\?[a-z0-9&=]+)?")  # of all daemons
_SESSION = re.compile(r"[A-Za-z0-9._-]{1,128}")
_MAX_WORLD_SIZE = 4096
_LONGEST = datetime.timedelta(days=30)


def _refuse(name: str, value: object, allowed: str) -> None:
    raise InvalidArgument(f"{name} is {value!r:.200}; allowed {allowed}")


def hook_name(name: str, value: object) -> str:
    """Returns the name of a hook or wrapper. Accelerate passes enums, whose value is the name."""
    if isinstance(value, enum.Enum):
        value = value.value
    if value is None:
        return "no"
    if not isinstance(value, str):
        _refuse(name, value, "are " + ", ".join(_native.hook_names()))
    return value


def options(value: object) -> dict[str, object]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        _refuse("comm_state_option", value, "is a dict of options")
    for name, option in value.items():
        if not isinstance(name, str) or not isinstance(option, (bool, int, float, str)):
            _refuse(f"comm_state_option[{name!r}]", option, "are bool, int, float and str")
    return dict(value)


def check_address(value: object) -> None:
    if value is None:
        return
    for one in value.split(",") if isinstance(value, str) else [None]:
        plain = "" if one is None else _RANGE.sub("0", one.strip())
        form = _NAME if plain.startswith("dns-all:") else _ADDRESS
        found = None if set(plain) & set("{}") else form.fullmatch(plain)
        if found is None or not 0 < int(found["port"] or 1) <= 65535:
            allowed = (
                'is a str: "unix:/path", "host:port" or "dns:///host:port", with ports to 65535, '
                'or several with commas, or a range such as "host-{0..3}:port", or "dns-all:///name:port"'
            )
            _refuse("address", value, allowed)


def path(name: str, value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, (str, os.PathLike)) or not isinstance(os.fspath(value), str):
        _refuse(name, value, "is the path of a file")
    return os.fspath(value)


def check_session(value: object) -> None:
    if value is not None and not (isinstance(value, str) and _SESSION.fullmatch(value)):
        _refuse("session", value, "is a str of 1 to 128 of A-Z, a-z, 0-9, '.', '_', '-'")


def check_drift(every: object, policy: object) -> None:
    if every is not None and (not isinstance(every, int) or isinstance(every, bool) or every < 1):
        _refuse("check_parameters_every", every, "are None and integers from 1")
    if policy not in ("warn", "fail"):
        _refuse("on_parameter_drift", policy, 'are "warn" and "fail"')


def check_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        _refuse(name, value, "are True and False")


def check_node_group(value: object) -> None:
    if value is not None and not (isinstance(value, str) and _SESSION.fullmatch(value)):
        names = "a name of 1 to 128 of A-Z, a-z, 0-9, '.', '_', '-'"
        _refuse("node_group", value, f'are "off", "auto", and {names}')


def check_members(rank: object, world_size: object) -> None:
    for name, value, least in (("rank", rank, 0), ("world_size", world_size, 1)):
        if value is None:
            continue
        is_integer = isinstance(value, int) and not isinstance(value, bool)
        if not is_integer or not least <= value <= _MAX_WORLD_SIZE:
            _refuse(name, value, f"is an int from {least} to {_MAX_WORLD_SIZE}")
    if rank is not None and world_size is not None and rank >= world_size:
        _refuse("rank", rank, f"are 0 to {world_size - 1} with world_size {world_size}")


def check_timeout(name: str, value: object) -> None:
    if not isinstance(value, datetime.timedelta):
        _refuse(name, value, "is a datetime.timedelta")
    if not datetime.timedelta(0) < value <= _LONGEST:
        raise InvalidArgument(f"{name} is {value}; allowed is more than 0, at most {_LONGEST}")


def device_name(value: object) -> str | None:
    """Returns "cpu", "cuda" or "cuda:1", or None for where the model is."""
    if value is None:
        return None
    try:
        device = torch.device(value)
    except (RuntimeError, TypeError):
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        _refuse("device", value, 'are "cpu", "cuda", "cuda:1", …, and None for where the model is')
    return str(device)


def check_model(value: object) -> None:
    if value is not None and not isinstance(value, torch.nn.Module):
        _refuse("model", value, "is a torch.nn.Module")


def check_group(value: object) -> None:
    if value is not None and not (dist.is_available() and isinstance(value, dist.ProcessGroup)):
        _refuse("process_group", value, "is a torch.distributed.ProcessGroup")


def check_state(value: object) -> None:
    """Checks the argument of load_state_dict."""
    if not isinstance(value, dict):
        _refuse("state", value, "is a dict, what state_dict() gave")
    if value.get("version") != 1:
        _refuse("version", value.get("version"), "is 1")
    for name in ("coordinator", "member"):
        if not isinstance(value.get(name), torch.Tensor):
            _refuse(name, value.get(name), "is a tensor, as state_dict() gave it")
