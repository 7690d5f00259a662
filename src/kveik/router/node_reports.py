"""What the nodes said last: one report a node, with its age, for as long as it means something. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from kveik.errors import RefusedError
from kveik.fleet.report import NodeReport

#: A node reports every two seconds; without a word for so long it is silent.
SILENT_AFTER_S = 10.0
#: So long after its last report a node is forgotten.
KEPT_S = 900.0
NODES_MAX = 64


@dataclass(frozen=True, slots=True)
class Heard:
    """The last report of a node and its age in seconds."""

    report: NodeReport
    age_s: float

    @property
    def silent(self) -> bool:
        """Whether the report is too old to go by."""
        return self.age_s > SILENT_AFTER_S


class NodeReports:
    """The last report of each node. Times are seconds of any clock that never runs backwards."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, NodeReport]] = {}

    def __repr__(self) -> str:
        return f"NodeReports({', '.join(self._last) or 'none'})"

    def put(self, report: NodeReport, now_s: float) -> None:
        """Keep a report in place of the node's last one.

        Raises :class:`RefusedError` if it is one node too many and none of the others has fallen silent.
        """
        if report.node not in self._last and len(self._last) >= NODES_MAX:
            heard_s, silent_longest = min((at_s, node) for node, (at_s, _) in self._last.items())
            if now_s - heard_s <= SILENT_AFTER_S:
                raise RefusedError(f"{NODES_MAX} nodes report to this router already, and all of them are there")
            del self._last[silent_longest]
        self._last[report.node] = now_s, report

    def heard(self, now_s: float) -> Iterator[Heard]:
        """What is known, by name of the node; nodes that have been silent for long are forgotten."""
        for node, (at_s, report) in sorted(self._last.items()):
            if now_s - at_s > KEPT_S:
                del self._last[node]
            else:
                yield Heard(report, max(0.0, now_s - at_s))
