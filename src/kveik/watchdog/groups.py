"""Restarts all ranks of a data-parallel group, on all of its nodes, once: by an order in etcd that every node follows.

One rank that hangs or dies takes the whole group with it, and ranks that stay wait for ever. Whoever notices it writes
an order with the next *generation* of the group; every node's watchdog sees it and restarts the ranks of its node,
once for each generation. Under the registry's prefix::

    groups/NAME          the last order: generation, why, by which node
    groups/NAME/NODE     the generation that this node has restarted its ranks for, or found when it first looked

Decisions are pure; :class:`GroupFollower` is the thread that acts. It also notices ranks of its node that ended: those
without an API server are asked for inferences by nobody.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

import msgspec

from kveik.errors import RegistryError, RestartError
from kveik.fleet.etcd_gateway import EtcdGateway, Snapshot, Write
from kveik.supervise.messages import ProcessView

PREFIX = "groups/"
#: Without a change, orders are looked at this often, for what a watch does not tell: that it died itself.
RESYNC_S = 5.0
PAUSE_S, PAUSE_MAX_S = 0.2, 5.0
#: After another node's order was carried out here, what was noticed before it needs no order of its own.
SETTLE_S = 15.0
#: A part that has waited for its next start for so long waits for somebody's order.
ENDED_S = 2.0
_ATTEMPTS = 5

logger = logging.getLogger("kveik.watchdog")

#: Restarts this node's ranks of a group, with why. Raises :class:`RestartError` if that was not possible.
RestartHere = Callable[[str, str], object]
#: The groups whose ranks on this node are not well, with why.
LookHere = Callable[[], Mapping[str, str]]


class GroupOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Restart the group: for the ``generation``-th time, because of ``why``, as node ``by`` said."""

    generation: int
    why: str
    by: str


@dataclass(frozen=True, slots=True)
class Orders:
    """What etcd says: the last order of each group with its revision, and what one node has done already."""

    last: Mapping[str, GroupOrder]
    revisions: Mapping[str, int]
    done: Mapping[str, int]

    @classmethod
    def read(cls, snapshot: Snapshot, node: str) -> "Orders":
        """The orders in a snapshot. What cannot be understood counts as no order."""
        last: dict[str, GroupOrder] = {}
        revisions: dict[str, int] = {}
        done: dict[str, int] = {}
        for key, entry in snapshot.entries.items():
            group, _, at = key.removeprefix(PREFIX).partition("/")
            if not key.startswith(PREFIX):
                continue
            if not at:
                revisions[group] = entry.revision
                order = _order(entry.value)
                if order is not None:
                    last[group] = order
            elif at == node and entry.value.isdigit():
                done[group] = int(entry.value)
        return cls(last, revisions, done)

    def generation(self, group: str) -> int:
        """Of the group's last order; 0 if there was none."""
        order = self.last.get(group)
        return order.generation if order is not None else 0

    def unseen(self, groups: Collection[str]) -> list[str]:
        """Groups for which the node has noted nothing: it begins with what is there, and restarts nothing for it."""
        return sorted(group for group in groups if group not in self.done)

    def due(self, groups: Collection[str]) -> list[str]:
        """Groups whose last order the node has not carried out. An etcd that lost its data counts from 1 again."""
        return sorted(g for g in groups if self.generation(g) and self.done.get(g, 0) != self.generation(g))


def ended_ranks(views: Iterable[ProcessView], groups: Mapping[str, Collection[str]], wall_s: float) -> dict[str, str]:
    """The groups of which a part has ended by itself, and why. ``groups``: the parts on this node.

    A part that waits for its next start only now may be on its way there; held ones are somebody's work.
    """
    waiting = {view.name: view for view in views if view.state == "waiting" and not view.held}
    found = {}
    for group, names in groups.items():
        for name in names:
            view = waiting.get(name)
            if view is not None and wall_s - view.since_s >= ENDED_S:
                found[group] = f"{name} ended: {view.why or 'no reason is known'}"
    return found


class Budget:
    """At most so many within so many seconds."""

    def __init__(self, most: int, window_s: float) -> None:
        self._most = most
        self._window_s = window_s
        self._used_s: list[float] = []

    def take(self, now_s: float) -> bool:
        """Whether there is one more; it is then used."""
        self._used_s = [used_s for used_s in self._used_s if now_s - used_s < self._window_s]
        if len(self._used_s) >= self._most:
            return False
        self._used_s.append(now_s)
        return True


def _order(raw: bytes) -> GroupOrder | None:
    try:
        return msgspec.json.decode(raw, type=GroupOrder)
    except msgspec.MsgspecError:
        return None


