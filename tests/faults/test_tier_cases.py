"""What happens to tiers in the field, against each kind of tier: damaged, vanished, restarted and stalled blocks.

Always: no foreign byte, nobody waits past the deadline, and it comes back by itself.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from kveik.breaker import CLOSED, BreakerPolicy
from kveik.clock import Deadline
from kveik.records import FailureRecord, OutageRecord, Record
from kveik.store.apart import ApartStore
from kveik.store.base import BlockResult, BlockStore, Status
from kveik.store.faulty import Faults, FaultyStore
from kveik.store.filesystem import FilesystemStore
from kveik.store.filesystem_layout import block_name, leaf_of
from kveik.store.filesystem_options import FilesystemOptions
from kveik.store.key_text import KeyTexts
from kveik.store.memory import MemoryStore
from kveik.store.mooncake_link import MooncakeLink
from kveik.store.probing import TierProbes
from kveik.store.redis import RedisStore
from kveik.store.redis_link import connect
from kveik.store.tiered import LowerTiers
from kveik.store.yuanrong_client import YuanrongOptions
from kveik.store.yuanrong_tier import open_tier, recipe_of
from tests.agents import wait_until
from tests.blocks import Block, make_block
from tests.mooncake import Mooncake, open_store, overwrite, remove, running_mooncake
from tests.redis_server import RedisServer, running_redis
from tests.yuanrong import Worker, running_cluster

ROOT = Path(__file__).parents[2]
DEADLINE_S = 1.0
#: What a test does itself to a tier may take so long.
BEHIND_S = 30.0
#: What an overloaded machine may add to any wait.
SLACK_S = 15.0
DAMAGE: dict[str, Callable[[Block], bytes]] = {
    "a flipped page": lambda block: bytes(block.frame[:5000]) + b"\xff" * 100 + bytes(block.frame[5100:]),
    "one byte less": lambda block: bytes(block.frame[:-1]),
    "nothing": lambda _: b"",
    "another block": lambda _: bytes(make_block(999).frame),
    "another model's header": lambda block: bytes(make_block(999, namespace=b"O" * 16).frame),
}


class Kind(ABC):
    """One kind of tier, with what can be done to it."""

    survives = True  # a restart leaves its blocks where they were

    @abstractmethod
    def open(self) -> BlockStore:
        """The store."""

    @abstractmethod
    def overwrite(self, block: Block, value: bytes) -> None:
        """Change what lies under a key, behind the store's back."""

    @abstractmethod
    def remove(self, block: Block) -> None:
        """Take a block away, behind the store's back."""

    @abstractmethod
    def away(self) -> AbstractContextManager[object]:
        """The tier's owner is killed, and started again at the end."""

    @abstractmethod
    def stalled(self) -> AbstractContextManager[object]:
        """The tier's owner is stopped, and goes on at the end."""

    def close(self) -> None:  # noqa: B027
        """End what belongs to it; most have nothing."""


class Memory(Kind):
    """The reference, which misbehaves on command; a restart empties it."""

    survives = False

    def __init__(self, _: Path) -> None:
        self._memory = MemoryStore()
        self._store = FaultyStore(self._memory)

    def open(self) -> BlockStore:
        return self._store

    def overwrite(self, block: Block, value: bytes) -> None:
        self._memory._frames[block.key] = value

    def remove(self, block: Block) -> None:
        self._memory.delete([block.key])

    @contextmanager
    def away(self) -> Iterator[None]:
        self._store.faults = Faults(fail="unavailable")
        yield
        self._store.forget_everything()
        self._store.faults = Faults()

    def stalled(self) -> AbstractContextManager[object]:
        return self._store.hung("lookup", "get", "put", "delete")


class Filesystem(Kind):
    """A folder; its mount hangs on command."""

    def __init__(self, folder: Path) -> None:
        self._root = folder / "tier"
        self._store = FaultyStore(FilesystemStore(FilesystemOptions(root=self._root, sweep_interval_s=0)))

    def open(self) -> BlockStore:
        return self._store

    def _path(self, block: Block) -> Path:
        return self._root.joinpath("kveik-1", *leaf_of(block.key), block_name(block.key))

    def overwrite(self, block: Block, value: bytes) -> None:
        self._path(block).write_bytes(value)

    def remove(self, block: Block) -> None:
        self._path(block).unlink()

    @contextmanager
    def away(self) -> Iterator[None]:
        self._store.faults = Faults(fail="io_error")
        yield
        self._store.faults = Faults()

    def stalled(self) -> AbstractContextManager[object]:
        return self._store.hung("lookup", "get", "put", "delete")


