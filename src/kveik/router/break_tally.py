"""Counts what breaks the beginnings of prompts: by model, kind, place and client. Pure, and bounded."""

from collections.abc import Iterable

import msgspec

from kveik.router.break_kinds import KINDS
from kveik.router.prompt_memory import Found, Looked

#: Places that are told apart, and clients of one place; what is beyond counts together.
PLACES_MAX, CLIENTS_MAX = 512, 32
OTHERS = "others"


class ClientShare(msgspec.Struct):
    """One client's part in a place: the name of its key, or its address where no keys are asked for."""

    client: str
    requests: int
    lost_tokens: int


class BreakPlace(msgspec.Struct):
    """Requests of a model whose prompts broke in the same way in the same kind of part.

    ``part``: system, tool, user, ... ``messages``: first and last number of their messages, from 1; 0 outside of
    messages. ``tokens``: least and greatest token at which they first differed. ``lost_tokens``: equal tokens behind
    that; ``prompt_tokens``: all of these requests; ``share``: of all prompt tokens that were looked at.
    ``last_request`` was seen at ``last_s``.
    """

    model: str
    kind: str
    part: str
    meaning: str
    remedy: str
    requests: int
    lost_tokens: int
    prompt_tokens: int
    share: float
    messages: tuple[int, int]
    tokens: tuple[int, int]
    clients: list[ClientShare]
    last_request: str
    last_s: float
    excerpt: str = ""


class PrefixesDocument(msgspec.Struct):
    """What ``/fleet/prefixes`` shows, most tokens lost first. ``requests`` were answered, ``looked_at`` of them.

    Times are wall time of the router: it began to count at ``since_s`` and showed this at ``now_s``.
    """

    on: bool
    since_s: float = 0.0
    now_s: float = 0.0
    requests: int = 0
    looked_at: int = 0
    prompt_tokens: int = 0
    lost_tokens: int = 0
    remembered_prompts: int = 0
    memory_bytes: int = 0
    places: list[BreakPlace] = msgspec.field(default_factory=list)


class _Place:
    """Counts of one place."""

    __slots__ = ("at", "clients", "excerpt", "index", "last_request", "last_s", "lost", "prompt", "requests")

    def __init__(self) -> None:
        self.requests = self.lost = self.prompt = 0
        self.index: tuple[int, int] | None = None
        self.at: tuple[int, int] | None = None
        self.clients: dict[str, ClientShare] = {}
        self.last_request = self.excerpt = ""
        self.last_s = 0.0

    def add(self, looked: Looked, found: Found, now_s: float) -> None:
        self.requests += 1
        self.lost += found.lost_tokens
        self.prompt += looked.prompt_tokens
        self.index = _spread(self.index, found.index)
        self.at = _spread(self.at, found.at_token)
        self.last_request, self.last_s, self.excerpt = looked.request_id, now_s, found.excerpt
        name = looked.client if looked.client in self.clients or len(self.clients) < CLIENTS_MAX else OTHERS
        share = self.clients.setdefault(name, ClientShare(name, 0, 0))
        share.requests += 1
        share.lost_tokens += found.lost_tokens


class BreakTally:
    """All counts of one router. Times are wall time."""

    def __init__(self, since_s: float = 0.0) -> None:
        self._since_s = since_s
        self.requests = 0
        self.looked_at = 0
        self.prompt_tokens = self.lost_tokens = 0
        self.lost: dict[tuple[str, str], int] = {}
        self._places: dict[tuple[str, str, str], _Place] = {}

    def __repr__(self) -> str:
        return f"BreakTally({self.looked_at} of {self.requests} requests, {len(self._places)} places)"

    def add(self, looked: Iterable[Looked], now_s: float = 0.0) -> None:
        """Count what was looked at just now."""
        for one in looked:
            self.looked_at += 1
            self.prompt_tokens += one.prompt_tokens
            found = one.found
            if found is None:
                continue
            self.lost_tokens += found.lost_tokens
            of = one.model, found.kind
            self.lost[of] = self.lost.get(of, 0) + found.lost_tokens
            key = one.model, found.kind, found.label
            if key not in self._places and len(self._places) >= PLACES_MAX:
                key = OTHERS, found.kind, OTHERS
            place = self._places.setdefault(key, _Place())
            place.add(one, found, now_s)

    def document(self, remembered_prompts: int, memory_bytes: int, now_s: float = 0.0) -> PrefixesDocument:
        """All of it, the greatest loss first."""
        ranked = sorted(self._places.items(), key=lambda item: -item[1].lost)
        return PrefixesDocument(
            True,
            self._since_s,
            now_s,
            self.requests,
            self.looked_at,
            self.prompt_tokens,
            self.lost_tokens,
            remembered_prompts,
            memory_bytes,
            [self._shown(key, place) for key, place in ranked],
        )

    def _shown(self, key: tuple[str, str, str], place: _Place) -> BreakPlace:
        model, kind, part = key
        clients = sorted(place.clients.values(), key=lambda share: -share.lost_tokens)
        first, last = place.index or (-1, -1)
        return BreakPlace(
            model,
            kind,
            part,
            KINDS[kind].meaning,
            KINDS[kind].remedy,
            place.requests,
            place.lost,
            place.prompt,
            round(place.lost / max(1, self.prompt_tokens), 4),
            (first + 1, last + 1),
            place.at or (0, 0),
            clients,
            place.last_request,
            place.last_s,
            place.excerpt,
        )


def _spread(known: tuple[int, int] | None, value: int) -> tuple[int, int]:
    """Least and greatest of what is known and one more."""
    return (value, value) if known is None else (min(known[0], value), max(known[1], value))
