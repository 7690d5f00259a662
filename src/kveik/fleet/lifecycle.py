"""The states of an engine in the fleet, as a table.

An engine is *announced* when it says that it is there, and *ready* once it has proved itself; only
ready engines get new requests. Two states are holds, set by people or the watchdog: *draining* (no
new requests, running ones finish) and *isolated* (it is not trusted). Holds outlive a lease that
ends, because a network that fails for a moment must not bring such an engine back into traffic; and
isolation outlives a withdrawal too, because a restart of a sick engine withdraws it. Whoever comes
back from *lost*, from a hold or as another engine is announced, and has to prove itself again.

:data:`TRANSITIONS` is all there is: what it does not hold is refused.
"""

from collections.abc import Mapping
from enum import Enum

from kveik.errors import RefusedError


class State(Enum):
    """What an engine is to the fleet."""

    ANNOUNCED = "announced"  # it says that it is there
    READY = "ready"  # it has proved it: gets requests
    DRAINING = "draining"  # on its way out: finishes what it has
    ISOLATED = "isolated"  # not trusted: gets nothing
    LOST = "lost"  # its lease ended without a word
    GONE = "gone"  # not in the fleet


class Event(Enum):
    """What can happen to an engine."""

    ANNOUNCE = "announce"  # the same engine says again that it is there
    REPLACE = "replace"  # the engine of this name is another one now: address, model or namespace differ
    PROVE = "prove"  # it answered a real request
    DRAIN = "drain"
    ISOLATE = "isolate"
    READMIT = "readmit"  # ends a hold
    EXPIRE = "expire"  # its lease ended
    WITHDRAW = "withdraw"  # it, or the list that named it, takes it out
    FORGET = "forget"  # too long without a lease


TRANSITIONS: Mapping[State, Mapping[Event, State]] = {
    State.GONE: {
        Event.ANNOUNCE: State.ANNOUNCED,
        Event.REPLACE: State.ANNOUNCED,
    },
    State.ANNOUNCED: {
        Event.ANNOUNCE: State.ANNOUNCED,
        Event.REPLACE: State.ANNOUNCED,
        Event.PROVE: State.READY,
        Event.DRAIN: State.DRAINING,
        Event.ISOLATE: State.ISOLATED,
        Event.READMIT: State.ANNOUNCED,
        Event.EXPIRE: State.LOST,
        Event.WITHDRAW: State.GONE,
    },
    State.READY: {
        Event.ANNOUNCE: State.READY,
        Event.REPLACE: State.ANNOUNCED,
        Event.PROVE: State.READY,
        Event.DRAIN: State.DRAINING,
        Event.ISOLATE: State.ISOLATED,
        Event.READMIT: State.READY,
        Event.EXPIRE: State.LOST,
        Event.WITHDRAW: State.GONE,
    },
    State.DRAINING: {
        Event.ANNOUNCE: State.DRAINING,
        Event.REPLACE: State.DRAINING,
        Event.DRAIN: State.DRAINING,
        Event.ISOLATE: State.ISOLATED,
        Event.READMIT: State.ANNOUNCED,
        Event.EXPIRE: State.DRAINING,
        Event.WITHDRAW: State.GONE,
        Event.FORGET: State.GONE,
    },
    State.ISOLATED: {
        Event.ANNOUNCE: State.ISOLATED,
        Event.REPLACE: State.ISOLATED,
        Event.ISOLATE: State.ISOLATED,
        Event.READMIT: State.ANNOUNCED,
        Event.EXPIRE: State.ISOLATED,
        Event.WITHDRAW: State.ISOLATED,
        Event.FORGET: State.GONE,
    },
    State.LOST: {
        Event.ANNOUNCE: State.ANNOUNCED,
        Event.REPLACE: State.ANNOUNCED,
        Event.DRAIN: State.DRAINING,
        Event.ISOLATE: State.ISOLATED,
        Event.EXPIRE: State.LOST,
        Event.WITHDRAW: State.GONE,
        Event.FORGET: State.GONE,
    },
}

#: Set by people or the watchdog, and ended by nobody else.
HOLDS = frozenset({State.DRAINING, State.ISOLATED})


def next_state(engine: str, state: State, event: Event) -> State:
    """The state after ``event``. Raises :class:`RefusedError` where the table has no such transition."""
    after = TRANSITIONS[state].get(event)
    if after is None:
        raise RefusedError(
            f"engine {engine} is {state.value}: {_ADVICE.get((state, event), event.value + ' is refused')}"
        )
    return after


_ADVICE: Mapping[tuple[State, Event], str] = {
    (State.ISOLATED, Event.DRAIN): "it gets no requests already; readmit it first to drain it",
    (State.ISOLATED, Event.PROVE): "only readmit ends that",
    (State.DRAINING, Event.PROVE): "only readmit ends that",
    (State.LOST, Event.READMIT): "it has to announce itself again",
    (State.LOST, Event.PROVE): "it has to announce itself again",
}


def picture() -> str:
    """The table as a Mermaid state diagram, for the documentation; events that change nothing are left out."""
    arrows: dict[tuple[State, State], list[str]] = {}
    for before, row in TRANSITIONS.items():
        for event, after in row.items():
            if before is not after:
                arrows.setdefault((before, after), []).append(event.value)
    lines = ["stateDiagram-v2", "    [*] --> gone"]
    lines += [f"    {a.value} --> {b.value}: {', '.join(events)}" for (a, b), events in arrows.items()]
    return "\n".join(lines)
