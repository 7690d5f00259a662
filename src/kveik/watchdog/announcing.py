"""The watchdog's word at the routers: that an engine is there, is isolated, or may have requests again.

A :class:`Door` knows what is wished for one engine and brings every router to it, again and again: a router that is
away, or comes back without its memory, is told later. What a router shows (:class:`RouterView`) is looked at for what
people did: their holds are theirs, and an engine that they readmit is readmitted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

import msgspec

from kveik.clock import SYSTEM_CLOCK, Clock
from kveik.engine.client import EngineClient
from kveik.engine.introduction import introduce
from kveik.errors import ConfigError, EngineError, FleetError, RefusedError, UnknownEngineError
from kveik.fleet.announcement import HEARTBEATS_A_LEASE, EngineAnnouncement
from kveik.fleet.client import FleetClient
from kveik.fleet.registration import RETRY_S, Look

#: Reasons of the watchdog's isolations begin so; all other holds are people's.
OURS = "watchdog: "
#: Longest pause before a router that did not answer is told again: whoever waits for it does not watch.
RETRY_MAX_S = 10.0
_REASON_MAX = 400  # characters; a router takes 500


class EngineWatch:
    """Looks at one engine and puts what it says into ``words``, where they say nothing themselves."""

    def __init__(self, client: EngineClient, words: EngineAnnouncement) -> None:
        self._client = client
        self._words = words
        self._said: EngineAnnouncement | None = None

    def look(self) -> tuple[Look, EngineAnnouncement | None, str]:
        """What the engine showed, its announcement if it answered, and why it did not."""
        try:
            return Look.ANSWERS, self._introduction(), ""
        except EngineError as error:
            refused = isinstance(error.__cause__, ConnectionRefusedError)
            self._said = None
            return (Look.REFUSES if refused else Look.SILENT), None, str(error)

    def _introduction(self) -> EngineAnnouncement:
        if self._said is not None:
            # Its models may change while it runs, the rest of what it says does not: metrics are long.
            names = tuple(dict.fromkeys(model.name for model in self._client.models()))
            if names == self._said.models:
                return self._said
        said = introduce(self._client)
        words = msgspec.structs.replace(
            self._words,
            models=said.models,
            max_model_tokens=said.max_model_tokens,
            block_tokens=self._words.block_tokens or said.block_tokens,
            namespace=self._words.namespace or said.namespace,
            simulated=said.simulated,
        )
        self._said = words if said.complete or self._words.namespace else None
        return words


@dataclass(frozen=True, slots=True)
class Shown:
    """One engine as a router shows it: the fleet's state and its reason."""

    state: str
    why: str = ""

    @property
    def ours(self) -> bool:
        """Whether it is isolated by a watchdog."""
        return self.state == "isolated" and self.why.startswith(OURS)

    @property
    def others(self) -> str:
        """The hold of a person, in words; empty if there is none."""
        held = self.state in ("draining", "isolated") and not self.ours
        return f"it is {self.state} at the router: {self.why}" if held else ""


@dataclass(frozen=True, slots=True)
class RouterView:
    """All engines of a router, asked for at ``asked_s`` (monotonic)."""

    asked_s: float
    engines: Mapping[str, Shown]

    @property
    def ready(self) -> frozenset[str]:
        """Engines that get requests."""
        return frozenset(name for name, shown in self.engines.items() if shown.state == "ready")


def look_at_router(client: FleetClient, clock: Clock = SYSTEM_CLOCK) -> RouterView:
    """Ask a router for its engines. Raises :class:`FleetError`."""
    asked_s, document = clock.monotonic(), client.engines()
    engines = document.get("data")
    if not isinstance(engines, list):
        raise FleetError(f"{client.url} lists no engines; is that a Kveik router?")
    return RouterView(asked_s, {str(engine.get("engine_id")): _shown(engine) for engine in engines})


class Wish(Enum):
    """What routers should do with an engine."""

    NOTHING = "nothing"
    OPEN = "open"  # send it requests
    CLOSED = "closed"  # isolate it
    AWAY = "away"  # forget it


