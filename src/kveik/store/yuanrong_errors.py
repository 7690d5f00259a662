"""What openYuanrong's client means by its errors. Pure.

The client raises ``RuntimeError`` for everything, and its status code is found in the text alone, as in
``code: [Key not found], msg: [...]`` (openyuanrong-datasystem 0.8.1, ``Status::ToString``). This is the
only place that reads such texts.
"""

import re
from dataclasses import dataclass
from enum import Enum

_CODE = re.compile(r"code:\s*\[([^\]]*)\]")
_DETAIL_CHARS = 200


class Meaning(Enum):
    """What an error says about the keys of the call that raised it."""

    ABSENT = "absent"  # none of the keys is there
    PRESENT = "present"  # the key that was to be written is there already
    LOST = "lost"  # the node that held the bytes is gone, and they with it
    FAILED = "failed"  # could not be done; the reason says why


@dataclass(frozen=True, slots=True)
class Trouble:
    """One error. ``reason`` is one of :data:`kveik.store.base.REASONS`; ``detail`` is for people."""

    meaning: Meaning
    reason: str = ""
    detail: str = ""


#: Code, in lower case, and what it means. What is not here is FAILED ``io_error``.
_MEANINGS = {
    "key not found": (Meaning.ABSENT, ""),
    "not found in l2cache": (Meaning.ABSENT, ""),
    "worker pull object not found": (Meaning.ABSENT, ""),
    "object already exist error": (Meaning.PRESENT, ""),
    "out of memory": (Meaning.FAILED, "no_room"),
    "no space available": (Meaning.FAILED, "no_room"),
    "invalid parameter": (Meaning.FAILED, "io_error"),
    "rpc unavailable": (Meaning.FAILED, "unavailable"),
    "rpc deadline exceeded": (Meaning.FAILED, "timeout"),
    "client worker disconnect": (Meaning.FAILED, "unavailable"),
    "worker abnormal": (Meaning.FAILED, "unavailable"),
    "not ready": (Meaning.FAILED, "unavailable"),
    "try again": (Meaning.FAILED, "unavailable"),
    "shutting down": (Meaning.FAILED, "unavailable"),
    "runtime error": (Meaning.LOST, ""),
}


def trouble_of(text: str) -> Trouble:
    """What the text of one of the client's errors means."""
    found = _CODE.search(text)
    code = found[1].strip() if found else ""
    meaning, reason = _MEANINGS.get(code.lower(), (Meaning.FAILED, "io_error"))
    detail = " ".join(text.split())
    if len(detail) > _DETAIL_CHARS:
        detail = f"{detail[:_DETAIL_CHARS]}..."
    return Trouble(meaning, reason, detail)
