"""Devices, cores and mounts that engines want."""

import os
from pathlib import Path

import pytest

from kveik.diagnose.devices_check import check_devices, judge_devices, judge_mounts
from kveik.doctor.check import Context, Outcome
from kveik.doctor.fleet_described import DescribedEngine, DescribedFleet
from kveik.doctor.fleet_view import Fleet
from kveik.launch.machine import Accelerator, Machine
from kveik.profiles import catalog

NPUS = Machine(
    (0, 1, 2, 3), ((0, 1, 2, 3),), 1, 1, 1, device="ascend", accelerators=tuple(Accelerator(n) for n in range(4))
)
PLAIN = Machine((0, 1, 2, 3), ((0, 1, 2, 3),), 1, 1, 1)


def engine(name: str, devices: str = "", cores: str = "") -> DescribedEngine:
    return DescribedEngine(name, "http://127.0.0.1:1", devices=devices, cores=cores)


def outcomes(machine: Machine, *engines: DescribedEngine) -> dict[str, Outcome]:
    return {point.about: point.outcome for point in judge_devices(engines, machine, range(4))}


def test_devices_that_are_here_and_nobody_elses_are_well() -> None:
    found = outcomes(NPUS, engine("a", "0,1"), engine("b", "2,3"))
    assert found == {"devices of a": Outcome.WELL, "devices of b": Outcome.WELL}


def test_a_device_that_is_not_here_is_wrong() -> None:
    assert outcomes(NPUS, engine("a", "3,4"))["devices of a"] is Outcome.WRONG
    assert outcomes(PLAIN, engine("a", "0"))["devices of a"] is Outcome.WRONG


def test_a_device_and_cores_that_two_engines_want_are_wrong() -> None:
    assert outcomes(NPUS, engine("a", "0,1"), engine("b", "1"))["devices"] is Outcome.WRONG
    assert outcomes(PLAIN, engine("a", cores="0-2"), engine("b", cores="2-3"))["cores"] is Outcome.WRONG


def test_cores_must_be_ones_that_we_may_use() -> None:
    assert outcomes(PLAIN, engine("a", cores="0-3")) == {"cores of a": Outcome.WELL}
    assert outcomes(PLAIN, engine("a", cores="2-5"))["cores of a"] is Outcome.WRONG


def test_engines_that_ask_for_nothing_are_well() -> None:
    assert outcomes(PLAIN, engine("a"), engine("b")) == {"cpu": Outcome.WELL}


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A root folder with all that an A2 container mounts; a node of /dev/null stands for a device file."""
    hardware = catalog.hardware("a2")
    for name in hardware.folders:
        (tmp_path / name.lstrip("/")).mkdir(parents=True)
        (tmp_path / name.lstrip("/") / "lib.so").touch()
    for name in hardware.files:
        file = tmp_path / name.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    for name in hardware.device_files:
        file = tmp_path / name.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.symlink_to("/dev/null")
    return tmp_path


def mounts(root: Path) -> dict[str, Outcome]:
    return {point.about: point.outcome for point in judge_mounts(catalog.hardware("a2"), root)}


def test_a_container_with_all_mounts_has_nothing_to_say(host: Path) -> None:
    assert mounts(host) == {}


def test_a_file_that_docker_made_a_folder_of_is_wrong(host: Path) -> None:
    (host / "etc/hccn.conf").unlink()
    assert mounts(host) == {"/etc/hccn.conf": Outcome.BEWARE}
    (host / "etc/hccn.conf").mkdir()
    assert mounts(host) == {"/etc/hccn.conf": Outcome.WRONG}


def test_an_empty_folder_of_the_driver_and_a_device_file_that_is_none_are_wrong(host: Path) -> None:
    (host / "usr/local/dcmi/lib.so").unlink()
    (host / "dev/davinci_manager").unlink()
    (host / "dev/hisi_hdc").unlink()
    (host / "dev/hisi_hdc").touch()
    assert mounts(host) == {
        "/dev/davinci_manager": Outcome.WRONG,
        "/dev/hisi_hdc": Outcome.WRONG,
        "/usr/local/dcmi": Outcome.WRONG,
    }


def test_the_check_looks_at_this_machine() -> None:
    core = str(min(os.sched_getaffinity(0)))
    fleet = Fleet(DescribedFleet("flags", (engine("a", cores=core),)))
    verdict = check_devices(Context("python", {}, fleet=fleet))
    assert {point.about: point.outcome for point in verdict.points}["cores of a"] is Outcome.WELL
