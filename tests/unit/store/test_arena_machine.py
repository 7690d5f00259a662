"""The arena under any order of calls and restarts, against a plain model: a dict of what must be readable.

The model decides nothing about eviction. It says which blocks may be there, which must be (pinned
ones), and what their bytes are; the arena may lose an unpinned block, and never give a wrong one.
"""

import os
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kveik.clock import FakeClock
from kveik.kv.frame import HEADER_BYTES, payload_digest
from kveik.kv.keys import BlockKey
from kveik.records import EvictionRecord, Record
from kveik.store.arena import Arena
from kveik.store.arena_file import ArenaRequest, open_arena_file
from kveik.store.writer import Writer
from tests.agents import payload_of

KIB = 1 << 10
SLAB_BYTES = 128 * KIB
SLABS = 3
SIZES = (4 * KIB, 12 * KIB, 60 * KIB)
NAMESPACES = (b"a" * 16, b"b" * 16)
#: The same few keys come again and again, so that calls meet; a key always has the same size.
KEYS = [
    BlockKey.of(NAMESPACES[number % 2], number.to_bytes(1, "little") * 32, group=number % 3) for number in range(24)
]
WRITER = Writer.of(os.getpid(), 77)


def size_of(key: BlockKey) -> int:
    return SIZES[key.group]


