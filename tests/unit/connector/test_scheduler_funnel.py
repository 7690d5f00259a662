"""What the scheduler's side keeps of each request, step by step against an agent that the test plays."""

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="the connector's scheduler side needs vLLM")

from kveik.agent.funnel import RequestFunnel
from kveik.agent.protocol import Located
from kveik.connector.jobs import KveikWorkerMetadata
from kveik.connector.plan import Shape
from kveik.diagnose.funnel_report import explain
from kveik.errors import AgentUnavailableError
from kveik.kv.groups import GroupKind, GroupSpec
from tests.unit.connector.test_scheduler import BLOCK, ONE, TWO, Bench, request, step

#: Full attention with blocks of 32 tokens beside a state every 128: hits come in units of 128.
ALIGNED = Shape((GroupSpec(0, GroupKind.FULL, 32), GroupSpec(1, GroupKind.STATE, 128)), 32)


class Told:
    """An agent that is told of requests."""

    def __init__(self, *, takes: bool = True) -> None:
        self.takes_them = takes
        self.records: dict[str, RequestFunnel] = {}
        self.messages = 0

    def takes(self, message: str) -> bool:
        assert message == "TellRequests"
        return self.takes_them

    def tell_requests(self, records: list[RequestFunnel]) -> None:
        self.messages += 1
        self.records |= {record.request_id: record for record in records}


def told(bench: Bench) -> dict[str, RequestFunnel]:
    agent = Told()
    bench.side.tell(agent)  # type: ignore[arg-type]
    return agent.records


def run(bench: Bench, asked: Any, tokens: int, *tables: list[int]) -> None:
    """vLLM allocates memory, and the request's first step begins."""
    bench.allocate(asked, tokens, *tables)
    if tokens:
        report = KveikWorkerMetadata(loaded={asked.request_id: set()}, load_seconds={asked.request_id: 0.5})
        bench.side.plan_step(step())
        bench.side.step_done(report)
    asked.num_computed_tokens = tokens
    bench.side.plan_step(step({asked.request_id: tables}, **{asked.request_id: asked.num_tokens - tokens}))


def test_a_hit_is_kept_from_the_question_to_where_computing_began() -> None:
    bench, asked = Bench(), request()
    bench.agent.automatic = b"\1" * 9
    bench.side.add(asked)
    assert bench.side.offer(asked, 0) == (96, True)
    run(bench, asked, 96, [1, 2, 3, 4, 5, 6, 7])
    record = told(bench)["r"]
    assert (record.lookup, record.known_tokens, record.usable_tokens, record.load_tokens) == ("hit", 96, 96, 96)
    assert (record.used_tokens, record.computed_from, record.load_s, record.ended) == (96, 96, 0.5, False)
    bench.side.finished(asked, ([1, 2, 3, 4, 5, 6, 7],))
    assert told(bench)["r"].ended


def test_a_request_that_did_not_change_is_not_told_again() -> None:
    bench, asked = Bench(), request()
    bench.agent.automatic = bytes(9)
    bench.side.offer(asked, 0)
    run(bench, asked, 0, [1] * 7)
    assert list(told(bench)) == ["r"]
    assert told(bench) == {}
    bench.side.tell_all()
    assert list(told(bench)) == ["r"]


@pytest.mark.parametrize(
    ("play", "lookup"),
    [
        (lambda bench: bench.agent.lookups[0][1].set_exception(AgentUnavailableError("gone")), "failed"),
        (lambda bench: bench.clock.advance(10.0), "deadline"),
    ],
    ids=["failed", "deadline"],
)
def test_a_lookup_without_an_answer_is_kept_with_how_it_ended(play: Any, lookup: str) -> None:
    bench, asked = Bench(), request()
    bench.side.offer(asked, 0)
    play(bench)
    assert bench.side.offer(asked, 0) == (0, False)
    run(bench, asked, 0, [1] * 7)
    assert told(bench)["r"].lookup == lookup


@pytest.mark.parametrize(
    ("client", "namespace", "lookup"), [(None, b"n" * 16, "detached"), (True, b"", "pending")], ids=["away", "unknown"]
)
def test_a_lookup_that_was_not_made_is_kept_with_the_reason(client: Any, namespace: bytes, lookup: str) -> None:
    bench, asked = Bench(), request()
    if client is None:
        bench.link.client = None
    bench.side.open(bench.link, SimpleNamespace(of=lambda _: namespace))  # type: ignore[arg-type]
    bench.side.offer(asked, 0)
    run(bench, asked, 0, [1] * 7)
    assert told(bench)["r"].lookup == lookup


def test_a_short_prompt_and_one_that_wants_all_computed_are_told_apart() -> None:
    bench = Bench()
    short, all_computed = request("short", tokens=BLOCK - 1), request("whole")
    all_computed.skip_reading_prefix_cache = True
    for asked in (short, all_computed):
        bench.side.offer(asked, 0)
        run(bench, asked, 0, [1] * 7)
    assert {name: record.lookup for name, record in told(bench).items()} == {"short": "short", "whole": "skipped"}


