"""Keeps all parts of a node: adopts what an earlier supervisor left, carries out orders, ends everything in order."""

import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

import kveik
from kveik.engine.group import living_members
from kveik.errors import SuperviseError
from kveik.private_folder import prepare_private_folder
from kveik.supervise.adopt import KeptRecord, forget_estate, read_estate, write_estate
from kveik.supervise.child import Child
from kveik.supervise.control import ControlServer
from kveik.supervise.keeper import Keeper, Surroundings
from kveik.supervise.log_file import set_aside_if_large
from kveik.supervise.messages import Done, Order, ProcessView, StatusAnswer
from kveik.supervise.node_folder import NodeFolder
from kveik.supervise.part import END_ORDER, KINDS, Part, Readiness, Variant
from kveik.supervise.states import State

logger = logging.getLogger("kveik.supervise")

TICK_S = 0.1
#: Which processes there are is looked up so often at most: that means reading all of ``/proc``.
MEMBERS_S = 1.0
_LOGS_EVERY = 50  # ticks

#: The parts by a configuration file, with other ``[engine]`` settings for some of them, by name. Raises KveikError.
Describe = Callable[[Path, Mapping[str, Mapping[str, Any]]], Sequence[Part]]


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """Which node of which fleet this is, by which file, and where it keeps things."""

    fleet: str
    node: str
    config: Path
    folder: NodeFolder
    log_bytes_max: int = 64 << 20


