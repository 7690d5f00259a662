"""Every store and wrapper, each freshly made for one test."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from kveik.records import ignore
from kveik.store.arena import Arena
from kveik.store.arena_file import ArenaRequest, open_arena_file
from kveik.store.arena_store import ArenaStore
from kveik.store.base import BlockStore
from kveik.store.faulty import FaultyStore
from kveik.store.filesystem import FilesystemStore
from kveik.store.filesystem_medium import Medium
from kveik.store.filesystem_options import FilesystemOptions
from kveik.store.guarded import GuardedStore
from kveik.store.instrumented import InstrumentedStore
from kveik.store.memory import MemoryStore
from kveik.store.mooncake import MooncakeStore
from kveik.store.mooncake_link import MooncakeLink
from kveik.store.opening import OpeningStore
from kveik.store.redis import RedisStore
from kveik.store.redis_link import connect
from kveik.store.stored_here import CountingStore
from kveik.store.yuanrong import YuanrongStore
from kveik.store.yuanrong_client import YuanrongOptions, connected
from tests.mooncake import running_mooncake
from tests.redis_server import running_redis
from tests.yuanrong import running_cluster

MIB = 1 << 20


def _filesystem(folder: Path, limit_bytes: int, medium: Medium | None = None) -> FilesystemStore:
    # A limit is only kept by the sweeping thread; without one, no thread is needed.
    interval_s = 0.05 if limit_bytes else 0
    return FilesystemStore(
        FilesystemOptions(root=folder, limit_bytes=limit_bytes, sweep_interval_s=interval_s, medium=medium)
    )


def _arena(folder: Path, limit_bytes: int) -> ArenaStore:
    request = ArenaRequest(path=str(folder / "arena"), arena_bytes=limit_bytes or 16 * MIB, slab_bytes=0)
    return ArenaStore(Arena(open_arena_file(request)))


def _opening(folder: Path, limit_bytes: int) -> OpeningStore:
    promised = FilesystemOptions(root=folder, limit_bytes=limit_bytes).capabilities
    return OpeningStore("filesystem", promised, lambda: _filesystem(folder, limit_bytes), wait_s=20.0)


#: How to make a store in a folder with a limit in bytes (0: none).
Make = Callable[[Path, int], BlockStore]

#: name -> how to make it, or the fixture that gives that: for stores with a server, which runs for all tests
MAKERS: dict[str, Make | str] = {
    "memory": lambda _, limit_bytes: MemoryStore(limit_bytes=limit_bytes),
    "filesystem": _filesystem,
    "filesystem as on a network": lambda folder, limit_bytes: _filesystem(folder, limit_bytes, Medium("nfs4")),
    "arena": _arena,
    "instrumented memory": lambda _, limit_bytes: InstrumentedStore(MemoryStore(limit_bytes=limit_bytes), ignore),
    "guarded filesystem": lambda folder, limit_bytes: GuardedStore(_filesystem(folder, limit_bytes)),
    "filesystem that opened in time": _opening,
    "faulty memory without faults": lambda _, limit_bytes: FaultyStore(MemoryStore(limit_bytes=limit_bytes)),
    "mooncake": "mooncake",
    "yuanrong": "yuanrong",
    "redis": "redis",
    "guarded redis": "guarded_redis",
}


class _CountedMooncake(CountingStore):
    """With the blocks of one test alone."""

    def __init__(self, inner: MooncakeStore) -> None:
        super().__init__(inner)
        self.keys = inner.keys


@pytest.fixture(scope="session")
def mooncake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Make]:
    """On a real master, with memory of another process. Stores of one folder share blocks."""
    with running_mooncake(tmp_path_factory.mktemp("mooncake")) as running:
        link = MooncakeLink(running.settings, wait_s=60.0, hang_s=20.0)

        def make(folder: Path, _: int) -> _CountedMooncake:
            # The master tells the sizes of all blocks, and a moment later.
            return _CountedMooncake(MooncakeStore(link, f"t{hash(folder) & 0xFFFFFFFF:08x}", keep_link=True))

        yield make
        link.close()


@pytest.fixture(scope="session")
def yuanrong() -> Iterator[Make]:
    """On a real worker. Stores of one folder share blocks; other folders' have names of their own."""
    with running_cluster() as cluster:
        options = YuanrongOptions.from_settings(cluster.worker().stores_with(10.0).yuanrong)
        client = connected(options)

        def make(folder: Path, _: int) -> CountingStore:
            prefix = f"t{hash(folder) & 0xFFFFFFFF:08x}"
            return CountingStore(YuanrongStore(client, replace(options, prefix=prefix)))

        yield make
        client.close()


@pytest.fixture(scope="session")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Make]:
    """On a real server; each test has a database of its own."""
    databases: dict[Path, int] = {}
    with running_redis(tmp_path_factory.mktemp("redis"), "--databases", "4096") as server:

        def make(folder: Path, _: int) -> RedisStore:
            database = databases.setdefault(folder, len(databases))
            return RedisStore(connect(server.settings(database=database)), refresh_s=3600.0)

        yield make


@pytest.fixture(scope="session")
def guarded_redis(redis: Make) -> Make:
    """The same, in batches over several threads."""
    return lambda folder, limit_bytes: GuardedStore(redis(folder, limit_bytes), threads=2)


@dataclass
class StoreMaker:
    """Makes stores of one kind that share a folder, and closes them when the test ends."""

    make: Make
    folder: Path
    opened: list[BlockStore]

    def open(self, limit_bytes: int = 0) -> BlockStore:
        store = self.make(self.folder, limit_bytes)
        self.opened.append(store)
        return store


@pytest.fixture(params=MAKERS)
def maker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreMaker]:
    """A maker of one kind of store."""
    make = MAKERS[request.param]
    stores = StoreMaker(request.getfixturevalue(make) if isinstance(make, str) else make, tmp_path, [])
    yield stores
    for store in stores.opened:
        store.close()


@pytest.fixture
def store(maker: StoreMaker) -> BlockStore:
    """One store of each kind, without a limit."""
    return maker.open()
