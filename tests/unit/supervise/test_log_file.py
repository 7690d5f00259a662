"""Logs stay within a size while processes write them."""

from pathlib import Path

from kveik.supervise.log_file import LogTail, last_lines, set_aside_if_large, size_of, text_since


def test_a_log_is_set_aside_at_its_size_and_its_writer_goes_on(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    with log.open("ab", buffering=0) as writer:
        writer.write(b"x" * 100)
        assert not set_aside_if_large(log, 100)
        writer.write(b"y")
        assert set_aside_if_large(log, 100)
        writer.write(b"after")
    assert log.read_bytes() == b"after"
    assert (tmp_path / "a.log.1").read_bytes() == b"x" * 100 + b"y"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.log", "a.log.1"]


def test_only_one_older_log_is_kept(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    for text in ("first", "second"):
        log.write_text(text)
        assert set_aside_if_large(log, 1)
    assert (tmp_path / "a.log.1").read_text() == "second"


def test_a_log_that_is_not_there_or_cannot_be_set_aside_is_no_trouble(tmp_path: Path) -> None:
    assert not set_aside_if_large(tmp_path / "none.log", 1)
    assert size_of(tmp_path / "none.log") == 0
    assert text_since(tmp_path / "none.log", 0) == ""
    (tmp_path / "b.log").write_text("long")
    (tmp_path / "b.log.1.part").mkdir()
    assert not set_aside_if_large(tmp_path / "b.log", 1)
    assert (tmp_path / "b.log").read_text() == "long"


def test_text_since_an_offset_is_of_this_run_alone(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("old run\n")
    offset = size_of(log)
    with log.open("a") as file:
        file.write("new run\n")
    assert text_since(log, offset) == "new run\n"
    log.write_text("set aside\n"[:4])
    assert text_since(log, offset) == "set "


def test_the_last_lines_of_a_log_are_shown(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    assert last_lines(log, 2) == ""
    log.write_text("one\ntwo\nthree\n")
    assert last_lines(log, 2) == "two\nthree"
    assert last_lines(log, 0) == ""


def test_a_tail_gives_whole_lines_as_they_come_also_after_the_log_was_set_aside(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("before\n")
    tail = LogTail(log)
    with log.open("a") as file:
        file.write("first\nhal")
    assert tail.news() == "first"
    assert tail.news() == ""
    with log.open("a") as file:
        file.write("f\n")
    assert tail.news() == "half"
    log.write_text("x\n")
    assert tail.news() == "x"
    log.unlink()
    assert tail.news() == ""