class Supervisor:
    """One node's supervisor, which there is once: :meth:`open`, then :meth:`run` until everything has ended."""

    def __init__(self, identity: NodeIdentity, describe: Describe, around: Surroundings) -> None:
        self._identity = identity
        self._config = identity.config
        self._describe = describe
        self._around = around
        self._lock = threading.RLock()
        self._keepers: dict[str, Keeper] = {}
        self._leaving: set[str] = set()
        self._ending = False
        self._saved: tuple[KeptRecord, ...] | None = None
        self._control: ControlServer | None = None
        self._members: Mapping[int, list[int]] = {}
        self._members_until_s = 0.0

    def __repr__(self) -> str:
        parts = ", ".join(f"{name} {keeper.state.value}" for name, keeper in self._keepers.items())
        return f"Supervisor({self._identity.fleet}/{self._identity.node}: {parts})"

    def open(self) -> "Supervisor":
        """Take the node, adopt what runs, and listen for orders.

        Raises :class:`SuperviseError` if another supervisor has the node, and :class:`~kveik.errors.KveikError` for
        a configuration that is not valid; nothing was started then.
        """
        folder = self._identity.folder
        prepare_private_folder(folder.root, "the fleet's state", "fleet.state_folder", SuperviseError)
        parts = self._describe(self._config, {})
        control = ControlServer(str(folder.control_socket), self.handle)  # from here on the node is ours
        try:
            self._take_over(read_estate(folder.supervisor), parts)
        except BaseException:
            control.close()
            raise
        self._control = control.start()
        return self

    def run(self, wake: threading.Event | None = None) -> None:
        """Keep the parts until they have been ordered down and are gone. ``wake`` ends a pause early."""
        wake, ticks = wake or threading.Event(), 0
        while not self._tick_whatever_happens():
            ticks += 1
            if ticks % _LOGS_EVERY == 0:
                self._set_logs_aside()
            wake.wait(TICK_S)
            wake.clear()
        self.close()

    def tick(self) -> bool:
        """Look at every part once; whether everything has ended."""
        with self._lock:
            if self._ending:
                self._end_next_stage()
            for name, keeper in tuple(self._keepers.items()):
                keeper.tick()
                if name in self._leaving and keeper.state is State.STOPPED:
                    self._leaving.remove(name)
                    del self._keepers[name]
            self._save()
            return self._ending and not any(self._lives(keeper) for keeper in self._keepers.values())

    def _tick_whatever_happens(self) -> bool:
        try:
            return self.tick()
        except Exception:  # supervision: without ticks nothing would be restarted, and the node could not be ended
            logger.exception("a look at the parts failed; the next one follows")
            return False

    def close(self) -> None:
        """Listen no more. What runs goes on, unless it is tethered to this process."""
        if self._control is not None:
            self._control.close()
            self._control = None
        if not any(keeper.record for keeper in self._keepers.values()):
            forget_estate(self._identity.folder.supervisor)

    def handle(self, order: Order) -> StatusAnswer | Done:
        """Carry out an order. Raises :class:`~kveik.errors.KveikError` for what cannot be done."""
        with self._lock:
            if order.op == "status":
                return self.status()
            if order.op == "down":
                return Done(told=self.down(order.grace_s))
            if self._ending:
                raise SuperviseError("the node is going down")
            told = self.apply(Path(order.config or self._config)) if order.op == "apply" else self._for_one(order)
            self._save()
            return Done(told=told)

    def status(self) -> StatusAnswer:
        """All parts, as they are now."""
        with self._lock:
            members = self._living_members()
            views = tuple(_with_pids(view, members) for view in self.views())
            identity = self._identity
            return StatusAnswer(
                fleet=identity.fleet, node=identity.node, pid=os.getpid(), config=str(self._config), processes=views,
                version=kveik.__version__,
            )  # fmt: skip

    def views(self) -> tuple[ProcessView, ...]:
        """All parts, without their processes but the first of each: cheap to ask for."""
        with self._lock:
            return tuple(keeper.view for keeper in self._keepers.values())

    def apply(self, config: Path) -> str:
        """Change what differs from what the file describes; what that is, for people."""
        parts = self._describe(config, {})
        with self._lock:
            told = [said for part in parts if (said := self._apply_one(part))]
            wanted = {part.name for part in parts}
            for name in [name for name in self._keepers if name not in wanted and name not in self._leaving]:
                self._keepers[name].stop(why="no longer described")
                self._leaving.add(name)
                told.append(f"{name} is being stopped: it is no longer described")
            self._config = config
            self._sort()
        return "; ".join(told) or "nothing to change"

    def down(self, grace_s: float | None = None) -> str:
        """Begin to end everything, kind after kind; with a grace of 0 all at once."""
        with self._lock:
            self._ending = True
            if grace_s is not None and grace_s <= 0:
                for keeper in self._keepers.values():
                    if self._lives(keeper):
                        keeper.stop(0.0, "the node goes down at once")
            return f"node {self._identity.node} is going down"

    def _take_over(self, estate: Iterable[KeptRecord], parts: Sequence[Part]) -> None:
        self._keepers = {part.name: Keeper(part, self._around) for part in parts}
        for record in estate:
            child = Child.adopt(record.process, Path(record.log))
            if child is None:
                continue
            if record.name not in self._keepers:
                self._keepers[record.name] = Keeper(_stranger(record), self._around)
                self._leaving.add(record.name)
            self._keepers[record.name].adopt(record, child)
            if record.name in self._leaving:
                self._keepers[record.name].stop(why="no longer described")
        self._sort()

    def _apply_one(self, part: Part) -> str:
        keeper = self._keepers.get(part.name)
        if keeper is None:
            self._keepers[part.name] = Keeper(part, self._around)
            return f"{part.name} is being started"
        if part.name in self._leaving:
            self._leaving.remove(part.name)
            return keeper.restart("described again", part=part)
        if keeper.held and (keeper.stays_down or keeper.part.digest != part.digest):
            return f"{part.name} is held ({keeper.held}) and left as it is"
        if keeper.part.digest != part.digest:
            return keeper.restart("its description changed", part=part)
        if keeper.stays_down:
            return keeper.start("described to run")
        return ""

    def _for_one(self, order: Order) -> str:
        keeper = self._keepers.get(order.name)
        if keeper is None:
            raise SuperviseError(f"there is no {order.name!r} here; known are {', '.join(self._keepers) or 'none'}")
        if order.op == "start":
            return keeper.start()
        if order.op == "stop":
            return keeper.stop(order.grace_s, order.why or "ordered to stop")
        if order.op == "hold":
            keeper.held = order.why or "held"
            return f"{order.name} is held"
        if order.op == "release":
            keeper.held = ""
            return f"{order.name} is released"
        return keeper.restart(order.why or "ordered to restart", order.grace_s, self._described_anew(order))

    def _described_anew(self, order: Order) -> Part | None:
        if not order.config and not order.settings:
            return None
        described = self._describe(Path(order.config or self._config), {order.name: order.settings})
        for part in described:
            if part.name == order.name:
                return part
        raise SuperviseError(f"{order.config or self._config} no longer describes {order.name!r}")

    def _end_next_stage(self) -> None:
        for kind in END_ORDER:
            living = [k for k in self._keepers.values() if k.part.kind == kind and self._lives(k)]
            for keeper in living:
                if not keeper.ends_for_good:
                    keeper.stop(why="the node goes down")
            if any(self._lives(keeper) for keeper in living):
                return

    def _lives(self, keeper: Keeper) -> bool:
        return keeper.state.has_process or keeper.state is State.WAITING

    def _living_members(self) -> Mapping[int, list[int]]:
        now_s = self._around.clock.monotonic()
        if now_s >= self._members_until_s:
            self._members, self._members_until_s = living_members(), now_s + MEMBERS_S
        return self._members

    def _set_logs_aside(self) -> None:
        logs = {keeper.part.log for keeper in tuple(self._keepers.values())}
        for log in logs | {self._identity.folder.log("supervisor")}:
            set_aside_if_large(log, self._identity.log_bytes_max)

    def _sort(self) -> None:
        names = sorted(self._keepers, key=lambda name: KINDS.index(self._keepers[name].part.kind))
        self._keepers = {name: self._keepers[name] for name in names}

    def _save(self) -> None:
        records = tuple(record for keeper in self._keepers.values() if (record := keeper.record) is not None)
        if records == self._saved:
            return
        try:
            write_estate(self._identity.folder.supervisor, records)
            self._saved = records
        except SuperviseError as error:
            if self._saved is not None:  # once, not with every tick
                logger.warning("%s; another supervisor would not find what runs", error)
            self._saved = None


def _with_pids(view: ProcessView, members: Mapping[int, list[int]]) -> ProcessView:
    if not view.pid:
        return view
    # One that was started since the last look is not among them yet.
    return msgspec.structs.replace(view, pids=tuple(members.get(view.pid, (view.pid,))))


def _stranger(record: KeptRecord) -> Part:
    """A part of which nothing is known but that it runs, and that it must not."""
    return Part(
        name=record.name,
        kind=record.kind,
        variants=(Variant(()),),
        log=Path(record.log),
        readiness=Readiness("running"),
    )
