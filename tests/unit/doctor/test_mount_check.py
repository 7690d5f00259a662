"""The check ``mount``: which folders are looked at, for how many machines, and whether two are one."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from kveik.config import AgentSettings
from kveik.doctor import mount_check
from kveik.doctor.check import Context, Outcome
from kveik.doctor.fleet_described import DescribedFleet, DescribedNode
from kveik.doctor.mount_check import check_mount, folders_of
from kveik.doctor.mount_facts import Meant
from kveik.doctor.mount_look import seen_through
from tests.unit.doctor.paper_fleet import context_of

TWO = (DescribedNode("n0", "10.0.0.1"), DescribedNode("n1", "10.0.0.2"))
NOBODY = Context("python", {})


def test_the_tiers_folder_is_looked_at_for_all_machines_of_the_fleet() -> None:
    settings = AgentSettings(filesystem="/kv", filesystem_bytes=7, filesystem_reserve_bytes=5)
    described = DescribedFleet("paper", nodes=TWO, agent=settings)
    assert folders_of((), described) == ([Path("/kv")], Meant(7, 5, nodes=2))
    assert folders_of((Path("/other"),), described)[0] == [Path("/other")]
    one_machine = replace(described, nodes=(DescribedNode("a", "127.0.0.2"), DescribedNode("b", "127.0.0.3")))
    assert folders_of((), one_machine)[1].nodes == 1


def test_folders_that_are_named_alone_are_to_be_shared_if_they_are_several() -> None:
    assert folders_of((Path("/a"),), None) == ([Path("/a")], Meant(nodes=1))
    assert folders_of((Path("/a"), Path("/b")), None)[1].nodes == 2
    assert folders_of((), None)[0] == []


def test_without_a_folder_it_is_said_whether_there_is_none_or_none_was_named(tmp_path: Path) -> None:
    assert check_mount(NOBODY).outcome is Outcome.UNKNOWN
    assert check_mount(context_of(described=DescribedFleet("paper", config=tmp_path))).outcome is Outcome.WELL


def test_one_folder_is_told_with_its_kind_and_its_speed(tmp_path: Path) -> None:
    verdict = check_mount(replace(NOBODY, folders=(tmp_path,)))
    assert verdict.outcome in {Outcome.WELL, Outcome.BEWARE}
    assert str(tmp_path) in verdict.evidence[0]
    assert "written and" in verdict.evidence[1]


def test_two_names_of_one_folder_are_one_and_two_folders_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mount_check, "seen_through", partial(seen_through, seen_s=0.3))
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    same = check_mount(replace(NOBODY, folders=(tmp_path / "a", tmp_path / "link")))
    assert same.points[-1].outcome is Outcome.WELL
    other = check_mount(replace(NOBODY, folders=(tmp_path / "a", tmp_path / "b")))
    assert (other.points[-1].outcome, "not one folder" in other.points[-1].told) == (Outcome.WRONG, True)
