"""What to tell people while parts start or end: one line for each change, and how long it may still take. Pure."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kveik.supervise.messages import ProcessView

#: A part that takes longer is spoken of again after so many seconds.
AGAIN_S = 10.0

Estimate = Callable[[str], float | None]


@dataclass(frozen=True, slots=True)
class Line:
    """One line: for people, with fields for programs."""

    told: str
    fields: Mapping[str, Any] = field(default_factory=dict)


class StartProgress:
    """Follows parts on their way to readiness by looks at their states. Times are monotonic seconds."""

    def __init__(self, estimate: Estimate, now_s: float) -> None:
        self._estimate = estimate
        self._began_s = now_s
        self._seen: dict[str, ProcessView] = {}
        self._since_s: dict[str, float] = {}
        self._spoke_s: dict[str, float] = {}
        self.took_s: dict[str, float] = {}

    def look(self, views: Iterable[ProcessView], now_s: float) -> list[Line]:
        """What is new since the last look."""
        return [line for view in views if (line := self._about(view, now_s)) is not None]

    def _about(self, view: ProcessView, now_s: float) -> Line | None:
        before = self._seen.get(view.name)
        self._seen[view.name] = view
        if before is None or (before.state, before.pid) != (view.state, view.pid):
            return self._changed(before, view, now_s)
        if view.state == "starting" and now_s - self._spoke_s.get(view.name, now_s) >= AGAIN_S:
            self._spoke_s[view.name] = now_s
            waited_s = now_s - self._since_s[view.name]
            return _line(view, f"{view.name} is still starting: {waited_s:.0f} s{self._of(view.name)}")
        return None

    def _changed(self, before: ProcessView | None, view: ProcessView, now_s: float) -> Line | None:
        if view.state == "starting":
            self._since_s[view.name] = self._spoke_s[view.name] = now_s
            mode = f" ({view.mode})" if view.mode else ""
            return _line(view, f"{view.name} is starting{mode}{self._about_how_long(view.name)}")
        if view.state == "ready":
            return self._ready(before, view, now_s)
        if view.state == "waiting" and before is None:
            return None  # it has not even begun
        return _line(view, f"{view.name} is {view.state}: {view.why}")

    def _ready(self, before: ProcessView | None, view: ProcessView, now_s: float) -> Line:
        if before is None:
            return _line(view, f"{view.name} runs")
        seconds = now_s - self._since_s.get(view.name, self._began_s)
        self.took_s[view.name] = seconds
        degraded = f", degraded to {view.mode}: {view.degraded}" if view.degraded else ""
        return _line(view, f"{view.name} is ready after {seconds:.1f} s{degraded}", seconds=round(seconds, 1))

    def _about_how_long(self, name: str) -> str:
        known = self._estimate(name)
        return f", about {known:.0f} s as in earlier starts" if known is not None and known >= 1 else ""

    def _of(self, name: str) -> str:
        known = self._estimate(name)
        return f" of about {known:.0f} s" if known is not None else ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a start stands: what is not ready yet, and what failed."""

    pending: tuple[str, ...]
    failed: tuple[ProcessView, ...]

    @property
    def over(self) -> bool:
        """Whether nothing more will happen by itself."""
        return not self.pending


def outcome(views: Iterable[ProcessView]) -> Outcome:
    """Judge all parts. An engine that was ready, ended and waits for an order failed, too."""
    pending, failed = [], []
    for view in views:
        if view.state == "failed" or (view.state == "waiting" and view.kind == "engine" and view.why.endswith("order")):
            failed.append(view)
        elif view.state not in ("ready", "stopped"):
            pending.append(view.name)
    return Outcome(tuple(pending), tuple(failed))


def _line(view: ProcessView, told: str, **fields: Any) -> Line:
    return Line(told, {"part": view.name, "state": view.state, **fields})