class GroupFollower:
    """Carries out, on this node, what is ordered for ``groups``, and gives orders. Thread-safe."""

    def __init__(
        self,
        gateway: EtcdGateway,
        node: str,
        groups: Collection[str],
        restart_here: RestartHere,
        *,
        look_here: LookHere = dict,
        budget: Budget | None = None,
    ) -> None:
        self._gateway = gateway
        self._node = node
        self._groups = frozenset(groups)
        self._restart_here = restart_here
        self._look_here = look_here
        self._budget = budget or Budget(1, 0.0)
        self._stopped = threading.Event()
        self._settled_at_s: dict[str, float] = {}
        self._thread = threading.Thread(target=self._follow, name="groups", daemon=True)

    def start(self) -> "GroupFollower":
        """Follow from now on. An etcd that is away is waited for."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """Follow no longer; an order that is being carried out is finished."""
        self._stopped.set()
        self._gateway.close()
        self._thread.join()

    def order(self, group: str, why: str) -> GroupOrder:
        """Have the whole group restarted; the order that does it, which may be another node's.

        Raises :class:`RegistryError` if etcd does not answer, and then nothing was ordered.
        """
        for _ in range(_ATTEMPTS):
            orders = Orders.read(self._gateway.snapshot(), self._node)
            last = orders.last.get(group)
            foreign = last is not None and last.by != self._node
            if last is not None and (group in orders.due([group]) or (foreign and self._has_just_been(group))):
                return last
            order = GroupOrder(generation=orders.generation(group) + 1, why=why, by=self._node)
            key = f"{PREFIX}{group}"
            if self._gateway.commit(
                [Write(key, msgspec.json.encode(order))], {key: orders.revisions.get(group, 0)}
            ):  # nobody else ordered meanwhile
                return order
        raise RegistryError(f"group {group}: others change its orders all the time")

    def _has_just_been(self, group: str) -> bool:
        settled_at_s = self._settled_at_s.get(group)
        return settled_at_s is not None and time.monotonic() - settled_at_s < SETTLE_S

    def _order_for(self, sick: Mapping[str, str]) -> None:
        """Order what ranks of this node need; those that were restarted just now may still be on their way."""
        for group, why in sick.items():
            if not self._has_just_been(group) and self._budget.take(time.monotonic()):
                self.order(group, why)

    def _follow(self) -> None:
        pause_s = 0.0
        while not self._stopped.wait(pause_s):
            try:
                snapshot = self._gateway.snapshot()
                self._carry_out(Orders.read(snapshot, self._node))
                self._order_for(self._look_here())
                pause_s = 0.0
                self._gateway.wait_event(snapshot.revision, RESYNC_S)
            except (RegistryError, RestartError) as error:
                if not self._stopped.is_set() and pause_s < PAUSE_MAX_S:  # said while it is news
                    logger.warning("orders for groups are not followed now: %s", error)
                pause_s = min(PAUSE_MAX_S, max(PAUSE_S, 2 * pause_s))

    def _carry_out(self, orders: Orders) -> None:
        for group in orders.unseen(self._groups):
            self._note(group, orders.generation(group))
        failed: RestartError | None = None
        for group in orders.due(self._groups - set(orders.unseen(self._groups))):
            order = orders.last[group]
            logger.warning("restarting the ranks of %s here: %s (said by %s)", group, order.why, order.by)
            try:
                self._restart_here(group, order.why)
            except RestartError as error:  # tried again; other groups do not wait for that
                failed = error
                continue
            self._settled_at_s[group] = time.monotonic()
            self._note(group, order.generation)
        if failed is not None:
            raise failed

    def _note(self, group: str, generation: int) -> None:
        self._gateway.commit([Write(f"{PREFIX}{group}/{self._node}", str(generation).encode())], {})


class GroupRestarter:
    """A restarter (:mod:`kveik.watchdog.restarters`) for one engine whose ranks are on several nodes."""

    no_restart = ""

    def __init__(self, follower: GroupFollower, group: str) -> None:
        self._follower = follower
        self._group = group

    def __repr__(self) -> str:
        return f"GroupRestarter({self._group})"

    def restart(self, why: str) -> str:
        """Order it; every node, this one too, then restarts its ranks. Raises :class:`RestartError`."""
        try:
            order = self._follower.order(self._group, why)
        except RegistryError as error:
            raise RestartError(f"the restart of group {self._group} could not be ordered: {error}") from error
        return f"restart {order.generation} of group {self._group} is ordered on all its nodes, by {order.by}"
