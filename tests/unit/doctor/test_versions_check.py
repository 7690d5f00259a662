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
