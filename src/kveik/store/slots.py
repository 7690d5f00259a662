"""The arena's slots: which are free, how old their blocks are, and which slab has which size.

Not locked: :class:`kveik.store.arena.Arena` calls it under its own lock.
"""

from collections.abc import Iterator
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from kveik.kv.frame import HEADER_BYTES, MAGIC
from kveik.kv.keys import BlockKey
from kveik.store import eviction
from kveik.store.arena_file import ArenaFile
from kveik.store.arena_layout import RECORD_COMMITTED, RECORD_FREE, RECORD_WRITING
from kveik.store.writer import Writer

_NO_MAGIC = bytes(len(MAGIC))
#: Touches of one block are counted up to this.
TOUCHES_MAX = 255


class SlotState(IntEnum):
    """What a slot is used for."""

    FREE = 0
    RESERVED = 1  # a writer fills it
    COMMITTED = 2  # holds a block
    UNVERIFIED = 3  # holds a block of an earlier agent whose checksum was not compared yet
    DOOMED = 4  # its block is given up; free when the last pin goes
    QUARANTINED = 5  # somebody who lost the right to write may still be writing


class Slab:
    """One slab that has been given to a slot size. ``keys`` are the blocks by slot index."""

    def __init__(self, number: int, first_slot: int, slot_bytes: int, count: int, offset: int) -> None:
        self.number = number
        self.first_slot = first_slot
        self.slot_bytes = slot_bytes
        self.count = count
        self.offset = offset
        self.keys: list[BlockKey | None] = [None] * count
        self.used = 0
        self._fresh = 0  # slots from here on were never used
        self._recycled: list[int] = []

    def __repr__(self) -> str:
        return f"Slab({self.number}, {self.used}/{self.count} slots of {self.slot_bytes} bytes)"

    def take(self) -> int | None:
        """A free slot number, now used; None if all are used."""
        if self._recycled:
            index = self._recycled.pop()
        elif self._fresh < self.count:
            index = self._fresh
            self._fresh += 1
        else:
            return None
        self.used += 1
        return self.first_slot + index

    def give_back(self, slot: int) -> None:
        """The slot is free again."""
        self.keys[slot - self.first_slot] = None
        self._recycled.append(slot - self.first_slot)
        self.used -= 1

    def restore(self, used: list[int]) -> None:
        """Take exactly these slot indices; the others are free."""
        taken = set(used)
        self._fresh = self.count
        self._recycled = [index for index in reversed(range(self.count)) if index not in taken]
        self.used = len(taken)

    @property
    def slots(self) -> slice:
        """This slab's part of the per-slot arrays."""
        return slice(self.first_slot, self.first_slot + self.count)


