"""Make blocks readable in the arena: check what is there, bring up what lies in lower tiers.

Several readers may want one block at once; it is fetched once, and the others wait for it.
"""

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass

from kveik.agent.protocol import ABSENT, ARENA
from kveik.clock import Deadline
from kveik.errors import FrameError
from kveik.kv.frame import read_header
from kveik.kv.keys import BlockKey
from kveik.store.arena import Arena
from kveik.store.base import BlockResult, Status
from kveik.store.tiered import LowerTiers
from kveik.store.writer import Writer


@dataclass(frozen=True, slots=True)
class Outcome:
    """One key of a read. With status HIT its slot is pinned, and ``place`` says where it was."""

    status: Status
    slot: int = -1
    place: int = ABSENT
    reason: str = ""


_TIMEOUT = Outcome(Status.FAILED, reason="timeout")
_MISS = Outcome(Status.MISS)


@dataclass(frozen=True, slots=True)
class _Wanted:
    index: int
    key: BlockKey
    payload_bytes: int


class Promoter:
    """Reads for all connections of one agent. Blocks the calling thread, up to the deadline."""

    def __init__(
        self, arena: Arena, lower: LowerTiers, brought_up: Callable[[Sequence[int]], None] = lambda _: None
    ) -> None:
        self._arena = arena
        self._lower = lower
        self._brought_up = brought_up
        self._writer = Writer.of(os.getpid())
        self._lock = threading.Lock()
        self._under_way: dict[BlockKey, Future[Outcome]] = {}

    def read(self, keys: Sequence[BlockKey], payload_bytes: Sequence[int], deadline: Deadline) -> list[Outcome]:
        """One outcome a key. The caller unpins every slot of a HIT."""
        outcomes: dict[int, Outcome] = {}
        wanted = [_Wanted(index, *pair) for index, pair in enumerate(zip(keys, payload_bytes, strict=True))]
        while wanted:
            absent = self._read_present(wanted, outcomes, deadline)
            if absent and not self._lower.names:
                outcomes.update((item.index, _MISS) for item in absent)
            if deadline.passed:
                break
            wanted = [item for item in absent if item.index not in outcomes]
            self._bring_up(wanted, outcomes, deadline)
            wanted = [item for item in wanted if item.index not in outcomes]
        return [outcomes.get(index, _TIMEOUT) for index in range(len(keys))]

    def _read_present(
        self, wanted: Sequence[_Wanted], outcomes: dict[int, Outcome], deadline: Deadline
    ) -> list[_Wanted]:
        """Pin what is in the arena, checking what was never checked; returns what is not there."""
        slots = self._arena.pin([item.key for item in wanted])
        unverified = set(self._arena.unverified_of(slots))
        absent = []
        for item, slot in zip(wanted, slots, strict=True):
            if slot < 0:
                absent.append(item)
            elif self._arena.payload_bytes(slot) != item.payload_bytes:
                outcomes[item.index] = self._unpinned(slot, Outcome(Status.FAILED, reason="foreign"))
            elif slot in unverified and deadline.passed:
                outcomes[item.index] = self._unpinned(slot, _TIMEOUT)
            elif slot in unverified and not self._arena.check(slot):
                outcomes[item.index] = self._unpinned(slot, Outcome(Status.CORRUPT, reason="checksum"))
            else:
                outcomes[item.index] = Outcome(Status.HIT, slot, ARENA)
        return absent

    def _unpinned(self, slot: int, outcome: Outcome) -> Outcome:
        self._arena.unpin([slot])
        return outcome

    def _bring_up(self, wanted: Sequence[_Wanted], outcomes: dict[int, Outcome], deadline: Deadline) -> None:
        """Fetch what nobody fetches yet, and wait for what others fetch."""
        mine: list[_Wanted] = []
        others: list[tuple[_Wanted, Future[Outcome]]] = []
        with self._lock:
            for item in wanted:
                future = self._under_way.get(item.key)
                if future is None:
                    self._under_way[item.key] = Future()
                    mine.append(item)
                else:
                    others.append((item, future))
        if mine:
            self._fetch_mine(mine, outcomes, deadline)
        wait([future for _, future in others], timeout=deadline.remaining_s)
        for item, future in others:
            # A success is pinned in the next round, and what only timed out is tried again there.
            if future.done() and (outcome := future.result()).status is not Status.HIT and outcome != _TIMEOUT:
                outcomes[item.index] = outcome

    def _fetch_mine(self, mine: Sequence[_Wanted], outcomes: dict[int, Outcome], deadline: Deadline) -> None:
        fetched: dict[BlockKey, Outcome] = {}
        try:
            for size in {item.payload_bytes for item in mine}:
                fetched |= self._fetch([item.key for item in mine if item.payload_bytes == size], size, deadline)
        finally:
            with self._lock:
                futures = {item.key: self._under_way.pop(item.key) for item in mine}
            for key, future in futures.items():
                future.set_result(fetched.get(key, _TIMEOUT))
        for item in mine:
            if item.key in fetched:
                outcomes[item.index] = fetched[item.key]

    def _fetch(self, keys: Sequence[BlockKey], payload_bytes: int, deadline: Deadline) -> dict[BlockKey, Outcome]:
        """Bring blocks of one size up; keys that somebody committed meanwhile are left out."""
        reservations = self._arena.reserve(keys, payload_bytes, self._writer)
        outcomes = {
            key: Outcome(Status.FAILED, reason=reservation.reason)
            for key, reservation in zip(keys, reservations, strict=True)
            if reservation.reason not in ("", "exists")
        }
        slots = {key: found.slot for key, found in zip(keys, reservations, strict=True) if not found.reason}
        buffers = [self._arena.view(slot) for slot in slots.values()]
        results = self._lower.fetch(list(slots), None, buffers, deadline)
        for (key, slot), (tier, result) in zip(slots.items(), results, strict=True):
            outcomes[key] = self._settle(slot, key, payload_bytes, tier, result)
        return outcomes

    def _settle(self, slot: int, key: BlockKey, payload_bytes: int, tier: int, result: BlockResult) -> Outcome:
        """Publish, pinned, what was fetched; free the slot of anything else, or keep it from reuse."""
        if result.buffer_busy:
            self._arena.quarantine(slot, lambda: result.buffer_busy)
        elif result.status is not Status.HIT:
            self._arena.abort([slot])
        elif (digest := self._digest(slot, key, payload_bytes)) is None:
            self._arena.abort([slot])
            return Outcome(Status.FAILED, reason="foreign")
        else:
            self._arena.commit([slot], [digest], pin=True)
            self._brought_up([slot])
            return Outcome(Status.HIT, slot, ARENA + 1 + tier)
        return Outcome(result.status, reason=result.reason)

    def _digest(self, slot: int, key: BlockKey, payload_bytes: int) -> bytes | None:
        """The payload's digest as the fetched frame states it; None for another block or length."""
        try:
            header = read_header(self._arena.view(slot))
        except FrameError:
            return None
        same = header.key == key and header.payload_bytes == payload_bytes
        return header.payload_digest if same else None
