"""What joins this node to a Mooncake: the library's processes, the memory they share with us, the master's pages."""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kveik.clock import SYSTEM_CLOCK, Clock
from kveik.config_stores import MooncakeSettings
from kveik.errors import StoreError
from kveik.kv import frame
from kveik.records import Listener, ignore
from kveik.store.apart import SharedMemory
from kveik.store.base import BlockResult, failed
from kveik.store.key_text import KeyTexts
from kveik.store.mooncake_client import Call, MooncakeClient
from kveik.store.mooncake_library import address_of_master, demand_library, host_facing, plan_of
from kveik.store.mooncake_master import MasterPage, MasterSizes, MasterWatch
from kveik.store.staging import Piece, Staging, offset_within


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a frame lies for a transfer: its offset in all shared memory, its bytes, and the detour, if any."""

    at: int
    view: memoryview
    piece: Piece | None = None


def check_settings(settings: MooncakeSettings) -> None:
    """Raises :class:`~kveik.errors.ConfigError` for settings that cannot be meant, or where Mooncake is missing."""
    address_of_master(settings.master)
    KeyTexts(settings.prefix)
    if settings.master_http:
        MasterPage(settings.master_http)
    demand_library()


class MooncakeLink:
    """Joined to the store of ``settings``; buffers within ``memory`` are reached in place, others by a detour.

    Raises what :func:`check_settings` raises, and :class:`~kveik.errors.StoreError` when the store was not
    joined within ``wait_s``. A call that runs for longer than ``hang_s`` costs the process that makes it its life.
    ``part`` begins the names in records. Safe for several threads.
    """

    def __init__(
        self,
        settings: MooncakeSettings,
        memory: SharedMemory | None = None,
        *,
        wait_s: float,
        hang_s: float,
        part: str = "mooncake",
        listener: Listener = ignore,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        check_settings(settings)
        self._settings = settings
        self._memory = memory
        self._part = part
        self.hang_s = hang_s
        self.clock = clock
        self._page = MasterPage(settings.master_http) if settings.master_http else None
        host = settings.host or host_facing(settings.master)
        self._watch = MasterWatch(self._page, host, clock) if self._page is not None else None
        with contextlib.ExitStack() as undo:
            self._staging = Staging(settings.staging_bytes)
            undo.callback(self._staging.close)
            self._lender = self._start_lender(host, listener)
            if self._lender is not None:
                undo.callback(self._lender.close)
                self._lender.wait_ready(wait_s)
            threads = settings.threads + max(1, settings.threads // 2)  # a guard reads with all, and writes with half
            plan = plan_of(settings, host, os.environ, threads=threads)
            self._client = MooncakeClient(
                plan, self._open_memory, part=f"{part}.client", hang_s=hang_s, listener=listener, clock=clock
            )
            undo.callback(self._client.close)
            self._client.wait_ready(wait_s)
            self._undo = undo.pop_all()

    def _start_lender(self, host: str, listener: Listener) -> MooncakeClient | None:
        """Memory is lent by a process without transfers, which therefore is never ended for one that hangs."""
        if not self._settings.segment_bytes:
            return None
        plan = plan_of(self._settings, host, os.environ, lent_bytes=self._settings.segment_bytes)
        return MooncakeClient(plan, list, part=f"{self._part}.segment", listener=listener, clock=self.clock)

    def _open_memory(self) -> list[tuple[int, int]]:
        arena = [(self._memory.open_file(), len(self._memory.view))] if self._memory is not None else []
        return [*arena, (os.dup(self._staging.fd), self._staging.size)]

    def __repr__(self) -> str:
        return f"MooncakeLink({self._settings.master!r}, {self._client!r}, {self._staging!r})"

    @property
    def ready(self) -> bool:
        """Whether requests can be made now."""
        return self._client.ready

    @property
    def why_not(self) -> str:
        """Why it is not ready, in words."""
        return self._client.why_not

    @property
    def host_pid(self) -> int:
        """The process that makes the transfers; 0 while there is none."""
        return self._client.pid

    def ask(self, op: str, names: Sequence[str], **fields: Any) -> Call | None:
        """Make a request for these names; None while no process is ready for it."""
        return self._client.ask(op, keys=list(names), **fields)

    def move(self, op: str, names: Sequence[str], spots: Sequence[Spot]) -> Call | None:
        """Start a transfer, ``get`` or ``put``, between the spots and the store; None as for :meth:`ask`."""
        sizes = [len(spot.view) for spot in spots]
        prefer = self._preferred() if op == "put" else []
        return self.ask(op, names, at=[spot.at for spot in spots], sizes=sizes, prefer=prefer)

    def _preferred(self) -> list[str]:
        """The segments on this node, to put into first; none if that is not wanted, or none are known."""
        if not self._settings.prefer_local:
            return []
        own = [self._lender.segment] if self._lender is not None and self._lender.segment else []
        return own or (self._watch.segments if self._watch is not None else [])

    def spot(self, buffer: memoryview) -> Spot | BlockResult:
        """Where the library's process finds this buffer, or why it can't. To be given back with :meth:`give`."""
        if len(buffer) < frame.HEADER_BYTES:
            return failed("too_large", f"a buffer of {len(buffer)} bytes holds no frame")
        start = 0
        if self._memory is not None:
            offset = offset_within(self._memory.view, buffer)
            if offset is not None:
                return Spot(offset, buffer)
            start = len(self._memory.view)
        piece = self._staging.take(len(buffer))
        if piece is None:
            return failed("busy", f"no {len(buffer)} bytes of mooncake.staging_bytes are free")
        return Spot(start + piece.offset, piece.view, piece)

    def give(self, spot: Spot, still_running: Callable[[], bool]) -> None:
        """Give a spot back; nobody else gets its memory before ``still_running`` is false."""
        if spot.piece is not None:
            self._staging.give(spot.piece, still_running)

    @property
    def sizes(self) -> MasterSizes | None:
        """What all of the store holds, if the master tells it; never waits."""
        return self._watch.sizes if self._watch is not None else None

    @property
    def why_no_sizes(self) -> str:
        """Why :attr:`sizes` is None, in words."""
        return self._watch.trouble if self._watch is not None else "mooncake.master_http is not set"

    def all_names(self) -> Iterator[list[str]]:
        """The names of everything in the store, in portions. Raises :class:`StoreError`, also while iterating."""
        if self._page is None:
            raise StoreError(f"the {self._part} tier cannot say which blocks it has: mooncake.master_http is not set")
        return self._page.lines("/get_all_keys")

    def close(self) -> None:
        """End the processes. Memory that this node lent is gone from the store. Safe to repeat."""
        self._undo.close()
