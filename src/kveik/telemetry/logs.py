"""Changes of state as log lines: one clear line each, for people."""

import logging
from collections.abc import Collection

from kveik.records import FailureRecord, OutageRecord, Record, StateRecord

#: States that somebody should look at.
TROUBLE = (
    *(
        "open",
        "half-open",
        "read_only",
        "read-only",
        "detached",
        "several",
        "changed",
        "opening",
        "out",
        "broken",
        "fenced",
    ),
    *("lost", "isolated", "away", "failing"),
)


class LogStates:
    """A listener that writes state changes, and corrupt blocks, to a logger."""

    def __init__(self, logger: logging.Logger, trouble: Collection[str] = TROUBLE) -> None:
        self._logger = logger
        self._trouble = frozenset(trouble)

    def __call__(self, record: Record) -> None:
        """Log a record if people should know of it."""
        if isinstance(record, StateRecord):
            level = logging.WARNING if record.after in self._trouble else logging.INFO
            self._logger.log(level, "%s: %s -> %s: %s", record.part, record.before, record.after, record.why)
        elif isinstance(record, OutageRecord):
            self._logger.warning("%s", record.text)
        elif isinstance(record, FailureRecord) and record.kind == "corrupt":
            self._logger.warning(
                "%s: %d corrupt block(s) given up (%s); they count as misses", record.tier, record.blocks, record.reason
            )
