"""A fleet whose engines hash blocks differently: nothing is mixed, nothing is promised, and equal settings cure it.

Three engines of one model: ``PYTHONHASHSEED=0``, without it, and ``--prefix-caching-hash-algo sha256_cbor``. They
are simulated, with vLLM's hashes: ``tests/unit/connector/test_identity.py`` compares those with vLLM's own.
"""

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from kveik.kv.events import BlockStored, WireHash, decode_batch
from kveik.kv.keys import BlockKey
from kveik.kv.namespace import REQUIRED_FACTS, Namespace
from kveik.router.app import RouterApp
from kveik.simulate.block_hashes import VLLM_SEED, HashChain
from kveik.simulate.server import SimServer
from tests.unit.router.exact_rig import ask, cached, engine, last_choice, post, routing, settled, until_why, words
from tests.unit.router.rig import run

BLOCK = 16
PROMPT = [random.Random(place).randrange(1000) for place in range(600)]
#: What an engine can use of it: whole blocks, and never the last token.
USABLE = 599 // BLOCK * BLOCK

#: How each engine of the fleet hashes.
SPLIT = {
    "a": {"hash_algorithm": "sha256", "hash_seed": "0"},
    "b": {"hash_algorithm": "sha256", "hash_seed": VLLM_SEED},
    "c": {"hash_algorithm": "sha256_cbor", "hash_seed": VLLM_SEED},
}
EQUAL = dict.fromkeys(SPLIT, SPLIT["a"])

Hashing = Mapping[str, Mapping[str, str]]


def namespace(hashing: Mapping[str, str]) -> Namespace:
    """As the connector makes it: all other facts of these engines are the same."""
    return Namespace({**dict.fromkeys(REQUIRED_FACTS, "same"), **hashing})


@contextmanager
def fleet(hashing: Hashing) -> Iterator[dict[str, SimServer]]:
    """One engine for each, with a shared cache that keeps namespaces apart, as the store's keys do."""
    shared: dict[bytes, set[bytes]] = defaultdict(set)
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(engine(None, shared[namespace(one).digest], **one))
            for name, one in hashing.items()
        }


@asynccontextmanager
async def routed(folder: Path, engines: Mapping[str, SimServer], hashing: Hashing) -> AsyncIterator[RouterApp]:
    announced = [
        words(server, name, namespace=namespace(hashing[name]).digest.hex()) for name, server in engines.items()
    ]
    async with routing(folder, *announced) as app:
        for name in engines:
            await until_why(app, "only prompts of token ids are looked up exactly", name)
        yield app


async def prompt_at(server: SimServer) -> int:
    """Give the prompt to this engine, past the router; how many tokens it had."""
    return cached(await asyncio.to_thread(post, f"{server.url}/v1/completions", prompt=PROMPT))


async def expected(app: RouterApp, engines: Mapping[str, SimServer]) -> dict[str, tuple[int, int]]:
    """What the router expects each engine to have of the prompt: by itself, and beyond that from the shared cache."""
    await settled(app, *engines.values())
    await ask(app, "/v1/completions", prompt=PROMPT)
    looked_at: dict[str, Any] = last_choice(app)["engines"]
    return {name: (one["cached_tokens"], one["shared_tokens"]) for name, one in looked_at.items()}


def first_hash(server: SimServer) -> WireHash:
    """The hash of the prompt's first block in the events that the engine published."""
    server.call(lambda: None)  # what is published in the turn of an answer has been
    assert server._publisher is not None
    batches = [decode_batch(payload) for _, payload in server._publisher._kept]
    (found,) = {
        event.block_hashes[0]
        for batch in batches
        for event in batch.events
        if isinstance(event, BlockStored) and event.token_ids[:BLOCK] == PROMPT[:BLOCK]
    }
    return found


def test_engines_that_hash_differently_are_never_expected_to_have_each_others_blocks(tmp_path: Path) -> None:
    async def test() -> None:
        async with routed(tmp_path, engines, SPLIT) as app:
            assert await prompt_at(engines["a"]) == 0
            assert await expected(app, engines) == {"a": (USABLE, 0), "b": (0, 0), "c": (0, 0)}
            assert last_choice(app)["engine"] == "a"
            assert [await prompt_at(engines[name]) for name in ("b", "c")] == [0, 0], "as the router had foretold"
            assert len({first_hash(server) for server in engines.values()}) == 3
            assert await expected(app, engines) == {"a": (USABLE, 0), "b": (USABLE, 0), "c": (USABLE, 0)}
            engines["b"].call(engines["b"].app.core.cache.clear)
            assert (await expected(app, engines))["b"] == (0, 0), "and what one forgets is still with the others"
            assert (await expected(app, engines))["a"] == (USABLE, 0)

    with fleet(SPLIT) as engines:
        run(test)


def test_once_they_hash_alike_each_gets_what_one_has_computed(tmp_path: Path) -> None:
    async def test() -> None:
        async with routed(tmp_path, engines, EQUAL) as app:
            assert await prompt_at(engines["a"]) == 0
            assert await expected(app, engines) == {"a": (USABLE, 0), "b": (0, USABLE), "c": (0, USABLE)}
            assert [await prompt_at(engines[name]) for name in ("b", "c")] == [USABLE, USABLE], "across engines"
            assert len({first_hash(server) for server in engines.values()}) == 1

    with fleet(EQUAL) as engines:
        run(test)


def test_the_store_keeps_them_apart_and_the_difference_is_told_by_name() -> None:
    one, other, third = (namespace(hashing) for hashing in SPLIT.values())
    assert len({one.digest, other.digest, third.digest}) == 3
    assert one.differences(other) == [f"hash_seed 0 != {VLLM_SEED}"]
    assert other.differences(third) == ["hash_algorithm sha256 != sha256_cbor"]
    chain = HashChain(**_chain(SPLIT["a"]))
    block = chain.next(chain.root, PROMPT[:BLOCK])
    assert len({BlockKey.of(space.digest, block, 0) for space in (one, other, third)}) == 3, "even for one hash"


def _chain(hashing: Mapping[str, str]) -> dict[str, str]:
    return {"algorithm": hashing["hash_algorithm"], "seed": hashing["hash_seed"]}


@pytest.mark.parametrize("name", SPLIT)
def test_engines_publish_the_hashes_of_their_own_settings(name: str) -> None:
    chain = HashChain(**_chain(SPLIT[name]))
    with fleet({name: SPLIT[name]}) as engines:
        asyncio.run(prompt_at(engines[name]))
        low_64_bits = int.from_bytes(chain.next(chain.root, PROMPT[:BLOCK])[-8:], "big")
        assert first_hash(engines[name]) == low_64_bits
