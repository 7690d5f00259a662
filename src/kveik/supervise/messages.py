"""What is said over a supervisor's control socket: one JSON object a line, a question and its answer.

::

    {"op": "status"}                                    -> StatusAnswer
    {"op": "start", "name": "engine-1"}                 -> Done
    {"op": "stop", "name": ..., "grace_s": 30}          -> Done   it stays down until it is started
    {"op": "restart", "name": ..., "why": "hung", "grace_s": 0, "settings": {...}, "config": "/path/kveik.toml"}
                                                        -> Done   end of the whole group, and a start
    {"op": "hold", "name": ..., "why": "roll"}          -> Done   others keep their hands off it: it is being worked on
    {"op": "release", "name": ...}                      -> Done
    {"op": "apply", "config": "/path/kveik.toml"}       -> Done   change what differs
    {"op": "down", "grace_s": 0}                        -> Done   stop everything, in order or at once, then end

An answer with ``error`` is a refusal in words. Done means that the order is taken and that the state has changed
already: after ``stop`` and ``restart`` a part is no longer ready. How far it got is asked with ``status``. Of
``restart``, ``config`` has this one part described anew by that file, and ``settings`` are of the ``[engine]`` table
and beat the file for this part until the next ``apply``.
"""

from typing import Any

import msgspec

#: What can be asked and ordered.
OPERATIONS = ("status", "start", "stop", "restart", "hold", "release", "apply", "down")


class Order(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A question or an order. ``grace_s`` is None for the part's own."""

    op: str
    name: str = ""
    why: str = ""
    grace_s: float | None = None
    settings: dict[str, Any] = {}
    config: str = ""


class ProcessView(msgspec.Struct, frozen=True, kw_only=True):
    """One part that a supervisor keeps.

    ``kind``: agent, engine, router, watchdog or etcd. ``state``: starting, ready, stopping, stopped (by an order),
    failed (given up) or waiting (for its next start; an engine that was ready waits for an order). ``pid``: leader
    of its process group, 0 if none; ``pids``: all of its processes. ``since_s``: wall time of the state.
    ``restarts``: since the supervisor began. ``mode``: of an engine (how far it is compiled); ``degraded``: why it is
    not the mode that was wanted. ``held``: why others must not touch it, empty if they may. ``digest`` says whether
    two descriptions of a part are the same.
    """

    name: str
    kind: str
    state: str
    pid: int = 0
    pids: tuple[int, ...] = ()
    since_s: float = 0.0
    restarts: int = 0
    why: str = ""
    log: str = ""
    url: str = ""
    mode: str = ""
    degraded: str = ""
    held: str = ""
    digest: str = ""


class StatusAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a supervisor keeps, and where."""

    fleet: str
    node: str
    pid: int
    config: str
    processes: tuple[ProcessView, ...]
    version: str = ""


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """An order was carried out, or ``error`` says why not."""

    error: str = ""
    told: str = ""
