"""``GET /fleet/status`` and ``PUT /fleet/nodes/NODE``: what the fleet is like now, and who tells the router so.

Lives on the router's loop: taking a report is a decoding of 64 KiB at most, and what is shown of the past has been
written when it was sampled.
"""

from typing import Any, Protocol
from urllib.parse import parse_qs, unquote

import msgspec

import kveik
from kveik.clock import SYSTEM_CLOCK, Clock
from kveik.errors import ConfigError, RefusedError
from kveik.fleet.membership import Membership
from kveik.fleet.report import read_report
from kveik.fleet.status import FleetStatus, RouterStatus
from kveik.router import http1
from kveik.router.engines import EngineView
from kveik.router.fleet_status import Seen, StateLog, hit_shares, joined, shown_state
from kveik.router.history import TrafficHistory
from kveik.router.node_reports import NodeReports
from kveik.router.records import RequestListener

Answer = tuple[int, bytes]


class Routing(Protocol):
    """What is shown of the router; see :class:`kveik.router.core.Router`."""

    gate: Any
    engines: Any
    draining: bool

    @property
    def under_way(self) -> int:
        """Requests that are not over."""


class Registered(Protocol):
    """What is shown of the registry; see :class:`kveik.fleet.registry.Registry`."""

    @property
    def view(self) -> Membership:
        """All engines."""

    @property
    def trouble(self) -> str:
        """What is wrong with it."""


class StatusPage:
    """What one router shows of the fleet. ``clock`` is the loop's time as well: both are monotonic."""

    def __init__(self, registry: Registered, policy: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self._registry = registry
        self._policy = policy
        self._clock = clock
        self._started_s = clock.wall()
        self._reports = NodeReports()
        self._history = TrafficHistory(clock.monotonic())
        self._log = StateLog()
        self.router: Routing | None = None

    @property
    def listener(self) -> RequestListener:
        """What gets every finished request."""
        return self._history.listener

    def tick(self) -> None:
        """Called at each tick: count what has ended, and take a sample when it is time."""
        if self.router is None:
            return
        self._history.count()
        in_flight = {engine.name: engine.in_flight for engine in self.router.engines}
        self._history.look(in_flight)
        now_s, at_s = self._clock.monotonic(), self._clock.wall()
        if self._history.due(now_s):
            self._log.look(self.router.engines, at_s)
            self._history.sample(now_s, at_s, in_flight, hit_shares(self._reports.heard(now_s)))

    def take_report(self, method: bytes, node: str, body: bytes) -> Answer:
        """Answer ``PUT /fleet/nodes/NODE``, of which ``node`` is the last part; errors have OpenAI's shape."""
        if method != b"PUT":
            return 405, http1.error_body(405, f"{method.decode('latin-1')[:20]} is not possible here, expected PUT")
        try:
            self._reports.put(read_report(body, unquote(node)), self._clock.monotonic())
        except ConfigError as error:
            return 400, http1.error_body(400, str(error), param=str(error).partition(" ")[0])
        except RefusedError as error:
            return 409, http1.error_body(409, str(error), code="refused")
        return 200, b'{"taken":true}'

    def document(self, query: bytes = b"") -> Answer:
        """The document as JSON.

        In the query ``since=N`` leaves out the rows of the history up to number ``N``, ``history=no`` all of them.
        """
        asked = parse_qs(query.decode("latin-1"))
        given = asked.get("since", ["0"])[-1]
        if not given.isascii() or not given.isdigit() or len(given) > 15:
            return 400, http1.error_body(400, f"since is {given[:40]!r}, expected the number of a row", param="since")
        return 200, msgspec.json.encode(self.status(None if asked.get("history") == ["no"] else int(given)))

    def status(self, since: int | None = 0) -> FleetStatus:
        """The same as a value, with the rows after number ``since``; without rows if that is None."""
        now_s = self._clock.monotonic()
        self._history.count()
        seen = self._seen(now_s)
        return joined(seen, list(self._reports.heard(now_s)), self._history.document(since))

    def _seen(self, now_s: float) -> Seen:
        router = self.router
        assert router is not None
        engines: list[EngineView] = list(router.engines)
        members = self._registry.view.members
        since_s = {}
        for engine in engines:
            member, state = members.get(engine.name), shown_state(engine)
            by_registry = member is not None and member.state.value == state
            since_s[engine.name] = member.since_s if member and by_registry else self._log.since_s(engine.name)
        return Seen(
            RouterStatus(
                version=kveik.__version__,
                started_s=round(self._started_s, 3),
                now_s=round(self._clock.wall(), 3),
                policy=self._policy,
                draining=router.draining,
                under_way=router.under_way,
                waiting=router.gate.places.waiting,
                registry_trouble=self._registry.trouble,
            ),
            engines,
            since_s,
            lambda name: self._history.of_engine(name, now_s),
            self._history.of_all(now_s),
            router.engines.refused,
            list(self._log.events),
        )
