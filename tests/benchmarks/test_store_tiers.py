"""The benchmarks of stores, over a folder: what they read really comes from it, on both sides."""

import argparse
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import request, store_tiers, stores_against_lmcache
from benchmarks.own_clients import OwnClient
from benchmarks.real_stores import NAMES, OWN_WORDS, RealStore, running_store
from benchmarks.result import BenchmarkError, Round
from benchmarks.store_tiers import COLD, OWN, TIER, WARM, Prefix, TierPath, drop_page_cache, measure_round, running_tier
from benchmarks.stores_against_lmcache import KVEIK, LMCACHE, WITHOUT_LMCACHE, Side
from kveik.kv.keys import NAMESPACE_BYTES, BlockKey
from kveik.verify.prompts import Prompt
from tests.benchmarks.test_rounds import NotingClient, NotingEngine

GIVEN = argparse.Namespace(
    model=Path("/models/small"), dtype="bfloat16", rounds=2, stores=list(NAMES), core=1, tokens=7000, repeats=1
)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request, "PAUSE_S", 0.0)
    monkeypatch.setattr(request, "SAVE_S", 0.0)


def small_prefix() -> Prefix:
    return Prefix([BlockKey.of(b"b" * NAMESPACE_BYTES, os.urandom(32)) for _ in range(6)], 64 << 10)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RealStore]:
    with running_store("filesystem", tmp_path / "s", 1 << 30, print) as running:
        yield running


@pytest.fixture
def stored(store: RealStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[TierPath, Prefix]]:
    monkeypatch.setattr(store_tiers, "GIB", 64 << 20)
    prefix = small_prefix()
    with running_tier(tmp_path, store, prefix) as tier:
        tier.store()
        yield tier, prefix


def test_a_prefix_has_as_many_blocks_of_the_size_that_the_model_has(tmp_path: Path) -> None:
    config = {"num_hidden_layers": 30, "num_key_value_heads": 3, "num_attention_heads": 9, "head_dim": 64}
    (tmp_path / "config.json").write_text(json.dumps(config))
    prefix = Prefix.of(tmp_path, "bfloat16", 7000)
    assert (len(prefix.keys), prefix.payload_bytes) == (54, 128 * 23040)
    assert prefix.frame_bytes == 54 * (4096 + 128 * 23040)


def test_both_sides_read_all_of_the_prefix_out_of_the_store(store: RealStore, stored: tuple[TierPath, Prefix]) -> None:
    tier, prefix = stored
    names = store.own_names(prefix.keys)
    assert sum(os.stat(name).st_size for name in names) == prefix.frame_bytes
    one = Round()
    with OwnClient(store.own, store.options, prefix.frame_bytes) as own:
        for cold in (False, True):
            measure_round(one, tier, own, names, prefix, cold=cold, own_first=cold)
    assert len(one.samples[TIER]) == len(one.samples[OWN]) == 2
    assert min(one.samples[TIER] + one.samples[OWN]) > 0


def test_a_block_that_did_not_come_out_of_the_tier_is_no_measurement(
    store: RealStore, stored: tuple[TierPath, Prefix]
) -> None:
    tier, prefix = stored
    os.unlink(store.own_names(prefix.keys)[2])
    with pytest.raises(BenchmarkError, match="1 of 6 blocks did not come: miss"):
        tier.read()


def test_dropping_the_page_cache_keeps_the_files(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"x" * 100_000)
    drop_page_cache([str(file)])
    assert file.read_bytes() == b"x" * 100_000


def test_each_store_has_its_claims_and_its_words() -> None:
    assert [claim.group for claim in store_tiers.claims(NAMES)] == [WARM, COLD, "mooncake", "yuanrong", "redis"]
    assert set(OWN_WORDS) == set(NAMES)
    said = store_tiers.conditions(GIVEN, small_prefix())
    assert all(f"{name}'s own client" in said for name in NAMES)


def test_who_is_compared_with_lmcache_and_why_others_are_not() -> None:
    compared = [claim.group for claim in stores_against_lmcache.claims(list(NAMES))]
    assert compared == ["filesystem", "redis"]
    said = stores_against_lmcache.conditions(GIVEN)
    assert all(f"LMCache with {name}" in said for name in WITHOUT_LMCACHE)


def test_before_each_hit_the_memory_above_the_store_is_emptied_and_both_answer_in_turn() -> None:
    calls: list[str] = []

    def side(name: str) -> Side:
        engine = NotingEngine(NotingClient(name, calls, set()))
        return Side(
            engine,  # type: ignore[arg-type]
            lambda: calls.append(f"{name} written"),
            lambda: calls.append(f"{name} emptied"),
        )

    one = Round()
    prompt = Prompt("en-300", "en", tuple(range(300)))
    stores_against_lmcache.measure_round(one, {name: side(name) for name in (KVEIK, LMCACHE)}, prompt, 1)
    assert calls == [
        *("Kveik cold", "Kveik written", "LMCache cold", "LMCache written"),
        *("Kveik emptied", "Kveik reset", "Kveik external", "LMCache emptied", "LMCache reset", "LMCache external"),
    ]
    assert set(one.samples) == {"Kveik cold", "LMCache cold", "Kveik out of the store", "LMCache out of the store"}


def test_lmcache_is_told_the_same_store(store: RealStore, tmp_path: Path) -> None:
    folder = tmp_path / "lmcache"
    assert stores_against_lmcache.second_level(store, folder) == {"type": "fs_native", "base_path": str(folder)}
    redis = RealStore(name="redis", own="redis", address="127.0.0.1:6379")
    assert stores_against_lmcache.second_level(redis, folder) == {"type": "resp", "host": "127.0.0.1", "port": 6379}
