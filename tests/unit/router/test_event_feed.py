"""An engine's events are followed over real sockets: late, with gaps, through restarts, or not at all."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
import uvloop
import zmq

from kveik.kv.events import BlockStored, EventBatch
from kveik.router import event_feed
from kveik.router.event_feed import EventFeed
from tests.unit.router.rig import until

WAIT_S = 60.0
_END = (-1).to_bytes(8, "big", signed=True)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a test on the loop that routers run on: it has its own way to watch descriptors."""

    async def bounded() -> None:
        async with asyncio.timeout(WAIT_S):
            await test()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(bounded())


class Publisher:
    """Publishes and replays as vLLM does; can lose batches on their way, forget old ones, and refuse to replay."""

    def __init__(self, events: str, replay: str, *, life: str = "a") -> None:
        self.life = life
        self.kept: list[tuple[int, bytes]] = []
        self.number = 0
        self.silent = False
        self.replays_at_most = 1 << 30
        self.asked: list[int] = []
        self._context = zmq.Context()
        self._publisher = self._context.socket(zmq.PUB)
        self._publisher.bind(events)
        self._router = self._context.socket(zmq.ROUTER)
        self._loop = asyncio.get_running_loop()
        if replay:
            self._router.bind(replay)
            self._loop.add_reader(self._router.fileno(), self._serve)

    def publish(self, *hashes: int, lost: bool = False, event: dict[str, Any] | None = None) -> None:
        stored = {
            "type": "BlockStored", "block_hashes": list(hashes), "parent_block_hash": None,
            "token_ids": list(range(16 * len(hashes))), "block_size": 16, "medium": "GPU",
        }  # fmt: skip
        payload = msgspec.msgpack.encode([ord(self.life) * 1000 + self.number / 8, [event or stored], 0])
        self.kept.append((self.number, payload))
        if not lost:
            self._publisher.send_multipart((b"", self.number.to_bytes(8, "big"), payload))
        self.number += 1

    def send_raw(self, *frames: bytes) -> None:
        self._publisher.send_multipart(frames)

    def _serve(self) -> None:
        while True:
            try:
                client, empty, start = self._router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self.asked.append(int.from_bytes(start, "big"))
            if self.silent:
                continue
            asked = [one for one in self.kept if one[0] >= self.asked[-1]]
            for at, (number, payload) in enumerate(asked):
                if at < self.replays_at_most or at % 2:
                    self._router.send_multipart((client, empty, b"", number.to_bytes(8, "big"), payload))
            self._router.send_multipart((client, empty, b"", _END, b""))

    def close(self) -> None:
        if not self._publisher.closed:
            if not self._router.closed:
                self._loop.remove_reader(self._router.fileno())
            self._publisher.close(linger=0)
            self._router.close(linger=0)
            self._context.term()


@dataclass
class Notes:
    """A follower that keeps what it is told."""

    hashes: list[Any] = field(default_factory=list)
    begun: int = 0
    restarts: int = 0
    why: str = "?"
    whys: list[str] = field(default_factory=list)
    refuse: str = ""

    def began(self, *, restarted: bool) -> None:
        self.begun += 1
        self.restarts += restarted
        self.hashes.clear()

    def took(self, batch: EventBatch) -> str:
        for event in batch.events:
            if isinstance(event, BlockStored):
                self.hashes += event.block_hashes
        return self.refuse

    def settled(self, why: str) -> None:
        self.why = why
        self.whys.append(why)


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


@dataclass
class Rig:
    events: str
    replay: str
    publisher: Publisher
    notes: Notes
    feed: EventFeed

    def restart(self, life: str) -> None:
        self.publisher.close()
        self.publisher = Publisher(self.events, self.replay, life=life)

    async def taken(self, *hashes: int) -> None:
        await until(lambda: self.notes.hashes == list(hashes), f"{hashes}, but {self.notes}")

    async def settled(self, why: str = "") -> None:
        await until(lambda: self.notes.why == why if not why else why in self.notes.why, f"{why!r}: {self.notes}")


