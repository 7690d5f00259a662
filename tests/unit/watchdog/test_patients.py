from pathlib import Path

import pytest

from kveik.errors import ConfigError
from kveik.fleet.announcement import EngineAnnouncement
from kveik.supervise.client import ControlClient
from kveik.supervise.messages import ProcessView
from kveik.watchdog.patients import NOBODY, Care, Census, Listed, patients, read_listed
from kveik.watchdog.restarters import CommandRestarter, ControlRestarter, NoRestarter

CARE = Care(ControlClient("/run/control.sock"), lease_s=600.0, start_s=900.0, command_s=30.0, api_key="s3cret")
OWN = (EngineAnnouncement(url="http://127.0.0.1:8001", engine_id="engine-1", events="ipc:///run/e"),)


def kept(*names: str) -> dict[str, ProcessView]:
    return {name: ProcessView(name=name, kind="engine", state="ready") for name in names}


def test_an_engine_that_the_supervisor_keeps_is_announced_with_a_long_lease_and_restarted_by_it() -> None:
    (patient,) = patients(Census(own=OWN), kept("engine-1"), CARE)
    assert (patient.name, patient.url, patient.start_s) == ("engine-1", "http://127.0.0.1:8001", 900.0)
    assert patient.words is not None
    assert (patient.words.lease_s, patient.words.events) == (600.0, "ipc:///run/e")
    assert isinstance(patient.restarter, ControlRestarter)


def test_ranks_of_its_group_are_restarted_with_it() -> None:
    (patient,) = patients(Census(own=OWN, ranks={"engine-1": ("engine-1-ranks",)}), kept("engine-1"), CARE)
    assert repr(patient.restarter) == "ControlRestarter(engine-1, engine-1-ranks)"


def test_a_group_on_several_nodes_has_a_restarter_of_its_own() -> None:
    group = NoRestarter("stands for the group's")
    (patient,) = patients(Census(own=OWN, groups={"engine-1": group}), kept("engine-1"), CARE)
    assert patient.restarter is group


def test_an_engine_of_the_file_that_nobody_started_is_not_there() -> None:
    assert patients(Census(own=OWN), {}, CARE) == []
    assert patients(Census(own=OWN, unsupervised_too=True), kept("engine-2"), CARE) == []


def test_without_a_supervisor_engines_are_watched_and_not_restarted() -> None:
    (patient,) = patients(Census(own=OWN, unsupervised_too=True), {}, CARE)
    assert patient.restarter.no_restart == NOBODY


def test_a_listed_engine_is_not_announced_and_restarted_by_its_command() -> None:
    words = EngineAnnouncement(url="http://10.0.0.7:8000", engine_id="seven", lease_s=0.0)
    with_command, without = patients(
        Census(listed=(Listed(words, ("docker", "restart", "x")), Listed(EngineAnnouncement(url="http://10.0.0.8:1")))),
        {},
        CARE,
    )
    assert (with_command.name, with_command.words) == ("seven", None)
    assert isinstance(with_command.restarter, CommandRestarter)
    assert (without.name, without.restarter.no_restart) == ("10.0.0.8:1", NOBODY)


def test_an_engine_given_by_address_is_announced() -> None:
    (patient,) = patients(Census(given=("127.0.0.1:8000",)), {}, CARE)
    assert patient.words is not None
    assert (patient.name, patient.words.url, patient.words.lease_s) == (
        "127.0.0.1:8000",
        "http://127.0.0.1:8000",
        600.0,
    )
    with pytest.raises(ConfigError, match="url is 'http://nonsense'"):
        patients(Census(given=("nonsense",)), {}, CARE)


def test_two_engines_of_one_name_are_refused() -> None:
    words = EngineAnnouncement(url="http://10.0.0.7:8000", engine_id="engine-1")
    with pytest.raises(ConfigError, match="2 engines are called 'engine-1'"):
        patients(Census(own=OWN, listed=(Listed(words),)), kept("engine-1"), CARE)


def test_a_change_that_matters_makes_another_patient_and_no_key_is_shown() -> None:
    (one,) = patients(Census(own=OWN), kept("engine-1"), CARE)
    (same,) = patients(Census(own=OWN), kept("engine-1"), CARE)
    (other,) = patients(Census(own=OWN, ranks={"engine-1": ("r",)}), kept("engine-1"), CARE)
    assert one.identity == same.identity != other.identity
    assert "s3cret" not in repr(one) + repr(CARE)


def test_tables_name_their_commands(tmp_path: Path) -> None:
    file = tmp_path / "kveik.toml"
    file.write_text(
        '[[engines]]\nurl = "http://a:1"\nrestart = ["docker", "restart", "a"]\n[[engines]]\nurl = "http://b:1"\n'
    )
    assert [(one.words.name, one.restart) for one in read_listed(file)] == [
        ("a:1", ("docker", "restart", "a")),
        ("b:1", ()),
    ]


@pytest.mark.parametrize(
    ("restart", "message"),
    [
        ('"docker restart a"', "entry 1 of engines: restart is 'docker restart a', expected a list of texts"),
        ('["docker", 7]', "expected a list of texts"),
        ("[]", "restart is empty"),
        ('[""]', "restart is empty"),
    ],
)
def test_a_command_that_is_none_is_refused(tmp_path: Path, restart: str, message: str) -> None:
    file = tmp_path / "kveik.toml"
    file.write_text(f'[[engines]]\nurl = "http://a:1"\nrestart = {restart}\n')
    with pytest.raises(ConfigError, match=message):
        read_listed(file)


def test_a_list_that_is_none_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "kveik.toml"
    file.write_text("engines = 3\n")
    with pytest.raises(ConfigError, match="engines must be a list of tables"):
        read_listed(file)
