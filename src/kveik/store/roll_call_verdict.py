"""What a node makes of the blocks of others that it finds, or doesn't, in a shared tier. Pure; times are arguments."""

from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from kveik.store.roll_call import NAMES, Entry

#: A block counts as renewed until so many of its own periods are over, and a moment for machines that are slow.
PERIODS, SPARE_S = 3.0, 5.0
#: After so many periods without a new one it is looked for under all names: its agent may have begun anew.
OVERDUE_PERIODS = 1.5
#: Lives of one agent that are remembered, so that blocks they left behind are not taken for news.
PAST_LIVES = 8


class Presence(Enum):
    """How one node stands in the eyes of another, in one tier."""

    HERE = "here"
    OLD = "old"
    NEVER = "never"
    OTHER_BYTES = "other bytes"
    TWIN = "twin"
    NO_ANSWER = "no answer"
    WAITING = "waiting"


@dataclass(frozen=True, slots=True)
class Sight:
    """What is known of one node. Monotonic seconds, but for ``clock_s``; every change gives a new value.

    ``since_s``: since when it is looked for. ``entry``: its newest block, first read at ``new_s``. ``clock_s``: how far
    that block's time lay before our clock then: its age, and what the clocks differ by. ``wrong``: what was read in
    place of a block. ``refused``: why the last read failed. ``stranger``: another agent's block under our own name.
    ``past``: earlier lives of its agent.
    """

    node: str
    since_s: float
    renew_s: float
    entry: Entry | None = None
    new_s: float = 0.0
    clock_s: float = 0.0
    wrong: str = ""
    refused: str = ""
    stranger: Entry | None = None
    twin: str = ""
    past: tuple[str, ...] = ()

    def wanted(self, now_s: float) -> range:
        """The numbers under which to look: those that come next, or all while nothing is known."""
        if self.entry is None or self._overdue(now_s):
            return range(NAMES)
        return range(self.entry.number + 1, self.entry.number + 3)

    def read(self, entry: Entry, now_s: float, wall_s: float) -> "Sight":
        """After one of its blocks was read. One that is not newer than what is known tells nothing.

        Clocks are not asked. A block of another life of its agent counts when nothing newer came of the one that is
        known for a while, and never if that life was followed by another one.
        """
        known = self.entry
        if known is not None and entry.nonce == known.nonce:
            newer = entry.number > known.number
        else:
            newer = known is None or (self._overdue(now_s) and entry.nonce not in self.past)
        if not newer:
            return replace(self, refused="")
        past = self.past if known is None or known.nonce == entry.nonce else (*self.past, known.nonce)[-PAST_LIVES:]
        clock_s = wall_s - entry.at_s
        return replace(self, entry=entry, new_s=now_s, clock_s=clock_s, past=past, wrong="", refused="")

    def missed(self) -> "Sight":
        """After nothing was there: the tier answers."""
        return replace(self, refused="")

    def misread(self, why: str) -> "Sight":
        """After other bytes were there; that stands until a good block is read."""
        return replace(self, wrong=why, refused="")

    def refused_for(self, why: str) -> "Sight":
        """After the tier did not answer."""
        return replace(self, refused=why)

    def met(self, other: Entry) -> "Sight":
        """After another agent's block was found under our own name. One that is renewed has a living writer."""
        known = self.stranger
        alive = known is not None and known.nonce == other.nonce and other.number > known.number
        twin = f"the agent on host {other.host} has this node's name, too" if alive else ""
        return replace(self, stranger=other, twin=twin)

    def alone(self) -> "Sight":
        """After nobody else's block was found there."""
        return replace(self, stranger=None, twin="")

    def presence(self, now_s: float) -> Presence:
        """What is to be thought of the node now."""
        if self.twin:
            return Presence.TWIN
        if self.wrong:
            return Presence.OTHER_BYTES
        if self.entry is not None and self._renewed(now_s):
            return Presence.HERE
        if self.refused:
            return Presence.NO_ANSWER
        if self.entry is not None:
            return Presence.OLD
        return Presence.WAITING if now_s - self.since_s < patience_s(self.renew_s) else Presence.NEVER

    def told(self, now_s: float) -> str:
        """The same in a sentence."""
        presence, age_s = self.presence(now_s), self.age_s(now_s)
        if presence is Presence.HERE:
            return f"its block is there and right, new {age_s:.0f} s ago"
        if presence is Presence.OLD and self.entry is not None:
            return f"its block was new {age_s:.0f} s ago, expected each {self.entry.renew_s:g} s"
        return {
            Presence.TWIN: self.twin,
            Presence.OTHER_BYTES: f"other bytes than it wrote: {self.wrong}",
            Presence.NO_ANSWER: f"it could not be asked: {self.refused}",
            Presence.WAITING: "looked for since a moment",
            Presence.NEVER: "its block was never there: its agent does not run, or has another store than this one",
        }[presence]

    def age_s(self, now_s: float) -> float | None:
        """How long ago its newest block was first read; None if none ever was."""
        return None if self.entry is None else max(0.0, now_s - self.new_s)

    def plain(self, now_s: float) -> dict[str, Any]:
        """Plain values, for ``kveik stats``."""
        age_s = self.age_s(now_s)
        return {
            "node": self.node,
            "presence": self.presence(now_s).value,
            "age_s": None if age_s is None else round(age_s, 1),
            "clock_s": None if age_s is None else round(self.clock_s, 3),
            "told": self.told(now_s),
        }

    def _overdue(self, now_s: float) -> bool:
        return self.entry is not None and now_s - self.new_s > OVERDUE_PERIODS * self.entry.renew_s

    def _renewed(self, now_s: float) -> bool:
        return self.entry is not None and now_s - self.new_s <= patience_s(self.entry.renew_s)


def patience_s(renew_s: float) -> float:
    """How long to wait for a block that is renewed each ``renew_s`` before it counts as missing."""
    return PERIODS * renew_s + SPARE_S