@asynccontextmanager
async def following(*before: int, replays: bool = True, forgotten: int = 0) -> AsyncIterator[Rig]:
    """A publisher that has published batches before anybody listened, and a feed."""
    events, replay = free_address(), free_address() if replays else ""
    publisher = Publisher(events, replay)
    for one in before:
        publisher.publish(one)
    del publisher.kept[:forgotten]
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    notes = Notes()
    rig = Rig(events, replay, publisher, notes, EventFeed(context, events, replay, notes))
    try:
        yield rig
    finally:
        rig.feed.close()
        rig.publisher.close()
        context.term()


def test_who_comes_late_gets_all_that_was_published_before_and_all_after() -> None:
    async def test() -> None:
        async with following(1, 2, 3) as rig:
            await rig.settled()
            assert rig.notes.hashes == [1, 2, 3]
            rig.publisher.publish(4, 5)
            await rig.taken(1, 2, 3, 4, 5)
            assert rig.notes.why == ""

    run(test)


def test_an_engine_that_has_published_nothing_is_known_completely() -> None:
    async def test() -> None:
        async with following() as rig:
            await rig.settled()
            rig.publisher.publish(1)
            await rig.taken(1)

    run(test)


def test_a_gap_is_repaired_by_replay_and_nothing_is_taken_twice() -> None:
    async def test() -> None:
        async with following(1) as rig:
            await rig.settled()
            rig.publisher.publish(2, lost=True)
            rig.publisher.publish(3, lost=True)
            rig.publisher.publish(4)
            await rig.taken(1, 2, 3, 4)
            assert rig.publisher.asked[-1] == 0, "asks from the last one it has, to know the engine again"
            rig.publisher.publish(5)
            await rig.taken(1, 2, 3, 4, 5)
            assert (rig.notes.begun, rig.notes.why) == (1, "")

    run(test)


def test_a_gap_that_is_no_longer_kept_drops_what_was_known_and_says_so() -> None:
    async def test() -> None:
        async with following(1) as rig:
            await rig.settled()
            for one in (2, 3, 4):
                rig.publisher.publish(one, lost=True)
            del rig.publisher.kept[:3]
            rig.publisher.publish(5)
            await rig.settled("batches 1 to 2 are lost")
            await rig.taken(4, 5)
            rig.publisher.publish(event={"type": "AllBlocksCleared"})
            await rig.settled()

    run(test)


def test_a_replay_with_holes_is_asked_for_again_from_the_first_of_them() -> None:
    async def test() -> None:
        async with following() as rig:
            await rig.settled()
            rig.publisher.replays_at_most = 5
            for one in range(30):
                rig.publisher.publish(one, lost=True)
            rig.publisher.publish(30)
            await rig.taken(*range(31))
            assert len(rig.publisher.asked) > 6
            assert (rig.notes.begun, rig.notes.why) == (1, "")

    run(test)


def test_a_replay_that_leaves_out_the_same_batch_again_and_again_is_not_asked_for_without_end() -> None:
    async def test() -> None:
        async with following(1) as rig:
            await rig.settled()
            rig.publisher.publish(2, lost=True)
            rig.publisher.publish(3, lost=True)
            del rig.publisher.kept[1]
            rig.publisher.publish(4)
            await rig.settled("its replay leaves out batches")
            assert rig.notes.hashes == []
            assert len(rig.publisher.asked) < 5

    run(test)


def test_history_that_is_no_longer_kept_is_not_complete_until_the_cache_is_emptied() -> None:
    async def test() -> None:
        async with following(1, 2, 3, forgotten=2) as rig:
            await rig.settled("its first 2 batches are no longer kept")
            assert rig.notes.hashes == [3]
            rig.publisher.publish(event={"type": "AllBlocksCleared"})
            await rig.settled()

    run(test)


@pytest.mark.parametrize("batches", [0, 1, 2, 3, 6])
def test_a_restarted_engine_holds_nothing_of_its_former_life_however_many_batches_it_has_published(
    batches: int,
) -> None:
    async def test() -> None:
        async with following(1, 2, 3) as rig:
            await rig.settled()
            rig.restart("b")
            for one in range(batches):
                rig.publisher.publish(100 + one)
            await until(lambda: rig.notes.restarts == 1, "the former life is forgotten")
            await rig.taken(*range(100, 100 + batches))
            await rig.settled()
            rig.publisher.publish(200)
            await rig.taken(*range(100, 100 + batches), 200)

    run(test)


