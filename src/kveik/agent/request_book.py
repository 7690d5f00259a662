"""The latest requests of all engines of the node, as their connectors told of them."""

import threading
from collections import OrderedDict
from collections.abc import Sequence

from kveik.agent.funnel import RequestFunnel

_Name = tuple[int, str, float]


class RequestBook:
    """The last ``kept`` records; a record that is told again replaces what was told before of that request."""

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._lock = threading.Lock()
        self._records: OrderedDict[_Name, RequestFunnel] = OrderedDict()

    def __repr__(self) -> str:
        return f"RequestBook({len(self._records)} of {self._kept})"

    def told(self, records: Sequence[RequestFunnel], pid: int, engine: str) -> list[RequestFunnel]:
        """An engine tells of its requests; those of which nothing was known yet what became of a missing block."""
        unexplained = []
        with self._lock:
            for record in records:
                name = (pid, record.request_id, record.began_s)
                before = self._records.pop(name, None)
                record.engine, record.engine_pid = engine, pid
                if before is not None and before.missing == record.missing:
                    record.fate, record.fate_reason = before.fate, before.fate_reason
                    record.fate_age_s = before.fate_age_s
                elif record.missing is not None:
                    unexplained.append(record)
                self._records[name] = record
            while len(self._records) > self._kept:
                self._records.popitem(last=False)
        return unexplained

    def latest(self) -> list[RequestFunnel]:
        """All of them, the earliest first."""
        with self._lock:
            records = list(self._records.values())
        return sorted(records, key=lambda record: record.began_s)
