"""What an engine says of its hits, beside the time that it takes."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, ClassVar

import pytest

from kveik.doctor.check import Outcome, Point
from kveik.doctor.fleet_counters import Timed, check_counters, judge_times
from kveik.doctor.fleet_described import DescribedEngine
from kveik.doctor.fleet_view import SeenEngine
from kveik.engine.client import ServedModel
from kveik.engine.metrics import parse_metrics
from tests.unit.doctor.paper_fleet import context_of

HITS = Timed(
    "a", prompt_tokens=2000, base_s=0.05, cold_s=(1.0, 1.1), warm_s=(0.1, 0.11), told=(1984, 1984), counted=3968
)


def judged(one: Timed) -> list[Point]:
    return list(judge_times(one))


def only(one: Timed) -> Point:
    (point,) = judged(one)
    return point


def test_hits_that_are_told_and_felt_are_well() -> None:
    point = only(HITS)
    assert point.outcome is Outcome.WELL
    assert "saved 95% of the computing" in point.told


def test_hits_that_are_told_and_not_felt_are_wrong() -> None:
    point = only(replace(HITS, warm_s=(0.98, 1.05)))
    assert point.outcome is Outcome.WRONG
    assert "1984 of 2000 tokens are told as hits, and the answer is not faster" in point.told


def test_an_answer_that_is_faster_without_a_told_hit_is_wrong() -> None:
    point = only(replace(HITS, told=(0, 0), counted=0))
    assert point.outcome is Outcome.WRONG
    assert "only 0 of 2000 tokens are told as hits, and the answer is much faster" in point.told


def test_no_hit_at_all_is_wrong_unless_the_unit_of_hits_is_larger() -> None:
    none = replace(HITS, told=(0, 0), counted=0, warm_s=(0.99, 1.0))
    assert only(none).outcome is Outcome.WRONG
    assert only(replace(none, hit_unit=4096)).outcome is Outcome.UNKNOWN
    assert "unit of hits is 4096" in only(replace(none, hit_unit=4096)).told


def test_a_hit_of_a_prompt_that_nobody_sent_is_wrong() -> None:
    assert judged(replace(HITS, cold_hits=128))[0].outcome is Outcome.WRONG


def test_usage_and_counters_must_agree() -> None:
    points = judged(replace(HITS, counted=10))
    assert [point.outcome for point in points] == [Outcome.WRONG, Outcome.WELL]
    assert "usage told of 3968 cached tokens, its counters of 10" in points[0].told
    assert only(replace(HITS, counted=None)).outcome is Outcome.WELL


def test_a_prompt_that_is_computed_in_no_time_shows_nothing_and_raises_no_alarm() -> None:
    quick = replace(HITS, cold_s=(0.06, 0.06), warm_s=(0.06, 0.06))
    assert only(quick).outcome is Outcome.UNKNOWN
    assert "too short here for times to show it" in only(quick).told


def test_on_an_engine_that_works_for_others_times_say_nothing() -> None:
    slow = replace(HITS, warm_s=(1.0, 1.0))
    assert only(replace(slow, foreign_tokens=3000)).outcome is Outcome.UNKNOWN
    assert only(replace(slow, foreign_tokens=20)).outcome is Outcome.WRONG  # probes of a watchdog do not matter


def test_what_could_not_be_measured_is_unknown() -> None:
    assert only(Timed("a", trouble="it makes no token")).outcome is Outcome.UNKNOWN
    assert only(replace(HITS, told=())).outcome is Outcome.UNKNOWN


class LyingEngine(BaseHTTPRequestHandler):
    """Takes the same time for each long prompt, and tells of hits."""

    seen: ClassVar[frozenset[str]] = frozenset()
    hits: ClassVar[int] = 0
    others: ClassVar[int] = 0
    cold_s: ClassVar[float] = 0.2
    hit_s: ClassVar[float] = 0.2
    asked: ClassVar[int] = 0
    others_work: ClassVar[int] = 0

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        tokens, salt = len(body["prompt"]), body.get("cache_salt", "")
        cached = tokens - 16 if salt and salt in self.seen else 0
        type(self).seen = self.seen | {salt}
        type(self).hits = self.hits + cached
        type(self).asked = self.asked + (tokens > 100)
        type(self).others = self.others + tokens + self.others_work
        time.sleep(0.0 if tokens < 100 else self.hit_s if cached else self.cold_s)  # what is looked at
        usage = {"prompt_tokens": tokens, "prompt_tokens_details": {"cached_tokens": cached}}
        event = {"choices": [{"token_ids": [1], "text": "x", "finish_reason": "length"}], "usage": usage}
        self._answer(f"data: {json.dumps(event)}\n\ndata: [DONE]\n\n")

    def do_GET(self) -> None:
        self._answer(f"vllm:prefix_cache_hits_total {self.hits}\nvllm:prompt_tokens_total {self.others}\n")

    def _answer(self, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def lying_engine() -> Iterator[SeenEngine]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), LyingEngine)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        described = DescribedEngine("liar", f"http://127.0.0.1:{server.server_port}")
        metrics = parse_metrics('vllm:cache_config_info{block_size="16"} 1\n')
        yield SeenEngine(described, models=(ServedModel("m", 2048),), metrics=metrics)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_an_engine_that_counts_hits_and_computes_all_the_same_is_found() -> None:
    with lying_engine() as liar:
        verdict = check_counters(context_of([liar]))
    assert verdict.outcome is Outcome.WRONG
    assert "2016 of 2032 tokens are told as hits, and the answer is not faster" in verdict.points[0].told
    assert verdict.evidence[0].startswith("liar: 2032 tokens in 0.")


def test_an_engine_that_is_honest_and_slow_is_asked_for_one_pair_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("cold_s", 1.0), ("hit_s", 0.0), ("asked", 0)):
        monkeypatch.setattr(LyingEngine, name, value)
    with lying_engine() as honest:
        (point,) = check_counters(context_of([honest])).points
    assert point.outcome is Outcome.WELL, point
    assert LyingEngine.asked == 2


def test_others_that_are_served_meanwhile_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LyingEngine, "others_work", 1000)
    with lying_engine() as liar:
        (point,) = check_counters(context_of([liar])).points
    assert point.outcome is Outcome.UNKNOWN
    assert "tokens of others meanwhile" in point.told


def test_engines_that_cannot_be_measured_are_unknown() -> None:
    described = DescribedEngine("a", "http://127.0.0.1:1")
    short = SeenEngine(described, models=(ServedModel("m", 40),), metrics=parse_metrics(""))
    long_blocks = SeenEngine(
        described,
        models=(ServedModel("m", 300),),
        metrics=parse_metrics('vllm:cache_config_info{block_size="128"} 1\n'),
    )
    mute = SeenEngine(described, models=(ServedModel("m", 4000),), no_token="it hangs")
    gone = SeenEngine(described, models=(ServedModel("m", 4000),))
    points = check_counters(context_of([short, long_blocks, mute, gone])).points
    assert {point.outcome for point in points} == {Outcome.UNKNOWN}
    assert "too short for blocks of 128" in points[1].told
    assert check_counters(context_of()).outcome is Outcome.UNKNOWN