class Move(Enum):
    """What to tell one router."""

    ANNOUNCE = "announce"
    RENEW = "renew"
    ISOLATE = "isolate"
    READMIT = "readmit"
    WITHDRAW = "withdraw"


@dataclass(slots=True)
class AtRouter:
    """How one engine stands at one router, as far as we know.

    ``announced``: our last words. ``held``: our isolation stands. ``told_s``: when we last changed something there.
    ``failed_s``: when it last did not answer; it is tried again at ``retry_s``, or as soon as it has shown anything.
    """

    announced: EngineAnnouncement | None = None
    held: bool = False
    readmitted: bool = False
    beat_due_s: float = 0.0
    retry_s: float = 0.0
    pause_s: float = 0.0
    failed_s: float = 0.0
    told_s: float = 0.0
    trouble: str = ""


def next_move(
    wish: Wish, at: AtRouter, words: EngineAnnouncement | None, shown: Shown | None, now_s: float
) -> Move | None:
    """What to tell a router next. ``words``: the engine's announcement, None if others announce it or it is not known.

    ``shown``: what the router said after our last word, None if nothing is known.
    """
    if wish is Wish.AWAY:
        there = at.announced is not None or (shown is not None and shown.state in ("announced", "ready"))
        return Move.WITHDRAW if there else None
    if wish is Wish.CLOSED and not at.held:
        return Move.ISOLATE
    if wish is Wish.OPEN and words is not None and words != at.announced:
        return Move.ANNOUNCE
    if wish is Wish.OPEN and (at.held or (shown is not None and shown.ours)):
        return Move.READMIT
    if wish is not Wish.NOTHING and words is not None and now_s >= at.beat_due_s:
        return Move.RENEW
    return None


