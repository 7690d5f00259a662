import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kveik.clock import FakeClock
from kveik.errors import ConfigError
from kveik.router import access_log
from kveik.router.access_log import TEXT_MAX, AccessLog
from kveik.router.facts import RequestFacts
from kveik.router.records import RequestRecord

any_text = st.text(st.characters(exclude_categories=[]), max_size=40)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "access.log"


def lines_of(log: AccessLog, *records: RequestRecord) -> list[dict[str, Any]]:
    for record in records:
        log(record)
    return [json.loads(line) for line in (log.take() or b"").splitlines()]


def test_a_line_tells_what_became_of_a_request(path: Path) -> None:
    log = AccessLog(str(path), FakeClock(1_790_000_000.25))
    record = RequestRecord(
        "id-1", "POST", "/v1/completions", model="m", engine="e", key_name="team", reason="prefix", status=200,
        expected_cached_tokens=64, cached_tokens=48, first_byte_s=0.25,
    )  # fmt: skip
    (line,) = lines_of(log, record)
    assert line["time"] == "2026-09-21T14:13:20.250Z"
    assert (line["request_id"], line["engine"], line["reason"], line["outcome"]) == ("id-1", "e", "prefix", "ok")
    assert (line["expected_cached_tokens"], line["cached_tokens"], line["first_byte_s"]) == (64, 48, 0.25)
    assert next(iter(line)) == "time"


def test_times_move_on_within_and_beyond_a_second(path: Path) -> None:
    clock = FakeClock(1_790_000_000.75)
    log = AccessLog(str(path), clock)
    log(RequestRecord("a", "GET", "/"))
    clock.advance(0.125)
    log(RequestRecord("b", "GET", "/"))
    clock.advance(0.5)
    log(RequestRecord("c", "GET", "/"))
    seconds = [line["time"][17:] for line in lines_of(log)]
    assert seconds == ["20.750Z", "20.875Z", "21.375Z"]


@given(any_text, any_text, any_text, any_text)
def test_nothing_that_clients_choose_breaks_out_of_its_line(path_text: str, model: str, why: str, method: str) -> None:
    log = AccessLog("-")
    log(RequestRecord("id", method, path_text, model=model, why=why))
    written = log.take()
    assert written is not None
    assert written.isascii()
    assert not any(byte < 0x20 for byte in written[:-1])
    assert written.endswith(b"}\n")
    line = json.loads(written)
    assert line["outcome"] == "ok"
    assert [*line] == ["time", *(field.name for field in dataclasses.fields(RequestRecord)[:-1])]


def test_line_ends_of_any_alphabet_are_escaped(path: Path) -> None:
    log = AccessLog(str(path))
    model = 'a\n{"model":"b"}\r\u2028\u2029\x85\x1b[31m'
    log(RequestRecord("id", "POST", "/", model=model))
    written = log.take()
    assert written is not None
    assert len(written.decode().splitlines()) == 1
    assert json.loads(written)["model"] == model


def test_half_a_surrogate_pair_is_written_as_a_question_mark(path: Path) -> None:
    (line,) = lines_of(AccessLog(str(path)), RequestRecord("id", "POST", "/", model="a\ud83d"))
    assert line["model"] == "a?"


def test_queries_are_left_out_and_long_texts_cut(path: Path) -> None:
    record = RequestRecord("id", "GET", "/v1/models?api_key=secret", model="m" * 9999, why="w" * 9999)
    (line,) = lines_of(
        AccessLog(str(path)),
        record,
    )
    assert line["path"] == "/v1/models"
    assert (len(line["model"]), len(line["why"])) == (TEXT_MAX, TEXT_MAX)
    (line,) = lines_of(AccessLog(str(path)), RequestRecord("id", "GET", "/" + "p" * 9999))
    assert len(line["path"]) == TEXT_MAX
    assert record.path == "/v1/models?api_key=secret", "other listeners get the whole record"


def test_what_a_body_told_is_no_part_of_a_line(path: Path) -> None:
    record = RequestRecord("id", "POST", "/", model="模型", facts=RequestFacts(session="private"))
    (line,) = lines_of(AccessLog(str(path)), record)
    assert "private" not in str(line)
    assert "facts" not in line
    assert record.facts is not None


def test_lines_are_appended_and_a_rotated_file_is_begun_anew(path: Path) -> None:
    log = AccessLog(str(path))
    for name in "ab":
        log(RequestRecord(name, "GET", "/"))
        log.write(log.take() or b"")
    path.rename(path.with_suffix(".1"))
    log(RequestRecord("c", "GET", "/"))
    log.write(log.take() or b"")
    ids = [[json.loads(line)["request_id"] for line in file.read_bytes().splitlines()]
           for file in (path.with_suffix(".1"), path)]  # fmt: skip
    assert ids == [["a", "b"], ["c"]]
    assert log.take() is None


def test_lines_can_go_to_standard_error(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    log = AccessLog("-")
    log(RequestRecord("a", "GET", "/"))
    log.write(log.take() or b"")
    assert json.loads(capfdbinary.readouterr().err)["request_id"] == "a"


def test_lines_that_cannot_be_kept_or_written_are_counted(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_log, "LINES_MAX", 3)
    log = AccessLog(str(path))
    for _ in range(5):
        log(RequestRecord("a", "GET", "/"))
    assert log.dropped == 2
    lines = log.take()
    assert lines is not None
    log.not_written(lines)
    assert log.dropped == 5
    assert "dropped=5" in repr(log)


def test_a_path_that_cannot_be_written_is_refused_at_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot write the access log"):
        AccessLog(str(tmp_path / "no" / "folder" / "access.log"))


def test_an_unwritable_disk_is_an_error_of_the_system(path: Path) -> None:
    log = AccessLog(str(path))
    path.unlink()
    path.mkdir()
    with pytest.raises(OSError, match=os.strerror(21)):
        log.write(b"x\n")
