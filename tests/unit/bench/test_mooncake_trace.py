"""Mooncake's traces: read line by line, and turned into requests."""

import io
import json

import pytest

from kveik.bench.mooncake_trace import (
    BLOCK_TOKENS,
    TraceLine,
    TraceScale,
    read_trace,
    sample_trace,
    trace_text,
    trace_workload,
)
from kveik.bench.planned import TokenPool
from kveik.errors import ConfigError

POOL = TokenPool(range(200), seed=1)


def line(timestamp: int, blocks: list[int], *, length: int = 0, answer: int = 52) -> dict[str, object]:
    """A line as https://github.com/kvcache-ai/Mooncake shows it."""
    length = length or len(blocks) * BLOCK_TOKENS
    return {"timestamp": timestamp, "input_length": length, "output_length": answer, "hash_ids": blocks}


def read(*lines: object, requests: int = 100) -> list[TraceLine]:
    text = "\n".join(one if isinstance(one, str) else json.dumps(one) for one in lines)
    return read_trace(io.BytesIO(text.encode()), "t.jsonl", requests)


def test_the_first_requests_are_read_and_empty_lines_and_other_fields_do_not_matter() -> None:
    trace = read(line(0, [1, 2]), "", {**line(27, [1, 3]), "type": "chat"}, line(30, [9]), requests=2)
    assert [one.hash_ids for one in trace] == [(1, 2), (1, 3)]
    assert trace[1].timestamp == 27


@pytest.mark.parametrize(
    "bad",
    [
        '{"timestamp": 3, "input_length": 512',
        "null",
        '{"timestamp": 3, "input_length": 512, "output_length": 1}',
        '{"timestamp": 3, "input_length": "512", "output_length": 1, "hash_ids": [1]}',
        '{"timestamp": 3, "input_length": -1, "output_length": 1, "hash_ids": [1]}',
        '{"timestamp": 3, "input_length": 1e30, "output_length": 1, "hash_ids": [1]}',
        '{"timestamp": 3, "input_length": 512, "output_length": 1, "hash_ids": 7}',
        "\ud800".encode("utf8", "surrogatepass").decode("latin1"),
        "[" * 100_000,
    ],
    ids=["cut", "null", "missing", "text", "negative", "huge", "no list", "not text", "deep"],
)
def test_a_line_that_is_none_is_named_and_not_skipped(bad: str) -> None:
    with pytest.raises(ConfigError, match=r"t\.jsonl: line 2 is none of a Mooncake trace"):
        read(line(0, [1]), bad, line(5, [1]))


def test_a_trace_that_goes_back_in_time_is_refused() -> None:
    with pytest.raises(ConfigError, match="line 2 goes back in time"):
        read(line(10, [1]), line(9, [1]))


def test_an_empty_trace_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"t\.jsonl has no requests"):
        read("", "")


def test_equal_ids_are_equal_tokens_and_lengths_are_kept() -> None:
    trace = read(line(0, [1, 2], length=1000), line(1000, [1, 3], length=900))
    workload = trace_workload(trace, TraceScale(), POOL, "t.jsonl")
    first, second = workload.requests
    assert (len(first.prompt), len(second.prompt)) == (1000, 900)
    assert first.prompt[:512] == second.prompt[:512]
    assert first.prompt[512:900] != second.prompt[512:]
    assert (first.due_s, second.due_s) == (0.0, 1.0)
    assert workload.timed


def test_a_trace_can_be_made_shorter_and_faster() -> None:
    trace = read(line(0, [1, 2], length=1000, answer=52), line(1000, [1, 3], answer=3))
    scale = TraceScale(shorter=8, speed=4.0)
    first, second = trace_workload(trace, scale, POOL, "t.jsonl").requests
    assert (len(first.prompt), first.answer_tokens) == (125, 6)
    assert (len(second.prompt), second.answer_tokens) == (128, 1)
    assert first.prompt[:64] == second.prompt[:64]
    assert second.due_s == 0.25


def test_a_prompt_of_which_the_trace_names_too_few_blocks_is_filled_with_tokens_of_its_own() -> None:
    first, second = trace_workload(
        read(line(0, [1], length=700), line(0, [1], length=700)), TraceScale(), POOL, "t.jsonl"
    ).requests
    assert len(first.prompt) == len(second.prompt) == 700
    assert first.prompt[:512] == second.prompt[:512]
    assert first.prompt[512:] != second.prompt[512:]


@pytest.mark.parametrize(
    ("scale", "message"),
    [({"requests": 0}, "requests"), ({"shorter": 513}, "shorter"), ({"speed": 0.0}, "speed")],
    ids=["requests", "shorter", "speed"],
)
def test_scales_that_make_no_trace_are_refused(scale: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TraceScale(**scale)


def test_the_made_up_trace_can_be_read_and_about_half_of_its_blocks_came_before() -> None:
    written = trace_text(sample_trace(300, seed=1))
    trace = read_trace(io.BytesIO(written), "sample", 1000)
    assert len(trace) == 300
    seen: set[int] = set()
    repeated = total = 0
    for one in trace:
        assert len(one.hash_ids) == -(-one.input_length // BLOCK_TOKENS)
        repeated += sum(block in seen for block in one.hash_ids)
        total += len(one.hash_ids)
        seen.update(one.hash_ids)
    assert 0.3 < repeated / total < 0.8
    assert trace_text(sample_trace(300, seed=1)) == written
