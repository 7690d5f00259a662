"""The slowed tier gives its blocks at the rate that was set, and no faster to several at once."""

import threading
import time

from benchmarks.load_or_compute import FAST, SLOW, SlowedStore, claims
from kveik.clock import Deadline
from kveik.store.base import Status
from kveik.store.memory import MemoryStore
from tests.blocks import Block, make_block


def slowed(*blocks: Block) -> SlowedStore:
    store = SlowedStore(MemoryStore())
    store.put([block.key for block in blocks], [block.frame for block in blocks], Deadline.after(10.0))
    return store


def read(store: SlowedStore, block: Block, seconds: float = 60.0) -> Status:
    return store.get([block.key], [block.buffer()], Deadline.after(seconds))[0].status


def test_blocks_come_no_faster_than_allowed_to_all_readers_together() -> None:
    blocks = [make_block(number) for number in range(8)]
    store = slowed(*blocks)
    store.bytes_per_s = 8 * len(blocks[0].frame) / 0.4
    readers = [threading.Thread(target=read, args=(store, block)) for block in blocks]
    started_s = time.monotonic()
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert time.monotonic() - started_s >= 0.39


def test_what_would_come_after_the_deadline_fails_at_it() -> None:
    block = make_block(1)
    store = slowed(block)
    store.bytes_per_s = 1.0
    assert read(store, block, seconds=0.05) is Status.FAILED


def test_without_a_rate_nothing_waits() -> None:
    block = make_block(1)
    assert read(slowed(block), block) is Status.HIT


def test_there_is_a_claim_for_each_side_of_the_break_even() -> None:
    assert {claim.group for claim in claims()} == {SLOW, FAST}
