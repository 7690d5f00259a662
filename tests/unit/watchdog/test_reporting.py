import pytest
from hypothesis import given
from hypothesis import strategies as st

from kveik.engine.metrics import parse_metrics
from kveik.fleet.report import LIST_MAX, SightReport
from kveik.supervise.messages import ProcessView
from kveik.watchdog.reporting import Reading, engine_report, part_reports, tier_reports
from kveik.watchdog.verdict import Condition, Verdict

READY = Verdict(Condition.READY, 1.0, "the last probe was answered")

BEFORE = """
vllm:num_requests_running{engine="0"} 1
vllm:num_requests_waiting{engine="0"} 0
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:prompt_tokens_total{engine="0"} 1000
vllm:generation_tokens_total{engine="0"} 100
vllm:prompt_tokens_by_source_total{source="local_cache_hit"} 100
vllm:prompt_tokens_by_source_total{source="external_kv_transfer"} 0
vllm:time_to_first_token_seconds_sum 2.0
vllm:time_to_first_token_seconds_count 10
vllm:spec_decode_num_draft_tokens_total 100
vllm:spec_decode_num_accepted_tokens_total 50
"""
AFTER = """
vllm:num_requests_running{engine="0"} 3
vllm:num_requests_waiting{engine="0"} 2
vllm:kv_cache_usage_perc{engine="0"} 0.5
vllm:prompt_tokens_total{engine="0"} 2000
vllm:generation_tokens_total{engine="0"} 150
vllm:prompt_tokens_by_source_total{source="local_cache_hit"} 350
vllm:prompt_tokens_by_source_total{source="external_kv_transfer"} 500
vllm:time_to_first_token_seconds_sum 3.0
vllm:time_to_first_token_seconds_count 14
vllm:spec_decode_num_draft_tokens_total 200
vllm:spec_decode_num_accepted_tokens_total 130
"""


def reading(text: str, at_s: float) -> Reading:
    return Reading(at_s, parse_metrics(text))


def test_gauges_are_as_they_are_and_rates_are_since_the_report_before() -> None:
    report = engine_report("engine-1", READY, before=reading(BEFORE, 10.0), now=reading(AFTER, 12.0))
    assert (report.running, report.waiting, report.kv_use) == (3, 2, 0.5)
    assert (report.prompt_tokens_s, report.output_tokens_s) == (500.0, 25.0)
    assert (report.local_hit_share, report.external_hit_share) == (0.25, 0.5)
    assert (report.ttft_s, report.acceptance) == (0.25, 0.8)


def test_of_several_ranks_requests_add_up_and_use_is_a_mean() -> None:
    two = AFTER.replace("\n", "\n", 1) + AFTER.replace('engine="0"', 'engine="1"').replace("perc{", "perc{")
    report = engine_report("engine-1", READY, now=reading(two, 12.0))
    assert (report.running, report.waiting, report.kv_use) == (6, 4, 0.5)


def test_of_an_engine_that_was_started_anew_no_rates_are_known() -> None:
    report = engine_report("engine-1", READY, before=reading(AFTER, 10.0), now=reading(BEFORE, 12.0))
    assert report.running == 1
    assert (report.prompt_tokens_s, report.ttft_s, report.local_hit_share) == (None, None, None)


def test_without_requests_there_are_no_shares() -> None:
    report = engine_report("engine-1", READY, before=reading(AFTER, 10.0), now=reading(AFTER, 12.0))
    assert (report.prompt_tokens_s, report.local_hit_share, report.ttft_s, report.acceptance) == (0.0, None, None, None)


def test_of_an_engine_without_metrics_its_condition_is_known() -> None:
    report = engine_report("engine-1", READY)
    assert (report.engine_id, report.condition, report.why) == ("engine-1", "ready", "the last probe was answered")
    assert report.running is None
    report = engine_report("engine-1", READY, before=reading("", 1.0), now=reading("x 1\n", 2.0))
    assert (report.running, report.kv_use, report.ttft_s) == (None, None, None)


def test_numbers_that_are_none_are_left_out() -> None:
    odd = reading("vllm:num_requests_running NaN\nvllm:kv_cache_usage_perc 0.5\nvllm:prompt_tokens_total +Inf\n", 2.0)
    report = engine_report("engine-1", READY, before=odd, now=odd)
    assert (report.running, report.kv_use, report.prompt_tokens_s) == (None, 0.5, None)


