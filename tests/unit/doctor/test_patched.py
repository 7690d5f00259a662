"""Files that somebody changed by hand are found by the package's own record."""

import base64
import hashlib
import json
from pathlib import Path

import pytest

from kveik.doctor.patched import look_for_patches


@pytest.fixture
def info(tmp_path: Path) -> Path:
    """A package of three files, as pip would have installed it."""
    folder = tmp_path / "pool-1.0.dist-info"
    folder.mkdir()
    rows = []
    for name in ("pool/__init__.py", "pool/hit.py", "pool/data.json"):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"# {name}\n")
        digest = base64.urlsafe_b64encode(hashlib.sha256(file.read_bytes()).digest()).decode().rstrip("=")
        rows.append(f"{name},sha256={digest},{file.stat().st_size}")
    rows += ["pool-1.0.dist-info/RECORD,,", "../../../bin/pool,,"]
    (folder / "RECORD").write_text("\n".join(rows) + "\n")
    return folder


def test_a_package_as_it_was_delivered_is_not_patched(info: Path) -> None:
    look = look_for_patches(info)
    assert not look.is_patched
    assert look.files == 2


def test_changed_removed_and_added_files_are_named(info: Path) -> None:
    root = info.parent
    (root / "pool" / "hit.py").write_text("UNIT = 32  # was 128\n")
    (root / "pool" / "__init__.py").unlink()
    (root / "pool" / "mine").mkdir()
    (root / "pool" / "mine" / "fix.py").write_text("x = 1\n")
    look = look_for_patches(info)
    assert look.is_patched
    assert (look.changed, look.missing, look.added) == (("pool/hit.py",), ("pool/__init__.py",), ("pool/mine/fix.py",))


def test_what_is_no_code_does_not_count(info: Path) -> None:
    (info.parent / "pool" / "data.json").write_text("{}")
    (info.parent / "pool" / "__pycache__").mkdir()
    (info.parent / "pool" / "__pycache__" / "hit.cpython-311.pyc").write_bytes(b"x")
    assert not look_for_patches(info).is_patched


def test_where_there_is_nothing_to_compare_with_it_says_why(info: Path) -> None:
    (info / "direct_url.json").write_text(json.dumps({"url": "file:///x", "dir_info": {"editable": True}}))
    assert look_for_patches(info).why_not == "it is installed from a source folder"
    (info / "direct_url.json").write_text(json.dumps({"url": "https://x/x.whl", "archive_info": {}}))
    assert look_for_patches(info).why_not == ""
    (info / "RECORD").unlink()
    assert look_for_patches(info).why_not == "it has no record of its files"