class Redis(Kind):
    """A real server, killed and stopped; it keeps nothing on disk."""

    survives = False

    def __init__(self, folder: Path) -> None:
        self._context = running_redis(folder)
        self._server: RedisServer = self._context.__enter__()

    def open(self) -> BlockStore:
        return RedisStore(connect(self._server.settings(connect_s=0.5)), refresh_s=0.2)

    def overwrite(self, block: Block, value: bytes) -> None:
        self._server.command("SET", KeyTexts().of(block.key), value)

    def remove(self, block: Block) -> None:
        self._server.command("DEL", KeyTexts().of(block.key))

    @contextmanager
    def away(self) -> Iterator[None]:
        self._server.kill()
        yield
        self._server.start()

    @contextmanager
    def stalled(self) -> Iterator[None]:
        self._server.pause()
        yield
        self._server.resume()

    def close(self) -> None:
        self._server.resume()
        self._context.__exit__(None, None, None)


class Yuanrong(Kind):
    """A real worker, killed and stopped, behind the tier's own processes; one for all tests, names for each."""

    survives = False
    _cluster = ExitStack()
    _worker: Worker | None = None

    def __init__(self, folder: Path) -> None:
        if Yuanrong._worker is None:
            # Given up later than any test stops it: it would end by itself when it goes on.
            patient = {"node_timeout_s": "60", "node_dead_timeout_s": "300"}
            Yuanrong._worker = self._cluster.enter_context(running_cluster()).worker(**patient)
        self._owner = Yuanrong._worker
        prefix = f"t{hash(folder) & 0xFFFFFFFF:08x}"
        self._options = replace(YuanrongOptions.from_settings(self._owner.stores_with(0.5).yuanrong), prefix=prefix)
        # In a process too: without its worker the library stops the one that it is in, for minutes at worst.
        patient_options = replace(self._options, request_ms=10_000)
        recipe = replace(recipe_of(patient_options), maker="tests.apart_stores:unsealed_yuanrong")
        self._behind = ApartStore("behind", patient_options.capabilities, recipe)

    def open(self) -> BlockStore:
        return open_tier(self._options, readers=2)

    def overwrite(self, block: Block, value: bytes) -> None:
        self.remove(block)
        frames = [memoryview(value or b"x")]  # it has no empty values
        assert self._behind.put([block.key], frames, Deadline.after(BEHIND_S))[0].status is Status.STORED

    def remove(self, block: Block) -> None:
        assert self._behind.delete([block.key])[0].status is Status.DELETED

    def close(self) -> None:
        self._behind.close()

    @contextmanager
    def away(self) -> Iterator[None]:
        self._owner.kill()
        yield
        self._owner.start()

    @contextmanager
    def stalled(self) -> Iterator[None]:
        self._owner.pause()
        yield
        self._owner.resume()

    @classmethod
    def end(cls) -> None:
        cls._worker = None
        cls._cluster.close()


class OnMooncake(Kind):
    """A real Mooncake: its master is killed, which empties it, or the process that lends memory is stopped."""

    survives = False
    _context = ExitStack()
    _mooncake: Mooncake | None = None

    def __init__(self, folder: Path) -> None:
        if OnMooncake._mooncake is None:
            # One that is stopped for longer than the master's patience has nothing any more.
            place = Path(self._context.enter_context(TemporaryDirectory()))
            OnMooncake._mooncake = self._context.enter_context(running_mooncake(place, patience_s=60))
        self._owner = OnMooncake._mooncake
        self._owner.wait_usable()
        self._settings = replace(self._owner.settings, master_http="")
        self._texts = KeyTexts(self._settings.prefix)
        self._behind: MooncakeLink | None = None

    def open(self) -> BlockStore:
        return open_store(self._settings, hang_s=DEADLINE_S + 1.0)

    @property
    def _link(self) -> MooncakeLink:
        if self._behind is None:
            self._behind = MooncakeLink(self._settings, wait_s=60.0, hang_s=60.0)
        return self._behind

    def overwrite(self, block: Block, value: bytes) -> None:
        overwrite(self._link, self._texts.of(block.key), value)

    def remove(self, block: Block) -> None:
        remove(self._link, self._texts.of(block.key))

    @contextmanager
    def away(self) -> Iterator[None]:
        self._owner.master.kill()
        yield
        self._owner.start()

    @contextmanager
    def stalled(self) -> Iterator[None]:
        self._owner.lenders[0].pause()
        yield
        self._owner.lenders[0].resume()

    def close(self) -> None:
        if self._behind is not None:
            self._behind.close()

    @classmethod
    def end(cls) -> None:
        cls._mooncake = None
        cls._context.close()


