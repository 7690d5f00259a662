"""What was seen of a store that the settings name. Plain values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kveik.store.probe_verdict import Finding, Verdict

#: What was found where nothing was tried.
NOT_TRIED = Finding(Verdict.UNKNOWN, "it was not tried")


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """One store as this machine's settings reach it.

    ``address``: ``HOST:PORT``, or a path. ``refused``: why nobody answers there, empty if somebody does. ``settings``:
    why the settings or the package are of no use, which is found before anything is asked. ``closed``: why it was not
    opened in time. ``found``: what came of putting a block, reading it back and comparing. ``seconds``: for all of it.
    ``agent``: what the node's agent says of its own tier, None if it was not asked or has none.
    """

    name: str
    address: str
    refused: str = ""
    settings: str = ""
    closed: str = ""
    found: Finding = NOT_TRIED
    seconds: float = 0.0
    agent: Mapping[str, Any] | None = field(default=None, repr=False)
