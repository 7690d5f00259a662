"""The roll call: in each shared tier every agent keeps a small block of its own, and looks for those of the others.

A store may look shared and be another one on each node: a folder that is a local disk, a master that each node has for
itself. Then every call works, every probe is right, and no node ever finds what another one stored. Only blocks that
really went from node to node show it, so each agent puts one (:mod:`kveik.store.roll_call`), renews it, and reads those
of the other nodes, whose names it knows; nothing else passes between nodes. What it saw is judged by
:mod:`kveik.store.roll_call_verdict`.

It runs beside the probes, past breaker and fence, but rests while they stand. Its blocks lie in the namespace of
probes, are in no count of transfers, and are gone when the agent ends.
"""

import secrets
import socket
from collections.abc import Sequence
from concurrent.futures import Future, wait
from typing import Any

from kveik.clock import SYSTEM_CLOCK, Clock
from kveik.store.base import READY, BlockStore
from kveik.store.guarded import GuardedStore
from kveik.store.roll_call import NAMES, Roster
from kveik.store.roll_call_round import Caller, Calls, RollCallRound
from kveik.store.roll_call_verdict import Sight
from kveik.store.ticking import Ticking
from kveik.store.tier_threads import TierThreads

CLOSE_S = 2.0
#: A block is renewed after so many rounds: no lease on one that was read lasts until its name is due again.
RENEW_ROUNDS = 3
#: While the tier is not open, rounds come this many times as often.
HASTE = 3.0
#: A round that has not ended by then may never end: the next one begins on another thread, as long as one is free.
GIVE_UP_S = 60.0
THREADS = 2


class RollCall:
    """The roll call in one tier, every ``period_s``. ``store`` is the bare store, ``guard`` what others use of it."""

    def __init__(
        self,
        store: BlockStore,
        guard: GuardedStore,
        roster: Roster,
        *,
        period_s: float,
        deadline_s: float,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._store = store
        self._guard = guard
        self._period_s = period_s
        self._clock = clock
        renew_s = RENEW_ROUNDS * period_s
        self._caller = Caller(roster, socket.gethostname(), secrets.token_hex(8), renew_s, deadline_s)
        self._threads = TierThreads(f"{store.name}-roll-call", THREADS, clock)
        now_s = clock.monotonic()
        # Somewhere among the names, so that no reader takes an earlier life's block for this one's.
        self._calls = Calls(secrets.randbelow(NAMES), {node: Sight(node, now_s, renew_s) for node in roster.nodes})
        self._round = self._new_round()
        self._job: Future[None] | None = None
        self._began_s = self._due_s = now_s

    def __repr__(self) -> str:
        now_s = self._clock.monotonic()
        seen = ", ".join(f"{sight.node} {sight.presence(now_s).value}" for sight in self._calls.sights.values())
        return f"RollCall({self._store.name!r}, {seen})"

    @property
    def own_blocks(self) -> int:
        """How many blocks of this node may be in the tier."""
        return self._calls.own_blocks

    def plain(self) -> dict[str, Any]:
        """What is known of each node, as plain values."""
        now_s = self._clock.monotonic()
        roster = self._caller.roster
        return {"node": roster.node, "nodes": [self._calls.sights[node].plain(now_s) for node in roster.nodes]}

    def tick(self) -> None:
        """Begin a round if one is due, take what one found that ended. Never waits."""
        now_s = self._clock.monotonic()
        if self._job is None:
            if now_s >= self._due_s:
                self._begin(now_s)
        elif self._job.done():
            self._end(self._job)
        elif now_s - self._began_s >= GIVE_UP_S and self._threads.overdue(0.0) < THREADS:
            self._refuse("a round of calls hangs")
            self._job = None

    def close(self) -> None:
        """Stop, and take this node's blocks away if that is quickly done."""
        if self._job is not None:
            wait([self._job], timeout=CLOSE_S if self._guard.standing.usable else 0.0)
            if self._job.done():
                self._end(self._job)
        if self._job is None and self._calls.own_blocks:
            wait([self._threads.submit(self._new_round().clear)], timeout=CLOSE_S)
        self._threads.close()

    def _begin(self, now_s: float) -> None:
        out = self._why_out()
        self._due_s = now_s + (self._period_s / HASTE if out else self._period_s)
        if out:
            self._refuse(out)
            return
        self._began_s, self._round = now_s, self._new_round()
        self._job = self._threads.submit(self._round.run)

    def _end(self, job: "Future[None]") -> None:
        self._job = None
        error = None if job.cancelled() else job.exception()
        if error is not None:
            self._refuse(str(error) or repr(error))
        elif not job.cancelled():
            self._calls = self._round.calls

    def _why_out(self) -> str:
        stats = self._store.stats()
        if stats.state != READY:
            return "; ".join(stats.notes) or "its medium is not open"
        standing = self._guard.standing
        return "" if standing.usable else standing.fence or "it is left out after failures"

    def _refuse(self, why: str) -> None:
        self._calls.sights = {node: sight.refused_for(why) for node, sight in self._calls.sights.items()}

    def _new_round(self) -> RollCallRound:
        return RollCallRound(self._store, self._caller, self._calls, self._clock)


class RollCalls:
    """The roll calls of all tiers that promise to be shared, on one thread that never waits for a tier.

    ``period_s`` 0 means none.
    """

    def __init__(
        self,
        tiers: Sequence[tuple[BlockStore, GuardedStore]],
        roster: Roster,
        *,
        period_s: float,
        deadline_s: float,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._calls = {
            store.name: RollCall(store, guard, roster, period_s=period_s, deadline_s=deadline_s, clock=clock)
            for store, guard in (tiers if period_s > 0 else [])
            if store.capabilities.shared
        }
        self._ticking = Ticking("kveik-roll-call", list(self._calls.values()))

    def __repr__(self) -> str:
        return f"RollCalls({list(self._calls.values())!r})"

    def start(self) -> "RollCalls":
        """Call from now on."""
        self._ticking.start()
        return self

    def plain(self, tier: str) -> dict[str, Any] | None:
        """What is known of each node in one tier, as plain values; None for one that is not shared."""
        call = self._calls.get(tier)
        return None if call is None else call.plain()

    def close(self) -> None:
        """Stop; never waits for a stuck call."""
        self._ticking.close()
