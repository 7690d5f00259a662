"""KV events on real ZMQ sockets, read as a router reads vLLM's."""

import itertools
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import zmq

from kveik.config import SimEngineSettings
from kveik.errors import EngineStartError
from kveik.simulate.block_hashes import HashChain, short_hash
from kveik.simulate.server import SimServer
from tests.agents import wait_until
from tests.unit.simulate.raw import ask

END = (-1).to_bytes(8, "big", signed=True)
_salts = itertools.count()


def engine_with_events(**given: Any) -> SimServer:
    endpoints = {"events": "tcp://127.0.0.1:*", "events_replay": "tcp://127.0.0.1:*"}
    return SimServer(SimEngineSettings(port=0, **{**endpoints, **given}))


@pytest.fixture
def context() -> Iterator[zmq.Context[Any]]:
    made: zmq.Context[Any] = zmq.Context()
    made.linger = 0
    yield made
    made.destroy(linger=0)


class Subscriber:
    """Follows an engine; only returns once its subscription is in force."""

    def __init__(self, context: zmq.Context[Any], engine: SimServer, topic: str = "") -> None:
        self.socket = context.socket(zmq.SUB)
        self.socket.setsockopt(zmq.RCVTIMEO, 5000)
        self.socket.subscribe(topic)
        self.socket.connect(engine.events_endpoint)
        self.engine = engine

        def heard() -> bool:
            complete(engine, prompt="warm", cache_salt=f"warm-{next(_salts)}", max_tokens=64)
            return bool(self.socket.poll(20))

        wait_until(heard, "the first event is heard")
        self.batch()
        while self.socket.poll(50):
            self.batch()

    def batch(self) -> tuple[int, list[dict[str, Any]]]:
        """The next batch: its number and its events."""
        _, number, payload = self.socket.recv_multipart()
        return int.from_bytes(number, "big"), decode(payload)


def decode(payload: bytes) -> list[dict[str, Any]]:
    moment, events, rank = msgspec.msgpack.decode(payload)
    assert isinstance(moment, float)
    assert rank == 0
    return list(events)


def complete(engine: SimServer, **given: Any) -> Any:
    answer = ask(engine.url, "POST", "/v1/completions", {"prompt": list(range(100)), "max_tokens": 1, **given})
    assert answer.status == 200
    return answer.json()


def replay(context: zmq.Context[Any], engine: SimServer, start: bytes) -> list[tuple[bytes, int, bytes]]:
    """Ask as vLLM's own example does: a DEALER that sends an empty frame and the number."""
    with context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.RCVTIMEO, 5000)
        socket.connect(engine.replay_endpoint)
        socket.send_multipart((b"", start))
        found = []
        while (frames := socket.recv_multipart())[2] != END:
            assert frames[0] == b""
            found.append((frames[1], int.from_bytes(frames[2], "big"), frames[3]))
    assert frames == [b"", b"", END, b""]
    return found


@pytest.mark.parametrize("algorithm", ["sha256", "sha256_cbor"])
@pytest.mark.parametrize("short", [True, False])
def test_stored_blocks_are_told_as_vllm_tells_them(context: zmq.Context[Any], algorithm: str, short: bool) -> None:
    with engine_with_events(hash_algorithm=algorithm, hash_seed="0", events_short_hashes=short) as engine:
        subscriber = Subscriber(context, engine)
        complete(engine, cache_salt="pepper")
        _, (event,) = subscriber.batch()
    chain = HashChain(algorithm, "0")
    hashes, parent = [], chain.root
    for start in range(0, 96, 16):
        parent = chain.next(parent, range(start, start + 16), "" if start else "pepper")
        hashes.append(parent)
    assert event == {
        "type": "BlockStored",
        "block_hashes": [short_hash(one) for one in hashes] if short else hashes,
        "parent_block_hash": None,
        "token_ids": list(range(96)),
        "block_size": 16,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [["pepper"], None, None, None, None, None],
        "group_idx": 0,
    }


def test_a_longer_prompt_tells_only_what_is_new_and_its_parent(context: zmq.Context[Any]) -> None:
    with engine_with_events() as engine:
        subscriber = Subscriber(context, engine)
        complete(engine, prompt=list(range(40)))
        number, (first,) = subscriber.batch()
        complete(engine, prompt=list(range(40)))  # nothing new
        complete(engine, prompt=list(range(64)))
        next_number, (second,) = subscriber.batch()
    assert next_number == number + 1
    assert second["parent_block_hash"] == first["block_hashes"][-1]
    assert second["token_ids"] == list(range(32, 64))


