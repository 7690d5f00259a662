"""Logs are read in bounded pieces, also while they grow."""

import io
import os
from pathlib import Path

from kveik.doctor.log_file import GrowingLog, lines_of


def test_a_file_is_read_line_by_line_whatever_its_bytes() -> None:
    assert list(lines_of(io.BytesIO(b"one\n\xff\xfe\ntwo"))) == ["one\n", "\ufffd\ufffd\n", "two"]


def test_the_rest_of_a_very_long_line_is_skipped() -> None:
    lines = list(lines_of(io.BytesIO(b"x" * 300_000 + b"\nnext\n")))
    assert [len(line) for line in lines] == [65536, 5]
    assert [len(line) for line in lines_of(io.BytesIO(b"x" * 300_000))] == [65536]


def test_a_growing_file_gives_whole_lines_only(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text("one\ntw")
    log = GrowingLog(path)
    assert list(log.news()) == ["one\n"]
    with path.open("a") as file:
        file.write("o\n")
    assert list(log.news()) == ["two\n"]
    assert list(log.news()) == []
    log.close()


def test_a_file_that_is_cut_or_replaced_is_read_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text("one\ntwo\n")
    log = GrowingLog(path)
    assert len(list(log.news())) == 2
    os.truncate(path, 0)
    path.write_text("new\n")
    assert list(log.news()) == ["new\n"]
    other = tmp_path / "y.log"
    other.write_text("newer and longer\n")
    other.replace(path)
    assert list(log.news()) == ["newer and longer\n"]
    path.unlink()
    assert list(log.news()) == []
    log.close()
