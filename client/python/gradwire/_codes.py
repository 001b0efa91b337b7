"""The codes at the end of messages: coded() in base/error_code.h, which has the list of all codes."""

import re

_TAG = re.compile(r" \[(GW[1-9][0-9]{2})\]")


def coded(code: str, message: str) -> str:
    """Returns the message with exactly one code, at its end. The code of a message that this one
    quotes counts, because the cause is more specific; unless it is general and ends in 00."""
    inner = [found for found in _TAG.findall(message) if not found.endswith("00")]
    return f"{_TAG.sub('', message)} [{inner[-1] if inner else code}]"
