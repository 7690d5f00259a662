"""What a supervisor's view of an engine means for who watches it: which processes to look at, and when to keep off.

A supervisor that starts or ends an engine is at work, and an engine that it ends on an order is not sick. What has
ended by itself waits for an order of the watchdog. Pure.
"""

from dataclasses import dataclass

from kveik.supervise.messages import ProcessView
from kveik.watchdog.healing import Stage

#: A state that lasts less may be on its way to the next: the supervisor looks ten times a second.
SETTLED_S = 1.0


@dataclass(frozen=True, slots=True)
class Supervised:
    """An engine's processes. ``pids``: leader first; empty: none is left; None: they cannot be seen.

    ``busy``: why hands must be off, empty if not. ``stopped``: somebody stopped it on purpose. ``starting`` and
    ``given_up``: what its supervisor does with an engine that is not ready yet. ``pid``: the leader's, 0 for none.
    """

    pids: tuple[int, ...] | None = None
    pid: int = 0
    busy: str = ""
    stopped: bool = False
    starting: bool = False
    given_up: bool = False


UNSEEN = Supervised()


def supervised(view: ProcessView | None, stage: Stage, wall_s: float) -> Supervised:
    """The meaning of a view; None: nobody supervises the engine here. ``wall_s``: wall time now."""
    if view is None:
        return UNSEEN
    pids = (view.pid, *(pid for pid in view.pids if pid != view.pid)) if view.pid else ()
    busy = f"it is held: {view.held}" if view.held else ""
    if view.state == "stopped":
        return Supervised((), busy=busy or "it was stopped", stopped=not view.held)
    if view.state == "stopping":
        return Supervised(pids, view.pid, busy or "its supervisor is ending it")
    if view.state == "starting":
        restarted = "its supervisor is starting it" if stage is Stage.SERVING else ""
        return Supervised(pids, view.pid, busy or restarted, starting=True)
    if view.state == "ready":
        return Supervised(pids or None, view.pid, busy)
    waits = view.state == "waiting" and stage is Stage.NEW
    if waits or wall_s - view.since_s < SETTLED_S:
        return Supervised(busy=busy or "its supervisor is starting it", starting=waits)
    return Supervised((), busy=busy, given_up=view.state == "failed")
