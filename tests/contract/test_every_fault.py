"""Whatever goes wrong in a tier, the contract is kept: no foreign byte, no lost answer, and sound again after it."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kveik.breaker import BreakerPolicy
from kveik.clock import Deadline
from kveik.store.base import REASONS, BlockResult, BlockStore, Status
from kveik.store.faulty import Faults, FaultyStore
from kveik.store.filesystem import FilesystemStore
from kveik.store.filesystem_options import FilesystemOptions
from kveik.store.guarded import GuardedStore
from kveik.store.memory import MemoryStore
from tests.agents import wait_until
from tests.blocks import Block, make_block

#: What goes wrong while the calls are made.
FAULTS: dict[str, Faults] = {
    "nothing": Faults(),
    "fails now and then": Faults(fail="io_error", every=3),
    "is away": Faults(fail="unavailable"),
    "acknowledges and stores nothing": Faults(lose=True, every=2),
    "damages what it stores": Faults(corrupt=True, every=2),
    "serves other blocks' bytes": Faults(foreign=True, every=2),
    "is slow": Faults(delay_s=0.002),
    "is slow to a rate": Faults(bytes_per_s=20e6),
}
#: What it goes wrong in, or the fixture that makes it.
INNER: dict[str, Callable[[Path], BlockStore] | str] = {
    "memory": lambda _: MemoryStore(),
    "filesystem": lambda folder: FilesystemStore(FilesystemOptions(root=folder, sweep_interval_s=0)),
    "mooncake": "mooncake",
    "yuanrong": "yuanrong",
    "redis": "redis",
}


@pytest.fixture(params=INNER)
def faulty(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FaultyStore]:
    made = INNER[request.param]
    inner = request.getfixturevalue(made)(tmp_path, 0) if isinstance(made, str) else made(tmp_path)
    store = FaultyStore(inner)
    yield store
    store.close()


@pytest.fixture(params=["bare", "guarded"])
def store(request: pytest.FixtureRequest, faulty: FaultyStore) -> Iterator[BlockStore]:
    if request.param == "bare":
        yield faulty
        return
    # A breaker that closes again at once: what is asked for here is what the answers are worth.
    guarded = GuardedStore(faulty, threads=2, policy=BreakerPolicy(open_s=0.001, open_max_s=0.001))
    yield guarded
    guarded.close()


def soon() -> Deadline:
    return Deadline.after(30.0)


def check(results: list[BlockResult], count: int) -> None:
    assert len(results) == count
    for result in results:
        assert result.ok or result.status is Status.MISS or result.reason in REASONS
        assert not result.buffer_busy


def ask(store: BlockStore, source: random.Random, blocks: list[Block]) -> None:
    """One call with a few blocks; whatever says that it is a hit has to be that block."""
    chosen = source.sample(blocks, source.randint(1, 4))
    keys = [block.key for block in chosen]
    match source.choice(["lookup", "get", "get", "put", "put", "delete"]):
        case "lookup":
            assert len(store.lookup(keys, soon())) == len(keys)
        case "get":
            buffers = [block.buffer() for block in chosen]
            results = store.get(keys, buffers, soon())
            check(results, len(keys))
            for block, buffer, result in zip(chosen, buffers, results, strict=True):
                assert result.status is not Status.HIT or block.is_in(buffer)
        case "put":
            check(store.put(keys, [block.frame for block in chosen], soon()), len(keys))
        case "delete":
            check(store.delete(keys), len(keys))


def serves(store: BlockStore, block: Block) -> bool:
    """Whether a block can be had, if need be after it was stored once more."""
    store.put([block.key], [block.frame], soon())
    buffer = block.buffer()
    (result,) = store.get([block.key], [buffer], soon())
    return result.status is Status.HIT and block.is_in(buffer)


@pytest.mark.parametrize("fault", FAULTS)
def test_no_fault_makes_a_wrong_hit_and_after_it_everything_can_be_stored_and_read(
    faulty: FaultyStore, store: BlockStore, fault: str
) -> None:
    source = random.Random(fault)
    blocks = [make_block(number, payload_bytes=700 + 4096 * (number % 3)) for number in range(8)]
    faulty.faults = FAULTS[fault]
    for _ in range(40):
        ask(store, source, blocks)

    faulty.faults = Faults()
    for block in blocks:
        wait_until(lambda block=block: serves(store, block), f"{block.key} is served again")  # type: ignore[misc]


def test_a_tier_that_forgot_everything_has_misses_and_takes_everything_anew(
    faulty: FaultyStore, store: BlockStore
) -> None:
    blocks = [make_block(number) for number in range(5)]
    store.put([block.key for block in blocks], [block.frame for block in blocks], soon())
    faulty.forget_everything()

    buffers = [block.buffer() for block in blocks]
    assert store.lookup([block.key for block in blocks], soon()) == [False] * 5
    assert {r.status for r in store.get([b.key for b in blocks], buffers, soon())} == {Status.MISS}
    assert all(serves(store, block) for block in blocks)


def test_a_buffer_that_is_written_late_is_busy_until_then(faulty: FaultyStore, store: BlockStore) -> None:
    block, buffer = make_block(1), make_block(1).buffer()
    store.put([block.key], [block.frame], soon())
    with faulty.late() as gate:
        (result,) = store.get([block.key], [buffer], soon())
        assert (result.status, result.reason, result.buffer_busy) == (Status.FAILED, "timeout", True)
        assert gate.wait_held()
        assert bytes(buffer) == bytes(len(buffer))
    wait_until(lambda: not result.buffer_busy, "the late write has ended")
    assert block.is_in(buffer)


@pytest.mark.parametrize("operations", [("get",), ("put",), ("lookup",), ("get", "put", "lookup", "delete")])
def test_a_hung_tier_holds_nobody_who_goes_through_its_guard(faulty: FaultyStore, operations: tuple[str, ...]) -> None:
    guarded = GuardedStore(faulty, threads=2, hang_s=0.05, policy=BreakerPolicy(open_s=0.01, open_max_s=0.02))
    block = make_block(1)
    with faulty.hung(*operations):
        for _ in range(5):
            deadline = Deadline.after(0.05)
            guarded.lookup([block.key], deadline)
            guarded.get([block.key], [block.buffer()], deadline)
            guarded.put([block.key], [block.frame], deadline)
            guarded.delete([block.key])
    wait_until(lambda: serves(guarded, block), "it serves again", 30.0)
    guarded.close()
