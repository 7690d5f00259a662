"""When a tier could not be used, why, and what that cost: a bounded log as a pure value."""

from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime

#: Outages that are remembered of each tier.
KEPT = 16


@dataclass(frozen=True, slots=True)
class Outage:
    """One time in which a tier could not be used. Times are Unix time in seconds."""

    tier: str
    why: str
    begin_s: float
    end_s: float | None = None  # None: it lasts
    not_stored_blocks: int = 0
    not_read_blocks: int = 0
    lost_keys: int | None = None  # None: not known that any was lost

    @property
    def duration_s(self) -> float:
        """How long it lasted; 0 while it lasts."""
        return 0.0 if self.end_s is None else max(0.0, self.end_s - self.begin_s)

    @property
    def text(self) -> str:
        """One line for people; times are UTC."""
        span = f"since {_at(self.begin_s)}"
        if self.end_s is not None:
            span = f"from {_at(self.begin_s)} to {_at(self.end_s)} ({_lasted(self.duration_s)})"
        cost = [f"{self.not_stored_blocks} blocks not stored", f"{self.not_read_blocks} not read"]
        if self.lost_keys is not None:
            cost.append(f"about {self.lost_keys} keys lost")
        return f"{self.tier} tier out {span}: {self.why}; {', '.join(cost)}"


@dataclass(frozen=True, slots=True)
class OutageLog:
    """The last outages of one tier, oldest first; at most the last one lasts. Every change returns a new value."""

    tier: str
    outages: tuple[Outage, ...] = ()

    @property
    def current(self) -> Outage | None:
        """The outage that lasts, if one does."""
        last = self.outages[-1] if self.outages else None
        return last if last is not None and last.end_s is None else None

    def began(self, why: str, now_s: float) -> "OutageLog":
        """The log after the tier went out; the first reason of an outage stands."""
        if self.current is not None:
            return self
        return replace(self, outages=(*self.outages, Outage(self.tier, why, now_s))[-KEPT:])

    def cost(self, *, not_stored: int = 0, not_read: int = 0) -> "OutageLog":
        """The log after blocks could not be moved; without an outage, nothing is counted."""
        last = self.current
        if last is None or not (not_stored or not_read):
            return self
        counted = replace(
            last,
            not_stored_blocks=last.not_stored_blocks + not_stored,
            not_read_blocks=last.not_read_blocks + not_read,
        )
        return self._with_last(counted)

    def lost(self, keys: int) -> "OutageLog":
        """The log after it was seen that the tier forgot so many keys in the outage that lasts."""
        last = self.current
        return self if last is None else self._with_last(replace(last, lost_keys=(last.lost_keys or 0) + keys))

    def ended(self, now_s: float) -> "OutageLog":
        """The log after the tier could be used again."""
        last = self.current
        return self if last is None else self._with_last(replace(last, end_s=now_s))

    def _with_last(self, last: Outage) -> "OutageLog":
        return replace(self, outages=(*self.outages[:-1], last))

    def state(self) -> list[dict[str, object]]:
        """Plain values, newest first, for ``kveik stats``."""
        return [{**asdict(outage), "text": outage.text} for outage in reversed(self.outages)]


def _at(when_s: float) -> str:
    return datetime.fromtimestamp(when_s, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _lasted(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
