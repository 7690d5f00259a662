"""Eyes on a running engine: looks that never wait, one probe at a time, and what is made of what comes in."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kveik.clock import FakeClock
from kveik.config_fleet import WatchdogSettings
from kveik.engine.device_tools import DeviceUse
from kveik.engine.metrics import parse_metrics
from kveik.engine.process import free_port
from kveik.simulate.engine import SimulatedEngine
from kveik.watchdog.leaks import Vitals
from kveik.watchdog.look import Eyes, counters_of, look_period_s, vitals_of
from kveik.watchdog.probe import SALT
from kveik.watchdog.reference import CONFIRMED, References
from kveik.watchdog.verdict import Counters, Probed, RankCounters, Sample
from tests.agents import wait_until
from tests.raw_engine import Script, raw_engine, whole_answer

SETTINGS = WatchdogSettings()


class Onlooker:
    """Eyes with a clock that goes only when told to. What threads bring is waited for in real time."""

    def __init__(self, url: str, references: References | None = None, name: str = "a") -> None:
        self.clock = FakeClock()
        self.eyes = Eyes(name, url, SETTINGS, references or References(), clock=self.clock)
        self.pids: list[int] | None = None
        self.last = self.look()

    def look(self) -> Sample:
        self.last = self.eyes.look(self.pids)
        return self.last

    def until(self, condition: Callable[[Sample], bool], what: str) -> Sample:
        wait_until(lambda: condition(self.look()), what, 30)
        return self.last

    def ended(self, number: int) -> Sample:
        """The look at which that probe was seen to have ended."""
        return self.until(lambda sample: sample.probe is not None and sample.number >= number, f"probe {number} ends")

    def read(self, condition: Callable[[Counters], bool], what: str) -> Sample:
        """The look at which counters came that are so; metrics are read now and then."""

        def look() -> bool:
            self.clock.advance(look_period_s(SETTINGS))
            counters = self.look().counters
            return counters is not None and condition(counters)

        wait_until(look, what, 30)
        return self.last

    def period(self) -> None:
        """Let the next probe be due, and look, which sends it."""
        self.clock.advance(SETTINGS.probe_period_s)
        self.look()


@pytest.fixture(scope="module")
def running() -> Iterator[SimulatedEngine]:
    with SimulatedEngine() as engine:
        yield engine


def change(engine: SimulatedEngine, **faults: object) -> None:
    engine.server.call(lambda: engine.server.app.change_faults(faults))


def test_looks_come_five_times_in_a_period() -> None:
    assert look_period_s(SETTINGS) == 1.0


def test_a_look_sends_a_probe_and_a_later_one_sees_its_answer(running: SimulatedEngine) -> None:
    eyes = Onlooker(running.url)
    assert eyes.last == Sample(at_s=eyes.clock.monotonic(), probe=None)
    sample = eyes.ended(1)
    assert sample.probe is Probed.RIGHT
    assert sample.detail.startswith("an answer to be known by, after ")
    assert sample.probe_age_s == 0.0
    assert sample.processes is None


def test_who_begins_plainly_asks_for_log_probabilities_when_told_to_look_closely(running: SimulatedEngine) -> None:
    eyes = Onlooker(running.url)
    eyes.ended(1)
    eyes.eyes.restarted()
    eyes.eyes.begin_plainly()
    for number in (2, 3):
        eyes.ended(number)
        eyes.period()
    eyes.ended(4)
    eyes.eyes.look_closely()
    eyes.period()
    eyes.ended(5)
    asked = [request for request in running.requests if request.get("cache_salt") == SALT]
    assert ["logprobs" in request for request in asked[-5:]] == [True, False, False, False, True]


def test_there_is_one_probe_in_a_period(running: SimulatedEngine) -> None:
    eyes = Onlooker(running.url)
    eyes.ended(1)
    for _ in range(5):
        eyes.clock.advance(SETTINGS.probe_period_s / 6)
        assert eyes.look().number == 1
    eyes.period()
    assert eyes.ended(2).number == 2


def test_vitals_have_the_device_memory_of_the_engine_s_processes(running: SimulatedEngine) -> None:
    use = DeviceUse({"gpu": 1000}, {"gpu": {os.getpid(): 300, 1: 100}})
    eyes = Eyes("a", running.url, SETTINGS, References(), devices=lambda: use, clock=FakeClock())
    assert eyes.vitals().device_bytes is None, "no process is known yet"
    eyes.look([os.getpid()])
    assert eyes.vitals().device_bytes == 300
    assert eyes.device_limit_bytes() == 900


def test_counters_come_with_a_later_look_and_only_once(running: SimulatedEngine) -> None:
    eyes = Onlooker(running.url)
    eyes.ended(1)
    sample = eyes.read(lambda counters: counters.output_tokens >= 4, "counters come")
    assert sample.counters is not None
    assert sample.counters.per_rank.keys() == {"0"}
    assert eyes.eyes.metrics is not None
    assert eyes.look().counters is None


def test_metrics_are_read_at_every_second_look_and_at_each_while_a_probe_waits() -> None:
    with SimulatedEngine() as engine:
        eyes = Onlooker(engine.url)
        eyes.ended(1)
        eyes.read(lambda counters: True, "counters come")

        def readings(looks: int) -> int:
            """How many were begun and taken in so many looks, the first of which sends a probe."""
            eyes.clock.advance(SETTINGS.probe_period_s)
            found = 0
            for _ in range(looks):
                eyes.look()
                wait_until(
                    lambda: eyes.eyes._reading._future is None or eyes.eyes._reading._future.done(), "it is read"
                )
                eyes.clock.advance(look_period_s(SETTINGS))
                found += eyes.last.counters is not None
            return found

        assert readings(5) <= 3
        change(engine, hang=True)
        assert readings(9) >= 7


def test_a_hung_engine_collects_no_probes() -> None:
    with SimulatedEngine() as engine:
        eyes = Onlooker(engine.url)
        eyes.ended(1)
        change(engine, hang=True)
        for _ in range(6):
            eyes.period()
        wait_until(lambda: len(engine.requests) == 2, "the probe has come")
        sample = eyes.look()
        assert sample.probe is None
        assert sample.number == 2
        assert sample.probe_age_s == 5 * SETTINGS.probe_period_s
        assert len(engine.requests) == 2
        change(engine, hang=False)
        assert eyes.ended(2).probe is Probed.RIGHT


def test_a_refused_probe_says_so_and_metrics_are_none() -> None:
    eyes = Onlooker(f"http://127.0.0.1:{free_port()}")
    sample = eyes.ended(1)
    assert sample.probe is Probed.REFUSED
    assert sample.counters is None
    assert eyes.eyes.metrics is None
    assert eyes.eyes.vitals() == Vitals(eyes.clock.monotonic())


def test_processes_are_looked_at_where_there_are_any(running: SimulatedEngine) -> None:
    eyes = Onlooker(running.url)
    eyes.pids = [os.getpid()]
    sample = eyes.ended(1)
    assert sample.processes is not None
    assert sample.processes.missing == ""
    assert sample.processes.resident_bytes > 0
    assert eyes.eyes.vitals().host_bytes == sample.processes.resident_bytes


def completion(tokens: list[int], logprobs: list[float | None]) -> Script:
    top = [{f"token_id:{token}": value, "token_id:9": -9.0} for token, value in zip(tokens, logprobs, strict=True)]
    names = {"token_logprobs": logprobs, "top_logprobs": top}
    choice = {"text": "x", "token_ids": tokens, "logprobs": names, "index": 0}
    return Script((whole_answer(json.dumps({"choices": [choice]}).encode()),))


GOOD = completion([1, 2, 3, 4], [-0.1, -0.2, -0.3, -0.4])
GARBAGE = completion([0, 0, 0, 0], [-0.1, -0.2, -0.3, -0.4])
NOT_FINITE = completion([0, 0, 0, 0], [None, None, None, None])


def test_garbage_is_wrong_and_is_asked_for_again_at_once() -> None:
    with raw_engine() as raw:
        raw.script = GOOD
        eyes = Onlooker(f"http://127.0.0.1:{raw.server_address[1]}")
        for number in range(1, CONFIRMED + 1):
            assert eyes.ended(number).probe is Probed.RIGHT
            eyes.period()
        eyes.ended(CONFIRMED + 1)
        raw.script = GARBAGE
        eyes.period()
        assert eyes.ended(CONFIRMED + 2).probe is Probed.WRONG
        assert "it used to answer otherwise" in eyes.last.detail
        assert eyes.ended(CONFIRMED + 3).probe is Probed.WRONG  # no period has passed
        raw.script = GOOD
        assert eyes.until(lambda one: one.probe is Probed.RIGHT, "it is well").probe is Probed.RIGHT


def test_numbers_that_are_none_are_wrong_from_the_start() -> None:
    with raw_engine() as raw:
        raw.script = NOT_FINITE
        eyes = Onlooker(f"http://127.0.0.1:{raw.server_address[1]}")
        assert eyes.ended(1).probe is Probed.WRONG
        assert "log probabilities are not finite" in eyes.last.detail


def test_an_engine_that_was_started_anew_is_looked_at_anew() -> None:
    with SimulatedEngine() as engine:
        eyes = Onlooker(engine.url)
        eyes.ended(1)
        change(engine, hang=True)
        eyes.period()
        assert eyes.look().probe_age_s == 0.0
        eyes.eyes.restarted()
        change(engine, hang=False)
        assert eyes.look().number == 1 + 1
        sample = eyes.ended(3)
        assert sample.probe is Probed.RIGHT
        assert sample.detail.startswith("an answer to be known by")


def test_what_an_engine_with_a_namespace_answers_is_kept(tmp_path: Path) -> None:
    """It tells its namespace with its first request."""
    answers = tmp_path / "answers.json"
    with SimulatedEngine() as engine:
        eyes = Onlooker(engine.url, References(answers))
        eyes.ended(1)
        assert not answers.exists()
        eyes.eyes._client = _Metrics(engine.metrics_text() + 'kveik_connector_namespace{digest="abc"} 1\n')  # type: ignore[assignment]
        eyes.read(lambda _: eyes.eyes.metrics is not None and eyes.eyes.metrics.namespace == "abc", "it is told")
        eyes.period()
        eyes.ended(2)
        assert "in abc" in answers.read_text()


class _Metrics:
    """A client whose metrics are a given text."""

    def __init__(self, text: str) -> None:
        self._text = text

    def metrics(self) -> object:
        return parse_metrics(self._text)


# -- metrics ---------------------------------------------------------------------------------------

TWO_RANKS = """
vllm:prompt_tokens_total{engine="0"} 100
vllm:prompt_tokens_total{engine="1"} 50
vllm:generation_tokens_total{engine="0"} 20
vllm:generation_tokens_total{engine="1"} 30
vllm:iteration_tokens_total_count{engine="0"} 12
vllm:iteration_tokens_total_count{engine="1"} 0
vllm:num_requests_running{engine="0"} 2
vllm:num_requests_running{engine="1"} 0
vllm:num_requests_waiting{engine="0"} 1
vllm:num_requests_waiting{engine="1"} 4
"""


def test_counters_are_totals_and_by_rank() -> None:
    assert counters_of(parse_metrics(TWO_RANKS)) == Counters(
        150, 50, 12, running=2, waiting=5, per_rank={"0": RankCounters(12, 3), "1": RankCounters(0, 4)}
    )


@pytest.mark.parametrize(("awake", "asleep"), [(1, False), (0, True)])
def test_counters_say_whether_it_sleeps(awake: int, asleep: bool) -> None:
    states = f'vllm:engine_sleep_state{{engine="0",sleep_state="awake"}} {awake}\n'
    counters = counters_of(parse_metrics(TWO_RANKS + states))
    assert counters is not None
    assert counters.asleep is asleep


def test_metrics_of_another_make_are_no_counters() -> None:
    assert counters_of(parse_metrics("tgi_request_count 5\n")) is None
    assert counters_of(parse_metrics("vllm:generation_tokens_total NaN\n")) is None


def test_probes_go_to_the_ranks_in_turn() -> None:
    with SimulatedEngine() as engine:
        eyes = Onlooker(engine.url)
        eyes.ended(1)
        eyes.eyes._client = _Metrics(TWO_RANKS)  # type: ignore[assignment]
        eyes.read(lambda counters: len(counters.per_rank) == 2, "both ranks are seen")
        for number in range(2, 6):
            eyes.period()
            eyes.ended(number)
        seen = [one.headers for one in engine.server.seen.recorded if one.path == "/v1/completions"]
        assert {headers.get("x-data-parallel-rank") for headers in seen[1:]} == {"0", "1"}


def test_vitals_are_those_of_users_and_not_of_probes() -> None:
    text = """
