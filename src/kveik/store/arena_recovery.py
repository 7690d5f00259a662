"""Rebuild the index from what an earlier agent left in the arena.

A block counts only where the slot record says *committed* and the frame header is sound. Its
payload is not read here, which would take as long as reading the whole memory: the checksum is
compared before the block is served for the first time.
"""

import time
from dataclasses import dataclass, field

import numpy as np

from kveik.errors import FrameError, KeyFormatError
from kveik.kv.frame import HEADER_BYTES, HEADER_USED_BYTES, FrameHeader, read_header
from kveik.kv.keys import BlockKey
from kveik.store.arena_file import ArenaFile
from kveik.store.arena_layout import MIN_SLOT_BYTES, PAGE_BYTES, RECORD_COMMITTED, RECORD_FREE, RECORD_WRITING
from kveik.store.slots import Slab, SlotState, SlotTable
from kveik.store.writer import Writer


@dataclass(slots=True)
class Recovered:
    """What was found: blocks by slot, slots that may still be written, and how long the search took."""

    blocks: list[tuple[BlockKey, int]] = field(default_factory=list)
    being_written: list[tuple[int, Writer]] = field(default_factory=list)
    unusable: int = 0
    seconds: float = 0.0


def recover(file: ArenaFile, table: SlotTable) -> Recovered:
    """Find all blocks and put their slots into ``table``; everything else becomes free."""
    start_s = time.perf_counter()
    found = Recovered()
    ages: list[tuple[float, int]] = []
    known: set[bytes] = set()
    for number, slot_bytes in enumerate(file.slab_table.tolist()):
        if slot_bytes == 0:
            continue
        if not _plausible(file, slot_bytes):
            file.slab_table[number] = 0
            found.unusable += 1
            continue
        table.free_slabs.remove(number)
        slab = table.adopt(number, slot_bytes)
        _recover_slab(file, table, slab, found, ages, known)
        if slab.used == 0:
            table.release_slab(slab)
    for _, slot in sorted(ages):
        table.touch(np.array([slot]))
    found.seconds = time.perf_counter() - start_s
    return found


def _plausible(file: ArenaFile, slot_bytes: int) -> bool:
    aligned = slot_bytes % PAGE_BYTES == 0 and slot_bytes >= MIN_SLOT_BYTES
    return aligned and file.layout.slots_in_slab(slot_bytes) > 0


def _recover_slab(
    file: ArenaFile, table: SlotTable, slab: Slab, found: Recovered, ages: list[tuple[float, int]], known: set[bytes]
) -> None:
    used: list[int] = []
    records = file.records(slab.number, slab.count)
    for index in np.flatnonzero(records["state"] != RECORD_FREE).tolist():
        slot = slab.first_slot + index
        state, pid, started, connection, _ = records[index].item()
        if state == RECORD_COMMITTED and (header := _header(file, slab, index)) and header.key not in known:
            slab.keys[index] = header.key
            table.state[slot] = SlotState.UNVERIFIED
            table.payload_bytes[slot] = header.payload_bytes
            known.add(header.key)
            ages.append((header.written_at_s, slot))
            found.blocks.append((header.key, slot))
        elif state == RECORD_WRITING and _may_be_written(writer := Writer(pid, started, connection)):
            table.state[slot] = SlotState.QUARANTINED
            found.being_written.append((slot, writer))
        else:
            found.unusable += state != RECORD_WRITING
            records["state"][index] = RECORD_FREE
            continue
        used.append(index)
    slab.restore(used)


def _may_be_written(writer: Writer) -> bool:
    return writer.pid == 0 or writer.may_still_write()


def _header(file: ArenaFile, slab: Slab, index: int) -> FrameHeader | None:
    start = slab.offset + index * slab.slot_bytes
    try:
        header = read_header(file.view[start : start + HEADER_USED_BYTES])
    except (FrameError, KeyFormatError):
        return None
    return header if HEADER_BYTES + header.payload_bytes <= slab.slot_bytes else None
