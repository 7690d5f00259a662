"""The check ``stores`` on a folder, and on addresses where nobody is."""

from pathlib import Path

from kveik.config import AgentSettings, RedisSettings, StoreSettings
from kveik.doctor.check import Outcome, Verdict
from kveik.doctor.fleet_described import DescribedFleet
from kveik.doctor.fleet_view import SeenAgent
from kveik.doctor.store_check import check_stores, tiers_of
from kveik.engine.process import free_port
from tests.unit.doctor.paper_fleet import context_of


def checked(described: DescribedFleet, agent: SeenAgent | None = None) -> Verdict:
    return check_stores(context_of(described=described, agent=agent))


def test_a_folder_that_works_is_well_with_what_the_agent_says_of_it(tmp_path: Path) -> None:
    described = DescribedFleet("paper", agent=AgentSettings(filesystem=str(tmp_path)))
    verdict = checked(described, SeenAgent("socket", {"tiers": [{"name": "filesystem", "state": "ready"}]}))
    assert verdict.outcome is Outcome.WELL
    assert [point.about for point in verdict.points] == ["the filesystem store", "the agent's filesystem tier"]
    assert list(verdict.evidence) == [f"filesystem at {tmp_path}"]


def test_a_tier_that_the_agent_has_fenced_is_wrong_though_it_works_for_us(tmp_path: Path) -> None:
    described = DescribedFleet("paper", agent=AgentSettings(filesystem=str(tmp_path)))
    tier = {"name": "filesystem", "state": "ready", "fence": "it is empty"}
    assert checked(described, SeenAgent("socket", {"tiers": [tier]})).outcome is Outcome.WRONG


def test_an_address_where_nobody_answers_is_wrong() -> None:
    stores = StoreSettings(redis=RedisSettings(address=f"127.0.0.1:{free_port()}"))
    (point,) = checked(DescribedFleet("paper", stores=stores)).points
    assert (point.outcome, "nobody answers" in point.told) == (Outcome.WRONG, True)


def test_without_a_store_there_is_nothing_to_try() -> None:
    assert checked(DescribedFleet("paper")).outcome is Outcome.WELL


def test_an_agent_that_did_not_answer_has_no_tiers() -> None:
    assert tiers_of(None) == {}
    assert tiers_of(SeenAgent("socket", trouble="nobody")) == {}
