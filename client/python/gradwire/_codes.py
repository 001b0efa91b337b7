"""The codes at the end of messages: coded() in base/error_code.h, which has the list of all codes."""

import re

_TAG = re.compile(r" \[(GW[1-9][0-9]{2})\]")


def coded(code: str, message: str) -> str:
    """Returns the message with exactly one code, at its end. The code of a message that this one
    quotes counts, because the cause is more specific; unless it is general, ends in 00, and `code` is not."""
    inner = _TAG.findall(message)
    keep = inner and (not inner[-1].endswith("00") or code.endswith("00"))
    return f"{_TAG.sub('', message)} [{inner[-1] if keep else code}]"


def plain(message: str) -> str:
    """Returns the message without codes, for one that quotes it and has a code of its own."""
    return _TAG.sub("", message)
