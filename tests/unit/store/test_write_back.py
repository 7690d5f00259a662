"""The queue before a tier: the wanted first, a few at a time, no faster than allowed."""

from collections.abc import Callable

import pytest

from kveik.breaker import CLOSED, OPEN
from kveik.clock import FakeClock
from kveik.kv.keys import BlockKey
from kveik.store.base import BlockResult, Status, failed
from kveik.store.write_back import WriteBack
from tests.blocks import Block, make_block

DONE = BlockResult(Status.STORED)


class Tier:
    """Keeps writes until the test ends them."""

    name = "tier"

    def __init__(self) -> None:
        self.breaker_state = CLOSED
        self.given: list[BlockKey] = []
        self.under_way: list[Callable[[BlockResult], None]] = []

    def write_behind(self, key: BlockKey, sealed: memoryview, ended: Callable[[BlockResult], None]) -> None:
        self.given.append(key)
        if self.breaker_state == OPEN:
            ended(failed("breaker_open"))
        else:
            self.under_way.append(ended)

    def end_one(self) -> None:
        self.under_way.pop(0)(DONE)


class Queue:
    """A queue before such a tier."""

    def __init__(self, *, under_way_max: int = 1, bytes_per_s: int = 0) -> None:
        self.tier, self.clock, self.ended = Tier(), FakeClock(), [0]
        self.queue = WriteBack(
            self.tier,  # type: ignore[arg-type]
            under_way_max=under_way_max, bytes_per_s=bytes_per_s, clock=self.clock,
        )  # fmt: skip

    def add(self, *blocks: Block, first: bool = False) -> None:
        for block in blocks:
            assert self.queue.add(block.key, block.frame, self._count, first=first)
        self.queue.pump()

    def _count(self, result: BlockResult) -> None:
        self.ended[0] += 1


@pytest.fixture
def blocks() -> list[Block]:
    return [make_block(number) for number in range(6)]


def test_the_tier_gets_only_as_many_as_keep_it_busy(blocks: list[Block]) -> None:
    one = Queue(under_way_max=2)
    one.add(*blocks)
    assert one.tier.given == [block.key for block in blocks[:2]]
    one.tier.end_one()
    assert one.tier.given == [block.key for block in blocks[:3]]
    assert (one.ended, one.queue.waiting) == ([1], 3)
    assert "3 waiting, 2 under way" in repr(one.queue)


def test_wanted_blocks_overtake_others(blocks: list[Block]) -> None:
    one = Queue()
    one.add(*blocks[:3])
    one.add(blocks[3], first=True)
    for _ in range(3):
        one.tier.end_one()
    assert one.tier.given == [blocks[index].key for index in (0, 3, 1, 2)]


def test_a_waiting_block_that_is_asked_for_overtakes_too(blocks: list[Block]) -> None:
    one = Queue()
    one.add(*blocks[:4])
    one.queue.prefer([blocks[3].key, blocks[0].key, blocks[5].key])
    for _ in range(3):
        one.tier.end_one()
    assert one.tier.given == [blocks[index].key for index in (0, 3, 1, 2)]


def test_a_block_waits_only_once(blocks: list[Block]) -> None:
    one = Queue()
    one.add(*blocks[:2])
    assert not one.queue.add(blocks[1].key, blocks[1].frame, lambda _: None, first=True)


def test_no_more_goes_than_the_rate_allows(blocks: list[Block]) -> None:
    size = len(blocks[0].frame)
    one = Queue(under_way_max=100, bytes_per_s=2 * size)
    one.add(*blocks)
    assert len(one.tier.given) == 1  # half a second's worth was saved up
    for seconds in range(1, 4):
        one.clock.advance(1.0)
        one.queue.pump()
        assert len(one.tier.given) <= 1 + 2 * seconds
    one.clock.advance(10.0)
    one.queue.pump()
    one.clock.advance(10.0)
    one.queue.pump()
    assert len(one.tier.given) == 6


def test_a_tier_that_is_left_out_refuses_all_at_once(blocks: list[Block]) -> None:
    one = Queue(bytes_per_s=1)
    one.tier.breaker_state = OPEN
    one.add(*blocks)
    assert (one.ended, one.queue.waiting) == ([6], 0)


def test_thousands_that_end_at_once_are_no_recursion() -> None:
    one = Queue()
    one.tier.breaker_state = OPEN
    block = make_block(1)
    keys = [BlockKey.of(b"n" * 16, number.to_bytes(32, "big")) for number in range(5000)]
    for key in keys:
        one.queue.add(key, block.frame, one._count, first=False)
    one.queue.pump()
    assert one.ended == [5000]


def test_what_is_given_up_was_never_given_to_the_tier(blocks: list[Block]) -> None:
    one = Queue()
    one.add(*blocks)
    for ended in one.queue.give_up():
        ended(failed("closed"))
    one.tier.end_one()
    assert one.tier.given == [blocks[0].key]
    assert one.ended == [6]
