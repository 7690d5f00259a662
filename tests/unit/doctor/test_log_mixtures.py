"""However logs reach us (through collectors, mixed, cut, with odd bytes), the same is made of them."""

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kveik.doctor.log_line import Level, read_line
from tests.log_samples import CLEAN, DICTIONARY, FAULTY, causes, ranked, ranked_file, scanned

ALL = [*CLEAN, *FAULTY]


def lines(log: Path) -> list[str]:
    return log.read_text(encoding="utf8").splitlines()


def told(*of: str) -> tuple[list[str], list[str]]:
    found = ranked(*of)
    return causes(found), [group.first.text for group in found.unknown]


@pytest.mark.parametrize("log", ALL, ids=lambda path: path.stem)
def test_a_log_through_compose_is_told_as_the_log_itself(log: Path) -> None:
    assert told(*(f"engine-1  | {line}" for line in lines(log) if line)) == told(*filter(None, lines(log)))


@pytest.mark.parametrize("log", ALL, ids=lambda path: path.stem)
def test_a_log_with_the_ends_of_lines_of_another_system_is_told_alike(log: Path) -> None:
    assert told(*(f"{line}\r\n" for line in lines(log))) == told(*lines(log))


@pytest.mark.parametrize("log", FAULTY, ids=lambda path: path.stem)
def test_a_log_that_was_written_again_and_again_has_the_same_causes(log: Path) -> None:
    once, thrice = ranked_file(log), ranked(*lines(log) * 3)
    assert causes(thrice) == causes(once)
    assert [finding.group.count for finding in thrice.findings if not finding.because_of] == [
        3 * finding.group.count for finding in once.findings if not finding.because_of
    ]


@pytest.mark.parametrize("log", FAULTY, ids=lambda path: path.stem)
def test_a_fault_is_found_among_the_lines_of_engines_that_are_well(log: Path) -> None:
    """Lines of two processes in one file, woven at random but each in its own order."""
    shuffler = random.Random(7)
    faulty, clean = lines(log), [f"other | {line}" for line in lines(CLEAN[0]) if line]
    woven = []
    while faulty or clean:
        source = faulty if shuffler.random() * (len(faulty) + len(clean)) < len(faulty) else clean
        woven.append(source.pop(0))
    assert set(causes(ranked_file(log))) <= set(causes(ranked(*woven)))


def test_all_clean_logs_in_one_file_claim_nothing() -> None:
    found = ranked(*(line for log in CLEAN for line in lines(log)))
    assert not found.has_trouble


@pytest.mark.parametrize(
    "before",
    [
        "ERROR 11-30 01:00:22 [core.py:133] ",
        "(Worker_TP0_EP0 pid=12) ERROR 11-30 01:00:22 [core.py:133] ",
        "E1130 03:22:48.287541 20616 a.cpp:1] ",
        "2026-11-30 01:29:24,001 ERROR some.logger: ",
        "[ERROR] 2026-11-30-01:29:24 (PID:12, Device:0, RankID:-1) ",
        "[rank0]: ",
        "node-7  | ",
    ],
)
def test_an_entry_is_found_behind_any_logger(before: str) -> None:
    """Except for entries that are known by their own logger's form."""
    missed = []
    for entry in DICTIONARY:
        text = read_line(entry.sample).text
        found = DICTIONARY.find(read_line(before + text))
        if found != entry and entry.pattern[:1] != "^":
            missed.append(entry.id)
    assert missed == []


@given(st.lists(st.text(max_size=200), max_size=30))
@settings(max_examples=60, deadline=None)
def test_any_text_is_read_without_an_error_and_every_line_is_counted(texts: list[str]) -> None:
    scan = scanned(*texts)
    assert scan.lines == len(texts)
    total = sum(group.count for group in [*scan.found.values(), *scan.unknown.values()])
    assert total <= len(texts)


@given(st.text(max_size=300))
@settings(max_examples=60, deadline=None)
def test_what_is_marked_as_information_is_never_an_unknown_fault(text: str) -> None:
    line = f"INFO 11-30 01:00:22 [a.py:1] {text}"
    assert read_line(line).level is Level.INFO or "\r" in text or "\n" in text or "\x1b" in text
    if "Traceback" not in text and "\r" not in text:
        assert scanned(line).unknown == {}