def test_who_follows_knows_what_is_there_whatever_leaves(context: zmq.Context[Any]) -> None:
    with engine_with_events(cache_blocks=10) as engine:
        subscriber = Subscriber(context, engine)
        ask(engine.url, "POST", "/reset_prefix_cache")
        (_, events), held = subscriber.batch(), set()
        assert events == [{"type": "AllBlocksCleared"}]
        for start in (0, 1000, 0, 2000, 3000):
            complete(engine, prompt=list(range(start, start + 81)))
        while subscriber.socket.poll(100):
            for event in subscriber.batch()[1]:
                if event["type"] == "BlockStored":
                    held |= set(event["block_hashes"])
                else:
                    assert (event["type"], event["medium"], event["group_idx"]) == ("BlockRemoved", "GPU", 0)
                    held -= set(event["block_hashes"])
        cache = engine.app.core.cache
        assert held == {short_hash(one) for one in cache._blocks.values()}
        assert len(held) == 10


def test_blocks_of_answers_are_told_too(context: zmq.Context[Any]) -> None:
    with engine_with_events() as engine:
        subscriber = Subscriber(context, engine)
        complete(engine, prompt=list(range(20)), max_tokens=30)
        told = [event for event in subscriber.batch()[1] if event["type"] == "BlockStored"]
        while subscriber.socket.poll(50):
            told += subscriber.batch()[1]
    assert [len(event["block_hashes"]) for event in told] == [1, 2]
    assert told[1]["parent_block_hash"] == told[0]["block_hashes"][0]


def test_a_gap_can_be_seen_and_replayed(context: zmq.Context[Any]) -> None:
    with engine_with_events(events_topic="kv@sim") as engine:
        subscriber = Subscriber(context, engine, "kv@sim")
        complete(engine, cache_salt="a")
        before, _ = subscriber.batch()
        engine.lose_events(2)
        complete(engine, cache_salt="b")
        after, events = subscriber.batch()
        assert after == before + 3
        found = replay(context, engine, (before + 1).to_bytes(8, "big"))
        assert [(topic, number) for topic, number, _ in found] == [(b"kv@sim", before + n) for n in (1, 2, 3)]
        assert [decode(payload) for _, _, payload in found] == [[], [], events]
        everything = replay(context, engine, bytes(8))
        assert [number for _, number, _ in everything] == list(range(after + 1))


def test_a_replay_request_that_is_none_is_passed_over(context: zmq.Context[Any]) -> None:
    with engine_with_events() as engine, context.socket(zmq.DEALER) as socket:
        socket.connect(engine.replay_endpoint)
        socket.send_multipart((b"", b"short"))
        socket.send_multipart((b"one frame too many", b"", bytes(8), b""))
        assert replay(context, engine, bytes(8)) == []


def test_a_restarted_engine_counts_from_0_at_the_same_endpoints_as_a_real_one(context: zmq.Context[Any]) -> None:
    with engine_with_events() as engine:
        subscriber = Subscriber(context, engine)
        complete(engine)
        assert subscriber.batch()[0] > 0
        endpoints = (engine.events_endpoint, engine.replay_endpoint)
        engine.crash()
        engine.restart()
        assert (engine.events_endpoint, engine.replay_endpoint) == endpoints
        complete(engine)
        ((_, number, payload),) = replay(context, engine, bytes(8))
        assert (number, decode(payload)[0]["type"]) == (0, "BlockStored")


def test_the_sources_of_events_can_be_asked_for() -> None:
    with engine_with_events(events_topic="t") as engine:
        (source,) = ask(engine.url, "GET", "/kv_event_sources").json().values()
        assert (source["endpoint"], source["replay_endpoint"]) == (engine.events_endpoint, engine.replay_endpoint)
        assert (source["publisher"], source["topic"], source["enable_kv_cache_events"]) == ("zmq", "t", True)
    with SimServer() as engine:
        assert ask(engine.url, "GET", "/kv_event_sources").json() == {}
        assert engine.events_endpoint == engine.replay_endpoint == ""


def test_an_endpoint_that_cannot_be_had_is_an_error_that_says_so() -> None:
    with engine_with_events() as engine, pytest.raises(EngineStartError, match="cannot listen"):
        engine_with_events(events=engine.events_endpoint).__enter__()