@dataclass(slots=True)
class Door:
    """One engine at all routers. For one thread.

    ``listed``: the routers have it from a list of their own, so it is not announced.
    """

    name: str
    routers: Sequence[FleetClient]
    listed: bool = False
    clock: Clock = SYSTEM_CLOCK
    wish: Wish = Wish.NOTHING
    _words: EngineAnnouncement | None = None
    _reason: str = ""
    _at: dict[str, AtRouter] = field(default_factory=dict)

    @property
    def trouble(self) -> str:
        """What routers could not be told so far, in words."""
        return "; ".join(filter(None, (at.trouble for at in self._at.values())))

    @property
    def readmitted(self) -> bool:
        """Whether a person ended our isolation at a router."""
        return any(at.readmitted for at in self._at.values())

    def open(self, words: EngineAnnouncement | None = None) -> None:
        """The engine may have requests. ``words``: its announcement, if it is known anew."""
        self.wish = Wish.OPEN
        for at in self._at.values():
            at.readmitted = False  # it was heard
        self.learn(words)

    def learn(self, words: EngineAnnouncement | None) -> None:
        """What the engine says of itself now."""
        if words is not None and not self.listed:
            self._words = words

    def close(self, reason: str) -> None:
        """The engine must not have requests."""
        self.wish, self._reason = Wish.CLOSED, f"{OURS}{reason}"[:_REASON_MAX]
        for at in self._at.values():
            at.held = at.readmitted = False

    def closed_before(self, reason: str) -> None:
        """It was isolated by a watchdog before this one; whoever readmitted it meanwhile is obeyed."""
        self.close(reason)
        for router in self.routers:
            self._of(router).held = True

    def leave(self) -> None:
        """Somebody stopped the engine on purpose: take it out."""
        self.wish = Wish.AWAY

    def held_by_others(self, views: Mapping[str, RouterView]) -> str:
        """Who holds it at a router, in words; empty if nobody does."""
        shown = (view.engines.get(self.name) for view in views.values())
        return next((one.others for one in shown if one is not None and one.others), "")

    def keep(self, views: Mapping[str, RouterView]) -> list[str]:
        """Tell each router what it has to be told; what is new, for people. ``views`` by the router's address."""
        news: list[str] = []
        for router in self.routers:
            at, now_s = self._of(router), self.clock.monotonic()
            view = views.get(router.url)
            if view is not None and view.asked_s > at.told_s:
                self._learn_from(at, view)
            answers = view is not None and view.asked_s > at.failed_s
            if now_s < at.retry_s and not answers:
                continue
            shown = view.engines.get(self.name) if view is not None and view.asked_s > at.told_s else None
            before, at.trouble = at.trouble, ""
            self._tell(router, at, shown, news)
            at.pause_s = min(RETRY_MAX_S, max(RETRY_S, 2 * at.pause_s)) if at.trouble else 0.0
            if at.trouble:
                at.failed_s = self.clock.monotonic()
                at.retry_s = at.failed_s + at.pause_s
            if at.trouble and at.trouble != before:
                news.append(f"{at.trouble}; it is tried again")
        return news

    def _learn_from(self, at: AtRouter, view: RouterView) -> None:
        shown = view.engines.get(self.name)
        if shown is None:  # it lost its memory: all has to be told again
            at.announced, at.held = None, False
        elif shown.state == "lost":
            at.announced = None
        elif self.wish is Wish.CLOSED and at.held and shown.state in ("announced", "ready"):
            at.readmitted = True
        elif shown.ours:
            at.held = True

    def _tell(self, router: FleetClient, at: AtRouter, shown: Shown | None, news: list[str]) -> None:
        """All moves that are due at one router; trouble ends them."""
        for _ in range(4):  # the longest: announce what it does not know, isolate, renew
            move = next_move(self.wish, at, self._words, shown, self.clock.monotonic())
            if move is None:
                return
            try:
                told = self._carry_out(move, router, at)
            except UnknownEngineError:
                told = self._announce_first(move, router, at)
            except RefusedError as error:
                at.announced = None  # lost: it has to announce itself again
                at.trouble = str(error)
            except (FleetError, ConfigError) as error:
                at.trouble = str(error)
            if at.trouble:
                return
            at.told_s, shown = self.clock.monotonic(), None
            if told:
                news.append(told)

    def _carry_out(self, move: Move, router: FleetClient, at: AtRouter) -> str:
        if move is Move.ANNOUNCE and self._words is not None:
            shown = _shown(router.announce(self._words))
            at.announced, at.held = self._words, shown.ours
            self._beat(at)
            return f"{self.name} is announced at {router.url}, state {shown.state}"
        if move is Move.RENEW:
            shown = _shown(router.renew(self.name))
            self._beat(at)
            at.readmitted = self.wish is Wish.CLOSED and shown.state in ("announced", "ready")
            return ""
        if move is Move.WITHDRAW:
            router.withdraw(self.name)
            at.announced, at.held = None, False
            return f"{self.name} is withdrawn from {router.url}"
        isolate = move is Move.ISOLATE
        shown = _shown(router.hold(self.name, move.value, self._reason if isolate else ""))
        at.held = isolate
        if shown.state == "lost":  # its lease ended meanwhile
            at.announced = None
        return f"{self.name} is {'isolated' if isolate else 'readmitted'} at {router.url}"

    def _announce_first(self, move: Move, router: FleetClient, at: AtRouter) -> str:
        """The router does not know the engine, so it gets no requests; it is announced where that can be."""
        at.announced, at.held = None, False
        if move is Move.WITHDRAW:
            return ""
        if self._words is None:
            at.trouble = f"{router.url} does not know {self.name} yet"
            return ""
        try:
            return self._carry_out(Move.ANNOUNCE, router, at)
        except (FleetError, ConfigError) as error:
            at.trouble = str(error)
            return ""

    def _beat(self, at: AtRouter) -> None:
        lease_s = self._words.lease_s if self._words is not None else 0.0
        at.beat_due_s = self.clock.monotonic() + lease_s / HEARTBEATS_A_LEASE if lease_s else float("inf")

    def _of(self, router: FleetClient) -> AtRouter:
        return self._at.setdefault(router.url, AtRouter())


def _shown(engine: Mapping[str, object]) -> Shown:
    return Shown(str(engine.get("state", "")), str(engine.get("why", "")))