KINDS: dict[str, Callable[[Path], Kind]] = {
    "memory": Memory,
    "filesystem": Filesystem,
    "redis": Redis,
    "mooncake": OnMooncake,
    "yuanrong": Yuanrong,
}


@pytest.fixture(scope="module", autouse=True)
def _servers_of_all_tests_end() -> Iterator[None]:
    yield
    Yuanrong.end()
    OnMooncake.end()


class Node:
    """The lower tiers of an agent, of which one is under test, with their probes."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.records: list[Record] = []
        self.store = kind.open()
        self.tiers = LowerTiers(
            [self.store],
            threads=2,
            queue_bytes=64 << 20,
            listener=self.records.append,
            policy=BreakerPolicy(failures=2, open_s=0.2, open_max_s=1.0),
            hang_s=DEADLINE_S,
        )
        self.probes = TierProbes(self.tiers.guards, period_s=0.6, deadline_s=DEADLINE_S).start()

    @property
    def state(self) -> str:
        return str(self.tiers.stats()[0]["breaker"])

    @property
    def outages(self) -> list[OutageRecord]:
        return [record for record in self.records if isinstance(record, OutageRecord)]

    def corrupt(self) -> int:
        return sum(r.blocks for r in self.records if isinstance(r, FailureRecord) and r.kind == "corrupt")

    def store_all(self, blocks: list[Block]) -> None:
        done: list[int] = []
        for block in blocks:
            assert self.tiers.cascade(block.key, block.frame, None, lambda: done.append(1))
        wait_until(lambda: len(done) == len(blocks), "all writes have ended", 60.0)

    def fetch(self, blocks: list[Block]) -> list[BlockResult]:
        """As a load does; nobody waits past the deadline, and no foreign byte is ever called a hit."""
        buffers = [block.buffer() for block in blocks]
        start_s = time.monotonic()
        answers = self.tiers.fetch([b.key for b in blocks], None, buffers, Deadline.after(DEADLINE_S))
        assert time.monotonic() - start_s < DEADLINE_S + SLACK_S
        for block, buffer, (_, result) in zip(blocks, buffers, answers, strict=True):
            assert result.status is not Status.HIT or block.is_in(buffer)
        return [result for _, result in answers]

    def judged(self, blocks: list[Block]) -> list[Status]:
        """What each block was found to be; those that a busy machine had no time for are asked for again."""
        found: dict[int, Status] = {}
        end_s = time.monotonic() + SLACK_S
        while len(found) < len(blocks):
            assert time.monotonic() < end_s, f"only {found} of {len(blocks)} were answered"
            left = [place for place in range(len(blocks)) if place not in found]
            answers = self.fetch([blocks[place] for place in left])
            found |= {p: a.status for p, a in zip(left, answers, strict=True) if a.status is not Status.FAILED}
        return [found[place] for place in range(len(blocks))]

    def hits(self, blocks: list[Block]) -> int:
        return sum(result.status is Status.HIT for result in self.fetch(blocks))

    def close(self) -> None:
        self.probes.close()
        self.tiers.close()
        self.kind.close()


@pytest.fixture(params=KINDS)
def node(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # processes apart find the stores of tests there
    made = Node(KINDS[request.param](tmp_path))
    yield made
    made.close()


def some_blocks(count: int) -> list[Block]:
    return [make_block(number, payload_bytes=64 << 10) for number in range(count)]


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_bytes_are_a_miss_counted_once_and_stored_anew(node: Node, damage: str) -> None:
    blocks = some_blocks(4)
    node.store_all(blocks)
    node.kind.overwrite(blocks[1], DAMAGE[damage](blocks[1]))

    first, wrong, *rest = node.judged(blocks)

    assert [first, *rest] == [Status.HIT] * 3
    assert wrong is Status.CORRUPT
    assert node.judged(blocks)[1] is Status.MISS
    assert node.corrupt() == 1
    node.store_all([blocks[1]])
    assert node.judged(blocks) == [Status.HIT] * 4
    assert node.state == CLOSED


def test_two_blocks_that_changed_places_are_both_refused(node: Node) -> None:
    blocks = some_blocks(2)
    node.store_all(blocks)
    node.kind.overwrite(blocks[0], bytes(blocks[1].frame))
    node.kind.overwrite(blocks[1], bytes(blocks[0].frame))

    assert node.judged(blocks) == [Status.CORRUPT] * 2
    assert node.judged(blocks) == [Status.MISS] * 2


def test_blocks_that_vanish_between_lookup_and_load_are_misses_and_the_others_hits(node: Node) -> None:
    blocks = some_blocks(6)
    node.store_all(blocks)
    assert node.tiers.lookup([block.key for block in blocks], Deadline.after(SLACK_S)) == [0] * 6
    for block in blocks[3:]:
        node.kind.remove(block)

    assert node.judged(blocks) == [Status.HIT] * 3 + [Status.MISS] * 3
    node.store_all(blocks[3:])
    assert node.judged(blocks) == [Status.HIT] * 6


def test_a_restart_of_its_owner_costs_misses_only_and_is_one_outage_with_begin_and_end(node: Node) -> None:
    blocks = some_blocks(8)
    node.store_all(blocks)
    _two_rounds(node)
    with node.kind.away():
        wait_until(lambda: node.hits(blocks[:2]) == 0 and node.state != CLOSED, "the tier is left out", 60.0)
        node.store_all(blocks[:2])  # ends, although nothing is stored
        assert node.hits(blocks) == 0

    wait_until(lambda: node.state == CLOSED, "it is used again", 60.0)
    assert node.judged(blocks).count(Status.HIT) == (8 if node.kind.survives else 0)
    node.store_all(blocks)
    assert node.judged(blocks) == [Status.HIT] * 8
    _check_outages(node)


def _two_rounds(node: Node) -> None:
    """Until a canary was read once: only what was served before can be missed later."""
    probe = node.probes._probes[0]
    wait_until(lambda: probe.canaries_put >= 2, "the tier was probed twice", 60.0)


def _check_outages(node: Node) -> None:
    wait_until(lambda: bool(node.outages), "the outage is told", 60.0)
    outage = node.outages[0]
    assert outage.seconds > 0
    assert outage.not_read_blocks + outage.not_stored_blocks > 0
    if not node.kind.survives:
        assert sum(each.lost_keys for each in node.outages) >= 8
        assert "keys lost" in " ".join(each.text for each in node.outages)
    shown = node.tiers.stats()[0]["outages"]
    assert isinstance(shown, list)
    assert shown[-1]["why"]


def test_a_stalled_owner_costs_a_deadline_then_nothing_and_late_bytes_reach_nobody(node: Node) -> None:
    blocks = some_blocks(6)
    node.store_all(blocks)
    with node.kind.stalled():
        stalled = node.fetch(blocks[:2])
        assert {result.status for result in stalled} == {Status.FAILED}
        wait_until(lambda: node.state != CLOSED, "the tier is left out", 60.0)
        refused = node.fetch(blocks)
        assert {result.reason for result in refused} <= {"breaker_open", "fenced"}
        done: list[int] = []
        assert node.tiers.cascade(blocks[0].key, blocks[0].frame, None, lambda: done.append(1))
        wait_until(lambda: done == [1], "a write ends, although nothing is stored", 60.0)

    wait_until(lambda: node.state == CLOSED, "it is used again", 60.0)
    wait_until(lambda: not any(result.buffer_busy for result in stalled), "no buffer is touched any more", 60.0)
    wait_until(lambda: node.hits(blocks) == 6, "everything hits again", 60.0)


def test_a_slow_tier_never_holds_more_than_its_queue(node: Node) -> None:
    if not isinstance(node.store, FaultyStore):
        pytest.skip("only a faulty store is slow on command")
    block = make_block(0, payload_bytes=64 << 10)
    tiers = LowerTiers([node.store], threads=2, queue_bytes=3 * len(block.frame))
    held = {"now": 0, "most": 0}
    node.store.faults = Faults(bytes_per_s=2e6)

    def ended() -> None:
        held["now"] -= 1

    taken = 0
    for number in range(60):
        each = make_block(number, payload_bytes=64 << 10)
        held["now"] += 1
        held["most"] = max(held["most"], held["now"] - 1)
        if tiers.cascade(each.key, each.frame, None, ended):
            taken += 1
        else:
            held["now"] -= 1
    assert tiers.drain(60.0)

    assert 3 <= taken < 60
    assert held["most"] <= 3
    tiers.close()


def test_nothing_is_left_in_a_tier_by_its_probes(node: Node) -> None:
    before = node.store.stats().blocks
    _two_rounds(node)
    node.probes.close()
    wait_until(lambda: node.store.stats().blocks <= before, "the canaries are gone")
