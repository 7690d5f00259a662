"""What is installed is found without importing any of it."""

import sys
from pathlib import Path

import pytest

from kveik.doctor.installed import cann_version, driver_version, packages_of
from kveik.errors import DoctorError


def test_an_interpreter_is_asked_for_its_packages() -> None:
    found = packages_of(sys.executable)
    assert found.python == ".".join(map(str, sys.version_info[:3]))
    (pytest_,) = [package for package in found.packages if package.name == "pytest"]
    assert pytest_.version == pytest.__version__
    assert Path(pytest_.info, "RECORD").is_file()


def test_an_interpreter_that_is_not_there_or_is_none_is_said(tmp_path: Path) -> None:
    with pytest.raises(DoctorError, match=r"cannot ask .*no-python"):
        packages_of(str(tmp_path / "no-python"))
    with pytest.raises(DoctorError, match="cannot ask /bin/false"):
        packages_of("/bin/false")


def test_cann_and_driver_are_known_by_their_own_files(tmp_path: Path) -> None:
    toolkit = tmp_path / "ascend-toolkit" / "latest" / "aarch64-linux" / "ascend_toolkit_install.info"
    toolkit.parent.mkdir(parents=True)
    toolkit.write_text("package_name=Ascend-cann-toolkit\nversion=9.1.0\ninnerversion=V100R001C25\n")
    driver = tmp_path / "driver" / "version.info"
    driver.parent.mkdir()
    driver.write_text("Version=25.5.1\nascendhal_version=7.35.23\n")
    cann, hdk = cann_version(tmp_path), driver_version(tmp_path)
    assert cann
    assert hdk
    assert (cann.version, cann.file, hdk.version) == ("9.1.0", toolkit, "25.5.1")


def test_an_older_layout_of_cann_is_read_too(tmp_path: Path) -> None:
    file = tmp_path / "ascend-toolkit" / "latest" / "version.cfg"
    file.parent.mkdir(parents=True)
    file.write_text("# version: 1.0\nruntime_running_version=[7.7.0.1.231:8.5.1]\n")
    found = cann_version(tmp_path)
    assert found
    assert found.version == "8.5.1"


def test_a_machine_without_them_has_none(tmp_path: Path) -> None:
    assert cann_version(tmp_path) is None
    assert driver_version(tmp_path) is None