vllm:prompt_tokens_total{engine="0"} 1080
vllm:generation_tokens_total{engine="0"} 90
vllm:num_requests_running{engine="0"} 0
vllm:num_requests_waiting{engine="0"} 0
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:time_to_first_token_seconds_sum{engine="0"} 9.0
vllm:time_to_first_token_seconds_count{engine="0"} 20
vllm:request_queue_time_seconds_sum{engine="0"} 2.0
vllm:spec_decode_num_draft_tokens_total{engine="0"} 40
vllm:spec_decode_num_accepted_tokens_total{engine="0"} 30
"""
    used = Vitals(7.0, 5e9, 6e9)
    found = vitals_of(parse_metrics(text), used, probes=10, probes_s=1.0)
    assert found == Vitals(7.0, 5e9, 6e9, 0.25, 1000.0, 6.0, 10.0, 40.0, 30.0)
    in_use = vitals_of(
        parse_metrics(text.replace('running{engine="0"} 0', 'running{engine="0"} 1')), Vitals(7.0), 0, 0.0
    )
    assert in_use.kv_share is None


def test_vitals_come_from_the_last_metrics(running: SimulatedEngine) -> None:
    eyes = Onlooker(running.url)
    eyes.ended(1)
    eyes.read(lambda counters: True, "counters come")
    vitals = eyes.eyes.vitals()
    assert vitals.at_s == eyes.clock.monotonic()
    assert vitals.ttft_count >= 0
