"""The engines as the router sees them now."""

from dataclasses import dataclass, field
from typing import Any, Final

from kveik.breaker import CLOSED, Breaker
from kveik.fleet.announcement import EngineAnnouncement
from kveik.router import http1
from kveik.router.prefill_rate import PrefillRate
from kveik.router.upstream import EnginePool

#: Engines that one router can tell apart: each has one bit in the prefix index.
SLOTS_MAX: Final = 64


@dataclass(slots=True, eq=False)
class EngineView:
    """One engine. ``slot`` is its number in the prefix index, 0 to 63, and never changes.

    ``in_flight`` and ``waiting_tokens`` are booked when a request is sent, not when it is
    answered: the requests under way, and the prompt tokens they still have to compute.
    ``prefill`` is how fast it computes prompts, as learned from its answers. ``share`` is the part of a
    full engine's load that it may get now (below 1 after a return: slow start). ``group`` is its KV
    namespace: engines of one group share blocks. ``back_s`` is when it came back, 0 if it never left.
    ``was_held``: it was drained or isolated since it last took requests. ``exact``: what it holds is
    known exactly. ``name`` is its id in the fleet, and ``host_header`` what requests to it say in ``Host``.
    """

    announcement: EngineAnnouncement
    slot: int
    breaker: Breaker = field(default_factory=Breaker)
    state: str = "ready"
    why: str = ""
    in_flight: int = 0
    waiting_tokens: int = 0
    prefill: PrefillRate = field(default_factory=PrefillRate)
    share: float = 1.0
    chosen: int = 0
    group: str = ""
    pool: EnginePool | None = None
    models: tuple[str, ...] = ()
    cards: list[dict[str, Any]] = field(default_factory=list)
    back_s: float = 0.0
    was_held: bool = False
    exact: bool = False
    name: str = field(init=False)
    host_header: bytes = field(init=False)

    def __post_init__(self) -> None:
        # Wanted for each request; another name or address would be another engine.
        self.name = self.announcement.name
        host, port = self.announcement.host_port
        self.host_header = http1.host_header(host, port)

    @property
    def max_model_tokens(self) -> int:
        """The longest prompt and answer together: as announced, or as its model cards say; 0 if nobody says."""
        if self.announcement.max_model_tokens:
            return self.announcement.max_model_tokens
        lengths = [card["max_model_len"] for card in self.cards if isinstance(card.get("max_model_len"), int)]
        return max(lengths, default=0)

    @property
    def takes_requests(self) -> bool:
        """Whether clients' requests may be sent to it."""
        return self.state == "ready" and self.breaker.state == CLOSED
