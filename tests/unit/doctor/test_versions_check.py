"""``kveik doctor versions`` on a real environment, and on one that was patched."""

import subprocess
import sys
from pathlib import Path

import pytest

from kveik.doctor.check import Context, Outcome, Verdict
from kveik.doctor.versions_check import check_versions


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """An interpreter of its own, with a small package that calls itself LMCache 0.5.6."""
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    (site,) = venv.glob("lib/python*/site-packages")
    (site / "lmcache").mkdir()
    (site / "lmcache" / "__init__.py").write_text("")
    info = site / "lmcache-0.5.6.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lmcache\nVersion: 0.5.6\n")
    empty = "47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU"  # SHA-256 of nothing
    (info / "RECORD").write_text(f"lmcache/__init__.py,sha256={empty},0\n")
    return venv / "bin" / "python"


def looked(python: Path | str, pasted: str | None = None) -> Verdict:
    return check_versions(Context(str(python), {}, pasted, ascend=Path("/nonexistent")))


def test_a_package_as_delivered_is_well(python: Path) -> None:
    verdict = looked(python)
    assert "LMCache 0.5.6" in verdict.evidence
    assert verdict.outcome is Outcome.WELL


def test_a_patched_package_is_wrong_and_its_files_are_named(python: Path) -> None:
    (package,) = python.parents[1].glob("lib/python*/site-packages/lmcache")
    for number in range(12):
        (package / f"fix{number:02}.py").write_text("x = 1\n")
    (package / "__init__.py").write_text("import lmcache.fix01\n")
    verdict = looked(python)
    (point,) = [point for point in verdict.points if point.outcome is Outcome.WRONG]
    assert "1 changed: lmcache/__init__.py" in point.told
    assert "12 added: lmcache/fix00.py" in point.told
    assert "and 2 more" in point.told
    assert "take the release" in point.remedy


def test_a_hook_that_changes_vllm_while_it_is_imported_is_told(python: Path) -> None:
    (site,) = python.parents[1].glob("lib/python*/site-packages")
    (site / "ucm_patch.pth").write_text("# a hook would stand here\n")
    (point,) = [point for point in looked(python).points if point.about == "ucm_patch.pth"]
    assert point.outcome is Outcome.BEWARE
    assert "is changed by UCM whenever Python starts" in point.told


def test_cann_and_driver_of_the_machine_are_judged_with_the_packages(python: Path, tmp_path: Path) -> None:
    toolkit = tmp_path / "ascend-toolkit" / "latest" / "x86_64-linux" / "ascend_toolkit_install.info"
    toolkit.parent.mkdir(parents=True)
    toolkit.write_text("version=9.1.0\n")
    (site,) = python.parents[1].glob("lib/python*/site-packages")
    info = site / "uc_manager_cann920_a3-0.9.0rc2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: uc-manager-cann920-a3\nVersion: 0.9.0rc2\n")
    verdict = check_versions(Context(str(python), {}, ascend=tmp_path))
    assert "CANN 9.1.0" in verdict.evidence
    assert [point.about for point in verdict.points if point.outcome is Outcome.WRONG] == [
        "UCM build for CANN 9.2.0 with CANN 9.1.0"
    ]


def test_what_is_pasted_is_judged_instead_of_this_machine() -> None:
    verdict = looked("/nonexistent", "vllm-ascend 0.30.0rc2\nvllm 0.32.0\n")
    assert verdict.outcome is Outcome.WRONG
    assert verdict.evidence[0].startswith("vllm-ascend 0.30.0rc2 (The same Python code")


def test_a_list_of_other_things_is_unknown() -> None:
    (point,) = looked("/nonexistent", "requests 2.0\n").points
    assert point.outcome is Outcome.UNKNOWN
    assert "--from" in point.remedy


def test_this_environment_has_no_fault() -> None:
    assert looked(sys.executable).outcome is not Outcome.WRONG