def test_what_is_being_done_stands_before_why() -> None:
    verdict = Verdict(Condition.HUNG, 1.0, "3 requests wait")
    view = ProcessView(name="engine-1", kind="engine", state="ready", restarts=2, degraded="eager: graphs failed")
    report = engine_report(
        "engine-1", verdict, view=view, told="isolated", resident_bytes=5, warnings=["memory grows by 1 MiB a day"]
    )
    assert report.why == "isolated; 3 requests wait"
    assert (report.restarts, report.degraded, report.resident_bytes) == (2, "eager: graphs failed", 5)
    assert report.warnings == ("memory grows by 1 MiB a day",)


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 10**9), st.floats(0.01, 1e4))
def test_shares_lie_between_0_and_1(computed: int, local: int, external: int, seconds: float) -> None:
    prompt = computed + local + external
    after = (
        f"vllm:prompt_tokens_total {prompt}\n"
        f'vllm:prompt_tokens_by_source_total{{source="local_cache_hit"}} {local}\n'
        f'vllm:prompt_tokens_by_source_total{{source="external_kv_transfer"}} {external}\n'
    )
    report = engine_report("e", READY, before=reading("", 0.0), now=reading(after, seconds))
    for share in (report.local_hit_share, report.external_hit_share):
        assert share is None or 0 <= share <= 1


def agent_state(**given: object) -> dict[str, object]:
    state: dict[str, object] = {
        "agent_id": "7-ab",
        "arena": {"blocks": 4, "payload_bytes": 400, "bytes": 1000},
        "tiers": [{"name": "filesystem", "state": "ready", "blocks": 9, "bytes": 900, "capacity_bytes": 0}],
        "counters": {"arena.get_bytes": 100, "filesystem.put_bytes": 50},
    }
    return {**state, **given}


def test_tiers_are_told_with_sizes_and_rates() -> None:
    later = agent_state(counters={"arena.get_bytes": 300, "arena.put_bytes": 20, "filesystem.put_bytes": 50})
    arena, files = tier_reports(later, agent_state(), 2.0)
    assert (arena.name, arena.blocks, arena.bytes, arena.bytes_max) == ("arena", 4, 400, 1000)
    assert (arena.read_bytes_s, arena.write_bytes_s) == (100.0, 10.0)
    assert (files.bytes_max, files.read_bytes_s, files.write_bytes_s) == (None, 0.0, 0.0)


def test_of_another_agent_than_before_no_rates_are_known() -> None:
    for before in (None, agent_state(agent_id="8-cd")):
        assert [tier.read_bytes_s for tier in tier_reports(agent_state(), before, 2.0)] == [None, None]


@pytest.mark.parametrize(
    ("entries", "state"),
    [
        ({}, "on"),
        ({"state": "opening"}, "opening"),
        ({"breaker": "open"}, "left out after failures (breaker open)"),
        ({"breaker": "fenced", "fence": "it is empty"}, "fenced by its probe: it is empty"),
        ({"read_only": True}, "read-only"),
    ],
)
def test_a_tier_that_does_not_serve_says_why(entries: dict[str, object], state: str) -> None:
    tier = {"name": "filesystem", "state": "ready", "breaker": "closed", "read_only": False, **entries}
    assert tier_reports(agent_state(tiers=[tier]))[1].state == state


def test_whom_an_agent_sees_in_a_shared_tier_is_told_with_the_reason_why_not() -> None:
    entries = [
        {"node": "n0", "presence": "here", "told": "its block is there", "age_s": 1.0},
        {"node": "n1", "presence": "never", "told": "its block was never there", "age_s": None},
    ]
    tier = {"name": "redis", "state": "ready", "breaker": "closed", "roll_call": {"node": "n0", "nodes": entries}}
    assert tier_reports(agent_state(tiers=[tier]))[1].sights == (
        SightReport(node="n0", presence="here"),
        SightReport(node="n1", presence="never", told="its block was never there"),
    )
    assert tier_reports(agent_state(tiers=[{**tier, "roll_call": None}]))[1].sights == ()


def test_of_very_many_nodes_those_are_told_that_are_not_seen_and_the_node_itself() -> None:
    seen = [{"node": f"n{n}", "presence": "here", "told": "", "age_s": 1.0} for n in range(300)]
    seen[250]["presence"] = "never"
    tier = {"name": "redis", "state": "ready", "breaker": "closed", "roll_call": {"node": "n299", "nodes": seen}}
    sights = tier_reports(agent_state(tiers=[tier]))[1].sights
    assert [sight.node for sight in sights[:3]] == ["n299", "n250", "n0"]
    assert len(sights) == LIST_MAX["sights"]


def test_parts_are_told_as_their_supervisor_sees_them() -> None:
    views = [ProcessView(name="router", kind="router", state="waiting", restarts=3, why="ended with code 1", pid=7)]
    (part,) = part_reports(views)
    assert (part.name, part.kind, part.state, part.restarts, part.why) == (
        "router",
        "router",
        "waiting",
        3,
        "ended with code 1",
    )