class ArenaMachine(RuleBasedStateMachine):
    """One arena file, its agents one after the other, and the model."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="arena-machine-")
        self.records: list[Record] = []
        self.clock = FakeClock()
        self.readable: set[BlockKey] = set()
        self.writing: dict[BlockKey, int] = {}
        self.pinned: list[tuple[BlockKey, int]] = []
        self.doomed: set[int] = set()
        self.orphaned = 0
        self.arena = self.open()

    def open(self) -> Arena:
        request = ArenaRequest(str(Path(self.folder.name) / "arena"), SLABS * SLAB_BYTES + 8 * KIB, SLAB_BYTES)
        return Arena(open_arena_file(request), listener=self.records.append, clock=self.clock)

    def is_pinned(self, key: BlockKey) -> bool:
        """Whether the block that can be found is pinned; pins of its doomed forerunners do not count."""
        return any(key == pinned and slot not in self.doomed for pinned, slot in self.pinned)

    # -- writing --------------------------------------------------------------------------------

    @rule(numbers=st.lists(st.integers(0, len(KEYS) - 1), min_size=1, max_size=6), group=st.integers(0, 2))
    def reserve(self, numbers: list[int], group: int) -> None:
        keys = [key for key in (KEYS[number] for number in numbers) if key.group == group]
        before = set(self.arena.keys())
        for key, answer in zip(keys, self.arena.reserve(keys, SIZES[group], WRITER), strict=True):
            if answer.slot >= 0:
                assert key not in before
                assert key not in self.writing
                self.writing[key] = answer.slot
            elif answer.reason == "exists":
                assert key in before
            elif answer.reason == "busy":
                assert key in self.writing
            else:
                assert answer.reason == "no_room"
        self.forget_evicted()

    @precondition(lambda self: self.writing)
    @rule(data=st.data(), pin=st.booleans())
    def commit(self, data: st.DataObject, pin: bool) -> None:
        keys = data.draw(st.lists(st.sampled_from(sorted(self.writing)), unique=True, min_size=1))
        slots = [self.writing.pop(key) for key in keys]
        for key, slot in zip(keys, slots, strict=True):
            self.arena.view(slot)[HEADER_BYTES:] = payload_of(key, size_of(key))
        self.arena.commit(slots, [payload_digest(payload_of(key, size_of(key))) for key in keys], pin=pin)
        self.readable.update(keys)
        if pin:
            self.pinned += zip(keys, slots, strict=True)

    @precondition(lambda self: self.writing)
    @rule(data=st.data(), may_still_write=st.booleans())
    def give_up(self, data: st.DataObject, may_still_write: bool) -> None:
        slot = self.writing.pop(data.draw(st.sampled_from(sorted(self.writing))))
        if may_still_write:
            self.arena.orphan([slot])
            self.orphaned += 1
        else:
            self.arena.abort([slot])

    @rule()
    def the_writer_settles(self) -> None:
        assert self.arena.settle([WRITER.connection]) == self.orphaned
        self.orphaned = 0

    # -- reading --------------------------------------------------------------------------------

    @rule(number=st.integers(0, len(KEYS) - 1))
    def pin(self, number: int) -> None:
        key = KEYS[number]
        (slot,) = self.arena.pin([key])
        assert (slot >= 0) == (key in self.readable)
        if slot < 0:
            return
        self.pinned.append((key, slot))
        assert bytes(self.arena.view(slot)[HEADER_BYTES:]) == payload_of(key, size_of(key))
        assert self.arena.check(slot)

    @precondition(lambda self: self.pinned)
    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        _, slot = self.pinned.pop(data.draw(st.integers(0, len(self.pinned) - 1)))
        self.arena.unpin([slot])
        if all(slot != held for _, held in self.pinned):
            self.doomed.discard(slot)

    @rule(number=st.integers(0, len(KEYS) - 1))
    def doubt(self, number: int) -> None:
        key = KEYS[number]
        self.arena.doubt([key])
        if key in self.readable:
            assert key in self.arena.some_unverified(len(KEYS))

    # -- dropping -------------------------------------------------------------------------------

    @rule(number=st.integers(0, len(KEYS) - 1))
    def drop(self, number: int) -> None:
        key = KEYS[number]
        (answer,) = self.arena.drop([key])
        if key not in self.readable:
            assert answer == "miss"
        elif self.is_pinned(key):
            assert answer == "busy"
        else:
            assert answer == "deleted"
            self.readable.discard(key)

    @rule(namespace=st.sampled_from([b"", *NAMESPACES]))
    def drop_namespace(self, namespace: bytes) -> None:
        gone = {key for key in self.readable if key.startswith(namespace)}
        assert self.arena.drop_namespace(namespace) == len(gone)
        self.readable -= gone
        self.doomed |= {slot for key, slot in self.pinned if key in gone}

    # -- the agent's restart --------------------------------------------------------------------

    @rule()
    def restart(self) -> None:
        self.arena.close()
        self.clock.advance(1)
        self.arena = self.open()
        assert {key for key, _ in self.arena.recovered.blocks} == self.readable
        assert len(self.arena.recovered.being_written) == self.orphaned + len(self.writing)
        self.orphaned += len(self.writing)
        self.writing, self.pinned, self.doomed = {}, [], set()

    # -- what must hold at any time -------------------------------------------------------------

    def forget_evicted(self) -> None:
        there = set(self.arena.keys())
        evicted = self.readable - there
        told = [record for record in self.records if isinstance(record, EvictionRecord)]
        assert sum(record.blocks for record in told) == len(evicted)
        assert sum(record.bytes for record in told) == sum(map(size_of, evicted))
        self.records.clear()
        self.readable -= evicted

    @invariant()
    def the_index_is_what_the_model_says(self) -> None:
        assert set(self.arena.keys()) == self.readable
        assert not self.records, "blocks of the machine are never wrong"

    @invariant()
    def pinned_blocks_keep_their_bytes(self) -> None:
        for key, slot in self.pinned:
            assert bytes(self.arena.view(slot)[HEADER_BYTES:]) == payload_of(key, size_of(key))

    @invariant()
    def the_sizes_agree(self) -> None:
        stats = self.arena.stats()
        assert stats.blocks == len(self.readable)
        assert stats.payload_bytes == sum(map(size_of, self.readable))
        assert stats.pinned == len({slot for _, slot in self.pinned})
        assert (stats.reserved, stats.quarantined) == (len(self.writing), self.orphaned)
        assert stats.by_namespace.keys() == {key.namespace for key in self.readable}

    def teardown(self) -> None:
        """When everybody let go and everything is dropped, the whole arena is free again."""
        self.arena.abort(self.writing.values())
        self.arena.unpin(slot for _, slot in self.pinned)
        self.arena.settle([WRITER.connection])
        self.arena.drop_namespace(b"")
        assert self.arena.stats().free_slabs == SLABS
        self.arena.close()
        self.folder.cleanup()


TestAnyOrderOfCalls = ArenaMachine.TestCase
TestAnyOrderOfCalls.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
