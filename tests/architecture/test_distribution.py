"""What a user installs: a small wheel, few dependencies, entry points that lead somewhere."""

import ast
import email
import subprocess
import sys
import zipfile
from configparser import ConfigParser
from email.message import Message
from pathlib import Path

import pytest

import kveik

ROOT = Path(__file__).resolve().parents[2]
CORE_DEPENDENCIES = {"msgspec", "numpy", "prometheus-client", "psutil", "rich", "xxhash"}
BUILD = "import sys; from hatchling.build import build_wheel; print(build_wheel(sys.argv[1]))"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-c", BUILD, str(folder)]
    built = subprocess.run(build, cwd=ROOT, check=True, capture_output=True, text=True)
    return zipfile.ZipFile(folder / built.stdout.split()[-1])


def part(wheel: zipfile.ZipFile, name: str) -> str:
    return wheel.read(f"kveik-{kveik.__version__}.dist-info/{name}").decode()


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    return email.message_from_string(part(wheel, "METADATA"))


def test_installing_kveik_brings_only_the_small_core_dependencies(metadata: Message) -> None:
    required = [str(value) for value in metadata.get_all("Requires-Dist") or []]
    core = {value.split(">")[0].strip() for value in required if "extra ==" not in value}
    assert core == CORE_DEPENDENCIES


def test_no_extra_asks_for_torch_or_vllm_since_they_come_with_the_engine(metadata: Message) -> None:
    required = " ".join(str(value) for value in metadata.get_all("Requires-Dist") or [])
    assert "torch" not in required
    assert "vllm" not in required


def test_the_wheel_states_version_license_and_pythons(metadata: Message) -> None:
    assert metadata["Version"] == kveik.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == "<3.14,>=3.11"


def test_the_wheel_holds_the_package_with_its_type_marker_and_no_tests(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    tops = {name.partition("/")[0] for name in names}
    assert tops == {"kveik", f"kveik-{kveik.__version__}.dist-info"}
    assert "kveik/py.typed" in names


def test_the_wheel_holds_the_files_of_the_dashboard(wheel: zipfile.ZipFile) -> None:
    folder = "src/kveik/router/dashboard_page"
    files = {f"kveik/router/dashboard_page/{file.name}" for file in (ROOT / folder).iterdir()}
    assert files <= set(wheel.namelist())


def test_the_wheel_holds_what_the_doctor_knows(wheel: zipfile.ZipFile) -> None:
    files = {f"kveik/doctor/data/{file.name}" for file in (ROOT / "src" / "kveik" / "doctor" / "data").iterdir()}
    assert len(files) >= 2
    assert files <= set(wheel.namelist())


@pytest.mark.parametrize("group", ["console_scripts", "vllm.general_plugins"])
def test_entry_points_lead_to_functions_that_exist(wheel: zipfile.ZipFile, group: str) -> None:
    entry_points = ConfigParser(delimiters=("=",))
    entry_points.read_string(part(wheel, "entry_points.txt"))
    module, _, function = entry_points[group]["kveik"].partition(":")
    source = (ROOT / "src").joinpath(*module.split(".")).with_suffix(".py").read_text(encoding="utf8")
    assert function in {node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("lock", sorted((ROOT / "requirements").glob("*.lock.txt")), ids=lambda path: path.name)
def test_lock_files_pin_every_package_exactly_and_hold_all_that_kveik_needs(lock: Path) -> None:
    pins = [line for line in lock.read_text(encoding="utf8").splitlines() if line and not line.startswith("#")]
    assert [pin for pin in pins if pin.count("==") != 1 or "+" in pin or " " in pin] == []
    names = [pin.split("==")[0].lower().replace("_", "-") for pin in pins]
    assert len(set(names)) == len(names)
    assert set(names) >= CORE_DEPENDENCIES
    assert {"torchvision", "torchaudio", "torchcodec"} & set(names) == set()
