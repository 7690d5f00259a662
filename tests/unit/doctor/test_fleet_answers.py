"""Who answers, who gets requests, and whether routers agree."""

from collections.abc import Mapping

from kveik.doctor.check import Outcome
from kveik.doctor.fleet_answers import check_answers, judge_answers
from kveik.doctor.fleet_described import DescribedEngine
from kveik.doctor.fleet_view import FleetView, SeenEngine, SeenRouter
from kveik.engine.client import ServedModel
from tests.unit.doctor.paper_fleet import context_of


def engine(name: str, **given: object) -> SeenEngine:
    usual: dict[str, object] = {"state": "ready", "models": (ServedModel("m", 1000),), "version": "0.32.0"}
    return SeenEngine(DescribedEngine(name, f"http://127.0.0.1:1/{name}"), **{**usual, **given})  # type: ignore[arg-type]


def silent(name: str) -> SeenEngine:
    return engine(name, trouble="connection refused", models=(), version="", state="")


def router(url: str, *names: str, **given: str) -> SeenRouter:
    return SeenRouter(url, {name: {} for name in names}, **given)


def outcomes(engines: list[SeenEngine], *routers: SeenRouter) -> Mapping[str, Outcome]:
    return {point.about: point.outcome for point in judge_answers(FleetView(tuple(engines), routers, None))}


def told(engines: list[SeenEngine], *routers: SeenRouter) -> str:
    return " | ".join(point.told for point in judge_answers(FleetView(tuple(engines), routers, None)))


def test_a_fleet_that_answers_is_well() -> None:
    found = outcomes([engine("a"), engine("b")], router("http://r", "a", "b"))
    assert found == dict.fromkeys(("a", "b", "http://r"), Outcome.WELL)


def test_an_engine_that_does_not_answer_while_others_do_is_wrong() -> None:
    assert outcomes([engine("a"), silent("b")])["b"] is Outcome.WRONG


def test_an_engine_that_lists_models_and_makes_no_token_is_wrong() -> None:
    found = outcomes([engine("a", no_token="no answer within 20 s")])
    assert found["a"] is Outcome.WRONG


def test_an_engine_that_is_late_while_it_works_for_others_is_unknown() -> None:
    found = outcomes([engine("a", no_token="no answer within 20 s", works=True)])
    assert found["a"] is Outcome.UNKNOWN


def test_before_the_start_nothing_is_known_and_nothing_is_wrong() -> None:
    assert outcomes([silent("a")], router("http://r", trouble="refused")) == {"fleet": Outcome.UNKNOWN}
    assert outcomes([]) == {"fleet": Outcome.UNKNOWN}


def test_an_engine_that_no_router_knows_is_wrong() -> None:
    assert "no router knows it" in told([engine("a"), engine("b", state="")], router("http://r", "a"))
    assert outcomes([engine("b", state="")])["b"] is Outcome.WELL  # where there is no router, nobody can know it


def test_an_engine_on_hold_is_told_with_the_reason() -> None:
    held = engine("a", state="draining", why="a roll")
    assert outcomes([held], router("http://r", "a"))["a"] is Outcome.BEWARE
    assert "draining (a roll)" in told([held], router("http://r", "a"))


def test_an_engine_that_just_came_is_unknown() -> None:
    assert outcomes([engine("a", state="announced")], router("http://r", "a"))["a"] is Outcome.UNKNOWN


def test_routers_that_know_different_engines_are_wrong() -> None:
    found = outcomes([engine("a")], router("http://r", "a"), router("http://s", "a", "b"))
    assert found["routers"] is Outcome.WRONG


def test_a_router_without_its_registry_and_one_without_engines_are_wrong() -> None:
    found = outcomes(
        [engine("a")],
        router("http://r", "a", registry_trouble="etcd does not answer"),
        router("http://s"),
        router("http://t", trouble="refused"),
    )
    assert [found[f"http://{name}"] for name in "rst"] == [Outcome.WRONG] * 3


def test_a_router_that_wants_a_token_is_not_one_that_is_down() -> None:
    found = outcomes([engine("a", state="")], router("http://r", locked="it wants an admission token"))
    assert found == {"a": Outcome.WELL, "http://r": Outcome.UNKNOWN}


def test_two_versions_or_lengths_in_one_model_are_told() -> None:
    found = outcomes([engine("a"), engine("b", version="0.31.0", models=(ServedModel("m", 500),))])
    assert found["version of vLLM of m"] is Outcome.BEWARE
    assert found["longest prompt of m"] is Outcome.BEWARE


def test_the_check_names_what_it_asked() -> None:
    verdict = check_answers(context_of([engine("a")], routers=[router("http://r", "a")]))
    assert verdict.evidence == ["a at http://127.0.0.1:1/a", "router http://r"]
    assert verdict.outcome is Outcome.WELL
