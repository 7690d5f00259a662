"""Connector and prefix caching, as engines show them."""

from collections.abc import Mapping

import pytest

from kveik.doctor.check import Context, Outcome, Point
from kveik.doctor.fleet_connector import ConnectorFacts, check_connector, check_prefix_caching, judge_connectors
from kveik.doctor.fleet_described import DescribedEngine
from kveik.doctor.fleet_view import SeenAgent, SeenEngine
from kveik.engine.client import ServedModel
from kveik.engine.metrics import parse_metrics
from tests.unit.doctor.paper_fleet import context_of


def judged(*facts: ConnectorFacts) -> list[Point]:
    return list(judge_connectors(facts))


def facts(engine: str, **given: bool | None) -> ConnectorFacts:
    working: Mapping[str, bool | None] = {"loaded": True, "serving": True, "attached": True}
    return ConnectorFacts(engine, "m", **{**working, **given})  # type: ignore[arg-type]


def seen(name: str, metrics: str, shared_cache: bool | None = None) -> SeenEngine:
    described = DescribedEngine(name, f"http://127.0.0.1:1/{name}", shared_cache=shared_cache)
    return SeenEngine(described, models=(ServedModel("m", 100),), metrics=parse_metrics(metrics))


WORKS = "kveik_connector_serving 1\nkveik_connector_attached 1\n"


def test_a_connector_that_is_loaded_attached_and_serves_is_well() -> None:
    (point,) = judged(facts("a"))
    assert point.outcome is Outcome.WELL


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"serving": False}, "loaded and does not serve"),
        ({"attached": False}, "has no agent"),
        ({"loaded": False, "meant": True}, "not loaded, though the configuration wants it"),
    ],
)
def test_what_keeps_it_from_serving_is_wrong(given: dict[str, bool], told: str) -> None:
    (point,) = judged(facts("a", **given))
    assert point.outcome is Outcome.WRONG
    assert told in point.told
    assert point.remedy


def test_an_engine_started_without_it_among_others_that_have_it_is_wrong() -> None:
    _, point = judged(facts("a"), facts("b", loaded=False))
    assert point.outcome is Outcome.WRONG
    assert "not loaded here, and is at a" in point.told


def test_an_engine_that_is_meant_to_be_without_it_is_well() -> None:
    (point,) = judged(facts("a", loaded=False, meant=False))
    assert point.outcome is Outcome.WELL


def test_what_is_not_known_is_unknown() -> None:
    for one in (
        facts("a", loaded=False),
        facts("a", loaded=None),
        facts("a", serving=None),
        facts("a", attached=None),
    ):
        (point,) = judged(one)
        assert point.outcome is Outcome.UNKNOWN, one


def outcomes(points: object) -> list[Outcome]:
    return [point.outcome for point in points]  # type: ignore[attr-defined]


def test_the_check_reads_the_metrics_of_all_engines() -> None:
    context = context_of([seen("a", WORKS), seen("b", "kveik_connector_serving 0\n"), seen("c", "up 1\n", False)])
    assert outcomes(check_connector(context).points) == [Outcome.WELL, Outcome.WRONG, Outcome.WELL]


def test_an_agent_that_does_not_answer_is_part_of_the_reason() -> None:
    agent = SeenAgent("/run/agent.sock", trouble="nobody listens")
    verdict = check_connector(context_of([seen("a", "kveik_connector_attached 0\nkveik_connector_serving 1\n")], agent))
    assert "(nobody listens)" in verdict.points[0].told
    assert "the agent at /run/agent.sock: nobody listens" in verdict.evidence


@pytest.mark.parametrize(
    ("value", "outcome"), [("True", Outcome.WELL), ("False", Outcome.WRONG), ("", Outcome.UNKNOWN)]
)
def test_prefix_caching_is_on_off_or_not_told(value: str, outcome: Outcome) -> None:
    metrics = f'vllm:cache_config_info{{enable_prefix_caching="{value}"}} 1\n' if value else "up 1\n"
    (point,) = check_prefix_caching(context_of([seen("a", metrics)])).points
    assert point.outcome is outcome


@pytest.mark.parametrize("check", [check_connector, check_prefix_caching])
def test_without_an_engine_that_answers_nothing_is_known(check: object) -> None:
    context: Context = context_of([])
    assert outcomes(check(context).points) == [Outcome.UNKNOWN]  # type: ignore[operator]
