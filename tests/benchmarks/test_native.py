"""The engines and clients in C count and measure what they say they do."""

import json
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.native import CostlessEngine, Programs, begin_load, report_of, run_load

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    return Programs.compile(tmp_path_factory.mktemp("native"))


@pytest.fixture
def engine(programs: Programs, tmp_path: Path) -> Iterator[CostlessEngine]:
    with CostlessEngine(programs, tmp_path) as engine:
        yield engine


def test_every_request_is_answered_and_counted(programs: Programs, engine: CostlessEngine) -> None:
    report = run_load(programs, engine.ports[0], requests=300, groups=7, shuffle=0, seconds=30)
    (counts,) = engine.counts()
    assert (report.answered, report.failed, report.chunks) == (300, 0, 0)
    assert (counts.chats, counts.groups, counts.extra) == (300, 7, 0)


@pytest.mark.parametrize("size", [400, 16384, 300_000])
def test_bodies_of_all_sizes_arrive(programs: Programs, engine: CostlessEngine, size: int) -> None:
    report = run_load(programs, engine.ports[0], requests=40, bytes=size, seconds=30, connections=4)
    assert (report.answered, report.failed) == (40, 0)
    assert engine.counts()[0].chats == 40


def test_a_stream_is_whole_only_with_all_its_events(programs: Programs, engine: CostlessEngine) -> None:
    engine.set(chunks=5, gap_us=1000)
    report = run_load(programs, engine.ports[0], requests=20, stream=1, seconds=30)
    assert (report.answered, report.failed) == (20, 0)
    assert report.chunks == 20 * (5 + 1)  # with the end mark
    assert report.pause_p50_ms > 0.5


def test_the_time_to_the_first_byte_is_the_engines(programs: Programs, engine: CostlessEngine) -> None:
    engine.set(first_us=30_000)
    report = run_load(programs, engine.ports[0], requests=20, rate=100, seconds=30)
    assert report.first_byte_p50_ms >= 30
    assert report.slowest_s >= 0.03
    assert engine.counts()[0].most >= 2


def test_requests_come_at_their_rate_whether_or_not_answers_do(programs: Programs, engine: CostlessEngine) -> None:
    engine.set(hang=1)
    report = run_load(programs, engine.ports[0], requests=50, rate=200, seconds=30, timeout_ms=300)
    assert (report.answered, report.late) == (0, 50)
    assert engine.counts()[0].most > 20


def test_a_hanging_engine_answers_all_but_what_it_should_compute(programs: Programs, engine: CostlessEngine) -> None:
    engine.set(hang=1)
    run_load(programs, engine.ports[0], requests=1, seconds=30, timeout_ms=200)
    assert engine.counts()[0].chats == 1


def test_a_killed_engine_loses_what_it_had_and_refuses_the_rest(programs: Programs, engine: CostlessEngine) -> None:
    engine.set(first_us=200_000)
    running = begin_load(programs, engine.ports[0], requests=60, rate=60, seconds=30)
    while not engine.counts()[0].chats:
        pass
    engine.kill()
    report = report_of(running, 30.0)
    assert report.cut
    assert report.refused
    assert report.answered + report.failed == 60


def test_prompts_that_begin_alike_have_tokens_that_begin_alike(engine: CostlessEngine) -> None:
    def tokens(prompt: str) -> list[int]:
        body = json.dumps({"prompt": prompt}).encode()
        answer = json.load(urllib.request.urlopen(f"{engine.urls[0]}/tokenize", data=body))
        assert answer["count"] == len(answer["tokens"]) == len(body) // 4
        return list(answer["tokens"])

    one, other = tokens("river stone lantern"), tokens("river stone orchard")
    assert one[:5] == other[:5]
    assert one[6:] != other[6:]


def test_counts_begin_anew_after_a_reset(programs: Programs, engine: CostlessEngine) -> None:
    run_load(programs, engine.ports[0], requests=10, seconds=30)
    engine.set(reset=1)
    (counts,) = engine.counts()
    assert (counts.chats, counts.groups, counts.last_chat_s) == (0, 0, 0.0)
