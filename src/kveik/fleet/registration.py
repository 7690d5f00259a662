"""Keeps one engine registered with a router: what to do next is a pure function of what is known.

The engine is asked at every beat. One that answers late is busy and keeps its place; one to which
nobody listens any more is gone for certain and is taken out at once, and announced anew when it is
back. The router may be restarted at any time: it is tried again until it answers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from kveik.errors import AdmissionError, ConfigError, FleetError, UnknownEngineError
from kveik.fleet.announcement import HEARTBEATS_A_LEASE, EngineAnnouncement
from kveik.fleet.client import FleetClient

#: Pause before the next try while something is not as it should be.
RETRY_S = 1.0
#: A listener that is replaced refuses connections for a moment.
_REFUSALS_MEAN_GONE = 2
_UNFINISHED = ("trying again", "keeps its place")


class Look(Enum):
    """What a look at the engine showed."""

    ANSWERS = "answers"
    SILENT = "silent"  # late, or it answered nonsense
    REFUSES = "refuses"  # nobody listens


class Act(Enum):
    """What to tell the router."""

    ANNOUNCE = "announce"
    RENEW = "renew"
    WITHDRAW = "withdraw"
    NOTHING = "nothing"


def next_act(look: Look, *, refusals: int, registered: bool, changed: bool) -> Act:
    """Decide. ``refusals``: looks in a row, this one too, at which nobody listened. ``changed``: it has news."""
    if look is Look.ANSWERS:
        return Act.RENEW if registered and not changed else Act.ANNOUNCE
    if not registered:
        return Act.NOTHING
    return Act.WITHDRAW if refusals >= _REFUSALS_MEAN_GONE else Act.RENEW


@dataclass(frozen=True, slots=True)
class Beat:
    """What one beat did: ``told`` for people, empty if all is as before; ``pause_s`` until the next."""

    registered: bool
    told: str
    pause_s: float


class Registration:
    """One engine at one router. ``look`` asks the engine: what it showed, and its words if it answered."""

    def __init__(self, client: FleetClient, look: Callable[[], tuple[Look, EngineAnnouncement | None, str]]) -> None:
        self._client = client
        self._look = look
        self._announced: EngineAnnouncement | None = None
        self._refusals = 0
        self._told = ""
        self._ever = False

    def __repr__(self) -> str:
        name = self._announced.name if self._announced else "not registered"
        return f"Registration({name} at {self._client.url})"

    def beat(self) -> Beat:
        """Look at the engine and tell the router.

        Raises :class:`ConfigError` and :class:`AdmissionError` for what the router never took so far:
        trying again would not help.
        """
        look, words, why = self._look()
        self._refusals = self._refusals + 1 if look is Look.REFUSES else 0
        changed = words is not None and words != self._announced
        act = next_act(look, refusals=self._refusals, registered=self._announced is not None, changed=changed)
        trouble = ""
        try:
            told = self._carry_out(act, words, why)
        except UnknownEngineError:
            self._announced = None  # the router lost it: announce again, at once
            return Beat(registered=False, told="", pause_s=0.0)
        except (ConfigError, AdmissionError) as error:
            if not self._ever:
                raise
            told = trouble = f"{error}; trying again"
        except FleetError as error:
            told = trouble = f"{error}; trying again"
        fine = not trouble and look is Look.ANSWERS
        return Beat(self._announced is not None, self._news(told), self._pause_s(fine=fine))

    def end(self) -> str:
        """Take the engine out; what happened, for people."""
        if self._announced is None:
            return "was not registered"
        name, self._announced = self._announced.name, None
        try:
            self._client.withdraw(name)
        except UnknownEngineError:
            pass  # that is what was wanted
        except (FleetError, ConfigError) as error:
            return f"could not withdraw, its lease will end: {error}"
        return f"engine {name} is withdrawn from {self._client.url}"

    def _carry_out(self, act: Act, words: EngineAnnouncement | None, why: str) -> str:
        if act is Act.ANNOUNCE and words is not None:
            answer = self._client.announce(words)
            self._announced, self._ever = words, True
            return f"engine {words.name} is announced at {self._client.url}, state {answer.get('state')}"
        if act is Act.RENEW and self._announced is not None:
            self._client.renew(self._announced.name)
            return "" if not why else f"{why}; it keeps its place"
        if act is Act.WITHDRAW and self._announced is not None:
            name, self._announced = self._announced.name, None
            self._client.withdraw(name)
            return f"{why}; it is withdrawn until it answers"
        return f"waiting for the engine: {why}"

    def _news(self, told: str) -> str:
        """What is worth a line: only what was not said by the line before."""
        before, self._told = self._told, told
        if told == before:
            return ""
        over = not told and before.endswith(_UNFINISHED)
        return "engine and router answer again" if over else told

    def _pause_s(self, *, fine: bool) -> float:
        if self._announced is None:
            return RETRY_S
        interval_s = self._announced.lease_s / HEARTBEATS_A_LEASE
        return interval_s if fine else min(RETRY_S, interval_s)
