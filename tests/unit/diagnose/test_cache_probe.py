"""The whole probe over simulated engines: what is sent, and what is seen."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kveik.diagnose import cache_probe
from kveik.diagnose.cache_counters import Connector
from kveik.diagnose.cache_probe import RESET, CacheProbe, ProbePlan, Target, prompt_length, pushes
from kveik.diagnose.cache_probe_verdict import Observed, ProbeVerdict, Result, judge
from kveik.doctor.log_file import GrowingLog
from kveik.engine.client import EngineClient
from kveik.engine.metrics import MetricsSnapshot, parse_metrics
from kveik.engine.process import free_port
from kveik.errors import EngineError, ProbeError
from kveik.simulate.behaviour import Behaviour
from kveik.simulate.engine import SimulatedEngine
from kveik.verify.trial import EngineFacts

LOG_LINE = "KV pool coordinator lookup group=0 token_len=400 keys=25 exists_chunks=25/25\n"
FACTS = EngineFacts("m", "float32", 4096, 16, None, 0)
#: A hit came, and was right. Whether it was any sooner depends on what else the machine of the tests does.
GOOD = {Result.WORKS, Result.SLOW}
PREFILL_TOKENS_S, CACHE_BLOCKS, PROMPT_TOKENS = 20_000.0, 64, 400


@pytest.fixture(autouse=True)
def _engines_that_count_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_probe, "QUIET_S", 0.02)
    monkeypatch.setattr(cache_probe, "QUIET_UNSURE_S", 0.02)
    monkeypatch.setattr(cache_probe, "POLL_S", 0.01)


@contextlib.contextmanager
def engines(*behaviours: Behaviour, apart: bool = False, **given: Any) -> Iterator[list[SimulatedEngine]]:
    """Engines that share a cache unless they are ``apart``."""
    shared: set[bytes] = set()
    options = {"cache_blocks": CACHE_BLOCKS, "prefill_tokens_s": PREFILL_TOKENS_S, **given}
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(SimulatedEngine(shared=set() if apart else shared, behaviour=behaviour, **options))
            for behaviour in behaviours
        ]


def probed(started: Sequence[SimulatedEngine], logs: Sequence[GrowingLog] = (), **given: Any) -> CacheProbe:
    targets = [Target(f"engine {number}", engine.url) for number, engine in enumerate(started, 1)]
    plan = ProbePlan(**{"prompt_tokens": PROMPT_TOKENS, "answer_tokens": 4, "across_waits_s": (0.0, 0.0), **given})
    return CacheProbe(plan, targets[0], targets[-1], lambda _: None, logs=logs)


def seen_by(behaviour: Behaviour, **given: Any) -> tuple[Observed, ProbeVerdict]:
    """What a probe of one engine sees."""
    with engines(behaviour) as started:
        seen = probed(started, **given).run()
    return seen, judge(seen)


def test_a_cache_that_works_is_found_to_work() -> None:
    seen, verdict = seen_by(Behaviour())
    assert verdict.result in GOOD, verdict
    assert seen.connector is Connector.KVEIK
    assert seen.used_tokens == seen.possible_tokens == 384
    assert seen.fill.computed == PROMPT_TOKENS
    assert seen.again.local == 0, "it was pushed out of the engine's own cache"
    assert seen.own_tokens == 384, "and had been there before"
    assert verdict.notes == ()


@pytest.mark.parametrize(
    ("behaviour", "result"),
    [
        (Behaviour(has_connector=False), Result.NOT_CONNECTED),
        (Behaviour(detached=True), Result.NOT_CONNECTED),
        (Behaviour(ignores_shared_cache=True), Result.NO_ANSWER),
        (Behaviour(drops_saves=True), Result.NOT_STORED),
        (Behaviour(forgets_shared_blocks=True), Result.NOT_FOUND),
        (Behaviour(refuses_loads=True), Result.NOT_ALLOWED),
        (Behaviour(wrong_after_shared_hit=True), Result.WRONG),
        (Behaviour(wrong_after_shared_hit=True, dtype="bfloat16"), Result.WRONG),
    ],
    ids=lambda value: value.name if isinstance(value, Result) else "",
)
def test_every_way_to_lose_a_hit_is_told(behaviour: Behaviour, result: Result) -> None:
    _, verdict = seen_by(behaviour, push_out=RESET)
    assert verdict.result is result, verdict
    assert verdict.remedy


def test_rounding_after_a_hit_is_no_wrong_answer() -> None:
    assert seen_by(Behaviour(dtype="bfloat16", rounding_after_hit=0.1), push_out=RESET)[1].result in GOOD


def test_a_cache_that_saves_no_time_is_slow() -> None:
    with engines(Behaviour(), prefill_tokens_s=0.0) as started:
        seen = probed(started).run()
    assert judge(seen).result in GOOD, "no prompt takes any time here"
    assert seen.used_tokens == 384


def test_a_second_engine_is_asked_for_what_the_first_one_stored() -> None:
    with engines(Behaviour(namespace="ab"), Behaviour(namespace="ab")) as (first, second):
        probe = probed([first, second])
        seen = probe.run()
    assert judge(seen).result in GOOD
    assert seen.across
    assert probe.course.pushed_prompts == 0, "the second engine has never seen the prompt"
    assert [step.name for step in probe.course.steps] == ["cold", "own cache", "unrelated", "again"]


def test_two_engines_with_nothing_in_common_are_tried_again_with_new_prompts() -> None:
    with engines(Behaviour(namespace="ab"), Behaviour(namespace="ab"), apart=True) as (first, second):
        probe = probed([first, second])
        verdict = judge(probe.run())
    assert verdict.result is Result.NOT_FOUND
    assert [step.name for step in probe.course.steps].count("again") == 2


def test_two_namespaces_are_tried_once() -> None:
    with engines(Behaviour(namespace="ab"), Behaviour(namespace="cd"), apart=True) as (first, second):
        probe = probed([first, second])
        assert "namespace" in judge(probe.run()).told
    assert [step.name for step in probe.course.steps].count("again") == 1


def test_every_prompt_is_new_and_has_a_salt_of_its_own() -> None:
    with engines(Behaviour()) as (engine,):
        probed([engine]).run()
        probed([engine]).run()
        asked = [request for request in engine.requests if len(request["prompt"]) == PROMPT_TOKENS]
    salts = {request["cache_salt"] for request in asked}
    assert all(salt.startswith("kveik-probe-") for salt in salts)
    by_salt = {salt: {tuple(request["prompt"]) for request in asked if request["cache_salt"] == salt} for salt in salts}
    assert all(len(prompts) == 1 for prompts in by_salt.values())
    beginnings = [next(iter(prompts))[:16] for prompts in by_salt.values()]
    assert len(set(beginnings)) == len(beginnings), "a cache that ignores salts finds nothing either"


def test_the_own_cache_can_be_emptied_by_a_request_instead() -> None:
    with engines(Behaviour()) as started:
        probe = probed(started, push_out=RESET)
        assert judge(probe.run()).result in GOOD
    assert probe.course.pushed_prompts == 0


def test_without_development_mode_it_cannot_and_says_so() -> None:
    with engines(Behaviour(development_mode=False)) as started, pytest.raises(ProbeError, match="VLLM_SERVER_DEV_MODE"):
        probed(started, push_out=RESET).run()


def test_requests_of_others_are_noticed() -> None:
    seen, verdict = seen_by(Behaviour(foreign_tokens=700), push_out=RESET)
    assert seen.foreign_tokens == 700
    assert "others used the engine" in verdict.notes[0]


def test_a_push_out_that_takes_too_long_is_not_begun() -> None:
    with (
        engines(Behaviour(), cache_blocks=100_000, prefill_tokens_s=2000.0) as started,
        pytest.raises(ProbeError, match="raise --limit"),
    ):
        probed(started, limit_s=30.0).run()


def test_a_limit_that_is_over_ends_the_probe_and_says_so() -> None:
    with engines(Behaviour()) as started, pytest.raises(ProbeError, match="not done within 1e-06 s"):
        probed(started, limit_s=1e-6).run()


def test_a_cache_that_is_larger_than_it_tells_is_not_taken_for_a_hit() -> None:
    with engines(Behaviour()) as (engine,):
        core = engine.server.app.core
        core.cache._capacity = 10_000  # as where the blocks of a prompt are held by others
        probe = probed([engine])
        with pytest.raises(ProbeError, match="larger than it tells"):
            probe.run()
    assert [step.name for step in probe.course.steps].count("again") == cache_probe.PUSHES_MAX


def test_an_engine_that_is_restarted_meanwhile_is_noticed() -> None:
    with engines(Behaviour()) as (engine,):
        target = Target("engine 1", engine.url)

        def say(text: str) -> None:
            if "again" in text:
                engine.restart()

        plan = ProbePlan(prompt_tokens=PROMPT_TOKENS, answer_tokens=4, push_out=RESET)
        probe = CacheProbe(plan, target, target, say)
        seen = probe.run()
    assert seen.fill.prompt == PROMPT_TOKENS
    assert judge(seen).result in GOOD, "only differences within one step are counted, and this restart lay between two"


def test_engines_of_two_models_are_refused() -> None:
    one, another = SimulatedEngine(model="one"), SimulatedEngine(model="another")
    with one as first, another as second, pytest.raises(ProbeError, match="serves another"):
        probed([first, second]).run()


def test_an_engine_that_tells_no_cached_tokens_is_judged_by_its_counters() -> None:
    seen, verdict = seen_by(Behaviour(reports_cached_tokens=False), push_out=RESET)
    assert verdict.result in GOOD
    assert seen.reported_tokens == -1


def test_a_cache_that_serves_a_prompt_to_its_end_works() -> None:
    seen, verdict = seen_by(Behaviour(whole_prompt_hits=True), push_out=RESET)
    assert verdict.result in GOOD
    assert seen.used_tokens == PROMPT_TOKENS


def test_loads_of_which_some_blocks_fail_are_noted() -> None:
    _, verdict = seen_by(Behaviour(failed_blocks=3), push_out=RESET)
    assert verdict.result in GOOD
    assert verdict.notes == ("some blocks failed to load and were computed: 3 timeout",)


def test_each_step_has_an_id_by_which_it_is_found_in_logs() -> None:
    with engines(Behaviour()) as (engine,):
        probe = probed([engine], push_out=RESET)
        probe.run()
        sent = {one.headers.get("x-request-id", "") for one in engine.server.seen.recorded if "complet" in one.path}
    ids = [step.request_id for step in probe.course.steps]
    assert [name.rpartition("-")[2] for name in ids] == ["cold", "cache", "again"]
    assert set(ids) <= sent


class TwoRanks(Target):
    """An engine that tells of two data-parallel ranks."""

    def read(self) -> MetricsSnapshot:
        second = parse_metrics('vllm:cache_config_info{engine="1"} 1\n').samples["vllm:cache_config_info"]
        samples = super().read().samples
        return MetricsSnapshot({**samples, "vllm:cache_config_info": {**samples["vllm:cache_config_info"], **second}})


def test_of_several_ranks_one_is_asked() -> None:
    with engines(Behaviour()) as (engine,):
        target = TwoRanks("engine 1", engine.url)
        plan = ProbePlan(prompt_tokens=PROMPT_TOKENS, answer_tokens=4, push_out=RESET)
        assert judge(CacheProbe(plan, target, target, lambda _: None).run()).result in GOOD
        asked = [one.headers for one in engine.server.seen.recorded if one.path == "/v1/completions"]
    assert {headers.get("x-data-parallel-rank") for headers in asked} == {"0"}


def test_what_it_did_is_kept_for_people() -> None:
    with engines(Behaviour()) as (engine,):
        probe = probed([engine])
        probe.run()
    course = probe.course
    assert (course.model, course.dtype, course.prompt_tokens) == ("simulated", "float32", PROMPT_TOKENS)
    assert course.cache_tokens == CACHE_BLOCKS * 16
    assert course.pushed_prompts == pushes(course.cache_tokens, PROMPT_TOKENS, 16)
    assert [step.counts.local for step in course.steps] == [0, 384, 0]


def test_what_is_no_engine_is_not_probed() -> None:
    nobody = Target("engine 1", f"http://127.0.0.1:{free_port()}")
    with pytest.raises(EngineError):
        CacheProbe(ProbePlan(), nobody, nobody, lambda _: None).run()


@dataclass(frozen=True)
class Telling(Target):
    """An engine that writes a line to its log when the probe asks again."""

    log: Path = Path()

    def client(self, request_id: str = "", timeout_s: float = 300.0) -> EngineClient:
        if request_id.endswith("-again"):
            with self.log.open("a") as file:
                file.write(LOG_LINE)
        return super().client(request_id, timeout_s)


def test_a_log_is_read_from_where_it_ended(tmp_path: Path) -> None:
    path = tmp_path / "engine.log"
    path.write_text("KV pool coordinator lookup group=0 token_len=400 keys=25 exists_chunks=1/25\n")
    with engines(Behaviour(has_connector=False)) as (engine,):
        target = Telling("engine 1", engine.url, log=path)
        plan = ProbePlan(prompt_tokens=PROMPT_TOKENS, answer_tokens=4, push_out=RESET)
        probe = CacheProbe(plan, target, target, lambda _: None, logs=[GrowingLog(path)])
        seen = probe.run()
    assert seen.log_read
    assert [str(share) for share in seen.log.exists] == ["25/25"]
    assert probe.course.log_lines == [LOG_LINE]
    assert judge(seen).result is Result.NOT_USABLE


def test_the_length_of_a_prompt_is_chosen_to_fit_and_to_show_something() -> None:
    assert prompt_length(ProbePlan(), FACTS, 100_000) == 4096 - 16 - 1
    assert prompt_length(ProbePlan(), FACTS, 1000) == 500
    assert prompt_length(ProbePlan(prompt_tokens=300), FACTS, 1000) == 300
    coarse = EngineFacts("m", "", 0, 4096, None, 0)
    assert prompt_length(ProbePlan(), coarse, 0) == 4 * 4096


@pytest.mark.parametrize(("tokens", "cache"), [(5000, 0), (600, 1000), (16, 1000)])
def test_a_length_that_cannot_be_or_shows_nothing_is_refused(tokens: int, cache: int) -> None:
    with pytest.raises(ProbeError, match=r"fit|units"):
        prompt_length(ProbePlan(prompt_tokens=tokens), FACTS, cache)


def test_a_cache_is_turned_over_once_and_a_little_more() -> None:
    assert pushes(1024, 400, 16) == 4
    assert pushes(1024, 399, 16) == 4
    assert pushes(1024, 20, 16) == 66, "only whole units stay in a cache"
