"""Traces become schedules of prompts that share what the trace says they share, and shared prefixes are shared."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.workloads import (
    Planned,
    Scale,
    SharedPrefix,
    percentile,
    read_trace,
    schedule_of,
    spread_s,
    text_of,
)
from kveik.bench.mooncake_trace import TraceLine

TRACE = (
    TraceLine(timestamp=0, input_length=1024, output_length=80, hash_ids=(1, 2)),
    TraceLine(timestamp=0, input_length=900, output_length=3, hash_ids=(1, 3)),
    TraceLine(timestamp=3000, input_length=1500, output_length=500, hash_ids=(1, 2, 4)),
)


def said(planned: Planned) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(planned.body)
    return body


def prompt(planned: Planned) -> str:
    return "".join(message["content"] for message in said(planned)["messages"])


def test_a_trace_is_read_up_to_the_wanted_number_of_requests(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"\n".join(msgspec.json.encode(line) for line in TRACE) + b"\n")
    assert read_trace(path, 2) == list(TRACE[:2])
    assert read_trace(path, 99) == list(TRACE)


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"timestamp": 0, "input_length": "long"}\n', encoding="utf8")
    with pytest.raises(msgspec.MsgspecError):
        read_trace(path, 1)


def test_equal_ids_become_equal_text_and_others_differ_from_the_first_byte_on() -> None:
    first, second, third = (prompt(planned) for planned in schedule_of(TRACE, Scale(lengths=8)))
    block = 512 // 8 * 4
    assert first[:block] == second[:block]
    assert third.startswith(first)
    assert first[block:][:8] != second[block:][:8]


def test_lengths_are_divided_and_an_answer_has_at_least_one_token() -> None:
    planned = schedule_of(TRACE, Scale(lengths=8))
    assert [len(prompt(one)) for one in planned] == [1024 // 8 * 4, 900 // 8 * 4, 1500 // 8 * 4]
    assert [said(one)["max_tokens"] for one in planned] == [10, 1, 62]
    assert all(said(one)["stream_options"] == {"include_usage": True} for one in planned)


def test_requests_with_one_timestamp_are_spread_until_the_next_one() -> None:
    assert spread_s([0, 0, 0, 3000, 3000, 6000], 9.0) == pytest.approx([0.0, 1.0, 2.0, 3.0, 4.5, 6.0])
    assert spread_s([5], 60.0) == [0.0]


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=50), st.floats(1.0, 100.0))
def test_spread_moments_rise_and_stay_within_the_time(stamps: list[int], seconds: float) -> None:
    moments = spread_s(sorted(stamps), seconds)
    assert len(moments) == len(stamps)
    assert all(0.0 <= moment <= seconds for moment in moments)
    assert all(earlier <= later for earlier, later in pairwise(moments))


def test_shared_prefixes_come_again_and_again_in_an_order_that_the_seed_decides() -> None:
    workload = SharedPrefix(tenants=3, users=2, first_per_s=20.0, last_per_s=20.0)
    planned = workload.schedule(20.0, seed=1)
    assert planned == workload.schedule(20.0, seed=1)
    assert planned != workload.schedule(20.0, seed=2)
    assert len({said(one)["messages"][0]["content"] for one in planned}) == 3
    assert len({one.body for one in planned}) == 6
    assert len(prompt(planned[0])) == (workload.context_tokens + workload.question_tokens) * 4


def test_the_rate_of_shared_prefixes_rises() -> None:
    moments = [one.due_s for one in SharedPrefix(first_per_s=5.0, last_per_s=50.0).schedule(40.0, seed=3)]
    early, late = sum(moment < 10 for moment in moments), sum(moment > 30 for moment in moments)
    assert moments == sorted(moments)
    assert late > 2 * early
    assert len(moments) == pytest.approx(40 * 27.5, rel=0.2)


def test_distinct_tokens_are_contexts_and_questions() -> None:
    workload = SharedPrefix(tenants=10, users=5, context_tokens=100, question_tokens=20)
    assert workload.distinct_tokens() == 10 * 100 + 50 * 20


def test_text_has_the_wanted_length_and_follows_from_its_name() -> None:
    assert len(text_of("block 1", 33)) == 33 * 4
    assert text_of("block 1", 33) == text_of("block 1", 64)[: 33 * 4]


@pytest.mark.parametrize(("part", "value"), [(0.0, 1), (0.5, 10), (0.95, 19), (1.0, 20)])
def test_a_percentile_is_a_value_that_was_measured(part: float, value: int) -> None:
    assert percentile(list(range(20, 0, -1)), part) == value


def test_nothing_has_no_percentile() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)
