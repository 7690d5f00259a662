"""What follows when a part ends: pauses that grow, modes that get simpler, and when it is given up."""

import pytest

from kveik.errors import ConfigError
from kveik.supervise.backoff import STARTS_IN_VAIN_MAX, History, Pauses, Step, next_step


def ended(kind: str = "router", **fields: int | bool) -> History:
    return History(**{"kind": kind, "ever_ready": True, "variant": 0, "variants": 1, "endings": 1, **fields})  # type: ignore[arg-type]


def test_pauses_double_up_to_the_longest() -> None:
    pauses = Pauses(0.5, 30.0)
    assert [pauses.after(endings) for endings in (0, 1, 2, 3, 7, 1000)] == [0.5, 0.5, 1.0, 2.0, 30.0, 30.0]


@pytest.mark.parametrize(("first_s", "max_s"), [(0.0, 1.0), (2.0, 1.0)])
def test_pauses_that_make_no_sense_are_refused(first_s: float, max_s: float) -> None:
    with pytest.raises(ConfigError, match="restart_pause_s is"):
        Pauses(first_s, max_s)


@pytest.mark.parametrize("kind", ["agent", "router", "watchdog", "etcd"])
def test_parts_other_than_engines_are_started_again_for_ever_once_they_worked(kind: str) -> None:
    assert next_step(ended(kind, endings=10_000)) is Step.AGAIN


@pytest.mark.parametrize("kind", ["agent", "router", "watchdog", "etcd"])
def test_a_part_that_never_worked_is_given_up_after_some_starts(kind: str) -> None:
    assert next_step(ended(kind, ever_ready=False, endings=STARTS_IN_VAIN_MAX - 1)) is Step.AGAIN
    assert next_step(ended(kind, ever_ready=False, endings=STARTS_IN_VAIN_MAX)) is Step.GIVE_UP


def test_an_engine_that_served_waits_for_the_watchdogs_order() -> None:
    assert next_step(ended("engine", endings=1, variants=4)) is Step.WAIT_FOR_ORDER


def test_an_engine_that_never_served_goes_down_the_ladder_and_is_given_up_at_its_end() -> None:
    steps = [next_step(ended("engine", ever_ready=False, variant=variant, variants=3)) for variant in range(3)]
    assert steps == [Step.NEXT_VARIANT, Step.NEXT_VARIANT, Step.GIVE_UP]


def test_an_engine_without_a_ladder_is_given_up_at_once() -> None:
    assert next_step(ended("engine", ever_ready=False)) is Step.GIVE_UP
