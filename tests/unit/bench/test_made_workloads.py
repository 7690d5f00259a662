"""The workloads that are made up."""

from collections import Counter

import pytest

from kveik.bench.made_workloads import GrowingChats, PrefixRepetition, SharedDocuments
from kveik.bench.planned import TokenPool
from kveik.errors import ConfigError

POOL = TokenPool(range(200), seed=1)


def test_each_prefix_is_repeated_with_other_suffixes_in_shuffled_order() -> None:
    made = PrefixRepetition(requests=12, prefixes=3, prefix_tokens=40, suffix_tokens=8, answer_tokens=5)
    workload = made.workload(POOL, seed=1)
    prefixes = [request.prompt[:40] for request in workload.requests]
    assert sorted(Counter(prefixes).values()) == [4, 4, 4]
    assert len({request.prompt for request in workload.requests}) == 12
    assert {len(request.prompt) for request in workload.requests} == {48}
    assert prefixes[:4].count(prefixes[0]) < 4
    assert [request.prompt for request in made.workload(POOL, seed=1).requests] == [r.prompt for r in workload.requests]
    assert [request.prompt for request in made.workload(POOL, seed=2).requests] != [r.prompt for r in workload.requests]


def test_as_in_vllm_what_does_not_divide_evenly_is_left_out_and_said() -> None:
    workload = PrefixRepetition(requests=10, prefixes=4).workload(POOL, seed=1)
    assert len(workload.requests) == workload.parameters["requests"] == 8


def test_fewer_requests_than_prefixes_are_refused() -> None:
    with pytest.raises(ConfigError, match="3 requests for 4 prefixes"):
        PrefixRepetition(requests=3, prefixes=4).workload(POOL, seed=1)


def test_documents_get_all_their_questions() -> None:
    workload = SharedDocuments(documents=3, questions=4, document_tokens=50, question_tokens=6).workload(POOL, seed=1)
    documents = Counter(request.prompt[:50] for request in workload.requests)
    assert list(documents.values()) == [4, 4, 4]
    assert len({request.prompt for request in workload.requests}) == 12


def test_each_turn_of_a_chat_sends_all_before_it_again_and_waits_for_it() -> None:
    made = GrowingChats(chats=3, turns=3, system_tokens=10, turn_tokens=5, answer_tokens=4, think_s=1.5)
    requests = made.workload(POOL, seed=1).requests
    assert [request.after for request in requests] == [-1, -1, -1, 0, 1, 2, 3, 4, 5]
    assert [len(request.prompt) for request in requests] == [15] * 3 + [24] * 3 + [33] * 3
    for request in requests:
        assert request.prompt[:10] == requests[0].prompt[:10]
        assert request.think_s == 1.5
        if request.after >= 0:
            before = requests[request.after].prompt
            assert request.prompt[: len(before)] == before


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (PrefixRepetition(prefix_tokens=0), "prefix_tokens of prefix is 0, expected at least 1"),
        (SharedDocuments(documents=0), "documents of documents is 0, expected at least 1"),
        (GrowingChats(turns=-1), "turns of chats is -1, expected at least 1"),
        (GrowingChats(think_s=float("inf")), "think_s of chats is inf, expected 0 to 3600"),
    ],
    ids=["prefix", "documents", "chats", "think"],
)
def test_numbers_that_make_no_workload_are_refused(
    made: PrefixRepetition | SharedDocuments | GrowingChats, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        made.workload(POOL, seed=1)