def test_a_failed_load_is_kept_with_its_reasons() -> None:
    bench, asked = Bench(), request()
    bench.agent.automatic = b"\1" * 9
    bench.side.offer(asked, 0)
    bench.allocate(asked, 96, [1, 2, 3, 4, 5, 6, 7])
    failed = {(0, bytes(asked.block_hashes[2]))}
    bench.side.step_done(
        KveikWorkerMetadata(loaded={"r": failed}, load_seconds={"r": 0.1}, failures={"r": {"checksum": 1}})
    )
    asked.num_computed_tokens = 32
    bench.side.plan_step(step(r=68))
    record = told(bench)["r"]
    assert (record.load_tokens, record.used_tokens, record.failed_blocks) == (96, 32, {"checksum": 1})
    assert record.computed_from == 32


def test_a_request_that_is_looked_up_again_after_a_failed_load_keeps_what_was_found_first() -> None:
    bench, asked = Bench(TWO), request()
    bench.agent.automatic = b"\1" * 9
    bench.side.offer(asked, 0)
    bench.allocate(asked, 96, [1] * 7, [1] * 7)
    failed = {(0, bytes(asked.block_hashes[0]))}
    bench.side.step_done(KveikWorkerMetadata(loaded={"r": failed}, failures={"r": {"timeout": 1}}))
    assert bench.side.offer(asked, 0) == (0, False)
    run(bench, asked, 0, [1] * 7, [1] * 7)
    record = told(bench)["r"]
    assert (record.known_tokens, record.load_tokens, record.used_tokens, record.computed_from) == (96, 96, 0, 0)
    assert (record.admissions, record.admitted_load_tokens) == (2, 96)


def test_saves_are_kept_with_what_was_dropped() -> None:
    bench, asked = Bench(save_queue_blocks=4), request()
    bench.agent.automatic = bytes(9)
    bench.side.offer(asked, 0)
    run(bench, asked, 0, [1, 2, 3, 4, 5, 6, 7])
    assert told(bench)["r"].saving == 1
    bench.side.step_done(KveikWorkerMetadata(saved={1: 1}, dropped={1: {"no_room": 3}}))
    record = told(bench)["r"]
    assert (record.saving, record.saved_blocks, record.dropped_blocks) == (0, 1, {"no_room": 3})


def test_what_several_groups_lack_is_named_by_group() -> None:
    bench, asked = Bench(TWO), request()
    bench.side.offer(asked, 0)
    bench.agent.lookups[0][1].set_result(Located(1, [b"\1" * 6, b"\1\1\1\1\0\0"]))
    bench.side.offer(asked, 0)
    run(bench, asked, 0, [1] * 7, [1] * 7)
    record = told(bench)["r"]
    assert record.missing is not None
    assert (record.missing.group, record.known_tokens, record.usable_tokens) == (1, 96, 64)


def test_what_is_there_and_cut_by_the_unit_of_hits_is_explained_by_alignment() -> None:
    """The store has three of four blocks of 32 tokens, and a hit must end at a multiple of 128."""
    bench = Bench(ALIGNED)
    asked = request(tokens=160)
    asked.block_hashes = [b"r".ljust(31) + bytes([index]) for index in range(5)]
    bench.side.offer(asked, 0)
    bench.agent.lookups[0][1].set_result(Located(1, [b"\1\1\1\0", b"\1"]))
    assert bench.side.offer(asked, 0) == (0, False)
    run(bench, asked, 0, [1] * 5, [1] * 2)
    found = explain(told(bench)["r"], [], [])
    assert (found.ate, found.cause.code) == ("aligned", "unit")
    assert "96 tokens are there, but hits of this model come in units of 128 tokens" in found.cause.sentence
    assert [stage.tokens for stage in found.stages] == [160, 160, 128, 96, 0, 0, 0, 0, 0]


def test_none_is_kept_where_none_is_wanted_and_none_is_told_to_an_earlier_agent() -> None:
    off, asked = Bench(funnel_requests=0), request()
    off.agent.automatic = b"\1" * 9
    assert off.side.offer(asked, 0) == (96, True)
    run(off, asked, 96, [1, 2, 3, 4, 5, 6, 7])
    off.side.finished(asked, ([1] * 7,))
    assert told(off) == {}
    bench, earlier = Bench(), Told(takes=False)
    bench.side.offer(request(), 0)
    bench.side.tell(earlier)  # type: ignore[arg-type]
    assert earlier.messages == 0


def test_many_records_go_in_several_messages_so_that_no_lookup_waits_long() -> None:
    bench, agent = Bench(ONE), Told()
    bench.agent.automatic = bytes(9)
    for number in range(40):
        asked = request(str(number))
        bench.side.offer(asked, 0)
        bench.allocate(asked, 0, [1] * 7)
    bench.side.tell(agent)  # type: ignore[arg-type]
    assert (agent.messages, len(agent.records)) == (3, 40)