def test_a_lost_connection_to_the_same_engine_costs_nothing() -> None:
    async def test() -> None:
        async with following(1, 2) as rig:
            await rig.settled()
            kept, number = rig.publisher.kept, rig.publisher.number
            rig.restart("a")
            rig.publisher.kept, rig.publisher.number = kept, number
            await rig.settled("connection to its events is lost")
            await rig.settled()
            rig.publisher.publish(3)
            await rig.taken(1, 2, 3)
            assert rig.notes.begun == 1

    run(test)


def test_without_a_replay_socket_the_first_batch_ever_makes_it_complete() -> None:
    async def test() -> None:
        async with following(replays=False) as rig:
            await rig.settled("no event was seen yet")
            await asyncio.sleep(event_feed.SETTLE_S)
            rig.publisher.publish(1)
            await rig.taken(1)
            await rig.settled()
            rig.publisher.publish(2, lost=True)
            rig.publisher.publish(3)
            await rig.settled("batches 1 to 1 were missed, and no replay socket is announced")
            await rig.taken(3)

    run(test)


def test_without_a_replay_socket_who_comes_late_is_told_that_something_is_missing() -> None:
    async def test() -> None:
        async with following(1, 2, replays=False) as rig:
            await rig.settled("no event was seen yet")
            rig.publisher.publish(3)
            await rig.settled("batches 0 to 1 were missed")
            rig.restart("b")
            await rig.settled("connection")
            await rig.settled("no event was seen yet")
            assert rig.notes.hashes == []

    run(test)


def test_a_replay_socket_that_does_not_answer_is_told_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_feed, "REPLAY_S", 0.1)
    monkeypatch.setattr(event_feed, "RETRY_S", 0.1)

    async def test() -> None:
        async with following(1, 2) as rig:
            rig.publisher.silent = True
            await rig.settled("does not answer")
            assert rig.notes.hashes == []
            rig.publisher.publish(3)
            rig.publisher.silent = False
            await rig.settled()
            await rig.taken(1, 2, 3)

    run(test)


def test_events_that_cannot_be_followed_end_the_feed_with_the_reason() -> None:
    async def test() -> None:
        async with following(1) as rig:
            await rig.settled()
            rig.notes.refuse = "blocks of 32 tokens, expected 16"
            rig.publisher.publish(2)
            await rig.settled("blocks of 32 tokens")
            assert rig.feed.closed
            assert rig.notes.hashes == []

    run(test)


def test_an_unknown_kind_of_event_ends_the_feed_since_what_it_means_for_the_cache_is_unknown() -> None:
    async def test() -> None:
        async with following(1) as rig:
            await rig.settled()
            rig.publisher.publish(event={"type": "BlockMoved"})
            await rig.settled("no batch of KV events that this version knows")

    run(test)


def test_messages_that_are_no_batches_are_passed_over() -> None:
    async def test() -> None:
        async with following(1) as rig:
            await rig.settled()
            for frames in ((b"x",), (b"", b"123", b"y"), (b"", b"", b"", b"")):
                rig.publisher.send_raw(*frames)
            rig.publisher.publish(2)
            await rig.taken(1, 2)

    run(test)


def test_a_long_history_does_not_hold_up_the_loop() -> None:
    async def test() -> None:
        async with following() as rig:
            await rig.settled()
            for one in range(3000):
                rig.publisher.publish(one, lost=True)
            gaps, before = [], asyncio.get_running_loop().time()
            rig.publisher.publish(3000)
            while len(rig.notes.hashes) < 3001:
                await asyncio.sleep(0)
                now = asyncio.get_running_loop().time()
                gaps.append(now - before)
                before = now
            gaps.sort()
            assert gaps[len(gaps) * 9 // 10] < 0.01, "reading goes on in turns"

    run(test)


def test_an_address_that_is_none_is_an_error_at_once() -> None:
    async def test() -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        with pytest.raises(zmq.ZMQError):
            EventFeed(context, "tcp://127.0.0.1:http", "", Notes())
        context.term()

    run(test)
