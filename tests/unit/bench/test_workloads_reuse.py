"""What each workload lets a cache save: by its parameters, and on an engine that forgets nothing."""

from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kveik.bench.arrivals import at_rate
from kveik.bench.made_workloads import GrowingChats, PrefixRepetition, SharedDocuments
from kveik.bench.measuring import Bench, BenchPlan, target
from kveik.bench.mooncake_trace import BLOCK_TOKENS, TraceScale, sample_trace, trace_workload
from kveik.bench.planned import TokenPool, Workload
from kveik.bench.reuse import STEP_TOKENS, reusable
from kveik.config import SimEngineSettings
from kveik.simulate.server import SimServer

#: So many tokens that no two prompts go on alike by chance.
POOL = TokenPool(range(1 << 20), seed=1)
SMALL = st.integers(1, 5)
TOKENS = st.integers(1, 90)


def reused(workload: Workload) -> list[int]:
    """Of each prompt, where they are sent one after the other."""
    spans = [(float(number), number + 0.5) for number in range(len(workload.requests))]
    return [one.earlier for one in reusable([request.prompt for request in workload.requests], spans)]


def whole(tokens: int) -> int:
    return tokens // STEP_TOKENS * STEP_TOKENS


@given(prefixes=SMALL, each=SMALL, prefix_tokens=TOKENS, suffix_tokens=st.integers(1, 40), seed=st.integers(0, 9))
def test_of_repeated_prefixes_all_but_the_first_requests_can_reuse_the_prefix(
    prefixes: int, each: int, prefix_tokens: int, suffix_tokens: int, seed: int
) -> None:
    made = PrefixRepetition(
        requests=prefixes * each, prefixes=prefixes, prefix_tokens=prefix_tokens, suffix_tokens=suffix_tokens
    )
    found = sorted(reused(made.workload(POOL, seed)))
    assert found == sorted([0] * prefixes + [whole(prefix_tokens)] * (prefixes * (each - 1)))


@given(documents=SMALL, questions=SMALL, document_tokens=TOKENS, seed=st.integers(0, 9))
def test_of_documents_all_but_the_first_questions_can_reuse_the_document(
    documents: int, questions: int, document_tokens: int, seed: int
) -> None:
    made = SharedDocuments(
        documents=documents, questions=questions, document_tokens=document_tokens, question_tokens=20
    )
    assert sum(reused(made.workload(POOL, seed))) == documents * (questions - 1) * whole(document_tokens)


@given(chats=SMALL, turns=SMALL, system_tokens=st.integers(0, 60), turn_tokens=TOKENS, answer_tokens=TOKENS)
def test_of_chats_each_turn_can_reuse_the_one_before_it(
    chats: int, turns: int, system_tokens: int, turn_tokens: int, answer_tokens: int
) -> None:
    made = GrowingChats(
        chats=chats, turns=turns, system_tokens=system_tokens, turn_tokens=turn_tokens, answer_tokens=answer_tokens
    )
    workload = made.workload(POOL, 1)
    for number, (request, tokens) in enumerate(zip(workload.requests, reused(workload), strict=True)):
        if request.after >= 0:
            assert tokens == whole(len(workload.requests[request.after].prompt))
        else:
            assert tokens == (whole(system_tokens) if number else 0)


@given(st.integers(0, 50), st.sampled_from([1, 4, 32]))
def test_of_a_trace_prompts_can_reuse_the_blocks_that_they_begin_with_as_others_do(seed: int, shorter: int) -> None:
    trace = sample_trace(12, seed)
    workload = trace_workload(trace, TraceScale(shorter=shorter), POOL, "t")
    for number, tokens in enumerate(reused(workload)):
        same = 0
        for other in range(number):
            common = 0
            for mine, theirs in zip(trace[number].hash_ids, trace[other].hash_ids, strict=False):
                if mine != theirs:
                    break
                common += BLOCK_TOKENS // shorter
            lengths = (len(workload.requests[one].prompt) for one in (number, other))
            same = max(same, whole(min(common, *lengths)))
        assert tokens == same


@given(st.integers(1, 60), st.floats(0.01, 1000), st.integers(0, 9))
def test_a_rate_changes_when_requests_are_due_and_nothing_else(count: int, per_s: float, seed: int) -> None:
    made = PrefixRepetition(requests=count, prefixes=1, prefix_tokens=4, suffix_tokens=4).workload(POOL, seed)
    timed = at_rate(made, per_s, seed)
    assert [request.prompt for request in timed.requests] == [request.prompt for request in made.requests]
    due = [request.due_s for request in timed.requests]
    assert due == sorted(due)
    assert due[-1] == pytest.approx(count / per_s)


@pytest.fixture(scope="module")
def engine() -> Iterator[SimServer]:
    """An engine whose blocks have just the size of a step, and room for all."""
    with SimServer(SimEngineSettings(port=0, block_tokens=STEP_TOKENS, cache_blocks=100_000)) as server:
        yield server


def trace_of(pool: TokenPool) -> Workload:
    return trace_workload(sample_trace(20, 3), TraceScale(shorter=16, speed=1000.0), pool, "t")


MAKERS: Sequence[tuple[str, Callable[[TokenPool], Workload]]] = (
    ("prefix", lambda pool: PrefixRepetition(requests=12, prefixes=3, prefix_tokens=64).workload(pool, 1)),
    ("documents", lambda pool: SharedDocuments(documents=2, questions=4, document_tokens=128).workload(pool, 1)),
    ("chats", lambda pool: GrowingChats(chats=3, turns=4, turn_tokens=24, answer_tokens=8).workload(pool, 1)),
    ("trace", trace_of),
)


@pytest.mark.parametrize("make", [make for _, make in MAKERS], ids=[name for name, _ in MAKERS])
def test_an_engine_that_forgets_nothing_reuses_just_what_is_said_to_be_reusable(
    make: Callable[[TokenPool], Workload], engine: SimServer
) -> None:
    plan = BenchPlan(on=target(engine.url, timeout_s=60.0), places=1)
    found = Bench(plan, make, 1, lambda text: None).run()
    (side,) = found.sides
    (run,) = found.runs
    for outcome, reuse in zip(run.outcomes, run.reusable, strict=True):
        # The last token of a prompt is always computed, so a prompt that was seen whole reuses a block less.
        assert outcome.cached_tokens in (reuse.earlier, reuse.earlier - STEP_TOKENS)
    assert side.cached_tokens > 0.9 * side.reusable_tokens > 0
    assert side.computed_tokens + side.local_tokens == side.prompt_tokens
    assert "warm" not in {finding.kind for finding in found.findings}


def test_prompts_of_no_two_seeds_begin_alike() -> None:
    made = SharedDocuments(documents=2, questions=2, document_tokens=64)
    first, second = (made.workload(TokenPool(range(5000), seed), seed) for seed in (1, 2))
    starts = [{request.prompt[:STEP_TOKENS] for request in workload.requests} for workload in (first, second)]
    assert starts[0].isdisjoint(starts[1])
