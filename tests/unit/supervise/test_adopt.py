"""What one supervisor leaves to the next."""

from pathlib import Path

import pytest

from kveik.engine.group import ProcessId
from kveik.errors import SuperviseError
from kveik.supervise.adopt import KeptRecord, forget_estate, read_estate, write_estate

RECORD = KeptRecord(
    name="engine-1",
    kind="engine",
    process=ProcessId(10, 20, "boot"),
    digest="d",
    log="/l",
    ready=True,
    tethered=False,
    variant=1,
    degraded="mode auto did not start: no room",
)


def test_what_is_written_reads_back(tmp_path: Path) -> None:
    file = tmp_path / "supervisor.json"
    write_estate(file, [RECORD])
    assert read_estate(file) == (RECORD,)
    assert file.stat().st_mode & 0o777 == 0o600
    write_estate(file, [])
    assert read_estate(file) == ()
    assert [path.name for path in tmp_path.iterdir()] == ["supervisor.json"]


def test_where_nothing_was_left_there_is_nothing(tmp_path: Path) -> None:
    assert read_estate(tmp_path / "none.json") == ()
    forget_estate(tmp_path / "none.json")


def test_an_orderly_end_leaves_no_file(tmp_path: Path) -> None:
    file = tmp_path / "supervisor.json"
    write_estate(file, [RECORD])
    forget_estate(file)
    assert not file.exists()


@pytest.mark.parametrize(
    ("text", "told"),
    [("{", "is damaged"), ('{"parts": [{"name": 1}]}', "is damaged"), ('{"format": 2}', "is of format 2, expected 1")],
)
def test_a_file_that_is_not_understood_stops_the_start(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "supervisor.json"
    file.write_text(text)
    with pytest.raises(SuperviseError, match=told):
        read_estate(file)


def test_a_file_that_cannot_be_read_or_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(SuperviseError, match=r"cannot read .*folder: Is a directory"):
        read_estate(tmp_path / "folder")
    with pytest.raises(SuperviseError, match=r"cannot write .*none"):
        write_estate(tmp_path / "none" / "supervisor.json", [RECORD])
