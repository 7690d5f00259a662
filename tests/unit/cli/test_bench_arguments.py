"""What flags of ``kveik bench`` make of a run: seen in its document and in what an engine was asked."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kveik.cli.main import main
from kveik.config import SimEngineSettings
from kveik.simulate.server import SimServer

TINY = ["--documents=1", "--questions=2", "--document-tokens=32", "--question-tokens=16", "--answer-tokens=2"]

Measured = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def engine() -> Iterator[SimServer]:
    with SimServer(SimEngineSettings(port=0, model="m"), record=True) as server:
        yield server


@pytest.fixture
def measured(engine: SimServer, tmp_path: Path) -> Measured:
    """The document of a run with these flags; what the engine was asked before is forgotten."""

    def run(workload: str, *words: str) -> dict[str, Any]:
        engine.seen.recorded.clear()
        file = tmp_path / "result.json"
        assert main(["bench", workload, "--url", engine.url, f"--json={file}", *words]) in (0, 1)
        document: dict[str, Any] = json.loads(file.read_text())
        return document

    return run


def asked(engine: SimServer) -> list[dict[str, Any]]:
    """The bodies of the run's requests, without those that warm the engine up."""
    bodies = [json.loads(one.body) for one in engine.seen.recorded if one.path == "/v1/completions"]
    return [body for body in bodies if "warm-up" not in body.get("cache_salt", "")]


@pytest.mark.parametrize(
    ("words", "rounds", "concurrency", "rate"),
    [
        ([], 1, 4, 0),
        (["--rate=50"], 1, 0, 50),
        (["--rate=50", "--concurrency=2"], 1, 2, 50),
        (["--compare"], 3, 4, 0),
        (["--compare", "--rounds=2", "--concurrency=1"], 2, 1, 0),
    ],
    ids=["one side", "rate", "rate and places", "two sides", "given"],
)
def test_rounds_places_and_rate_have_sensible_defaults(
    measured: Measured, words: list[str], rounds: int, concurrency: int, rate: float
) -> None:
    document = measured("documents", *TINY, *words)
    how = document["how"]
    assert (how["rounds"], how["concurrency"], how["rate"]) == (rounds, concurrency, rate)
    assert len(document["runs"]) == rounds * len(document["sides"])


def test_lengths_and_counts_are_sent_as_given(measured: Measured, engine: SimServer) -> None:
    measured("prefix", "--requests=6", "--prefixes=2", "--prefix-tokens=40", "--suffix-tokens=8", "--answer-tokens=3")
    bodies = asked(engine)
    assert len(bodies) == 6
    assert {len(body["prompt"]) for body in bodies} == {48}
    assert sorted(Counter(tuple(body["prompt"][:40]) for body in bodies).values()) == [3, 3]
    assert {body["max_tokens"] for body in bodies} == {3}
    assert len({body["cache_salt"] for body in bodies}) == 1


def test_the_same_seed_sends_the_same_prompts_under_another_salt(measured: Measured, engine: SimServer) -> None:
    seen = []
    for seed in ("7", "7", "8"):
        measured("documents", *TINY, "--seed", seed)
        seen.append((sorted(body["prompt"] for body in asked(engine)), asked(engine)[0]["cache_salt"]))
    assert seen[0][0] == seen[1][0] != seen[2][0]
    assert len({salt for _, salt in seen}) == 3


def test_chats_are_sent_turn_after_turn(measured: Measured, engine: SimServer) -> None:
    measured("chats", "--chats=1", "--turns=3", "--system-tokens=0", "--turn-tokens=5", "--answer-tokens=4")
    assert [len(body["prompt"]) for body in asked(engine)] == [5, 14, 23]


def test_the_off_side_has_a_salt_for_each_request(measured: Measured, engine: SimServer) -> None:
    document = measured("documents", *TINY, "--compare", "--rounds=1")
    salts = [body["cache_salt"] for body in asked(engine)]
    assert sorted(Counter(salts).values()) == [1, 1, 2]
    assert document["how"]["off"] == "the same service, each request with a cache salt of its own"
    assert document["how"]["cold"] == "each run has a cache salt of its own"


def test_without_salts_none_is_sent_and_the_result_says_what_keeps_it_cold(
    measured: Measured, engine: SimServer
) -> None:
    document = measured("documents", *TINY, "--no-salt")
    assert not [body for body in asked(engine) if "cache_salt" in body]
    assert document["how"]["cold"] == "each round has new prompts"


def test_a_given_salt_is_sent_and_named_as_what_it_is(measured: Measured, engine: SimServer) -> None:
    document = measured("documents", *TINY, "--salt=mine", "--seed=99")
    assert {body["cache_salt"] for body in asked(engine)} == {"mine"}
    assert document["how"]["cold"] == "all runs have one salt: only the first can be cold"


def test_the_model_can_be_named(measured: Measured, engine: SimServer) -> None:
    assert measured("documents", *TINY, "--model=m")["how"]["models"] == {"on": "m"}
    assert main(["bench", "documents", "--url", engine.url, "--model=other"]) == 2


def test_a_prompt_that_the_model_does_not_take_is_wrong_use(
    engine: SimServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "documents", "--url", engine.url, "--document-tokens=40000"]) == 2
    assert "expected at most 32768, which is what the model takes" in capsys.readouterr().err
