import json
import logging
import multiprocessing
from pathlib import Path

import pytest

from kveik.clock import FakeClock
from kveik.records import LookupRecord, StateRecord
from kveik.telemetry.events import Event, EventLog, EventTail, last_events, read_events


def log_in(folder: Path, bytes_max: int = 1 << 20, **given: object) -> EventLog:
    return EventLog(folder / "events.jsonl", bytes_max=bytes_max, node="n0", **given)  # type: ignore[arg-type]


def told(folder: Path, since_s: float = 0.0) -> list[str]:
    return [event.told for event in read_events(folder / "events.jsonl", since_s)]


def test_an_event_is_one_line_of_json_and_is_read_as_it_was_told(tmp_path: Path) -> None:
    clock = FakeClock(1_790_000_000.0)
    event = log_in(tmp_path, clock=clock).tell("isolated", "engine-1", "it is hung", silent_s=12.5, tries=3)
    (line,) = (tmp_path / "events.jsonl").read_text().splitlines()
    assert json.loads(line) == {
        "at_s": 1_790_000_000.0,
        "kind": "isolated",
        "part": "engine-1",
        "told": "it is hung",
        "node": "n0",
        "fields": {"silent_s": 12.5, "tries": 3},
    }
    assert list(read_events(tmp_path / "events.jsonl")) == [event]


def test_a_line_for_people_says_when_what_and_of_which_part() -> None:
    line = Event(at_s=1_790_000_000.0, kind="x", part="engine-1", told="it is hung").line
    assert line.endswith("  engine-1: it is hung")
    assert line.startswith("2026-09-2")


def test_text_of_several_lines_becomes_one_and_long_text_is_cut(tmp_path: Path) -> None:
    event = log_in(tmp_path).tell("x", "p", "first\nsecond " + "z" * 5000)
    assert event.told.startswith("first second zzz")
    assert len(event.told) == 2000


def test_secrets_are_hidden_in_words_and_fields(tmp_path: Path) -> None:
    log_in(tmp_path).tell("x", "p", "refused: Bearer abcdefgh", command="serve --api-key hunter2")
    text = (tmp_path / "events.jsonl").read_text()
    assert "abcdefgh" not in text
    assert "hunter2" not in text


def test_the_file_is_bounded_and_the_newest_events_stay(tmp_path: Path) -> None:
    log = log_in(tmp_path, bytes_max=4000)
    for number in range(500):
        log.tell("x", "p", f"event {number}")
    files = list(tmp_path.glob("events.jsonl*"))
    assert sum(file.stat().st_size for file in files) <= 4000
    read = told(tmp_path)
    assert len(read) > 10
    assert read == [f"event {number}" for number in range(500 - len(read), 500)]


def test_only_this_user_can_read_them(tmp_path: Path) -> None:
    log_in(tmp_path).tell("x", "p", "t")
    assert {file.stat().st_mode & 0o077 for file in tmp_path.iterdir()} == {0}


def test_a_torn_line_is_left_out_and_the_next_one_is_whole(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    log.tell("x", "p", "one")
    with (tmp_path / "events.jsonl").open("ab") as file:
        file.write(b'{"at_s": 1.0, "kind": "x", "pa')
    log.tell("x", "p", "two")
    assert told(tmp_path) == ["one", "two"]


def test_events_since_a_time(tmp_path: Path) -> None:
    clock = FakeClock(100.0)
    log = log_in(tmp_path, clock=clock)
    log.tell("x", "p", "early")
    clock.advance(10.0)
    log.tell("x", "p", "late")
    assert told(tmp_path, since_s=105.0) == ["late"]


def test_the_last_events(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    for number in range(20):
        log.tell("x", "p", str(number))
    assert [event.told for event in last_events(log.path, 3)] == ["17", "18", "19"]
    assert last_events(log.path, 0) == ()
    assert last_events(tmp_path / "none", 3) == ()


def test_a_change_of_state_becomes_an_event_and_other_records_do_not(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    log(StateRecord("router", "starting", "ready", "it answers"))
    log(StateRecord("agent", "ready", "stopped", ""))
    log(LookupRecord("arena", 1, 1, 0.1))
    assert told(tmp_path) == ["starting -> ready: it answers", "ready -> stopped"]


def test_listeners_are_told_and_the_log_has_a_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    heard: list[Event] = []
    event = log_in(tmp_path, listener=heard.append).tell("x", "p", "t")
    assert heard == [event]
    assert caplog.messages == ["p: t"]


def test_a_file_that_cannot_be_written_stops_nobody_and_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = EventLog(tmp_path / "gone" / "events.jsonl", bytes_max=1000)
    log.tell("x", "p", "one")
    log.tell("x", "p", "two")
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 1
    (tmp_path / "gone").mkdir()
    log.tell("x", "p", "three")
    assert [event.told for event in read_events(log.path)] == ["three"]


def write_many(path: Path, writer: int) -> None:
    log = EventLog(path, bytes_max=40_000)
    for number in range(200):
        log.tell("x", f"w{writer}", f"{number}")


def test_several_processes_write_one_file_and_no_line_is_torn(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    spawn = multiprocessing.get_context("fork")
    writers = [spawn.Process(target=write_many, args=(path, number)) for number in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(30)
        assert writer.exitcode == 0
    lines = path.read_bytes() + path.with_name("events.jsonl.1").read_bytes()
    for line in lines.splitlines():
        json.loads(line)
    for number in range(3):
        mine = [int(event.told) for event in read_events(path) if event.part == f"w{number}"]
        assert mine == sorted(mine)
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 40_000


def test_a_tail_gives_what_is_new_also_when_the_file_is_set_aside(tmp_path: Path) -> None:
    log = log_in(tmp_path, bytes_max=2000)
    log.tell("x", "p", "before")
    tail = EventTail(log.path)
    assert tail.news() == []
    seen = []
    for number in range(60):
        log.tell("x", "p", str(number))
        if number % 3 == 0:
            seen += [event.told for event in tail.news()]
    seen += [event.told for event in tail.news()]
    assert seen == [str(number) for number in range(60)]


def test_a_tail_waits_for_a_file_that_is_not_there_yet_and_for_the_end_of_a_line(tmp_path: Path) -> None:
    tail = EventTail(tmp_path / "events.jsonl")
    assert tail.news() == []
    line = b'{"at_s": 1.0, "kind": "x", "part": "p", "told": "t"}\n'
    with (tmp_path / "events.jsonl").open("ab", buffering=0) as file:
        file.write(line[:20])
        assert tail.news() == []
        file.write(line[20:])
    assert [event.told for event in tail.news()] == ["t"]
