"""What follows when a part ended by itself: pure, and the same for all supervisors."""

from dataclasses import dataclass
from enum import Enum

from kveik.errors import ConfigError

#: Starts in a row, none of which ended in readiness, after which a part that was never ready is given up.
STARTS_IN_VAIN_MAX = 3


class Step(Enum):
    """What to do."""

    AGAIN = "again"  # after the pause
    NEXT_VARIANT = "next variant"  # the next simpler mode, at once
    WAIT_FOR_ORDER = "wait for order"  # who watches engines decides
    GIVE_UP = "give up"


@dataclass(frozen=True, slots=True)
class History:
    """What is known of a part that ended.

    ``ever_ready``: by its present description. ``variant`` of ``variants``: which it was started by, from 0.
    ``endings``: in a row, this one too, with no long time of readiness between them.
    """

    kind: str
    ever_ready: bool
    variant: int
    variants: int
    endings: int


@dataclass(frozen=True, slots=True)
class Pauses:
    """The first pause before another start, and the longest; each is twice the one before. Seconds."""

    first_s: float
    max_s: float

    def __post_init__(self) -> None:
        if not 0 < self.first_s <= self.max_s:
            raise ConfigError(
                f"restart_pause_s is {self.first_s:g}, expected more than 0 and at most restart_pause_max_s, "
                f"which is {self.max_s:g}"
            )

    def after(self, endings: int) -> float:
        """The pause after so many endings in a row."""
        return min(self.max_s, self.first_s * 2.0 ** min(max(0, endings - 1), 60))


def next_step(history: History) -> Step:
    """Decide.

    Engines that were ready once are restarted on the watchdog's order only, so that one decides; before that their
    modes are tried one after the other, each once, since a start that failed fails again. Other parts are started
    again and again, unless they never worked at all.
    """
    if history.kind == "engine":
        if history.ever_ready:
            return Step.WAIT_FOR_ORDER
        return Step.NEXT_VARIANT if history.variant + 1 < history.variants else Step.GIVE_UP
    if not history.ever_ready and history.endings >= STARTS_IN_VAIN_MAX:
        return Step.GIVE_UP
    return Step.AGAIN
