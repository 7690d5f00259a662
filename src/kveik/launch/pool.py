"""The routers of a fleet asked as one: which engines get requests, and what is under way at each.

With several routers an engine is in the pool if all of them send it requests, and is empty if none has anything
under way there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from kveik.errors import FleetError, RefusedError, UnknownEngineError


class Router(Protocol):
    """One router; see :class:`kveik.fleet.client.FleetClient`."""

    url: str

    def traffic(self) -> Mapping[str, Any]:
        """What ``/fleet`` shows."""

    def requests(self) -> Sequence[Mapping[str, Any]]:
        """What ``/fleet/requests`` shows."""

    def hold(self, name: str, action: str, reason: str) -> Mapping[str, Any]:
        """``drain``, ``isolate`` or ``readmit`` an engine."""


@dataclass(frozen=True, slots=True)
class PooledEngine:
    """One engine as the routers see it.

    ``state`` is the fleet's (see :class:`kveik.fleet.lifecycle.State`), and ``in_flight`` counts the requests under
    way at all routers. ``takes``: all routers send it requests; ``out``: none does, nor will do by itself.
    """

    name: str
    url: str
    state: str
    takes: bool
    out: bool = False
    in_flight: int = 0
    why: str = ""
    namespace: str = ""
    models: tuple[str, ...] = ()


_OUT = ("draining", "isolated", "lost")
#: States in the order in which one of several routers' views counts: the furthest from traffic first.
_ORDER = ("isolated", "draining", "lost", "announced", "ready")

Pool = Mapping[str, PooledEngine]


class Routers:
    """All routers that send requests to the fleet's engines; at least one."""

    def __init__(self, clients: Sequence[Router]) -> None:
        self._clients = tuple(clients)

    def __repr__(self) -> str:
        return f"Routers({', '.join(self.urls)})"

    @property
    def urls(self) -> tuple[str, ...]:
        """Their addresses."""
        return tuple(client.url for client in self._clients)

    def look(self) -> Pool:
        """All engines by name.

        A router at whose address nobody listens sends nothing, so the others are enough. Raises
        :class:`FleetError` if none is there, or one does not answer: it may still send requests.
        """
        documents, gone = [], None
        for client in self._clients:
            try:
                documents.append(client.traffic())
            except FleetError as error:
                if not isinstance(error.__cause__, ConnectionRefusedError):
                    raise
                gone = error
        if not documents and gone is not None:
            raise gone
        return joined(documents)

    def requests(self) -> list[Mapping[str, Any]]:
        """The latest requests of all of them. Raises :class:`FleetError` if one does not tell."""
        return [row for client in self._clients for row in client.requests()]

    def hold(self, name: str, action: str, reason: str) -> None:
        """``drain``, ``isolate`` or ``readmit`` an engine at all routers.

        One that refuses, since the engine is isolated already or has yet to announce itself, is no trouble. Raises
        :class:`UnknownEngineError` if no router knows it, and :class:`FleetError` if one did not take the order.
        """
        unknown: list[FleetError] = []
        gone: list[FleetError] = []
        for client in self._clients:
            try:
                client.hold(name, action, reason)
            except UnknownEngineError as error:
                unknown.append(error)
            except RefusedError:
                pass
            except FleetError as error:
                if not isinstance(error.__cause__, ConnectionRefusedError):
                    raise
                gone.append(error)
        if len(gone) + len(unknown) == len(self._clients):
            raise (unknown or gone)[0]


def joined(documents: Sequence[Mapping[str, Any]]) -> Pool:
    """One view of several. Raises :class:`FleetError` for what is no router's."""
    pool: dict[str, PooledEngine] = {}
    seen: dict[str, int] = {}
    for document in documents:
        engines = document.get("engines")
        if not isinstance(engines, list):
            raise FleetError("what a router shows at /fleet has no engines; is that a Kveik router of this version?")
        for shown in engines:
            one = _engine(shown)
            seen[one.name] = seen.get(one.name, 0) + 1
            pool[one.name] = _both(pool[one.name], one) if one.name in pool else one
    return {name: _known_to(one, seen[name], len(documents)) for name, one in pool.items()}


def _engine(shown: Any) -> PooledEngine:
    try:
        state, breaker = str(shown["fleet_state"]), shown["breaker"]
        return PooledEngine(
            name=str(shown["id"]),
            url=str(shown["url"]),
            state=state,
            takes=state == "ready" and breaker == "closed",
            out=state in _OUT,
            in_flight=int(shown["in_flight"]),
            why=str(shown["why"]),
            namespace=str(shown["namespace"]),
            models=tuple(shown["models"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise FleetError(
            f"an engine at /fleet is not as expected ({error!r}); is the router of this version?"
        ) from None


def _both(one: PooledEngine, other: PooledEngine) -> PooledEngine:
    rank = {state: number for number, state in enumerate(_ORDER)}
    first = min(one, other, key=lambda engine: rank.get(engine.state, 0))
    return PooledEngine(
        name=one.name,
        url=one.url,
        state=first.state,
        takes=one.takes and other.takes,
        out=one.out and other.out,
        in_flight=one.in_flight + other.in_flight,
        why=first.why or one.why or other.why,
        namespace=one.namespace or other.namespace,
        models=one.models or other.models,
    )


def _known_to(one: PooledEngine, routers: int, of: int) -> PooledEngine:
    if routers == of:
        return one
    return replace(one, takes=False, why=one.why or f"only {routers} of {of} routers know it")
