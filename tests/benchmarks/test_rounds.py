"""How the benchmarks lay out their rounds, seen through engines that note what they are asked."""

import argparse
import sys
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from benchmarks import against_lmcache, overhead, request, ttft
from benchmarks.options import Recorder
from benchmarks.request import cold, external_hit, local_hit
from benchmarks.result import BenchmarkError, Claim, Result, Round
from kveik.engine.client import Completion, CompletionRequest
from kveik.verify.prompts import Prompt


@dataclass
class NotingClient:
    """Answers like an engine with both caches and notes each call."""

    name: str
    calls: list[str]
    shared: set[tuple[int, ...]]
    own: set[tuple[int, ...]] = field(default_factory=set)
    asked: list[tuple[int, ...]] = field(default_factory=list)

    def tokenize(self, text: str, _: str) -> tuple[int, ...]:
        return tuple(hash(word) for word in text.split())

    def reset_local_cache(self) -> None:
        self.calls.append(f"{self.name} reset")
        self.own.clear()

    def complete(self, asked: CompletionRequest, _: str) -> Completion:
        known = asked.prompt in self.own | self.shared
        source = "local" if asked.prompt in self.own else "external" if known else "cold"
        self.calls.append(f"{self.name} {source}")
        self.asked.append(asked.prompt)
        self.own.add(asked.prompt)
        self.shared.add(asked.prompt)
        tokens = len(asked.prompt)
        cached = (tokens - 1) // 128 * 128 if known else 0
        return Completion((1,) * asked.max_tokens, "", (), (), 0.5, 1.5, tokens, cached, "length")


class IdleProcess:
    def processor_s(self) -> float:
        return 0.0


@dataclass
class NotingEngine:
    client: NotingClient
    model_name: str = "model"
    process: IdleProcess = field(default_factory=IdleProcess)

    @property
    def spec(self) -> argparse.Namespace:
        return argparse.Namespace(name=self.client.name)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (request, overhead):
        monkeypatch.setattr(module, "PAUSE_S", 0.0)
    monkeypatch.setattr(request, "SAVE_S", 0.0)


@pytest.fixture
def calls() -> list[str]:
    return []


def engines(calls: list[str], *names: str, share: bool = True) -> dict[str, NotingEngine]:
    shared: set[tuple[int, ...]] = set()
    return {name: NotingEngine(NotingClient(name, calls, shared if share else set())) for name in names}


def prompt(tokens: int = 300) -> Prompt:
    return Prompt(f"en-{tokens}", "en", tuple(range(tokens)))


def options(**more: object) -> argparse.Namespace:
    return argparse.Namespace(rounds=2, repeats=2, seed=1, tokens=[300], wait_quiet=0.0, **more)


def test_the_reader_of_a_ttft_round_never_saw_the_prompt_and_the_engines_swap(calls: list[str]) -> None:
    a, b = engines(calls, "a", "b").values()
    ttft.measure_rounds(options(), Recorder("b", "q", options()), [a, b])  # type: ignore[list-item]
    hits = ["b reset", "b external", "b local"] * 2
    swapped = ["a reset", "a external", "a local"] * 2
    assert calls == ["a cold", *hits, "b cold", *swapped]


def test_kveik_and_lmcache_answer_in_turn_and_who_is_first_changes(calls: list[str]) -> None:
    both = engines(calls, against_lmcache.KVEIK, against_lmcache.LMCACHE, share=False)
    against_lmcache.measure_rounds(options(), Recorder("b", "q", options()), both)  # type: ignore[arg-type]
    turn = ["Kveik reset", "Kveik external", "LMCache reset", "LMCache external"]
    back = ["LMCache reset", "LMCache external", "Kveik reset", "Kveik external"]
    assert calls == ["Kveik cold", "LMCache cold", *turn * 2, "LMCache cold", "Kveik cold", *back * 2]


def test_no_prompt_of_the_overhead_benchmark_is_used_twice(calls: list[str]) -> None:
    both = engines(calls, overhead.WITH, overhead.WITHOUT)
    overhead.measure_rounds(options(), Recorder("b", "q", options()), both, 0)  # type: ignore[arg-type]
    asked = [one for engine in both.values() for one in engine.client.asked]
    assert len(asked) == len(set(asked)) == 2 + 2 * 2 * (len(overhead.COLD_TOKENS) + 1 + overhead.STREAMS)
    assert {call.rpartition(" ")[2] for call in calls} == {"cold"}


def test_a_cold_run_that_hit_a_cache_is_refused(calls: list[str]) -> None:
    (engine,) = engines(calls, "a").values()
    cold(engine, prompt())  # type: ignore[arg-type]
    with pytest.raises(BenchmarkError, match=r"en-300 is not cold: 256 tokens"):
        cold(engine, prompt())  # type: ignore[arg-type]


@pytest.mark.parametrize("hit", [local_hit, external_hit])
def test_a_hit_that_computed_instead_is_refused(calls: list[str], hit: object) -> None:
    (engine,) = engines(calls, "a").values()
    with pytest.raises(BenchmarkError, match="a took 0 tokens of en-300 from a cache, expected 256"):
        hit(engine, prompt())  # type: ignore[operator]


def test_a_round_notes_how_many_tokens_came_from_a_cache(calls: list[str]) -> None:
    a, b = engines(calls, "a", "b").values()
    one = Round()
    ttft.measure_round(one, a, b, prompt(), repeats=1)  # type: ignore[arg-type]
    assert one.hit_tokens == {ttft.COLD: 0, ttft.EXTERNAL: 256, ttft.LOCAL: 256}


def test_what_was_measured_before_a_failure_is_kept_and_says_so(tmp_path: Path) -> None:
    given = options(json=tmp_path / "r.json", plot=None, engine_python=sys.executable)
    recorder = Recorder("b", "q", given)
    claims = [Claim(group=group, first="a", second="b", direction="at most", bound=1.0) for group in ("g", "never")]

    def measure() -> None:
        with recorder.writing({"where": "here"}, claims):
            with recorder.round("g") as one:
                one.add("a", 1.0)
                one.add("b", 2.0)
            raise BenchmarkError("the engine died")

    with pytest.raises(BenchmarkError, match="the engine died"):
        measure()
    result = msgspec.json.decode((tmp_path / "r.json").read_bytes(), type=Result)
    assert result.conditions["cut short"] == "BenchmarkError, after the rounds below"
    assert [claim.group for claim in result.claims] == ["g"]
    assert result.group("g").rounds[0].samples == {"a": [1.0], "b": [2.0]}
