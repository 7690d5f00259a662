"""What is made of a store that serves, lies, refuses, or is another one on each node."""

from dataclasses import replace
from typing import Any

import pytest

from kveik.doctor.check import Outcome, Point
from kveik.doctor.store_facts import StoreFacts
from kveik.doctor.store_judge import judge_store
from kveik.store.probe_verdict import Finding, Verdict

OWN = frozenset({"10.0.0.1", "localhost", "127.0.0.1"})
SOUND = StoreFacts("mooncake", "10.0.0.9:50051", found=Finding(Verdict.SOUND), seconds=1.2)


def judged(facts: StoreFacts) -> list[Point]:
    return list(judge_store(facts, OWN))


def served(**changes: Any) -> Point:
    """The point about whether it serves."""
    return next(point for point in judged(replace(SOUND, **changes)) if point.about == "the mooncake store")


def test_a_store_that_serves_what_was_put_is_well() -> None:
    assert {point.outcome for point in judged(SOUND)} == {Outcome.WELL}
    assert "in 1.2 s" in served().told


@pytest.mark.parametrize(
    ("changes", "outcome", "told"),
    [
        ({"refused": "Connection refused"}, Outcome.WRONG, "nobody answers at 10.0.0.9:50051: Connection refused"),
        ({"settings": "mooncake.master is 'x', expected HOST:PORT"}, Outcome.WRONG, "expected HOST:PORT"),
        ({"closed": "setup answered -1"}, Outcome.WRONG, "could not be joined: setup answered -1"),
        ({"found": Finding(Verdict.NOT_SERVED)}, Outcome.WRONG, "acknowledges puts and does not serve them"),
        ({"found": Finding(Verdict.OTHER_BYTES, "checksum")}, Outcome.WRONG, "other bytes"),
        ({"found": Finding(Verdict.SLOW)}, Outcome.WRONG, "did not answer a probe in time"),
        ({"found": Finding(Verdict.FAILING, "-800")}, Outcome.WRONG, "-800"),
        ({"found": Finding(Verdict.UNKNOWN, "no_room")}, Outcome.BEWARE, "nothing could be put"),
    ],
)
def test_what_a_store_does_instead_of_serving_is_told_with_what_to_do(
    changes: dict[str, Any], outcome: Outcome, told: str
) -> None:
    point = served(**changes)
    assert (point.outcome, told in point.told, bool(point.remedy)) == (outcome, True, True)


@pytest.mark.parametrize(
    ("name", "address", "told"),
    [
        ("yuanrong", "10.0.0.1:31501", False),
        ("yuanrong", "127.0.0.1:31501", False),
        ("yuanrong", "10.0.0.2:31501", True),
        ("mooncake", "10.0.0.2:50051", False),
    ],
)
def test_a_worker_of_another_node_is_told(name: str, address: str, told: bool) -> None:
    about = [
        point.about for point in judged(replace(SOUND, name=name, address=address)) if point.outcome is Outcome.BEWARE
    ]
    assert about == ([f"yuanrong.worker is {address}"] if told else [])


@pytest.mark.parametrize(("name", "address"), [("filesystem", "/kv"), ("redis", "/run/r.sock")])
def test_folders_and_sockets_have_no_address_to_judge(name: str, address: str) -> None:
    assert [point.about for point in judged(replace(SOUND, name=name, address=address))] == [f"the {name} store"]


@pytest.mark.parametrize(
    ("tier", "outcome", "told"),
    [
        ({}, Outcome.WELL, "on"),
        ({"state": "out", "notes": ["no route"]}, Outcome.WRONG, "no route"),
        ({"state": "opening"}, Outcome.WRONG, "opening"),
        ({"fence": "it is empty"}, Outcome.WRONG, "fenced by its probe: it is empty"),
        ({"breaker": "open"}, Outcome.WRONG, "breaker open"),
        ({"read_only": True}, Outcome.BEWARE, "cannot be written"),
    ],
)
def test_what_the_agent_thinks_of_its_own_tier_counts_too(tier: dict[str, Any], outcome: Outcome, told: str) -> None:
    point = judged(replace(SOUND, agent=tier))[-1]
    assert (point.about, point.outcome, told in point.told) == ("the agent's mooncake tier", outcome, True)