class SlotTable:
    """Per-slot arrays, indexed by slot number, and the slabs by slot size.

    The arrays cover every slot number that could ever exist, but the kernel backs only the
    pages that are touched, so large slots cost a few dozen bytes each.
    """

    def __init__(self, file: ArenaFile) -> None:
        self.file = file
        self.layout = file.layout
        numbers = self.layout.slab_count * self.layout.stride
        self.state: NDArray[np.uint8] = np.zeros(numbers, np.uint8)
        self.pins: NDArray[np.int32] = np.zeros(numbers, np.int32)
        self.last_use: NDArray[np.int64] = np.zeros(numbers, np.int64)
        self.payload_bytes: NDArray[np.int64] = np.zeros(numbers, np.int64)
        self.touches: NDArray[np.uint8] = np.zeros(numbers, np.uint8)
        self.given_down: NDArray[np.bool_] = np.zeros(numbers, np.bool_)
        self.slabs: dict[int, Slab] = {}
        self.by_size: dict[int, dict[int, Slab]] = {}
        self.free_slabs = list(reversed(range(self.layout.slab_count)))
        self._now = 0

    # -- places -----------------------------------------------------------------------------

    def slab_of(self, slot: int) -> Slab:
        """The slab that this slot lies in."""
        return self.slabs[slot // self.layout.stride]

    def offset(self, slot: int) -> int:
        """Where the slot's frame starts in the arena."""
        slab = self.slab_of(slot)
        return slab.offset + (slot - slab.first_slot) * slab.slot_bytes

    def view(self, slot: int) -> memoryview:
        """The slot's frame: header page and payload."""
        start = self.offset(slot)
        return self.file.view[start : start + HEADER_BYTES + int(self.payload_bytes[slot])]

    def key(self, slot: int) -> BlockKey:
        """The block that the slot holds or is reserved for."""
        slab = self.slab_of(slot)
        key = slab.keys[slot - slab.first_slot]
        if key is None:
            raise LookupError(f"slot {slot} is free")
        return key

    # -- taking and freeing -----------------------------------------------------------------

    def take(self, slot_bytes: int, count: int) -> list[int]:
        """Up to ``count`` free slots of this size, from free slabs if its own are full."""
        slots: list[int] = []
        if count == 0:  # an empty slab must not be given to this size for nothing
            return slots
        for slab in self._slabs_with_room(slot_bytes):
            while len(slots) < count and (slot := slab.take()) is not None:
                slots.append(slot)
            if len(slots) == count:
                break
        return slots

    def _slabs_with_room(self, slot_bytes: int) -> Iterator[Slab]:
        for slab in list(self.by_size.get(slot_bytes, {}).values()):
            if slab.used < slab.count:
                yield slab
        while self.free_slabs:
            yield self.assign(self.free_slabs.pop(), slot_bytes)

    def assign(self, number: int, slot_bytes: int) -> Slab:
        """Give a free slab to a slot size. Its records are cleared before the table names it."""
        count = self.layout.slots_in_slab(slot_bytes)
        self.file.records(number, count)[:] = 0
        self.file.slab_table[number] = slot_bytes
        return self.adopt(number, slot_bytes)

    def adopt(self, number: int, slot_bytes: int) -> Slab:
        """Know a slab whose table entry and records are right already."""
        layout = self.layout
        count = layout.slots_in_slab(slot_bytes)
        offset = layout.first_slot_offset(number, slot_bytes)
        slab = Slab(number, number * layout.stride, slot_bytes, count, offset)
        self.slabs[number] = slab
        self.by_size.setdefault(slot_bytes, {})[number] = slab
        return slab

    def mark_reserved(self, slot: int, key: BlockKey, payload_bytes: int, writer: Writer) -> None:
        """The slot is being written for this key by this writer; readers can see its reuse."""
        slab = self.slab_of(slot)
        index = slot - slab.first_slot
        slab.keys[index] = key
        self.state[slot] = SlotState.RESERVED
        self.touches[slot], self.given_down[slot] = 0, False
        self.payload_bytes[slot] = payload_bytes
        self._clear_magic(slot)
        self.file.records(slab.number, slab.count)[index] = (
            RECORD_WRITING, writer.pid, writer.started, writer.connection, 0,
        )  # fmt: skip

    def mark_committed(self, slot: int) -> None:
        """The slot's header page is written: let a later agent find the block."""
        slab = self.slab_of(slot)
        self.state[slot] = SlotState.COMMITTED
        self.file.records(slab.number, slab.count)["state"][slot - slab.first_slot] = RECORD_COMMITTED

    def mark_doomed(self, slot: int) -> None:
        """The slot's block is given up while somebody still reads it: a later agent must not find it."""
        slab = self.slab_of(slot)
        self.state[slot] = SlotState.DOOMED
        self.file.records(slab.number, slab.count)["state"][slot - slab.first_slot] = RECORD_FREE

    def free(self, slot: int) -> None:
        """The slot holds nothing any more; an empty slab returns to the pool."""
        slab = self.slab_of(slot)
        self.file.records(slab.number, slab.count)["state"][slot - slab.first_slot] = RECORD_FREE
        self._clear_magic(slot)
        self.state[slot] = SlotState.FREE
        self.pins[slot] = 0
        slab.give_back(slot)
        if slab.used == 0:
            self.release_slab(slab)

    def release_slab(self, slab: Slab) -> None:
        """An empty slab has no slot size any more."""
        self.file.slab_table[slab.number] = 0
        del self.slabs[slab.number]
        del self.by_size[slab.slot_bytes][slab.number]
        if not self.by_size[slab.slot_bytes]:
            del self.by_size[slab.slot_bytes]
        self.free_slabs.append(slab.number)

    def _clear_magic(self, slot: int) -> None:
        start = self.offset(slot)
        self.file.view[start : start + len(_NO_MAGIC)] = _NO_MAGIC

    # -- age --------------------------------------------------------------------------------

    def touch(self, slots: NDArray[np.int64]) -> None:
        """These slots were used by one request, in its order."""
        self._now += len(slots)
        self.last_use[slots] = self._now - np.arange(len(slots))

    def asked_for(self, slots: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """One more request asks for these blocks.

        Gives those that are sound and were not given to lower tiers yet, and those that were, when asked for first.
        """
        self.touches[slots] += self.touches[slots] < TOUCHES_MAX
        sound = slots[self.state[slots] == SlotState.COMMITTED]
        given = self.given_down[sound]
        return sound[~given], sound[given & (self.touches[sound] == 1)]

    def victims(self, slot_bytes: int, needed: int) -> list[int]:
        """Slots of this size to evict so that ``needed`` become free, oldest first."""
        slabs = list(self.by_size.get(slot_bytes, {}).values())
        if not slabs:
            return []
        numbers = np.concatenate([np.arange(slab.slots.start, slab.slots.stop) for slab in slabs])
        use, evictable = self.last_use[numbers], self._evictable(numbers)
        chosen = eviction.oldest(use, evictable, eviction.batch_size(needed, len(use)))
        return [int(number) for number in numbers[chosen]]

    def slab_uses(self, other_than: int) -> list[eviction.SlabUse]:
        """The slabs of all other slot sizes, as the choice of one to reclaim sees them."""
        uses = []
        for slab in self.slabs.values():
            if slab.slot_bytes != other_than:
                holds = self.state[slab.slots] != SlotState.FREE
                whole = bool(np.all(self._evictable(slab.slots) == holds))
                mean = float(self.last_use[slab.slots][holds].mean()) if slab.used else 0.0
                uses.append(eviction.SlabUse(slab.number, mean, whole))
        return uses

    def _evictable(self, slots: slice | NDArray[np.int64]) -> NDArray[np.bool_]:
        state = self.state[slots]
        holds_block = (state == SlotState.COMMITTED) | (state == SlotState.UNVERIFIED)
        return np.asarray(holds_block & (self.pins[slots] == 0))
