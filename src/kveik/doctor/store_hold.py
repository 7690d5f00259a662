"""A roll call of the doctor's own, before any agent runs: hold it on all nodes at once, and each sees the others.

It goes by the fleet's and the node's name, as agents do, so it also sees nodes whose agents run already.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kveik.clock import SYSTEM_CLOCK, Clock, Deadline
from kveik.doctor.check import Outcome, Point
from kveik.doctor.store_pairs import NodeCalls, Seen, calls_of_state
from kveik.doctor.store_trial import CALL_S, OPEN_S, TriedStore, opened
from kveik.errors import DoctorError
from kveik.store.base import BlockStore
from kveik.store.guarded import GuardedStore
from kveik.store.roll_call import Roster
from kveik.store.roll_call_verdict import Presence
from kveik.store.roll_calling import RollCalls

#: How often the doctor looks; so long it stays after it saw all, so that those who came later see it, too.
PERIOD_S, LINGER_S = 1.0, 4.0
_POLL_S = 0.2
_SOURCE = "the doctor put a block and looked for those of the others"


@dataclass(frozen=True, slots=True)
class Held:
    """What came of it: whom this node saw, and which stores could not be used, with the reason."""

    calls: NodeCalls
    closed: dict[str, str]


def hold(stores: Sequence[TriedStore], roster: Roster, hold_s: float, clock: Clock = SYSTEM_CLOCK) -> Held:
    """Look for all nodes in all stores for ``hold_s``, or until all were seen. Takes its own blocks away again."""
    with contextlib.ExitStack() as undo:
        usable, closed = [], {}
        for tried in stores:
            try:
                store = undo.enter_context(contextlib.closing(opened(tried, OPEN_S, clock)))
            except DoctorError as error:
                closed[tried.name] = str(error)
                continue
            usable.append((store, GuardedStore(store, threads=2)))
        calls = RollCalls(usable, roster, period_s=PERIOD_S, deadline_s=CALL_S, clock=clock).start()
        undo.callback(calls.close)
        _wait(lambda: _sees_all(_told(calls, usable, roster)), hold_s, clock)
        seen = _told(calls, usable, roster)
        if _sees_all(seen) and roster.others and usable:
            _wait(lambda: False, LINGER_S, clock)
    return Held(seen, closed)


def _told(calls: RollCalls, usable: Sequence[tuple[BlockStore, Any]], roster: Roster) -> NodeCalls:
    tiers = [{"name": store.name, "roll_call": calls.plain(store.name)} for store, _ in usable]
    return calls_of_state({"tiers": tiers}) or NodeCalls(roster.node)


def _sees_all(calls: NodeCalls) -> bool:
    return all(seen.presence is Presence.HERE for nodes in calls.tiers.values() for seen in nodes.values())


def _wait(condition: Callable[[], bool], seconds: float, clock: Clock) -> None:
    deadline = Deadline.after(seconds, clock)
    while not condition() and not deadline.passed:
        threading.Event().wait(_POLL_S)


def judge_held(held: Held, hold_s: float) -> Iterator[Point]:
    """What is to be said of each store and node. Whoever holds it promised that the others do so, too."""
    for name, why in held.closed.items():
        yield Point(Outcome.UNKNOWN, f"the {name} store", f"it could not be used: {why}", "kveik doctor stores")
    for tier, nodes in held.calls.tiers.items():
        missing = [point for node, seen in nodes.items() if (point := _missing(tier, held, node, seen, hold_s))]
        told = f"{', '.join(nodes)} were all seen" if len(nodes) > 1 else f"{held.calls.node} reads what it put there"
        yield from missing or [Point(Outcome.WELL, f"{tier} tier", told, source=_SOURCE)]


def _missing(tier: str, held: Held, node: str, seen: Seen, hold_s: float) -> Point | None:
    if seen.presence is Presence.HERE:
        return None
    about = f"{held.calls.node} reads {node} in the {tier} tier"
    if seen.presence is Presence.NO_ANSWER:
        return Point(Outcome.UNKNOWN, about, seen.told, "kveik doctor stores")
    if seen.presence in (Presence.OTHER_BYTES, Presence.TWIN) or node == held.calls.node:
        return Point(Outcome.WRONG, about, seen.told, "kveik doctor stores", _SOURCE)
    told = f"it was not seen within {hold_s:g} s: it has another store, or does not hold the call as well"
    remedy = f"run the same on {node} at the same time; if it does, give both the same store: kveik doctor mount"
    return Point(Outcome.WRONG, about, told, remedy, _SOURCE)
