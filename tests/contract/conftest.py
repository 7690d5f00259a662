"""Every store and wrapper, each freshly made for one test."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kveik.records import ignore
from kveik.store.arena import Arena
from kveik.store.arena_file import ArenaRequest, open_arena_file
from kveik.store.arena_store import ArenaStore
from kveik.store.base import BlockStore
from kveik.store.faulty import FaultyStore
from kveik.store.filesystem import FilesystemStore
from kveik.store.filesystem_options import FilesystemOptions
from kveik.store.guarded import GuardedStore
from kveik.store.instrumented import InstrumentedStore
from kveik.store.memory import MemoryStore
from kveik.store.opening import OpeningStore

MIB = 1 << 20


def _filesystem(folder: Path, limit_bytes: int) -> FilesystemStore:
    # A limit is only kept by the sweeping thread; without one, no thread is needed.
    interval_s = 0.05 if limit_bytes else 0
    return FilesystemStore(FilesystemOptions(root=folder, limit_bytes=limit_bytes, sweep_interval_s=interval_s))


def _arena(folder: Path, limit_bytes: int) -> ArenaStore:
    request = ArenaRequest(path=str(folder / "arena"), arena_bytes=limit_bytes or 16 * MIB, slab_bytes=0)
    return ArenaStore(Arena(open_arena_file(request)))


def _opening(folder: Path, limit_bytes: int) -> OpeningStore:
    promised = FilesystemOptions(root=folder, limit_bytes=limit_bytes).capabilities
    return OpeningStore("filesystem", promised, lambda: _filesystem(folder, limit_bytes), wait_s=20.0)


#: name -> how to make it in a folder with a limit in bytes (0: none)
MAKERS: dict[str, Callable[[Path, int], BlockStore]] = {
    "memory": lambda _, limit_bytes: MemoryStore(limit_bytes=limit_bytes),
    "filesystem": _filesystem,
    "arena": _arena,
    "instrumented memory": lambda _, limit_bytes: InstrumentedStore(MemoryStore(limit_bytes=limit_bytes), ignore),
    "guarded filesystem": lambda folder, limit_bytes: GuardedStore(_filesystem(folder, limit_bytes)),
    "filesystem that opened in time": _opening,
    "faulty memory without faults": lambda _, limit_bytes: FaultyStore(MemoryStore(limit_bytes=limit_bytes)),
}


@dataclass
class StoreMaker:
    """Makes stores of one kind that share a folder, and closes them when the test ends."""

    make: Callable[[Path, int], BlockStore]
    folder: Path
    opened: list[BlockStore]

    def open(self, limit_bytes: int = 0) -> BlockStore:
        store = self.make(self.folder, limit_bytes)
        self.opened.append(store)
        return store


@pytest.fixture(params=MAKERS)
def maker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreMaker]:
    """A maker of one kind of store."""
    stores = StoreMaker(MAKERS[request.param], tmp_path, [])
    yield stores
    for store in stores.opened:
        store.close()


@pytest.fixture
def store(maker: StoreMaker) -> BlockStore:
    """One store of each kind, without a limit."""
    return maker.open()
