"""The DRAM tier: a shared-memory arena that survives its agent.

An arena knows slots, not sockets. Every method is safe from several threads; payloads are copied
and digested by the callers, outside the lock. A block is written by ``reserve``, filling
``view``, and ``commit``; it is read by ``pin``, reading ``view``, and ``unpin``.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from kveik.clock import SYSTEM_CLOCK, Clock
from kveik.errors import FrameError
from kveik.kv.frame import HEADER_USED_BYTES, FrameHeader, verify
from kveik.kv.keys import NAMESPACE_BYTES, BlockKey
from kveik.records import EvictionRecord, FailureRecord, Listener, ignore
from kveik.store import eviction
from kveik.store.arena_file import ArenaFile
from kveik.store.arena_layout import slot_bytes_for
from kveik.store.arena_recovery import Recovered, recover
from kveik.store.quarantine import Quarantine
from kveik.store.slots import SlotState, SlotTable
from kveik.store.writer import Writer


@dataclass(frozen=True, slots=True)
class Reservation:
    """A slot to write into, or why there is none (``exists``, ``busy``, ``no_room``, ``too_large``)."""

    slot: int = -1
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ArenaStats:
    """Sizes of an arena now. ``by_namespace`` gives (blocks, payload bytes) by namespace digest."""

    arena_bytes: int
    slab_bytes: int
    slabs: int
    free_slabs: int
    slabs_by_slot_bytes: dict[int, int]
    blocks: int
    payload_bytes: int
    unverified: int
    pinned: int
    reserved: int
    quarantined: int
    evicted: int
    by_namespace: dict[bytes, tuple[int, int]]


class Arena:
    """Index and life of the slots in one :class:`ArenaFile`.

    Blocks that an earlier agent left are there at once, as *unverified*: ``pin`` gives them out
    only to callers that promise to ``check`` them first (see ``unverified_of``).
    """

    def __init__(self, file: ArenaFile, *, listener: Listener = ignore, clock: Clock = SYSTEM_CLOCK) -> None:
        self.file = file
        self._listener = listener
        self._clock = clock
        self._lock = threading.Lock()
        self._table = SlotTable(file)
        self._index: dict[bytes, int] = {}
        self._writing: dict[bytes, int] = {}
        self._writers: dict[int, Writer] = {}
        self._quarantine: dict[int, Quarantine] = {}
        self._by_namespace: dict[bytes, tuple[int, int]] = {}
        self._unverified: set[int] = set()
        self._evicted = 0
        self.recovered = self._take_over(recover(file, self._table))

    def _take_over(self, found: Recovered) -> Recovered:
        now_s = self._clock.monotonic()
        for key, slot in found.blocks:
            self._add_to_index(key, slot)
            self._unverified.add(slot)
        for slot, writer in found.being_written:
            self._quarantine[slot] = Quarantine(now_s, writer=writer)
        return found

    # -- writing ----------------------------------------------------------------------------

    def reserve(self, keys: Sequence[BlockKey], payload_bytes: int, writer: Writer) -> list[Reservation]:
        """A slot for each new key, evicting old blocks if needed.

        ``exists``: the block is there; ``busy``: somebody is writing it; ``no_room``: everything
        is in use; ``too_large``: no slab can hold such a block.
        """
        slot_bytes = slot_bytes_for(payload_bytes)
        if self._table.layout.slots_in_slab(slot_bytes) == 0:
            return [Reservation(reason="too_large")] * len(keys)
        evicted: list[tuple[bytes, int]] = []
        with self._lock:
            present = [self._index[key] for key in keys if key in self._index]
            absent = {key for key in keys if key not in self._index and key not in self._writing}
            self._table.touch(np.asarray(present, np.int64))
            with self._kept(present):  # what the writer need not write must not go to make room for the rest
                free = iter(self._make_room(slot_bytes, len(absent), evicted))
            answers = [self._reserve_one(key, payload_bytes, writer, free) for key in keys]
        self._tell_evicted(evicted)
        return answers

    @contextmanager
    def _kept(self, slots: Sequence[int]) -> Iterator[None]:
        for slot in slots:
            self._table.pins[slot] += 1
        try:
            yield
        finally:
            for slot in slots:
                self._table.pins[slot] -= 1

    def _reserve_one(self, key: BlockKey, payload_bytes: int, writer: Writer, free: Iterable[int]) -> Reservation:
        if key in self._index:
            return Reservation(reason="exists")
        if key in self._writing:
            return Reservation(reason="busy")
        slot = next(iter(free), None)
        if slot is None:
            return Reservation(reason="no_room")
        self._table.mark_reserved(slot, key, payload_bytes, writer)
        self._writing[key] = slot
        self._writers[slot] = writer
        return Reservation(slot)

    def _make_room(self, slot_bytes: int, count: int, evicted: list[tuple[bytes, int]]) -> list[int]:
        slots = self._table.take(slot_bytes, count)
        while len(slots) < count and self._evict_for(slot_bytes, count - len(slots), evicted):
            slots += self._table.take(slot_bytes, count - len(slots))
        return slots

    def _evict_for(self, slot_bytes: int, needed: int, evicted: list[tuple[bytes, int]]) -> bool:
        """Free some slots of this size, or a slab for it; False if nothing may go."""
        table = self._table
        victims = table.victims(slot_bytes, needed)
        own_use = float(table.last_use[victims].mean()) if victims else None
        slab = eviction.slab_to_reclaim(table.slab_uses(slot_bytes), own_use)
        if slab is not None:
            part = table.slabs[slab]
            victims = [part.first_slot + index for index, key in enumerate(part.keys) if key is not None]
        for slot in victims:
            evicted.append((table.key(slot), int(table.payload_bytes[slot])))
            self._remove_from_index(slot)
            table.free(slot)
        return bool(victims)

    def _tell_evicted(self, evicted: Sequence[tuple[bytes, int]]) -> None:
        if evicted:
            self._evicted += len(evicted)
            keys = tuple(key for key, _ in evicted)
            self._listener(EvictionRecord("arena", len(evicted), sum(size for _, size in evicted), keys))

    def commit(self, slots: Sequence[int], digests: Sequence[bytes], *, pin: bool = False) -> None:
        """Publish reserved slots whose payload is complete and has this digest (xxh3_128).

        With ``pin`` they are pinned from the first moment on.
        """
        table = self._table
        written_at_s = self._clock.wall()
        with self._lock:
            for slot, digest in zip(slots, digests, strict=True):
                key = table.key(slot)
                header = FrameHeader(key, int(table.payload_bytes[slot]), digest, written_at_s)
                start = table.offset(slot)
                self.file.view[start : start + HEADER_USED_BYTES] = header.pack()
                table.mark_committed(slot)
                self._end_writing(slot, key)
                self._add_to_index(key, slot)
                table.pins[slot] = int(pin)
            table.touch(np.asarray(slots, np.int64))

    def abort(self, slots: Iterable[int]) -> None:
        """Give up reserved slots that nobody writes into any more."""
        with self._lock:
            for slot in slots:
                self._end_writing(slot, self._table.key(slot))
                self._table.free(slot)

    def orphan(self, slots: Iterable[int]) -> None:
        """Give up reserved slots whose writer lost its connection: free when it cannot write any more."""
        with self._lock:
            for slot in slots:
                writer = self._end_writing(slot, self._table.key(slot))
                self._set_aside(slot, Quarantine(self._clock.monotonic(), writer=writer))
        self.sweep()

    def quarantine(self, slot: int, still_running: Callable[[], bool]) -> None:
        """Give up a reserved slot that a store may still write into until ``still_running`` is false."""
        with self._lock:
            self._end_writing(slot, self._table.key(slot))
            self._set_aside(slot, Quarantine(self._clock.monotonic(), running=still_running))

    def _end_writing(self, slot: int, key: BlockKey) -> Writer | None:
        self._writing.pop(key, None)
        return self._writers.pop(slot, None)

    def _set_aside(self, slot: int, reason: Quarantine) -> None:
        self._table.state[slot] = SlotState.QUARANTINED
        self._quarantine[slot] = reason

    def settle(self, connections: Iterable[int]) -> int:
        """These connections ended and their process has no copy under way: free their slots."""
        ended = set(connections) - {0}
        with self._lock:
            slots = [s for s, q in self._quarantine.items() if q.writer and q.writer.connection in ended]
            self._end_quarantine(slots)
        return len(slots)

    def sweep(self) -> int:
        """Free quarantined slots that nobody can write into any more; how many were freed."""
        now_s = self._clock.monotonic()
        with self._lock:
            waiting = list(self._quarantine.items())
        over = [(slot, reason) for slot, reason in waiting if reason.over(now_s)]  # reads /proc: not under the lock
        with self._lock:
            slots = [slot for slot, reason in over if self._quarantine.get(slot) is reason]
            self._end_quarantine(slots)
        return len(slots)

    def _end_quarantine(self, slots: Sequence[int]) -> None:
        for slot in slots:
            del self._quarantine[slot]
            self._table.free(slot)

    # -- reading ----------------------------------------------------------------------------

    def locate(self, keys: Sequence[bytes]) -> list[int]:
        """The slot of each packed key, -1 where it is absent. Counts as a use."""
        with self._lock:
            return self._locate(keys)

    def _locate(self, keys: Sequence[bytes]) -> list[int]:
        get = self._index.get
        slots = [get(key, -1) for key in keys]
        found = np.array(slots, np.int64)
        self._table.touch(found[found >= 0])
        return slots

    def holds(self, keys: Sequence[bytes]) -> list[bool]:
        """Whether each packed key is there. Counts as no use."""
        with self._lock:
            return [key in self._index for key in keys]

    def pin(self, keys: Sequence[bytes]) -> list[int]:
        """Like ``locate``, and no slot that was found is evicted or reused before its ``unpin``."""
        with self._lock:
            slots = self._locate(keys)
            for slot in slots:
                if slot >= 0:
                    self._table.pins[slot] += 1
            return slots

    def unpin(self, slots: Iterable[int]) -> None:
        """Take one pin off each slot."""
        table = self._table
        with self._lock:
            for slot in slots:
                table.pins[slot] -= 1
                if table.state[slot] == SlotState.DOOMED and table.pins[slot] == 0:
                    table.free(slot)

    def asked_for(self, slots: Sequence[int]) -> tuple[list[int], list[BlockKey]]:
        """One more request asks for the blocks in these slots (-1: none), which may hold others by now.

        Gives, pinned, the slots whose blocks lower tiers may get now: they count as given to them until
        :meth:`not_given`. And the keys of those that were given before, and are asked for the first time since.
        """
        asked = np.unique(np.asarray(slots, np.int64))
        with self._lock:
            wanted, given = self._table.asked_for(asked[asked >= 0])
            self._table.given_down[wanted] = True
            self._table.pins[wanted] += 1
            return [int(slot) for slot in wanted], [self._table.key(int(slot)) for slot in given]

    def to_give(self, slots: Sequence[int]) -> None:
        """Pinned slots of new blocks are given to lower tiers."""
        with self._lock:
            self._table.given_down[list(slots)] = True

    def not_given(self, slots: Sequence[int]) -> None:
        """No lower tier took the blocks in these pinned slots: they are offered again when they are asked for again."""
        with self._lock:
            self._table.given_down[list(slots)] = False

    def view(self, slot: int) -> memoryview:
        """The frame in a slot that is pinned or reserved by the caller."""
        return self._table.view(slot)

    def offset(self, slot: int) -> int:
        """Where that frame starts in the arena."""
        return self._table.offset(slot)

    def key(self, slot: int) -> BlockKey:
        """The block in that slot."""
        return self._table.key(slot)

    def payload_bytes(self, slot: int) -> int:
        """Length of that frame's payload."""
        return int(self._table.payload_bytes[slot])

    # -- checking ---------------------------------------------------------------------------

    def unverified_of(self, slots: Iterable[int]) -> list[int]:
        """Those slots whose block an earlier agent left and nobody compared with its checksum yet."""
        return [slot for slot in slots if slot in self._unverified] if self._unverified else []

    def some_unverified(self, limit: int) -> list[bytes]:
        """Keys of up to ``limit`` blocks that are still unverified."""
        with self._lock:
            slots = [slot for slot, _ in zip(self._unverified, range(limit), strict=False)]
            return [self._table.key(slot) for slot in slots]

    def doubt(self, keys: Sequence[bytes]) -> None:
        """A reader found these blocks wrong: nobody gets them again before they are checked."""
        with self._lock:
            for key in keys:
                slot = self._index.get(key, -1)
                if slot >= 0 and self._table.state[slot] == SlotState.COMMITTED:
                    self._table.state[slot] = SlotState.UNVERIFIED
                    self._unverified.add(slot)

    def check(self, slot: int) -> bool:
        """Compare a pinned slot with its checksum; a block that is wrong is given up and reported."""
        key = self._table.key(slot)
        try:
            verify(self._table.view(slot), key, self.payload_bytes(slot))
        except FrameError:
            if self._discard(slot, key):
                self._listener(FailureRecord("arena", "get", "corrupt", "checksum", 1))
            return False
        with self._lock:
            if self._table.state[slot] == SlotState.UNVERIFIED:
                self._table.state[slot] = SlotState.COMMITTED
            self._unverified.discard(slot)
        return True

    def _discard(self, slot: int, key: BlockKey) -> bool:
        with self._lock:
            if self._index.get(key) != slot:
                return False
            self._doom(slot)
            return True

    def _doom(self, slot: int) -> None:
        self._remove_from_index(slot)
        if self._table.pins[slot] > 0:
            self._table.mark_doomed(slot)
        else:
            self._table.free(slot)

    # -- dropping ---------------------------------------------------------------------------

    def drop(self, keys: Sequence[bytes]) -> list[str]:
        """Forget blocks: ``deleted``, ``busy`` (pinned; kept) or ``miss`` for each key."""
        with self._lock:
            return [self._drop(key) for key in keys]

    def _drop(self, key: bytes) -> str:
        slot = self._index.get(key)
        if slot is None:
            return "miss"
        if self._table.pins[slot] > 0:
            return "busy"
        self._doom(slot)
        return "deleted"

    def drop_namespace(self, namespace: bytes) -> int:
        """Forget all blocks of one namespace, or all (empty digest); pinned ones as soon as they are unpinned."""
        with self._lock:
            slots = [slot for key, slot in self._index.items() if key.startswith(namespace)]
            for slot in slots:
                self._doom(slot)
        return len(slots)

    def keys(self, namespace: bytes = b"") -> list[BlockKey]:
        """The blocks of one namespace, or all."""
        with self._lock:
            slots = [slot for key, slot in self._index.items() if key.startswith(namespace)]
            return [self._table.key(slot) for slot in slots]

    # -- index and sizes --------------------------------------------------------------------

    def _add_to_index(self, key: BlockKey, slot: int) -> None:
        self._index[key] = slot
        namespace = key[:NAMESPACE_BYTES]
        blocks, size = self._by_namespace.get(namespace, (0, 0))
        self._by_namespace[namespace] = (blocks + 1, size + int(self._table.payload_bytes[slot]))

    def _remove_from_index(self, slot: int) -> None:
        key = self._table.key(slot)
        del self._index[key]
        self._unverified.discard(slot)
        namespace = key[:NAMESPACE_BYTES]
        blocks, size = self._by_namespace[namespace]
        if blocks == 1:
            del self._by_namespace[namespace]
        else:
            self._by_namespace[namespace] = (blocks - 1, size - int(self._table.payload_bytes[slot]))

    def stats(self) -> ArenaStats:
        """Sizes now."""
        table, layout = self._table, self._table.layout
        with self._lock:
            return ArenaStats(
                arena_bytes=layout.arena_bytes,
                slab_bytes=layout.slab_bytes,
                slabs=layout.slab_count,
                free_slabs=len(table.free_slabs),
                slabs_by_slot_bytes={size: len(slabs) for size, slabs in table.by_size.items()},
                blocks=len(self._index),
                payload_bytes=sum(size for _, size in self._by_namespace.values()),
                unverified=len(self._unverified),
                pinned=sum(int(np.count_nonzero(table.pins[slab.slots])) for slab in table.slabs.values()),
                reserved=len(self._writing),
                quarantined=len(self._quarantine),
                evicted=self._evicted,
                by_namespace=dict(self._by_namespace),
            )

    def __repr__(self) -> str:
        stats = self.stats()
        return f"Arena({stats.blocks} blocks, {stats.pinned} pinned, {stats.free_slabs}/{stats.slabs} slabs free)"

    def close(self) -> None:
        """Unmap and unlock; what is committed stays for the next agent."""
        self.file.close()
