"""The filesystem tier under any order of calls, damage and restarts, against a plain model.

The model knows which blocks may be there. The tier may have evicted any of them in a round, and
must never give wrong bytes, hold more than its limit, or touch a file that is not its own.
"""

import os
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kveik.clock import Deadline
from kveik.store.base import Status
from kveik.store.filesystem import FilesystemStore
from kveik.store.filesystem_layout import block_name, leaf_of, parse_block_name, parse_quarantine_name
from kveik.store.filesystem_options import FilesystemOptions
from tests.blocks import make_block

#: A few blocks that come again and again, of two sizes and in two namespaces.
BLOCKS = [
    make_block(number, payload_bytes=(2048, 9000)[number % 2], namespace=(b"N" * 16, b"M" * 16)[number % 3 == 0])
    for number in range(12)
]
LIMIT_BYTES = 50_000
QUARANTINE_BLOCKS = 3
numbers = st.integers(0, len(BLOCKS) - 1)


class FilesystemMachine(RuleBasedStateMachine):
    """One folder with files of strangers in it, its stores one after the other, and the model."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="filesystem-machine-")
        self.root = Path(self.folder.name)
        self.present: set[int] = set()  # may be there; certainly if no round ran since
        self.damaged: set[int] = set()
        self.clock_s = 1_000_000
        self.store = self.open()
        self.strangers = self.plant_strangers()

    def open(self) -> FilesystemStore:
        options = FilesystemOptions(
            root=self.root,
            limit_bytes=LIMIT_BYTES,
            sweep_interval_s=0,
            lease_stale_s=0,  # a store without a thread leaves its lease behind: the next one takes it at once
            quarantine_blocks=QUARANTINE_BLOCKS,
        )
        store = FilesystemStore(options)
        store.sweep()  # counts what is there, as the thread would do at once
        return store

    def plant_strangers(self) -> list[Path]:
        leaf = self.root.joinpath("kveik-1", *leaf_of(BLOCKS[0].key))
        leaf.mkdir(parents=True, exist_ok=True)
        name = block_name(BLOCKS[0].key)
        places = [
            self.root / "notes.txt",
            self.root / name,  # a block's name, but not where blocks lie
            self.root / "kveik-1" / name,
            leaf / "notes.kvb",
            leaf / (name + ".bak"),
            leaf / name.upper(),
            leaf / ".editor.tmp",
        ]
        for place in places:
            place.write_bytes(b"stranger")
            os.utime(place, (1, 1))  # older than any block: the first to go, if it could
        return places

    def path(self, number: int) -> Path:
        key = BLOCKS[number].key
        return self.root.joinpath("kveik-1", *leaf_of(key), block_name(key))

    def block_files(self) -> list[Path]:
        return [path for path in self.root.glob("kveik-1/*/??/??/*") if parse_block_name(path.name) is not None]

    @rule(number=numbers)
    def put(self, number: int) -> None:
        block = BLOCKS[number]
        was_there = self.path(number).exists()
        (result,) = self.store.put([block.key], [block.frame], Deadline.after(20))
        if was_there:
            assert result.status is Status.EXISTS
        elif result.status is Status.STORED:
            self.present.add(number)
            self.clock_s += 1
            os.utime(self.path(number), (self.clock_s, self.clock_s))
        else:
            assert result.reason == "no_room"
            assert self.store.stats().bytes + len(block.frame) > LIMIT_BYTES

    @rule(number=numbers)
    def get(self, number: int) -> None:
        block = BLOCKS[number]
        buffer = block.buffer()
        (result,) = self.store.get([block.key], [buffer], Deadline.after(20))
        if number in self.damaged:
            assert result.status is Status.CORRUPT
            self.damaged.remove(number)
            self.present.remove(number)
        elif number in self.present:
            assert result.status is Status.HIT
            assert block.is_in(buffer)
        else:
            assert result.status is Status.MISS

    @rule(asked=st.lists(numbers, max_size=6))
    def lookup(self, asked: list[int]) -> None:
        found = self.store.lookup([BLOCKS[number].key for number in asked], Deadline.after(20))
        assert found == [number in self.present for number in asked]

    @rule(number=numbers)
    def delete(self, number: int) -> None:
        (result,) = self.store.delete([BLOCKS[number].key])
        assert result.status is (Status.DELETED if number in self.present else Status.MISS)
        self.present.discard(number)
        self.damaged.discard(number)

    @rule(number=numbers, offset=st.integers(0, 9000 - 1))
    def damage(self, number: int, offset: int) -> None:
        """Flip a bit in the payload, as a bad disk does."""
        if number in self.present and number not in self.damaged:
            before = self.path(number).stat()
            wrong = BLOCKS[number].damaged(4096 + offset % (len(BLOCKS[number].frame) - 4096))
            self.path(number).write_bytes(wrong)
            os.utime(self.path(number), ns=(before.st_atime_ns, before.st_mtime_ns))
            self.damaged.add(number)

    @rule()
    def sweep(self) -> None:
        before = {number: self.path(number).stat().st_mtime for number in self.present}
        report = self.store.sweep()
        assert report is not None
        evicted = {number for number in self.present if not self.path(number).exists()}
        assert report.evicted_blocks == len(evicted)
        kept = self.present - evicted
        assert not evicted or not kept or max(before[n] for n in evicted) <= min(before[n] for n in kept)
        assert report.blocks == len(kept)
        assert report.bytes == sum(path.stat().st_size for path in self.block_files())
        self.present, self.damaged = kept, self.damaged - evicted

    @rule()
    def restart(self) -> None:
        self.store.close()
        self.store = self.open()
        self.present = {number for number in self.present if self.path(number).exists()}
        self.damaged &= self.present

    @invariant()
    def files_are_those_of_the_model_and_within_the_limit(self) -> None:
        assert {path.name for path in self.block_files()} == {block_name(BLOCKS[n].key) for n in self.present}
        assert sum(path.stat().st_size for path in self.block_files()) <= LIMIT_BYTES

    @invariant()
    def the_store_knows_what_it_holds(self) -> None:
        stats = self.store.stats()
        assert stats.blocks == len(self.present)
        assert stats.bytes == sum(len(BLOCKS[number].frame) for number in self.present)

    @invariant()
    def strangers_stay(self) -> None:
        assert all(place.read_bytes() == b"stranger" for place in self.strangers)

    @invariant()
    def the_quarantine_is_bounded_and_no_temporary_file_is_left(self) -> None:
        quarantine = self.root / "kveik-1" / "quarantine"
        names = os.listdir(quarantine) if quarantine.exists() else []
        assert len(names) <= QUARANTINE_BLOCKS
        assert all(parse_quarantine_name(name) is not None for name in names)
        leftovers = [path for path in self.root.glob("kveik-1/**/.*.tmp") if path not in self.strangers]
        assert leftovers == []

    def teardown(self) -> None:
        self.store.close()
        self.folder.cleanup()


TestFilesystemMachine = FilesystemMachine.TestCase
TestFilesystemMachine.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
