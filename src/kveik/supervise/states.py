"""The states of a part that a supervisor keeps, and what leads from one to the next. A table, nothing else.

::

    waiting ──started──> starting ──answered──> ready
       ^                    │  └──────┬───────────┘
       │                    │   ended or ordered down
       │                    v         v
       ├──gone, again───── stopping <─┘
       │                    ├──gone, stay down──> stopped ──ordered up──> waiting
       │                    └──gone, hopeless───> failed  ──ordered up──> waiting
       └── waiting, ordered down ──> stopped

A part that ended goes through *stopping*, too: what is left of its group is killed before the next start.
"""

from enum import Enum

from kveik.errors import SuperviseError


class State(Enum):
    """What a part is doing."""

    WAITING = "waiting"  # for its next start, by a pause or by an order
    STARTING = "starting"  # its process runs and is not ready yet
    READY = "ready"
    STOPPING = "stopping"  # its group is being ended
    STOPPED = "stopped"  # by an order; it stays down
    FAILED = "failed"  # given up

    @property
    def has_process(self) -> bool:
        """Whether there is, or may be, a process."""
        return self in (State.STARTING, State.READY, State.STOPPING)


class Happening(Enum):
    """What happens to a part."""

    STARTED = "started"
    ANSWERED = "answered"  # it proved that it is ready
    ENDED = "ended"  # by itself, or it took too long to start
    ORDERED_DOWN = "ordered down"
    ORDERED_UP = "ordered up"
    GONE_AGAIN = "gone, again"  # nothing of its group is left, and it is to be started again
    GONE_STAY_DOWN = "gone, stay down"
    GONE_HOPELESS = "gone, hopeless"


TABLE: dict[tuple[State, Happening], State] = {
    (State.WAITING, Happening.STARTED): State.STARTING,
    (State.WAITING, Happening.ORDERED_DOWN): State.STOPPED,
    (State.WAITING, Happening.ORDERED_UP): State.WAITING,
    (State.STARTING, Happening.ANSWERED): State.READY,
    (State.STARTING, Happening.ENDED): State.STOPPING,
    (State.STARTING, Happening.ORDERED_DOWN): State.STOPPING,
    (State.READY, Happening.ENDED): State.STOPPING,
    (State.READY, Happening.ORDERED_DOWN): State.STOPPING,
    (State.STOPPING, Happening.ORDERED_DOWN): State.STOPPING,
    (State.STOPPING, Happening.ORDERED_UP): State.STOPPING,
    (State.STOPPING, Happening.GONE_AGAIN): State.WAITING,
    (State.STOPPING, Happening.GONE_STAY_DOWN): State.STOPPED,
    (State.STOPPING, Happening.GONE_HOPELESS): State.FAILED,
    (State.STOPPED, Happening.ORDERED_UP): State.WAITING,
    (State.STOPPED, Happening.ORDERED_DOWN): State.STOPPED,
    (State.FAILED, Happening.ORDERED_UP): State.WAITING,
    (State.FAILED, Happening.ORDERED_DOWN): State.STOPPED,
}


def after(state: State, happening: Happening) -> State:
    """The next state. Raises :class:`SuperviseError` for what cannot happen in that state."""
    try:
        return TABLE[state, happening]
    except KeyError:
        raise SuperviseError(f"a part that is {state.value} cannot be {happening.value}") from None
