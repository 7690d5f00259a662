"""Counters of what an engine has seen."""

from kveik.simulate import seen
from kveik.simulate.seen import Aborted, Seen


def test_the_most_at_a_time_is_remembered_and_groups_are_counted() -> None:
    counts = Seen()
    for group in ("a", "b", "a"):
        counts.begin(group)
    counts.end()
    counts.begin("c")
    assert (counts.active, counts.active_max, dict(counts.groups)) == (3, 3, {"a": 2, "b": 1, "c": 1})


def test_a_reset_keeps_what_is_under_way() -> None:
    counts = Seen()
    counts.connections = 2
    counts.begin("a")
    counts.begin("a")
    counts.end()
    counts.left(Aborted("/x", 1.0, 0.5, 3))
    counts.reset()
    assert (counts.active, counts.active_max, counts.connections) == (1, 1, 2)
    assert counts.document()["aborted"] == 0
    assert counts.document()["prefix_groups"] == {}


def test_memory_is_bounded() -> None:
    counts = Seen()
    for number in range(seen.KEPT + 100):
        counts.begin(str(number))
        counts.left(Aborted("/x", 1.0, 0.5, 3))
    assert len(counts.groups) == len(counts.aborted) == seen.KEPT
    assert counts.aborted_count == seen.KEPT + 100
    counts.begin("0")
    assert counts.groups["0"] == 2
